"""The latest answer of a source, with its age."""

from __future__ import annotations

from koordlet.model.readings import Missing
from koordlet.pods.slot import Aged, Slot
from koordlet.protocol.problem import Problem


def test_empty_slot_is_missing() -> None:
    assert isinstance(Slot[int]().latest(1.0), Missing)


def test_failure_before_the_first_answer_is_the_reason() -> None:
    slot = Slot[int]()
    slot.fail(Problem("cri-unreachable", "unix:///x", "refused"))
    latest = slot.latest(1.0)
    assert isinstance(latest, Missing)
    assert "unix:///x: refused" in latest.why


def test_answer_ages() -> None:
    slot = Slot[int]()
    slot.publish(7, now_s=10.0)
    assert slot.latest(12.5) == Aged(7, 2.5)


def test_POD_10_failure_keeps_the_last_answer_with_its_age() -> None:
    slot = Slot[int]()
    problem = Problem("kubelet-forbidden", "https://n1:10250", "403")
    slot.publish(7, now_s=10.0)
    slot.fail(problem)
    assert slot.latest(40.0) == Aged(7, 30.0, problem)
    slot.publish(8, now_s=41.0)
    assert slot.latest(41.0) == Aged(8, 0.0)
