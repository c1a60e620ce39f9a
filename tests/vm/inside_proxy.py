"""Runs inside the systemd guest: the proxy by its own units, in front of a raw runtime.

Not collected by its name: it puts units into /run/systemd/system.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.rawruntime import SERVICE, RawClient, RawRuntime
from tests.support.waiting import until

REPO = Path(__file__).resolve().parents[2]
UNITS = Path("/run/systemd/system")
SERVICE_UNIT, SOCKET_UNIT = "koord-runtimeproxy.service", "koord-runtimeproxy.socket"
SOCKET = Path("/run/koord-runtimeproxy/runtimeproxy.sock")
RUNTIME = Path("/run/koordtest-runtime.sock")
VERSION, EXEC = SERVICE + "Version", SERVICE + "ExecSync"
SOON_S, DEADLINE_S = 60.0, 60.0


def systemctl(*words: str) -> str:
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}{log()}"
    return done.stdout.strip()


def log() -> str:
    command = ["journalctl", "--no-pager", "-o", "cat", "-n", "40", "-u", SERVICE_UNIT]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.fixture(scope="module")
def runtime() -> Iterator[RawRuntime]:
    with RawRuntime(RUNTIME, {VERSION: lambda request, context: request}) as serving:
        RUNTIME.chmod(0o660)
        yield serving


@pytest.fixture(scope="module")
def units(runtime: RawRuntime) -> Iterator[None]:
    """As shipped, but for where the program is and which runtime it has."""
    program = f"{sys.executable} -m runtimeproxy run --runtime-endpoint={RUNTIME}"
    for name in (SERVICE_UNIT, SOCKET_UNIT):
        text = (REPO / "systemd" / name).read_text()
        text = text.replace("/usr/bin/koord-runtimeproxy run", program)
        text = text.replace("[Service]\n", f"[Service]\nWorkingDirectory={REPO}\n")
        (UNITS / name).write_text(text)
    systemctl("daemon-reload")
    systemctl("start", SOCKET_UNIT, SERVICE_UNIT)
    try:
        yield
    finally:
        systemctl("stop", SERVICE_UNIT, SOCKET_UNIT)
        for name in (SERVICE_UNIT, SOCKET_UNIT):
            (UNITS / name).unlink()
        systemctl("daemon-reload")


def main_pid() -> str:
    return systemctl("show", "--value", "--property=MainPID", SERVICE_UNIT)


def test_it_is_ready_with_the_runtimes_rights(units: None) -> None:
    assert systemctl("show", "--value", "--property=SubState", SERVICE_UNIT) == "running"
    assert "serving" in systemctl("show", "--value", "--property=StatusText", SERVICE_UNIT)
    assert SOCKET.stat().st_mode & 0o777 == 0o660
    with RawClient(SOCKET) as client:
        assert client.call(VERSION, b"x", timeout=DEADLINE_S) == b"x"


def test_H19_restarts_refuse_nobody(units: None) -> None:
    faults: list[str] = []
    done = [0]
    end = threading.Event()

    def calls() -> None:
        with RawClient(SOCKET) as client:
            while not end.is_set():
                try:
                    client.call(VERSION, b"x", timeout=DEADLINE_S)
                    done[0] += 1
                except grpc.RpcError as error:
                    faults.append(f"{error.code()}: {error.details()}")

    thread = threading.Thread(target=calls)
    thread.start()
    for _ in range(2):
        systemctl("restart", SERVICE_UNIT)
    end.set()
    thread.join()
    assert not faults and done[0] > 2


def test_H19_a_long_call_outlives_the_service(units: None, runtime: RawRuntime) -> None:
    release = threading.Event()

    def slow(request: bytes, context: grpc.ServicerContext) -> bytes:
        release.wait(DEADLINE_S)
        return b"done"

    runtime.unary[EXEC] = slow
    with RawClient(SOCKET) as client:
        running = client.future(EXEC, b"", timeout=2 * DEADLINE_S)
        runtime.wait_for(EXEC, SOON_S)
        before = main_pid()
        systemctl("restart", SERVICE_UNIT)
        assert main_pid() != before
        with RawClient(SOCKET) as other:
            assert other.call(VERSION, b"new", timeout=DEADLINE_S) == b"new"
        assert not running.done()
        release.set()
        assert running.result(timeout=SOON_S) == b"done"


def test_a_killed_service_comes_again(units: None) -> None:
    before = main_pid()
    systemctl("kill", "--signal=KILL", SERVICE_UNIT)
    until(lambda: main_pid() not in ("0", before), SOON_S, "another proxy")
    with RawClient(SOCKET) as client:
        assert client.call(VERSION, b"x", timeout=DEADLINE_S, wait_for_ready=True) == b"x"


def test_a_client_starts_a_service_that_was_stopped(units: None) -> None:
    systemctl("stop", SERVICE_UNIT)
    with RawClient(SOCKET) as client:
        assert client.call(VERSION, b"x", timeout=DEADLINE_S, wait_for_ready=True) == b"x"
