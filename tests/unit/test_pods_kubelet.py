"""The kubelet's pod list over real HTTPS, answered by a server in this process."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from koordlet.pods.kubelet import EMPTY_LISTS_DOUBTED, KubeletClient, KubeletEndpoint
from koordlet.pods.source import SourceError

FIXTURES = Path(__file__).parents[1] / "fixtures"
TLS = FIXTURES / "tls"
CAPTURED = (FIXTURES / "captured/kubelet-pods-v1-cgroupfs.json").read_bytes()
TOKEN = "abc.def.ghi"
Answer = Callable[[BaseHTTPRequestHandler], None]


def body(content: bytes, status: int = 200) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def pods(*names: str, phase: str = "Running") -> bytes:
    items: list[Any] = [
        {
            "metadata": {"name": name, "uid": f"uid-{name}"},
            "spec": {"containers": [{"name": "main"}]},
            "status": {"phase": phase},
        }
        for name in names
    ]
    return json.dumps({"items": items}).encode()


class Kubelet:
    """An HTTPS server that answers GET /pods in a chosen way and remembers who asked."""

    def __init__(self, *, tls: bool = True, wants_client_cert: bool = False) -> None:
        self.answer: Answer = body(CAPTURED)
        self.tokens: list[str | None] = []
        self.paths: list[str] = []
        kubelet = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                kubelet.paths.append(self.path)
                kubelet.tokens.append(self.headers.get("Authorization"))
                kubelet.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                return

        class Server(HTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                return  # clients of these tests break off on purpose

        self.server = Server(("127.0.0.1", 0), Handler)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS / "kubelet.pem", TLS / "kubelet.key")
            if wants_client_cert:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(TLS / "ca.pem")
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self.thread.start()

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def kubelet() -> Iterator[Kubelet]:
    with closing(Kubelet()) as server:
        yield server


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path


@pytest.fixture
def endpoint(kubelet: Kubelet, token_file: Path) -> KubeletEndpoint:
    return KubeletEndpoint(
        port=kubelet.port,
        server_name="n1",
        ca_files=(str(TLS / "ca.pem"),),
        token_file=str(token_file),
        timeout_s=5,
    )


def failure(endpoint: KubeletEndpoint) -> Any:
    with pytest.raises(SourceError) as caught:
        KubeletClient(endpoint).list_records()
    problem = caught.value.problem
    assert problem.where == endpoint.url
    assert problem.remedy
    return problem


def test_H13_list_with_token_and_checked_certificate(
    kubelet: Kubelet, endpoint: KubeletEndpoint
) -> None:
    records = KubeletClient(endpoint).list_records()
    assert {record.name for record in records} >= {"ls-web-n1", "lsr-db-n1"}
    assert kubelet.tokens == [f"Bearer {TOKEN}"]
    assert kubelet.paths == ["/pods"]


def test_token_is_read_again_when_it_rotates(
    kubelet: Kubelet, endpoint: KubeletEndpoint, token_file: Path
) -> None:
    client = KubeletClient(endpoint)
    client.list_records()
    token_file.write_text("second")
    client.list_records()
    assert kubelet.tokens == [f"Bearer {TOKEN}", "Bearer second"]


def test_client_certificate() -> None:
    with closing(Kubelet(wants_client_cert=True)) as server:
        endpoint = KubeletEndpoint(
            port=server.port, server_name="n1", ca_files=(str(TLS / "ca.pem"),)
        )
        known = replace(endpoint, client_cert_file=str(TLS / "client.pem"))
        assert KubeletClient(known).list_records()
        assert server.tokens == [None]
        assert failure(endpoint).code in ("kubelet-tls", "kubelet-unreachable")


def test_serving_certificate_itself_may_be_trusted(endpoint: KubeletEndpoint) -> None:
    pinned = replace(endpoint, ca_files=(str(TLS / "kubelet.pem"),))
    assert KubeletClient(pinned).list_records()


def test_certificate_of_another_authority_is_refused(
    kubelet: Kubelet, endpoint: KubeletEndpoint
) -> None:
    problem = failure(replace(endpoint, ca_files=(str(TLS / "other-ca.pem"),)))
    assert problem.code == "kubelet-tls"
    assert "other-ca.pem" in problem.limit
    assert kubelet.tokens == []  # the token was not shown


def test_certificate_of_another_node_is_refused(
    kubelet: Kubelet, endpoint: KubeletEndpoint
) -> None:
    problem = failure(replace(endpoint, server_name="n2"))
    assert problem.code == "kubelet-tls"
    assert "'n2'" in problem.limit
    assert kubelet.tokens == []


def test_no_authority_means_no_call(kubelet: Kubelet, endpoint: KubeletEndpoint) -> None:
    assert failure(replace(endpoint, ca_files=())).code == "kubelet-credentials"
    assert kubelet.paths == []


@pytest.mark.parametrize("field", ["ca_files", "token_file", "client_cert_file"])
def test_unreadable_credentials_are_named(
    endpoint: KubeletEndpoint, tmp_path: Path, field: str
) -> None:
    absent = str(tmp_path / "absent.pem")
    values: dict[str, Any] = {field: (absent,) if field == "ca_files" else absent}
    problem = failure(replace(endpoint, **values))
    assert problem.code == "kubelet-credentials"
    assert absent in problem.what


@pytest.mark.parametrize("text", ["", "two words", "line\nbreak"])
def test_token_that_is_none(endpoint: KubeletEndpoint, token_file: Path, text: str) -> None:
    token_file.write_text(text)
    assert failure(endpoint).code == "kubelet-credentials"


def test_POD_10_unauthorized_names_the_remedy(kubelet: Kubelet, endpoint: KubeletEndpoint) -> None:
    kubelet.answer = body(b"Unauthorized", 401)
    problem = failure(endpoint)
    assert problem.code == "kubelet-unauthorized"
    assert "token" in problem.remedy


def test_POD_10_forbidden_names_the_rule(kubelet: Kubelet, endpoint: KubeletEndpoint) -> None:
    kubelet.answer = body(b"Forbidden", 403)
    problem = failure(endpoint)
    assert problem.code == "kubelet-forbidden"
    assert "nodes/proxy" in problem.remedy
    assert "get" in problem.remedy


@pytest.mark.parametrize("status", [302, 404, 500])
def test_other_answers(kubelet: Kubelet, endpoint: KubeletEndpoint, status: int) -> None:
    kubelet.answer = body(b"", status)
    problem = failure(endpoint)
    assert problem.code == "kubelet-answer"
    assert str(status) in problem.what


@pytest.mark.parametrize("content", [b"", b"<html>hello</html>", b'{"items": 1}', b"\x00\xff"])
def test_garbage(kubelet: Kubelet, endpoint: KubeletEndpoint, content: bytes) -> None:
    kubelet.answer = body(content)
    assert failure(endpoint).code == "kubelet-answer"


def test_answer_that_is_no_http(kubelet: Kubelet, endpoint: KubeletEndpoint) -> None:
    def speak(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"SSH-2.0-OpenSSH\r\n\r\n")

    kubelet.answer = speak
    assert failure(endpoint).code == "kubelet-answer"


def test_answer_that_breaks_off(kubelet: Kubelet, endpoint: KubeletEndpoint) -> None:
    def half(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"items": [')

    kubelet.answer = half
    assert failure(endpoint).code in ("kubelet-answer", "kubelet-tls", "kubelet-unreachable")


def test_size_is_bounded(kubelet: Kubelet, endpoint: KubeletEndpoint) -> None:
    problem = failure(replace(endpoint, size_limit_bytes=1000))
    assert problem.code == "kubelet-too-large"
    assert "1000 bytes" in problem.limit


def test_silence_ends_at_the_deadline(kubelet: Kubelet, endpoint: KubeletEndpoint) -> None:
    release = threading.Event()

    def wait(handler: BaseHTTPRequestHandler) -> None:
        release.wait(5)

    kubelet.answer = wait
    assert failure(replace(endpoint, timeout_s=0.1)).code == "kubelet-timeout"
    release.set()


def test_dripping_ends_at_the_deadline(kubelet: Kubelet, endpoint: KubeletEndpoint) -> None:
    stop = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not stop.wait(0.02):
            handler.wfile.write(b" " * 70_000)

    kubelet.answer = drip
    began = time.monotonic()
    assert failure(replace(endpoint, timeout_s=0.3)).code == "kubelet-timeout"
    stop.set()
    assert time.monotonic() - began < 3


def test_nobody_listens(endpoint: KubeletEndpoint) -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        problem = failure(replace(endpoint, port=unused.getsockname()[1]))
    assert problem.code == "kubelet-unreachable"


def test_plain_http_behind_the_tls_port(endpoint: KubeletEndpoint) -> None:
    with closing(Kubelet(tls=False)) as server:
        assert failure(replace(endpoint, port=server.port)).code == "kubelet-tls"


def test_read_only_port_only_where_configured(token_file: Path) -> None:
    with closing(Kubelet(tls=False)) as server:
        endpoint = KubeletEndpoint(read_only_port=server.port, token_file=str(token_file))
        assert KubeletClient(endpoint).list_records()
        assert server.tokens == [None]  # no secret over plain HTTP


def test_unchanged_pods_are_the_same_objects(kubelet: Kubelet, endpoint: KubeletEndpoint) -> None:
    client = KubeletClient(endpoint)
    kubelet.answer = body(pods("a", "b"))
    before = client.list_records()
    kubelet.answer = body(pods("b", "c"))
    after = client.list_records()
    assert [record.name for record in after] == ["b", "c"]
    assert after[0] is before[1]


def test_empty_list_after_running_pods_is_doubted_then_believed(
    kubelet: Kubelet, endpoint: KubeletEndpoint
) -> None:
    client = KubeletClient(endpoint)
    kubelet.answer = body(pods("a"))
    client.list_records()
    kubelet.answer = body(pods())
    for _ in range(EMPTY_LISTS_DOUBTED):
        with pytest.raises(SourceError) as caught:
            client.list_records()
        assert caught.value.problem.code == "kubelet-empty-list"
    assert client.list_records() == ()


def test_doubt_starts_anew_after_a_full_list(kubelet: Kubelet, endpoint: KubeletEndpoint) -> None:
    client = KubeletClient(endpoint)
    for _ in range(EMPTY_LISTS_DOUBTED + 1):
        kubelet.answer = body(pods("a"))
        client.list_records()
        kubelet.answer = body(pods())
        with pytest.raises(SourceError):
            client.list_records()


def test_empty_list_of_an_empty_node_is_plain(kubelet: Kubelet, endpoint: KubeletEndpoint) -> None:
    client = KubeletClient(endpoint)
    kubelet.answer = body(pods())
    assert client.list_records() == ()
    kubelet.answer = body(pods("done", phase="Succeeded"))
    client.list_records()
    kubelet.answer = body(pods())
    assert client.list_records() == ()


def test_odd_pod_is_a_warning(kubelet: Kubelet, endpoint: KubeletEndpoint) -> None:
    kubelet.answer = body(b'{"items": [{}]}')
    client = KubeletClient(endpoint)
    assert client.list_records() == ()
    assert [warning.code for warning in client.warnings] == ["kubelet-odd-pod"]


def test_url_of_an_ipv6_address() -> None:
    assert KubeletEndpoint(host="::1").url == "https://[::1]:10250/pods"
