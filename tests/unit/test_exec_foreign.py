"""Other writers: resets, new wishes, fights, and what a successor finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.model.actions import Plan, Status
from koordlet.model.knobs import Direction, Knob
from tests.support.execrig import Rig, cpus, key, want
from tests.support.fakehost import fake_host

QUOTA, SHARES, CPUS, IDLE = Knob.CPU_QUOTA, Knob.CPU_SHARES, Knob.CPUSET_CPUS, Knob.CPU_IDLE
FILE = "cpu.cfs_quota_us"


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(fake_host(cgroups={"be": {"pod": {"tasks": 1}}}), tmp_path)


@pytest.mark.parametrize(("original", "reset_to"), [("-1", "-1"), ("300000", "300000")])
def test_CQ_01_a_reset_is_put_back_at_once_and_whole(
    rig: Rig, original: str, reset_to: str
) -> None:
    rig.host.set_text("be", FILE, original)
    rig.tick(want("be", QUOTA, 80_000))
    rig.host.foreign_write("be", FILE, reset_to)
    outcome = rig.tick(want("be", QUOTA, 80_000))[key("be", QUOTA)]
    assert rig.review.resets == {key("be", QUOTA)}
    assert [event.kind for event in rig.review.events] == ["reset"]
    assert (outcome.status, outcome.after) == (Status.APPLIED, "80000")
    assert rig.executor.owned()[key("be", QUOTA)].original == original
    rig.restore_all()
    assert rig.host.text("be", FILE) == original


def test_CQ_12_the_kernel_default_is_a_reset_too(rig: Rig) -> None:
    rig.host.set_text("be", FILE, "300000")
    rig.tick(want("be", QUOTA, 50_000))
    rig.host.foreign_write("be", FILE, "-1")  # systemd at daemon-reload
    rig.tick(want("be", QUOTA, 50_000))
    assert rig.review.resets
    assert rig.host.text("be", FILE) == "50000"
    rig.restore_all()
    assert rig.host.text("be", FILE) == "300000"


def test_H07_a_third_value_is_the_owners_new_wish(rig: Rig) -> None:
    rig.host.set_text("be", FILE, "200000")
    rig.tick(want("be", QUOTA, 100_000))
    rig.host.foreign_write("be", FILE, "400000")  # the pod was resized from 2 to 4 cores
    outcome = rig.tick(want("be", QUOTA, 100_000))[key("be", QUOTA)]
    assert rig.review.rebased == {key("be", QUOTA)}
    assert [event.kind for event in rig.review.events] == ["rebased"]
    assert outcome.status is Status.APPLIED
    assert rig.executor.owned()[key("be", QUOTA)].original == "400000"
    rig.restart()
    assert rig.executor.owned()[key("be", QUOTA)].original == "400000"
    rig.restore_all()
    assert rig.host.text("be", FILE) == "400000"


def test_H07_a_new_wish_that_nobody_overrides_is_told_once(rig: Rig) -> None:
    rig.tick(want("be", QUOTA, 100_000))
    rig.host.foreign_write("be", FILE, "30000")
    rig.tick()
    assert rig.review.rebased
    rig.tick()
    assert not rig.review.rebased
    assert not rig.review.resets
    assert rig.restore_all()[key("be", QUOTA)].status is Status.RESTORED
    assert rig.host.text("be", FILE) == "30000"


def test_H07_a_value_that_came_between_review_and_write_is_not_lost(rig: Rig) -> None:
    rig.tick(want("be", QUOTA, 100_000))
    rig.clock.at_s += 1
    rig.executor.review(rig.clock.at_s)
    rig.host.foreign_write("be", FILE, "300000")
    (outcome,) = rig.executor.apply(Plan((want("be", QUOTA, 90_000),)), rig.clock.at_s)
    assert outcome.status is Status.PENDING
    assert rig.host.text("be", FILE) == "300000"
    rig.tick(want("be", QUOTA, 90_000))
    assert rig.review.rebased
    assert rig.host.text("be", FILE) == "90000"
    rig.restore_all()
    assert rig.host.text("be", FILE) == "300000"


def test_a_restore_leaves_a_foreign_value_alone(rig: Rig) -> None:
    rig.tick(want("be", QUOTA, 100_000))
    rig.host.foreign_write("be", FILE, "30000")
    outcome = rig.restore_all()[key("be", QUOTA)]
    assert (outcome.status, outcome.before) == (Status.FOREIGN, "30000")
    assert rig.host.text("be", FILE) == "30000"
    assert not rig.executor.owned()


def test_the_mask_of_an_idle_group_is_no_foreign_value(rig: Rig) -> None:
    rig.tick(want("be/pod", SHARES, 2), want("be/pod", IDLE, 1))
    for _ in range(3):
        rig.tick(want("be/pod", SHARES, 2), want("be/pod", IDLE, 1))
        assert rig.review.events == ()


def test_H02_idle_reset_by_another_comes_back_with_its_weight(rig: Rig) -> None:
    rig.host.set_text("be/pod", "cpu.shares", "77")
    plan = (want("be/pod", SHARES, 2), want("be/pod", IDLE, 1))
    rig.tick(*plan)
    rig.host.foreign_write("be/pod", "cpu.idle", "0")
    rig.tick(*plan)
    assert rig.review.resets == {key("be/pod", IDLE), key("be/pod", SHARES)}
    assert rig.host.text("be/pod", "cpu.idle") == "1"
    rig.restore_all()
    assert rig.host.text("be/pod", "cpu.shares") == "77"


def test_H17_a_restriction_never_yields_but_comes_back_once_a_second(rig: Rig) -> None:
    wish = want("be", QUOTA, 80_000)
    rig.tick(wish)
    rig.written()
    for _ in range(20):
        rig.host.foreign_write("be", FILE, "-1")
        rig.tick(wish)
        assert rig.host.text("be", FILE) == "80000"
    assert rig.executor.resets == 20
    assert len(rig.written()) == 20
    rig.host.foreign_write("be", FILE, "-1")
    rig.clock.at_s -= 0.8  # an early tick, 0.2 s after the last
    assert rig.tick(wish)[key("be", QUOTA)].status is Status.PENDING
    assert rig.review.resets
    assert rig.tick(wish)[key("be", QUOTA)].status is Status.APPLIED
    assert rig.executor.resets == 21


def test_H17_a_relaxation_yields_after_five_resets_in_ten_seconds(rig: Rig) -> None:
    wish = want("be", QUOTA, 800_000, direction=Direction.RELAX)
    rig.host.set_text("be", FILE, "400000")
    rig.tick(wish)
    for number in range(5):
        rig.host.foreign_write("be", FILE, "400000")
        outcome = rig.tick(wish)[key("be", QUOTA)]
        assert (outcome.status is Status.APPLIED) is (number < 4)
    assert outcome.status is Status.FOREIGN
    assert "yields" in outcome.why
    assert rig.host.text("be", FILE) == "400000"
    for _ in range(30):
        assert rig.tick(wish)[key("be", QUOTA)].status is Status.FOREIGN
    rig.clock.at_s += 60
    assert rig.tick(wish)[key("be", QUOTA)].status is Status.APPLIED


def test_H17_resets_far_apart_are_no_fight(rig: Rig) -> None:
    wish = want("be", QUOTA, 800_000, direction=Direction.RELAX)
    rig.tick(wish)
    for _ in range(12):
        rig.host.foreign_write("be", FILE, "-1")
        rig.clock.at_s += 60
        assert rig.tick(wish)[key("be", QUOTA)].status is Status.APPLIED


def test_H16_a_crash_leaves_values_in_force_and_the_next_daemon_takes_over(rig: Rig) -> None:
    rig.tick(want("be", QUOTA, 80_000), want("be/pod", SHARES, 2), want("be/pod", IDLE, 1))
    rig.restart()
    assert rig.host.text("be", FILE) == "80000"
    owned = rig.executor.owned()
    assert owned[key("be", QUOTA)].original == "-1"
    assert owned[key("be", QUOTA)].since_s < 0
    rig.written()
    outcomes = rig.tick(
        want("be", QUOTA, 80_000), want("be/pod", SHARES, 2), want("be/pod", IDLE, 1)
    )
    assert {o.status for o in outcomes.values()} == {Status.UNCHANGED}
    assert rig.written() == []
    assert rig.review.events == ()
    rig.restore_all()
    assert rig.host.text("be", FILE) == "-1"
    assert rig.host.text("be/pod", "cpu.shares") == "1024"


def test_H16_a_plan_cut_short_is_taken_up_where_it_was_left(rig: Rig) -> None:
    plan = (want("be", CPUS, cpus(2, 3)), want("be/pod", CPUS, cpus(2, 3)))
    rig.tick(want("be", CPUS, cpus(0, 1)), want("be/pod", CPUS, cpus(0, 1)))
    real, count = rig.host.files.write, [0]

    class Killed(BaseException):
        pass

    def dies(path: str, text: str) -> None:
        count[0] += 1
        if count[0] == 3:
            raise Killed
        real(path, text)

    rig.host.files.write = dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        rig.tick(*plan)
    rig.host.files.write = real  # type: ignore[method-assign]
    assert rig.journal.meta()["clean"] == "0"
    rig.restart()
    outcomes = rig.tick(*plan)
    assert {o.status for o in outcomes.values()} == {Status.APPLIED}
    assert rig.review.rebased == frozenset()
    assert rig.journal.meta()["clean"] == "1"
    rig.restore_all()
    assert rig.host.text("be", "cpuset.cpus") == "0-3"


def test_a_cpu_that_goes_offline_is_no_new_wish(rig: Rig) -> None:
    rig.tick(want("be", CPUS, cpus(2, 3)), want("be/pod", CPUS, cpus(2, 3)))
    for path, left in (("", "0-2"), ("be", "2"), ("be/pod", "2")):
        rig.host.set_text(path, "cpuset.cpus", left)
    rig.tick()
    assert rig.review.rebased == frozenset()
    assert rig.executor.owned()[key("be", CPUS)].original == "0-3"
