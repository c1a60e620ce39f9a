"""What systemd is told: by datagram, without waiting, and nothing where nobody asked."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.sdnotify import Heartbeat, ServiceManager


class Listener:
    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)

    def heard(self) -> list[list[str]]:
        """Lines of every datagram since the last call."""
        datagrams = []
        while True:
            try:
                datagrams.append(self.socket.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return datagrams


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    made = Listener(str(tmp_path / "notify"))
    yield made
    made.socket.close()


@pytest.fixture
def manager(tmp_path: Path, listener: Listener) -> ServiceManager:
    return ServiceManager(str(tmp_path / "notify"), watchdog_s=30.0)


def test_the_environment_names_socket_and_watchdog(listener: Listener, tmp_path: Path) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"}
    manager = ServiceManager.of(environment)
    assert manager.watchdog_s == 30.0
    assert manager.tell("STATUS=here", "WATCHDOG=1")
    assert listener.heard() == [["STATUS=here", "WATCHDOG=1"]]


@pytest.mark.parametrize("watchdog", ["", "soon", "-1"])
def test_without_a_watchdog_there_is_none(watchdog: str) -> None:
    assert ServiceManager.of({"WATCHDOG_USEC": watchdog}).watchdog_s == 0.0


def test_an_abstract_socket_is_spelled_with_an_at_sign() -> None:
    listener = Listener("\0koordtest-notify")
    try:
        assert ServiceManager("@koordtest-notify").tell("READY=1")
        assert listener.heard() == [["READY=1"]]
    finally:
        listener.socket.close()


def test_nobody_to_tell_is_no_failure() -> None:
    assert ServiceManager.of({}).tell("READY=1")


def test_a_manager_that_is_gone_or_does_not_read_is_not_waited_for(
    tmp_path: Path, manager: ServiceManager, listener: Listener
) -> None:
    assert not ServiceManager(str(tmp_path / "absent")).tell("READY=1")
    for _ in range(10_000):
        if not manager.tell("STATUS=" + "x" * 1000):
            return
    pytest.fail("the socket took everything")


# -- the heartbeat --------------------------------------------------------------------------------


def test_ready_is_told_once_and_only_when_a_front_has_the_report(
    manager: ServiceManager, listener: Listener
) -> None:
    heartbeat = Heartbeat(manager, tick_s=1.0)
    heartbeat.beat("waiting", serves=False)
    heartbeat.beat("waiting", serves=True)
    heartbeat.beat("2 values in force", serves=True)
    assert listener.heard() == [
        ["WATCHDOG=1", "STATUS=waiting"],
        ["WATCHDOG=1", "READY=1"],
        ["WATCHDOG=1", "STATUS=2 values in force"],
    ]


def test_what_was_not_taken_is_told_again(tmp_path: Path, manager: ServiceManager) -> None:
    late = ServiceManager(str(tmp_path / "late"))
    heartbeat = Heartbeat(late, tick_s=1.0)
    heartbeat.beat("working", serves=True)
    listener = Listener(str(tmp_path / "late"))
    heartbeat.beat("working", serves=True)
    assert listener.heard() == [["WATCHDOG=1", "READY=1", "STATUS=working"]]
    listener.socket.close()


def test_slow_ticks_lengthen_the_watchdog_and_quick_ones_give_it_back(
    manager: ServiceManager, listener: Listener
) -> None:
    heartbeat = Heartbeat(manager, tick_s=60.0)
    heartbeat.pace(60.0)
    heartbeat.pace(1.0)
    assert listener.heard() == [["WATCHDOG_USEC=180000000"], ["WATCHDOG_USEC=30000000"]]
    Heartbeat(ServiceManager(manager._address), tick_s=60.0)
    assert listener.heard() == []
