"""The API's socket: who may ask, what is refused, and what happens to bad requests."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import stat
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from koordlet import ipc
from koordlet.api import server as server_module
from koordlet.api.adopting import Adoptions
from koordlet.api.client import AnswerError, Client, UnreachableError
from koordlet.api.routes import BODY_LIMIT_BYTES, Backend, Request, answer
from koordlet.api.server import ApiServer, SocketTakenError
from koordlet.history.query import RangeAnswer, RangeQuery
from koordlet.leftovers import Found
from koordlet.metrics.readings import Level
from koordlet.model.actions import Mode, Outcome, Status
from koordlet.protocol.problem import Problem
from koordlet.report import NodeView
from koordlet.resexecutor.audit import AuditEvent, AuditQuery
from tests.support import views


class FakeCommands:
    """Remembers orders; answers as told."""

    def __init__(self, reply: ipc.CommandReply | None = None) -> None:
        self.orders: list[tuple[object, int]] = []
        self.reply = reply or ipc.CommandReply(1)

    def send(self, order: ipc.Order, uid: int) -> ipc.CommandReply:
        self.orders.append((order, uid))
        return self.reply


class FakeAudit:
    """Remembers queries; answers with one event."""

    def __init__(self) -> None:
        self.queries: list[AuditQuery] = []

    def query(self, query: AuditQuery) -> tuple[AuditEvent, ...]:
        self.queries.append(query)
        return (views.audit_event(),)


class FakeHistory:
    """Remembers queries; answers with one line, or fails as told."""

    def __init__(self) -> None:
        self.queries: list[RangeQuery] = []
        self.error: sqlite3.Error | None = None

    def query(self, query: RangeQuery) -> RangeAnswer:
        self.queries.append(query)
        if self.error is not None:
            raise self.error
        return views.history_answer(query)


class Asked:
    """A backend without a socket, and what it was asked."""

    def __init__(self, view: NodeView | None = None, reply: ipc.CommandReply | None = None) -> None:
        self.commands = FakeCommands(reply)
        self.audit = FakeAudit()
        shown = view or views.node_view()
        self.history = FakeHistory()
        self.leftovers = Found()
        self.other_agent: Problem | None = None
        self.backend = Backend(
            lambda: shown,
            self.commands,
            self.audit.query,
            self.history.query,
            Adoptions(lambda view: self.leftovers, lambda: self.other_agent),
        )

    def get(self, target: str) -> tuple[HTTPStatus, Any]:
        said = answer(Request("GET", target, b"", 0), self.backend)
        return said.status, said.body

    def post(self, target: str, body: object) -> tuple[HTTPStatus, Any]:
        said = answer(Request("POST", target, json.dumps(body).encode(), 0), self.backend)
        return said.status, said.body


# -- routes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "schema"),
    [
        ("status", "status"),
        ("capabilities", "doctor"),
        ("pods", "pods"),
        ("metrics", "metrics"),
        ("plan", "plan"),
        ("explain?target=default/batch-1", "explain"),
        ("audit", "audit"),
        ("slo", "slo"),
        ("ticks", "ticks"),
    ],
)
def test_every_question_has_its_schema_and_the_whole_envelope(endpoint: str, schema: str) -> None:
    status, body = Asked().get(f"/v1/{endpoint}")
    assert status is HTTPStatus.OK
    assert list(body) == ["schema", "node", "taken_at", "data", "problems"]
    assert body["schema"] == f"koordletctl.{schema}/v1"
    assert body["node"] == "node-1"


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/", 404, "api-no-such-path"),
        ("/v1", 404, "api-no-such-path"),
        ("/v1/nothing", 404, "api-no-such-path"),
        ("/v2/status", 404, "api-no-such-path"),
        ("/v1/status/", 404, "api-no-such-path"),
        ("/v1/release", 405, "api-wrong-method"),
        ("/v1/status?x=1", 400, "api-bad-request"),
        ("/v1/explain", 400, "api-bad-request"),
        ("/v1/explain?target=", 400, "api-bad-request"),
        ("/v1/explain?target=a&target=b", 400, "api-bad-request"),
        ("/v1/explain?target=nobody", 404, "target-unknown"),
        ("/v1/explain?target=5555", 404, "target-ambiguous"),
        ("/v1/audit?limit=0", 400, "api-bad-request"),
        ("/v1/audit?limit=10001", 400, "api-bad-request"),
        ("/v1/audit?limit=ten", 400, "api-bad-request"),
        ("/v1/audit?since=yesterday", 400, "api-bad-request"),
        ("/v1/audit?since=nan", 400, "api-bad-request"),
        ("/v1/audit?until=-1", 400, "api-bad-request"),
        ("/v1/metrics?since=yesterday", 400, "api-bad-request"),
        ("/v1/metrics?step_s=1m", 400, "api-bad-request"),
        ("/v1/metrics?level=cluster", 400, "api-bad-request"),
        ("/v1/metrics?percentiles=half", 400, "api-bad-request"),
        ("/v1/metrics?percentiles=1,2,3,4,5,6,7,8,9", 400, "api-bad-request"),
        ("/v1/metrics?pod=x", 400, "api-bad-request"),
    ],
)
def test_bad_questions_say_what_where_limit_and_remedy(target: str, status: int, code: str) -> None:
    found, body = Asked().get(target)
    assert found == status
    (problem,) = body["problems"]
    assert problem["code"] == code
    assert problem["where"]
    assert problem["what"]
    assert problem["limit"]
    assert body["data"] is None
    assert body["schema"] == "koordletctl.error/v1"


def test_a_wrong_method_is_answered_with_the_right_one() -> None:
    said = answer(Request("DELETE", "/v1/status", b"", 0), Asked().backend)
    assert said.status is HTTPStatus.METHOD_NOT_ALLOWED
    assert said.allow == "GET"


def test_metrics_without_parameters_are_the_newest_readings() -> None:
    asked = Asked()
    _, body = asked.get("/v1/metrics")
    assert body["data"]["readings"][0]["level"] == "node"
    assert body["data"]["range"] is None
    assert asked.history.queries == []


def test_metrics_with_parameters_are_a_range_of_the_history() -> None:
    asked = Asked()
    status, body = asked.get(
        "/v1/metrics?since=1767225600&until=1767229200&step_s=600&target=default/batch-1"
        "&level=pod&series=cpu,throttled_ratio&percentiles=50,99.9"
    )
    assert status is HTTPStatus.OK
    assert asked.history.queries == [
        RangeQuery(
            1_767_225_600,
            1_767_229_200,
            600,
            "default/batch-1",
            Level.POD,
            ("cpu", "throttled_ratio"),
            (50.0, 99.9),
        )
    ]
    assert body["data"]["readings"] == []
    first = body["data"]["range"]["lines"][0]
    assert list(first["whole"]["percentiles"]) == ["p50", "p99.9"]


def test_a_range_begins_an_hour_ago_and_ends_now_by_itself() -> None:
    asked = Asked()
    asked.get("/v1/metrics?target=x")
    (query,) = asked.history.queries
    assert (query.since_s, query.until_s) == (views.WALL_S - 3_600, views.WALL_S)


def test_a_history_that_cannot_be_read_is_told() -> None:
    asked = Asked()
    asked.history.error = sqlite3.DatabaseError("database disk image is malformed")
    status, body = asked.get("/v1/metrics?since=0")
    assert status is HTTPStatus.SERVICE_UNAVAILABLE
    (problem,) = body["problems"]
    assert problem["code"] == "history-unreadable"
    assert "malformed" in problem["what"]


def test_audit_parameters_reach_the_store() -> None:
    asked = Asked()
    status, body = asked.get(
        "/v1/audit?since=10.5&until=20&pod=default/batch-1&knob=cpu.quota&owner=cpu_suppress"
        "&file=/sys/x&limit=1"
    )
    assert status is HTTPStatus.OK
    assert asked.audit.queries == [
        AuditQuery(
            10.5,
            20.0,
            "22222222-aaaa-bbbb-cccc-000000000002",
            "cpu.quota",
            "cpu_suppress",
            "/sys/x",
            1,
        )
    ]
    assert body["data"]["limit_reached"] is True
    assert body["data"]["events"][0]["before"] == "-1"


def test_audit_of_a_pod_that_left_is_asked_by_its_uid() -> None:
    asked = Asked()
    asked.get("/v1/audit?pod=gone-uid")
    assert asked.audit.queries[0].pod == "gone-uid"


def test_mode_is_sent_with_its_time_and_the_peer() -> None:
    asked = Asked()
    body = {"strategy": "cpu_suppress", "mode": "observe", "for_s": 1800}
    status, answered = asked.post("/v1/mode", body)
    assert status is HTTPStatus.OK
    assert asked.commands.orders == [(ipc.ModeCommand("cpu_suppress", Mode.OBSERVE, 1800.0), 0)]
    assert answered["schema"] == "koordletctl.modes/v1"
    assert answered["data"]["changed"] == "cpu_suppress: observe for 1800 s"


@pytest.mark.parametrize(
    "body",
    [
        {"mode": "sometimes"},
        {},
        {"mode": "off", "for_s": 0},
        {"mode": "off", "for_s": True},
        {"mode": "off", "for_s": "30m"},
        {"mode": "off", "for_s": 1e12},
        {"mode": "off", "strategy": "nobody"},
        {"mode": "off", "extra": 1},
        ["mode"],
    ],
)
def test_a_bad_mode_changes_nothing(body: object) -> None:
    asked = Asked()
    status, answered = asked.post("/v1/mode", body)
    assert status is HTTPStatus.BAD_REQUEST
    assert answered["problems"][0]["limit"]
    assert asked.commands.orders == []


def test_a_body_that_is_no_json_is_refused() -> None:
    said = answer(Request("POST", "/v1/mode", b"\xff{", 0), Asked().backend)
    assert said.status is HTTPStatus.BAD_REQUEST


def test_release_answers_with_what_became_of_every_file_in_scope() -> None:
    restored = Outcome(*views.TIER_QUOTA, "cpu_suppress", Status.RESTORED, "80000", "-1")
    left = Outcome(*views.ENCODER_QUOTA, "cpu_suppress", Status.FOREIGN, "70000")
    elsewhere = Outcome(*views.TIER_SHARES, "be_priority", Status.UNCHANGED, "2", "2")
    reply = ipc.CommandReply(1, {"outcomes": (restored, left, elsewhere)})
    asked = Asked(reply=reply)
    status, body = asked.post("/v1/release", {"scope": "cpu_suppress"})
    assert status is HTTPStatus.OK
    assert asked.commands.orders == [(ipc.ReleaseCommand("owner:cpu_suppress"), 0)]
    data = body["data"]
    assert (data["restored"], data["left"], data["pending"]) == (1, 1, 1)
    assert data["done_by"] == "daemon"
    assert len(data["files"]) == 3


def test_a_dry_release_sends_no_order() -> None:
    asked = Asked()
    status, body = asked.post("/v1/release", {"dry_run": True})
    assert status is HTTPStatus.OK
    assert asked.commands.orders == []
    assert body["data"]["dry_run"] is True
    assert len(body["data"]["files"]) == len(views.owned())


def test_an_order_that_the_core_did_not_obey_is_a_conflict() -> None:
    reply = ipc.CommandReply(1, {}, (Problem("order-refused", "order", "the core is silent"),))
    status, body = Asked(reply=reply).post("/v1/resume", {})
    assert status is HTTPStatus.CONFLICT
    assert body["problems"][0]["code"] == "order-refused"


def test_release_works_while_the_core_is_gone() -> None:
    asked = Asked(views.everything_missing())
    status, _ = asked.post("/v1/release", {})
    assert status is HTTPStatus.OK
    assert asked.commands.orders == [(ipc.ReleaseCommand("all"), 0)]


# -- the socket -----------------------------------------------------------------------------------


class Served:
    """A server on a socket of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked = Asked()
        backend = self.asked.backend
        self.server = ApiServer(
            path,
            backend.view,
            backend.commands,
            backend.audit,
            backend.history,
            backend.adoptions,
        )
        self.client = Client(path, timeout_s=5.0)

    def raw(self, text: bytes) -> bytes:
        """Send bytes as they are and read all that comes back."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5.0)
            connection.connect(str(self.path))
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            content = b""
            while chunk := connection.recv(65536):
                content += chunk
        return content


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    one = Served(tmp_path_factory.mktemp("run") / "api.sock")
    one.server.start()
    yield one
    one.server.stop()


def test_questions_and_orders_over_the_socket(served: Served) -> None:
    assert served.client.get("status")["data"]["version"] == "0.1.0"
    assert served.client.get("explain", target="default/batch-1")["data"]["subjects"]
    served.client.post("mode", {"mode": "off"})
    assert served.asked.commands.orders[-1:] == [
        (ipc.ModeCommand("", Mode.OFF, None), os.geteuid())
    ]


def test_the_socket_is_for_its_owner_alone_and_leaves_with_the_server(tmp_path: Path) -> None:
    one = Served(tmp_path / "api.sock")
    one.server.start()
    assert stat.S_IMODE(one.path.stat().st_mode) == 0o600
    one.server.stop()
    assert not one.path.exists()
    one.server.stop()


def test_errors_carry_the_problems(served: Served) -> None:
    with pytest.raises(AnswerError, match="no pod") as caught:
        served.client.get("explain", target="nobody")
    assert caught.value.status == 404
    assert caught.value.problems[0].code == "target-unknown"


def test_H19_a_second_server_does_not_take_a_living_socket_over(served: Served) -> None:
    second = Served(served.path)
    with pytest.raises(SocketTakenError, match="held by another process"):
        second.server.start()
    assert served.client.get("ticks")["data"]["ticks"]


def test_H19_a_dead_servers_socket_is_replaced_by_rename(tmp_path: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "api.sock"))
    stale.close()
    one = Served(tmp_path / "api.sock")
    one.server.start()
    try:
        assert one.client.get("status")["node"] == "node-1"
        assert sorted(path.name for path in tmp_path.iterdir()) == [".api.sock.lock", "api.sock"]
    finally:
        one.server.stop()


def test_another_uid_is_not_served(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc, "peer_uid", lambda connection: os.geteuid() + 4_711)
    with pytest.raises(UnreachableError) as caught:
        served.client.get("status")
    assert caught.value.problem.code == "daemon-hung-up"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /v1/mode HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", b"413"),
        (b"POST /v1/mode HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"411"),
        (b"POST /v1/mode HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
        (b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET /v1/status HTTP/9.9\r\n\r\n", b"505"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"BREW /v1/status HTTP/1.1\r\n\r\n", b"501"),
        (b"DELETE /v1/status HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /v1/%ff%00 HTTP/1.1\r\n\r\n", b"404"),
    ],
)
def test_malformed_requests_get_a_json_error(
    served: Served, request_bytes: bytes, status: bytes
) -> None:
    content = served.raw(request_bytes)
    head, _, body = content.partition(b"\r\n\r\n")
    if b"HTTP/" in head:
        assert status in head.split(b"\r\n")[0]
        content = body
    assert json.loads(content)["problems"][0]["what"]


def test_the_body_limit_is_named(served: Served) -> None:
    big = b"x" * (BODY_LIMIT_BYTES + 1)
    with pytest.raises(AnswerError, match=str(BODY_LIMIT_BYTES)):
        served.client.post("mode", {"mode": big.decode()})


def test_a_head_request_gets_no_body(served: Served) -> None:
    content = served.raw(b"HEAD /v1/status HTTP/1.1\r\n\r\n")
    assert content.startswith(b"HTTP/1.0 405")
    assert content.endswith(b"\r\n\r\n")


def test_clients_beyond_the_bound_are_closed_at_once(tmp_path: Path) -> None:
    one = Served(tmp_path / "api.sock")
    one.server.start()
    with contextlib.ExitStack() as stack:
        stack.callback(one.server.stop)
        for _ in range(server_module.MAX_CONNECTIONS):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(str(one.path))
        with pytest.raises(UnreachableError) as caught:
            one.client.get("status")
    assert caught.value.problem.code == "daemon-hung-up"


def test_a_fault_of_ours_is_logged_and_the_server_lives_on(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(request: object, backend: object) -> None:
        raise RuntimeError("broken view")

    with monkeypatch.context() as patched, capture_logs() as logged:
        patched.setattr(server_module, "answer", explode)
        with pytest.raises(UnreachableError):
            served.client.get("status")
    assert [str(entry["exc_info"]) for entry in logged] == ["broken view"]
    assert served.client.get("status")["node"] == "node-1"


# -- the client -----------------------------------------------------------------------------------


def test_no_daemon_is_told_with_the_socket_and_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError) as caught:
        Client(tmp_path / "api.sock").get("status")
    assert caught.value.problem.code == "daemon-not-running"
    assert caught.value.problem.where == str(tmp_path / "api.sock")
    assert "--run-dir" in caught.value.problem.remedy


def one_answer(path: Path, content: bytes) -> threading.Thread:
    """A listener that answers one connection with ``content`` and closes."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)

    def serve() -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(content)
        connection.close()
        listener.close()

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "daemon-hung-up"),
        (b"HTTP/1.0 200 OK\r\n\r\n<html>", "api-answer-malformed"),
        (b"HTTP/1.0 200 OK\r\n\r\n[1]", "api-answer-malformed"),
        (b"garbage\r\n\r\n", "daemon-unreachable"),
    ],
)
def test_a_stranger_on_the_socket_is_told(tmp_path: Path, content: bytes, code: str) -> None:
    thread = one_answer(tmp_path / "api.sock", content)
    with pytest.raises(UnreachableError) as caught:
        Client(tmp_path / "api.sock").get("status")
    thread.join()
    assert caught.value.problem.code == code


def test_a_silent_daemon_is_told_apart(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "api.sock"))
        listener.listen(1)
        with pytest.raises(UnreachableError) as caught:
            Client(tmp_path / "api.sock", timeout_s=0.1).get("status")
    assert caught.value.problem.code == "daemon-silent"


@pytest.mark.parametrize("body", [b"[" * 60_000, b'{"for_s": ' + b"9" * 5_000 + b"}", b"\xff"])
def test_H27_a_body_that_no_reader_can_read_is_a_bad_request(body: bytes) -> None:
    said = answer(Request("POST", "/v1/mode", body, 0), Asked().backend)
    assert said.status == HTTPStatus.BAD_REQUEST


def test_H27_a_target_that_is_no_url_is_a_bad_request() -> None:
    assert Asked().get("http://[x")[0] == HTTPStatus.BAD_REQUEST
