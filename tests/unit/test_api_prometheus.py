"""The metrics port: pages, health, and clients that hold on to it."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from koordlet.api import prometheus
from koordlet.api.prometheus import CONTENT_TYPE, MetricsServer
from tests.support.waiting import until

REASONS = [""]


@pytest.fixture(scope="module")
def server() -> Iterator[MetricsServer]:
    pages = {"/metrics": lambda: b"up 1\n"}
    one = MetricsServer(("127.0.0.1", 0), pages, lambda: REASONS[0])
    one.start()
    yield one
    one.stop()


def ask(server: MetricsServer, path: str, method: str = "GET") -> tuple[int, str | None, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request(method, path)
        with connection.getresponse() as response:
            return response.status, response.getheader("Content-Type"), response.read()
    finally:
        connection.close()


def test_a_page_and_its_type(server: MetricsServer) -> None:
    assert ask(server, "/metrics?name=x") == (200, CONTENT_TYPE, b"up 1\n")
    assert ask(server, "/metrics", "HEAD") == (200, CONTENT_TYPE, b"")


def test_an_unknown_page_names_the_known_ones(server: MetricsServer) -> None:
    status, _, body = ask(server, "/nothing")
    assert status == 404
    assert b"/metrics, /healthz, /readyz" in body


def test_ready_says_why_not(server: MetricsServer) -> None:
    assert ask(server, "/readyz")[0] == 200
    REASONS[0] = "the core is silent"
    try:
        assert ask(server, "/readyz")[::2] == (503, b"the core is silent\n")
        assert ask(server, "/healthz")[0] == 200
    finally:
        REASONS[0] = ""


def test_clients_beyond_the_bound_are_closed_and_the_server_lives_on() -> None:
    one = MetricsServer(("127.0.0.1", 0), {}, lambda: "")
    one.start()
    with ExitStack() as stack:
        stack.callback(one.stop)
        with ExitStack() as held:
            for _ in range(prometheus.MAX_CONNECTIONS):
                held.enter_context(socket.create_connection(("127.0.0.1", one.port)))
            with pytest.raises(ConnectionError):
                ask(one, "/healthz")


def test_a_taken_port_is_an_error_at_once(server: MetricsServer) -> None:
    with pytest.raises(OSError, match="in use"):
        MetricsServer(("127.0.0.1", server.port), {}, lambda: "")


def test_after_a_crowd_left_there_is_room_again() -> None:
    one = MetricsServer(("127.0.0.1", 0), {}, lambda: "")
    one.start()
    with ExitStack() as stack:
        stack.callback(one.stop)
        crowd = [
            socket.create_connection(("127.0.0.1", one.port))
            for _ in range(2 * prometheus.MAX_CONNECTIONS)
        ]
        for each in crowd:
            each.close()
        until(lambda: _answers(one), within_s=5)


def _answers(one: MetricsServer) -> bool:
    try:
        return ask(one, "/healthz")[0] == 200
    except ConnectionError:
        return False


def test_IPv6_loopback_is_an_address_too() -> None:
    if not socket.has_ipv6 or "1" in Path("/proc/sys/net/ipv6/conf/lo/disable_ipv6").read_text():
        pytest.skip("needs IPv6 on the loopback interface")
    one = MetricsServer(("::1", 0), {"/metrics": lambda: b"up 1\n"}, lambda: "")
    one.start()
    try:
        connection = http.client.HTTPConnection("::1", one.port, timeout=5)
        connection.request("GET", "/metrics")
        assert connection.getresponse().read() == b"up 1\n"
        connection.close()
    finally:
        one.stop()
