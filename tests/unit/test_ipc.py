"""The channel between core and front: whole frames, bounded backlog, own uid only."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from koordlet import ipc


def _pair() -> tuple[ipc.Channel, ipc.Channel]:
    left, right = socket.socketpair()
    return ipc.Channel(left), ipc.Channel(right)


def test_messages_arrive_whole_and_in_order_whatever_the_socket_takes_at_once() -> None:
    left, right = _pair()
    messages = [ipc.Relist("x" * size) for size in (1, 3_000_000, 10)]
    for message in messages:
        left.send(message)
    got: list[object] = []
    while len(got) < len(messages):
        left.flush()
        got += right.receive()
    assert got == messages
    left.close()
    right.close()


def test_a_peer_that_never_reads_costs_a_bounded_backlog() -> None:
    left, right = _pair()
    blob = ipc.Relist("x" * (1 << 20))
    while left.send(blob, droppable=True):
        pass
    assert left.wants_write
    with pytest.raises(ipc.ChannelClosedError, match="does not read"):
        left.send(blob)
    left.close()
    right.close()


def test_what_came_before_the_end_is_still_delivered() -> None:
    left, right = _pair()
    left.send(ipc.Relist("last word"))
    left.close()
    assert right.receive() == [ipc.Relist("last word")]
    with pytest.raises(ipc.ChannelClosedError):
        right.receive()
    right.close()


def test_a_frame_above_the_limit_closes_the_channel() -> None:
    left, right = socket.socketpair()
    channel = ipc.Channel(right)
    left.send((ipc.FRAME_LIMIT_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(ipc.ChannelClosedError, match="limit"):
        channel.receive()
    left.close()
    channel.close()


def test_H19_the_listener_is_0600_and_takes_a_stale_path_over(tmp_path: Path) -> None:
    path = tmp_path / "core.sock"
    path.write_text("left by a crash")
    listener = ipc.listen(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    front = ipc.connect(path)
    core = ipc.accept(listener)
    assert core is not None
    front.send(ipc.Relist("hello"))
    assert core.receive() == [ipc.Relist("hello")]
    assert ipc.accept(listener) is None
    for end in (front, core):
        end.close()
    listener.close()


def test_connect_without_a_core_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        ipc.connect(tmp_path / "core.sock")
