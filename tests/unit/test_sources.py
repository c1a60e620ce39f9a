"""When sources are asked, and what becomes of their answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from koordlet.clock import SystemClock
from koordlet.model.pods import PodRecord
from koordlet.pods.source import SourceError
from koordlet.protocol.problem import Problem
from koordlet.report import SourceState, SourceStatus
from koordlet.sources import LISTS_PER_S, RELIST_S, ListSource, RelistPace
from tests.support.waiting import until

WITHIN_S = 5.0
DOWN = Problem("cri", "containerd.sock", "connection refused")


def _asked_at(pace: RelistPace, start_s: float, until_s: float) -> list[float]:
    """When a thread that obeys ``pace`` asks, seconds after ``start_s``."""
    now_s, asked = start_s, []
    while True:
        now_s += pace.wait_s(now_s)
        if now_s >= until_s:
            return asked
        pace.asked(now_s)
        asked.append(round(now_s - start_s, 6))


@pytest.fixture
def pace() -> RelistPace:
    pace = RelistPace()
    pace.asked(0.0)
    return pace


def test_the_first_list_is_due_at_once_then_every_ten_seconds() -> None:
    assert _asked_at(RelistPace(), 50.0, 85.0) == [0.0, RELIST_S, 2 * RELIST_S, 3 * RELIST_S]


def test_after_a_change_a_few_lists_follow_since_runtimes_name_containers_late(
    pace: RelistPace,
) -> None:
    pace.changed(5.0)
    assert _asked_at(pace, 5.0, 12.0) == [0.0, 0.05, 0.15, 0.4, 1.0]


def test_a_storm_of_changes_costs_a_bounded_number_of_lists(pace: RelistPace) -> None:
    now_s, asked = 5.0, []
    while now_s < 8.0:
        pace.changed(now_s)
        if pace.wait_s(now_s) <= 0:
            pace.asked(now_s)
            asked.append(now_s)
        now_s += 0.01
    assert 2 * LISTS_PER_S < len(asked) <= 3 * LISTS_PER_S + 1


def test_a_failure_is_tried_again_soon_then_less_and_less_often(pace: RelistPace) -> None:
    now_s, waited = 0.0, []
    for _ in range(7):
        pace.failed(now_s)
        wait_s = pace.wait_s(now_s)
        waited.append(wait_s)
        now_s += wait_s
        pace.asked(now_s)
    assert waited[:3] == [1.0, 2.0, 4.0]
    assert max(waited) <= RELIST_S
    pace.answered()
    pace.failed(now_s)
    assert pace.wait_s(now_s) == 1.0


# -- the thread -----------------------------------------------------------------------------------


class Asked:
    """A source that answers what the test says, and remembers what was made of it."""

    def __init__(self) -> None:
        self.answer: tuple[PodRecord, ...] | Problem = ()
        self.warnings: tuple[Problem, ...] = (Problem("cri-partial", "pod u1", "odd"),)
        self.calls = 0
        self.published: list[object] = []
        self.statuses: list[SourceStatus] = []
        self.gate = threading.Event()
        self.gate.set()
        self.source = ListSource(
            "cri",
            "unix:///run/containerd/containerd.sock",
            self,
            SystemClock(),
            lambda name, answer: self.published.append((name, answer)),
            self.statuses.append,
        )

    def list_records(self) -> tuple[PodRecord, ...]:
        assert self.gate.wait(WITHIN_S)
        self.calls += 1
        if isinstance(self.answer, Problem):
            raise SourceError(self.answer)
        return self.answer


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_a_good_answer_is_published_and_told(asked: Asked) -> None:
    asked.source.start()
    _wait(lambda: asked.statuses)
    asked.source.stop()
    assert asked.published == [("cri", ())]
    assert asked.statuses[0].state is SourceState.OK
    assert asked.statuses[0].problems == asked.warnings


def test_a_failure_before_any_answer_is_failed_and_after_one_stale_with_its_age(
    asked: Asked,
) -> None:
    asked.answer = DOWN
    asked.source.start()
    _wait(lambda: asked.statuses)
    assert asked.statuses[-1].state is SourceState.FAILED
    assert asked.statuses[-1].age_s is None
    asked.answer = ()
    asked.source.relist()
    _wait(lambda: asked.statuses[-1].state is SourceState.OK)
    asked.answer = DOWN
    asked.source.relist()
    _wait(lambda: asked.statuses[-1].state is SourceState.STALE)
    asked.source.stop()
    assert asked.statuses[-1].problems == (DOWN,)
    assert asked.statuses[-1].age_s is not None
    assert asked.published[-1] == ("cri", DOWN)


def test_a_change_during_a_slow_answer_asks_again(asked: Asked) -> None:
    asked.gate.clear()
    asked.source.start()
    time.sleep(0.02)
    asked.source.relist()  # while the first is under way
    asked.gate.set()
    _wait(lambda: asked.calls >= 2)
    asked.source.stop()


def test_a_stopped_source_asks_no_more(asked: Asked) -> None:
    asked.source.start()
    _wait(lambda: asked.calls == 1)
    asked.source.stop()
    asked.source.relist()
    time.sleep(0.05)
    assert asked.calls == 1


def _wait(done: Callable[[], object]) -> None:
    until(done, WITHIN_S)


def test_OPS_01_a_client_with_a_fault_is_asked_again_and_the_fault_told() -> None:
    """A thread that died would look like a source whose answers only grow old."""
    told: list[SourceStatus] = []

    class Faulty:
        warnings: tuple[Problem, ...] = ()
        asked = 0

        def list_records(self) -> tuple[PodRecord, ...]:
            self.asked += 1
            if self.asked == 1:
                raise IndexError("an answer of a shape that nobody thought of")
            return ()

    source = ListSource("cri", "x.sock", Faulty(), SystemClock(), lambda *_: None, told.append)
    source.start()
    until(lambda: bool(told) and told[-1].state is SourceState.OK, WITHIN_S)
    source.stop()
    assert told[0].state is SourceState.FAILED
    assert [problem.code for problem in told[0].problems] == ["source-fault"]
