"""Docker's API through the proxy: hooks for kubelet's containers, bytes for everything else."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hookserver import HookServer, echo, write_server
from tests.support.proxyd import Proxy
from tests.support.rawruntime import RawRuntime
from tests.support.waiting import until

POD = "k8s_POD_web_default_uid-1_0"
MAIN = "k8s_main_web_default_uid-1_2"
LABELS = {
    "io.kubernetes.docker.type": "podsandbox",
    "app": "web",
    "annotation.koordinator.sh/x": "1",
}
Reply = Callable[["Dockerd", socket.socket, str, bytes], None]


class Dockerd:
    """Answers by method and path (without the version); keeps what it was asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[tuple[str, bytes]] = []
        self.answers: dict[str, Reply] = {
            "POST /containers/create": _json_reply(201, {"Id": "new-id"}),
            "GET /containers/json": _json_reply(200, []),
        }
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                outer.serve(self.request)

        self._server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Dockerd:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.path.unlink(missing_ok=True)

    def serve(self, sock: socket.socket) -> None:
        buffer = b""
        while True:
            while b"\r\n\r\n" not in buffer:
                piece = sock.recv(65_536)
                if not piece:
                    return
                buffer += piece
            head, _, buffer = buffer.partition(b"\r\n\r\n")
            lines = head.decode().split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in lines[1:])
            length = int(fields.get("content-length", "0"))
            while len(buffer) < length:
                buffer += sock.recv(65_536)
            body, buffer = buffer[:length], buffer[length:]
            self.seen.append((lines[0], body))
            method, target, _ = lines[0].split(" ")
            path = target.partition("?")[0].removeprefix("/v1.41").removeprefix("/v1.39")
            answer = self.answers.get(f"{method} {path}", _json_reply(404, {"message": "no"}))
            answer(self, sock, target, body)

    def asked(self, start: str) -> list[tuple[str, bytes]]:
        return [(line, body) for line, body in self.seen if line.startswith(start)]


def _json_reply(status: int, document: Any) -> Reply:
    def answer(dockerd: Dockerd, sock: socket.socket, target: str, body: bytes) -> None:
        text = json.dumps(document).encode()
        sock.sendall(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(text)) + text)

    return answer


def _empty_reply(dockerd: Dockerd, sock: socket.socket, target: str, body: bytes) -> None:
    sock.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")


@pytest.fixture(scope="module")
def module_dockerd(module_path: Path) -> Iterator[Dockerd]:
    with Dockerd(module_path / "dockerd.sock") as serving:
        yield serving


@pytest.fixture(scope="module")
def module_proxy(
    module_path: Path, module_runtime: RawRuntime, module_dockerd: Dockerd
) -> Iterator[Proxy]:
    with Proxy(
        module_path / "p",
        module_runtime.socket,
        docker_socket=module_path / "docker.sock",
        docker_endpoint=module_dockerd.path,
    ) as running:
        yield running


@pytest.fixture
def dockerd(module_dockerd: Dockerd) -> Iterator[Dockerd]:
    answers = dict(module_dockerd.answers)
    module_dockerd.seen.clear()
    yield module_dockerd
    module_dockerd.answers = answers


@pytest.fixture
def docker(proxy: Proxy, dockerd: Dockerd, module_path: Path) -> Iterator[socket.socket]:
    """A connection of a client."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(module_path / "docker.sock"))
        yield sock


@pytest.fixture
def hooks(short_path: Path, proxy: Proxy) -> Iterator[HookServer]:
    with HookServer(short_path / "h.sock") as server:
        write_server(proxy.hooks_dir, "h", server.socket)
        yield server


def ask(sock: socket.socket, line: str, body: bytes = b"") -> tuple[int, bytes]:
    head = f"{line} HTTP/1.1\r\nHost: docker\r\nContent-Length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
    return answer_of(sock)


def answer_of(sock: socket.socket) -> tuple[int, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(1)
        assert piece, "closed before an answer"
        data += piece
    head = data.decode().lower()
    length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or "0")
    body = b""
    while len(body) < length:
        body += sock.recv(length - len(body))
    return int(head.split(" ")[1]), body


def create(sock: socket.socket, name: str, document: dict[str, Any]) -> tuple[int, bytes]:
    return ask(sock, f"POST /v1.41/containers/create?name={name}", json.dumps(document).encode())


def test_CRI_08_annotations_are_told_apart_from_labels(
    docker: socket.socket, dockerd: Dockerd, hooks: HookServer
) -> None:
    def answer(request: Any) -> Any:
        reply = echo(request)
        reply.annotations["added"] = "2"
        return reply

    hooks.answers["PreRunPodSandbox"] = answer
    parent = "/kubepods/burstable/poduid-1"
    document = {"Image": "pause", "Labels": LABELS, "HostConfig": {"CgroupParent": parent, "Z": 1}}
    assert create(docker, POD, document) == (201, b'{"Id": "new-id"}')
    asked = hooks.asked[0][1]
    assert dict(asked.annotations) == {"koordinator.sh/x": "1"}
    assert "app" in asked.labels and "annotation.koordinator.sh/x" not in asked.labels
    assert (asked.pod_meta.name, asked.pod_meta.uid) == ("web", "uid-1")
    assert asked.cgroup_parent == parent
    got = json.loads(dockerd.asked("POST")[0][1])
    assert got == {**document, "Labels": {**LABELS, "annotation.added": "2"}}


def test_CRI_08_a_container_that_ran_before_is_known_the_same_way(
    docker: socket.socket, dockerd: Dockerd, hooks: HookServer
) -> None:
    inspected = {
        "Id": "old-id",
        "Name": f"/{MAIN}",
        "Config": {
            "Labels": {**LABELS, "io.kubernetes.docker.type": "container"},
            "Env": ["A=1"],
        },
        "HostConfig": {"CpuQuota": 7000},
    }
    dockerd.answers["GET /containers/old-id/json"] = _json_reply(200, inspected)
    dockerd.answers["POST /containers/old-id/start"] = _empty_reply
    assert ask(docker, "POST /v1.41/containers/old-id/start")[0] == 204
    asked = hooks.wait_for("PostStartContainer")
    assert dict(asked.container_annotations) == {"koordinator.sh/x": "1"}
    assert dict(asked.container_envs) == {"A": "1"}
    assert asked.container_resources.cpu_quota == 7000
    assert (asked.container_meta.name, asked.container_meta.attempt) == ("main", 2)


def test_a_container_gets_what_a_hook_changes_and_keeps_the_rest(
    docker: socket.socket, dockerd: Dockerd, hooks: HookServer
) -> None:
    def answer(request: Any) -> Any:
        reply = echo(request)
        reply.container_resources.cpu_shares = 2
        reply.container_envs["B"] = "changed"
        reply.container_envs["NEW"] = "1"
        return reply

    hooks.answers["PreCreateContainer"] = answer
    labels = {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": "new-id"}
    document = {
        "Labels": labels,
        "Env": ["B=1", "UNSET", "A=1"],
        "HostConfig": {"CpuQuota": 5000, "Binds": ["/x:/y"]},
    }
    create(docker, MAIN, document)
    got = json.loads(dockerd.asked("POST")[0][1])
    assert got["Env"] == ["B=changed", "UNSET", "A=1", "NEW=1"]
    assert got["HostConfig"] == {"CpuQuota": 5000, "Binds": ["/x:/y"], "CpuShares": 2}


def test_what_is_not_kubelets_goes_through_byte_for_byte(
    docker: socket.socket, dockerd: Dockerd, hooks: HookServer
) -> None:
    for name, body in (
        ("mine", b'{ "Image":"x" }'),
        ("", b"no json"),
        ("odd", json.dumps({"Labels": LABELS}).encode()),
    ):
        assert ask(docker, f"POST /v1.41/containers/create?name={name}", body)[0] == 201
        assert dockerd.asked("POST")[-1][1] == body
    assert ask(docker, "POST /v1.41/containers/unknown-id/stop")[0] == 404
    assert not hooks.asked


def test_under_fail_dockerd_sees_nothing(
    docker: socket.socket, dockerd: Dockerd, proxy: Proxy, short_path: Path
) -> None:
    write_server(proxy.hooks_dir, "gone", short_path / "gone.sock", "Fail")
    status, body = create(docker, POD, {"Labels": LABELS})
    assert status == 500 and "policy Fail" in json.loads(body)["message"]
    assert not dockerd.asked("POST")


def test_CRI_10_an_upgrade_is_passed_on_both_ways(docker: socket.socket, dockerd: Dockerd) -> None:
    def upgrade(dockerd: Dockerd, sock: socket.socket, target: str, body: bytes) -> None:
        sock.sendall(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nhello")
        sock.sendall(sock.recv(100).upper())

    dockerd.answers["POST /exec/e1/start"] = upgrade
    docker.sendall(
        b"POST /v1.41/exec/e1/start HTTP/1.1\r\nHost: d\r\nConnection: Upgrade\r\n"
        b"Upgrade: tcp\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert answer_of(docker)[0] == 101
    assert docker.recv(100) == b"hello"
    docker.sendall(b"\x00raw")
    assert docker.recv(100) == b"\x00RAW"


def test_CRI_10_a_stream_without_an_upgrade_is_passed_on(
    docker: socket.socket, dockerd: Dockerd
) -> None:
    proceed = threading.Event()

    def stream(dockerd: Dockerd, sock: socket.socket, target: str, body: bytes) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        assert proceed.wait(5)
        sock.sendall(b"3\r\ntwo\r\n0\r\n\r\n")

    dockerd.answers["GET /containers/x/logs"] = stream
    docker.sendall(b"GET /containers/x/logs HTTP/1.1\r\nHost: d\r\n\r\n")
    assert answer_of(docker)[0] == 200
    assert docker.recv(100) == b"3\r\none\r\n", "before the rest is even made"
    proceed.set()
    rest = b""
    while not rest.endswith(b"0\r\n\r\n"):
        rest += docker.recv(100)
    assert rest == b"3\r\ntwo\r\n0\r\n\r\n"
    assert ask(docker, "GET /containers/json")[0] == 200, "the connection goes on"


def test_CRI_11_the_end_of_one_way_is_not_the_end_of_the_other(
    docker: socket.socket, dockerd: Dockerd
) -> None:
    def sink(dockerd: Dockerd, sock: socket.socket, target: str, body: bytes) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n")
        got = b""
        while piece := sock.recv(100):
            got += piece
        sock.sendall(b"got " + got)

    dockerd.answers["POST /containers/x/attach"] = sink
    docker.sendall(b"POST /containers/x/attach HTTP/1.1\r\nHost: d\r\n\r\n")
    assert answer_of(docker)[0] == 200
    docker.sendall(b"data")
    docker.shutdown(socket.SHUT_WR)
    told = b""
    while piece := docker.recv(100):
        told += piece
    assert told == b"got data"


def test_a_large_body_is_passed_on_as_it_comes(docker: socket.socket, dockerd: Dockerd) -> None:
    dockerd.answers["POST /images/load"] = _empty_reply
    body = bytes(8 << 20)
    assert ask(docker, "POST /images/load", body)[0] == 204
    assert len(dockerd.asked("POST /images/load")[0][1]) == len(body)


def test_noise_ends_the_connection_only(
    docker: socket.socket, dockerd: Dockerd, module_path: Path
) -> None:
    for noise in (b"\xff\xfe\r\n\r\n", b"GET\r\n\r\n", b"POST /containers/create HTTP/1.1\r\n\r\n"):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            sock.connect(str(module_path / "docker.sock"))
            sock.sendall(noise)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1000):
                pass
    assert ask(docker, "GET /containers/json")[0] == 200


def test_a_removed_container_is_forgotten_and_a_failed_create_not_kept(
    docker: socket.socket, dockerd: Dockerd, hooks: HookServer
) -> None:
    create(docker, POD, {"Labels": LABELS})
    dockerd.answers["POST /containers/new-id/stop"] = _empty_reply
    ask(docker, "POST /v1.41/containers/new-id/stop")
    hooks.wait_for("PostStopPodSandbox")
    dockerd.answers["DELETE /containers/new-id"] = _empty_reply
    ask(docker, "DELETE /v1.41/containers/new-id")
    hooks.asked.clear()
    ask(docker, "POST /v1.41/containers/new-id/stop")
    dockerd.answers["POST /containers/create"] = _json_reply(409, {"message": "name taken"})
    assert create(docker, POD, {"Labels": LABELS})[0] == 409
    until(lambda: "PreRunPodSandbox" in hooks.stages_asked(), 5.0)
    assert "PostStopPodSandbox" not in hooks.stages_asked()
