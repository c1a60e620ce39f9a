"""A restart of the proxy loses no call; H19: the listening socket stays and is never stolen."""

from __future__ import annotations

import signal
import threading
import time

import grpc

from tests.support.proxyd import Proxy
from tests.support.rawruntime import SERVICE, RawClient, RawRuntime
from tests.support.waiting import until

VERSION = SERVICE + "Version"
EXEC = SERVICE + "ExecSync"
EVENTS = SERVICE + "GetContainerEvents"


class Caller(threading.Thread):
    """Calls without pause until told to end; ``faults`` are the calls that failed."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__()
        self._proxy = proxy
        self._end = threading.Event()
        self.done = 0
        self.faults: list[str] = []

    def run(self) -> None:
        with RawClient(self._proxy.socket) as client:
            while not self._end.is_set():
                try:
                    client.call(VERSION, b"x", timeout=60)
                    self.done += 1
                except grpc.RpcError as error:
                    self.faults.append(f"{error.code()}: {error.details()}")

    def end(self) -> None:
        self._end.set()
        self.join()


def test_H19_no_call_fails_while_the_proxy_restarts(proxy: Proxy, runtime: RawRuntime) -> None:
    runtime.unary[VERSION] = lambda request, context: request
    callers = [Caller(proxy) for _ in range(4)]
    for caller in callers:
        caller.start()
    for _ in range(4):
        proxy.restart()
        before = [caller.done for caller in callers]
        until(
            lambda before=before: all(c.done > n for c, n in zip(callers, before, strict=True)),
            30,
            "a call more of each caller",
        )
    for caller in callers:
        caller.end()
    assert [caller.faults for caller in callers] == [[]] * 4


def test_H19_a_long_call_ends_in_the_background_while_the_next_proxy_serves(
    proxy: Proxy, runtime: RawRuntime, client: RawClient
) -> None:
    release = threading.Event()
    runtime.unary[VERSION] = lambda request, context: request

    def slow(request: bytes, context: grpc.ServicerContext) -> bytes:
        release.wait(20)
        return b"done"

    runtime.unary[EXEC] = slow
    running = client.future(EXEC, b"long")
    runtime.wait_for(EXEC)
    began_s = time.monotonic()
    assert proxy.stop() == 0
    assert time.monotonic() - began_s < 10, "a stop waits for nobody"
    assert len(proxy.background()) == 1
    proxy.start()
    with RawClient(proxy.socket) as other:
        assert other.call(VERSION, b"new") == b"new"
    assert not running.done()
    release.set()
    assert running.result(timeout=5) == b"done"
    deadline_s = time.monotonic() + 5
    while proxy.background() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not proxy.background()


def test_H19_an_event_stream_ends_once_for_each_restart(
    proxy: Proxy, runtime: RawRuntime, client: RawClient
) -> None:
    def events(request, context):  # type: ignore[no-untyped-def]
        yield b"first"
        threading.Event().wait(20)

    runtime.streams[EVENTS] = events
    stream = client.stream(EVENTS)
    assert next(stream) == b"first"
    proxy.restart()
    try:
        next(stream)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "restart" in error.details()
    else:
        raise AssertionError("the stream went on")
    assert next(client.stream(EVENTS, wait_for_ready=True)) == b"first"


def test_a_killed_proxy_costs_only_the_calls_in_flight(
    proxy: Proxy, runtime: RawRuntime, client: RawClient
) -> None:
    runtime.unary[VERSION] = lambda request, context: request
    assert client.call(VERSION, b"1") == b"1"
    proxy.restart(signal.SIGKILL)
    assert client.call(VERSION, b"2", wait_for_ready=True) == b"2"
