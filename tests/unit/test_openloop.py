"""The open-loop generator: when it sends, and from when it counts."""

from __future__ import annotations

import itertools
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.openloop import UNANSWERED_S, OpenLoop, Played, arrivals

REQUEST, REPLY_START = "GET /\r\n\r\n", "200 "
Serve = Callable[[int, socket.socket], None]


def answer(_number: int, connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(b"200 fine")


class Server(threading.Thread):
    """Serves one connection after the other, as ``serve`` says."""

    def __init__(self, address: Path) -> None:
        super().__init__(daemon=True)
        self.serve: Serve = answer
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(address))
        self._listener.listen(100)
        self.start()

    def run(self) -> None:
        number = 0
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self.serve(number, connection)
            number += 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.join()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "socket")
    yield made
    made.close()


def play(tmp_path: Path, offsets: list[float], patience_s: float = 5.0) -> Played:
    generator = OpenLoop(tmp_path / "socket", REQUEST, REPLY_START, patience_s=patience_s)
    with generator:
        generator.begin(offsets, time.monotonic() + 0.05)
        return generator.result()


def test_arrivals_are_the_same_for_the_same_seed() -> None:
    def made(seed: int) -> list[float]:
        return arrivals(random.Random(seed), lambda _: 50.0, 100.0, 10.0)

    assert made(1) == made(1)
    assert made(1) != made(2)


def test_arrivals_are_a_poisson_process_of_the_given_rate() -> None:
    offsets = arrivals(random.Random(3), lambda at_s: 100.0 if at_s < 50 else 300.0, 300.0, 100.0)
    assert offsets == sorted(offsets)
    slow = [at_s for at_s in offsets if at_s < 50]
    fast = [at_s for at_s in offsets if at_s >= 50]
    assert len(slow) == pytest.approx(5_000, rel=0.05)
    assert len(fast) == pytest.approx(15_000, rel=0.05)
    gaps = [later - sooner for sooner, later in itertools.pairwise(fast)]
    assert statistics.stdev(gaps) == pytest.approx(statistics.fmean(gaps), rel=0.05)


def test_latency_counts_from_the_intended_start() -> None:
    played = Played((1.0, 2.0), (1.4, 2.0), (1.5, 2.1))
    assert played.latencies_s() == pytest.approx([0.5, 0.1])
    assert played.late_s() == pytest.approx([0.4, 0.0])


def test_what_is_not_answered_counts_ten_seconds() -> None:
    played = Played((0.0, 1.0, 2.0), (0.0, None, 2.0), (0.5, None, 99.0))
    assert played.latencies_s() == [0.5, UNANSWERED_S, UNANSWERED_S]
    assert played.unanswered == 2
    assert played.sent_ratio == pytest.approx(2 / 3)


def test_a_part_holds_what_was_due_in_it_however_late_it_was_answered() -> None:
    played = Played((-1.0, 0.0, 1.0), (-1.0, 0.0, 1.0), (3.0, 4.0, 5.0))
    assert played.between(0.0, 1.0) == Played((0.0,), (0.0,), (4.0,))
    assert played.between(5.0, 6.0) == Played((), (), ())


def test_each_request_is_sent_on_time_and_answered(tmp_path: Path, server: Server) -> None:
    played = play(tmp_path, [number / 100 for number in range(50)])
    assert played.sent_ratio == 1.0
    assert played.unanswered == 0
    assert statistics.median(played.late_s()) < 0.005


def test_a_stalled_server_delays_no_request(tmp_path: Path, server: Server) -> None:
    """A generator that waits for replies would send one request in the stall, and report one slow
    reply out of many; here every request of the stall is sent on time, and pays for it.
    """
    stall_s = 0.5

    def stall_once(number: int, connection: socket.socket) -> None:
        if number == 5:
            time.sleep(stall_s)
        answer(number, connection)

    server.serve = stall_once
    played = play(tmp_path, [number / 100 for number in range(60)])
    assert played.unanswered == 0
    assert max(played.late_s()) < stall_s / 2
    latencies_s = played.latencies_s()
    assert sum(latency_s > 0.1 for latency_s in latencies_s) >= 30
    assert max(latencies_s) > 0.9 * stall_s


def test_a_reply_that_never_comes_is_given_up(tmp_path: Path, server: Server) -> None:
    def silent_first(number: int, connection: socket.socket) -> None:
        if number == 0:
            held.append(connection.dup())
        else:
            answer(number, connection)

    held: list[socket.socket] = []
    server.serve = silent_first
    played = play(tmp_path, [0.0, 0.1], patience_s=0.3)
    assert played.latencies_s()[0] == UNANSWERED_S
    assert played.unanswered == 1
    held[0].close()


def test_an_error_and_a_reset_are_no_answers(tmp_path: Path, server: Server) -> None:
    replies = [b"500 sorry", b"", b"200 fine"]

    def one_of(number: int, connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(replies[number])

    server.serve = one_of
    played = play(tmp_path, [0.0, 0.1, 0.2])
    assert [latency_s == UNANSWERED_S for latency_s in played.latencies_s()] == [True, True, False]


def test_where_nobody_listens_nothing_is_sent(tmp_path: Path) -> None:
    played = play(tmp_path, [0.0, 0.01])
    assert played.sent_ratio == 0.0
    assert played.unanswered == 2


def test_negative_offsets_are_due_before_the_start(tmp_path: Path, server: Server) -> None:
    generator = OpenLoop(tmp_path / "socket", REQUEST, REPLY_START)
    with generator:
        generator.begin([-0.1, 0.0], time.monotonic() + 0.2)
        played = generator.result()
    assert played.sent[0] is not None and -0.1 <= played.sent[0] < 0.0
    assert len(played.between(0.0, 1.0).offsets) == 1
