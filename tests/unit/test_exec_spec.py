"""Values in the container runtime's spec: asked for, answered later, given back the same way."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.model.actions import Status
from koordlet.model.knobs import Channel, Knob
from tests.support.execrig import Rig, key, want
from tests.support.fakehost import fake_host

QUOTA = Knob.CPU_QUOTA
APP, ID = "be/pod/c1", "c1"
FILE = "cpu.cfs_quota_us"
TARGET = key(APP, QUOTA)
LIFT = want(APP, QUOTA, None, channel=Channel.SPEC, container_id=ID)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    host = fake_host(cgroups={"be": {"pod": {"c1": {"tasks": 1, "cpu.cfs_quota_us": "100000"}}}})
    made = Rig(host, tmp_path)
    made.runtime.specs[ID, QUOTA] = 100_000
    return made


def answer(rig: Rig, text: str | None, *, error: str | None = None) -> Status | None:
    """The runtime did as asked (or says ``error``)."""
    if text is not None:
        rig.host.foreign_write(APP, FILE, text)
    outcome = rig.executor.spec_answered(ID, QUOTA, error, rig.clock.at_s)
    return None if outcome is None else outcome.status


def test_H08_a_spec_value_is_asked_for_and_pending_until_answered(rig: Rig) -> None:
    assert rig.tick(LIFT)[TARGET].status is Status.PENDING
    assert rig.runtime.asked == [(ID, QUOTA, None)]
    assert rig.executor.pending() == {TARGET}
    assert rig.tick(LIFT)[TARGET].status is Status.PENDING
    assert len(rig.runtime.asked) == 1
    assert rig.written() == []
    assert answer(rig, "-1") is Status.APPLIED
    assert rig.executor.pending() == frozenset()
    assert rig.tick(LIFT)[TARGET].status is Status.UNCHANGED
    row = rig.journal.rows()[0][0]
    assert (row.channel, row.container_id, row.original) == (Channel.SPEC, ID, "100000")


def test_H08_it_is_restored_through_the_runtime_and_checked_in_the_file(rig: Rig) -> None:
    rig.tick(LIFT)
    answer(rig, "-1")
    assert rig.restore_all()[TARGET].status is Status.PENDING
    assert rig.runtime.asked[-1] == (ID, QUOTA, 100_000)
    assert TARGET in rig.executor.owned()
    assert answer(rig, "100000") is Status.RESTORED
    assert not rig.executor.owned()
    assert rig.journal.rows() == ((), ())


def test_H08_an_answer_that_the_file_does_not_bear_out_is_no_success(rig: Rig) -> None:
    rig.tick(LIFT)
    assert answer(rig, None) is Status.REFUSED
    assert not rig.executor.owned()


def test_the_spec_outranks_the_file_as_source_of_the_original(rig: Rig) -> None:
    rig.runtime.specs[ID, QUOTA] = 150_000
    rig.tick(LIFT)
    assert rig.executor.owned()[TARGET].original == "150000"


def test_the_file_is_the_original_where_the_spec_is_not_known(rig: Rig) -> None:
    rig.runtime.specs.clear()
    rig.tick(LIFT)
    assert rig.executor.owned()[TARGET].original == "100000"


def test_a_refusal_of_the_runtime_is_not_hammered(rig: Rig) -> None:
    asked = []
    for _ in range(8):
        outcome = rig.tick(LIFT)[TARGET]
        if outcome.status is Status.PENDING:
            assert answer(rig, None, error="container is not running") is Status.REFUSED
        else:
            assert "not running" in outcome.why
        asked.append(len(rig.runtime.asked))
    assert asked == [1, 2, 2, 3, 3, 3, 3, 4]


def test_OPS_01_an_answer_does_not_tell_standing_refusals_again(rig: Rig) -> None:
    tier = want("be", QUOTA, 30_000)
    rig.tick(tier, LIFT)
    assert sorted(rig.events()) == ["pending", "refused"]
    answer(rig, None, error="busy")
    assert rig.events() == ["refused"]
    rig.tick(tier)
    assert rig.events() == []


def test_an_answer_that_never_comes_is_asked_for_again(rig: Rig) -> None:
    rig.tick(LIFT)
    rig.clock.at_s += 10
    rig.tick(LIFT)
    assert len(rig.runtime.asked) == 2


def test_an_answer_that_nobody_waits_for_says_nothing(rig: Rig) -> None:
    assert answer(rig, None) is None


def test_H08_an_update_that_puts_the_spec_back_is_a_reset(rig: Rig) -> None:
    rig.tick(LIFT)
    answer(rig, "-1")
    rig.host.foreign_write(APP, FILE, "100000")
    assert rig.tick(LIFT)[TARGET].status is Status.PENDING
    assert rig.review.resets == {TARGET}
    assert len(rig.runtime.asked) == 2


def test_H16_a_successor_asks_again_for_what_was_never_answered(rig: Rig) -> None:
    rig.tick(LIFT)
    rig.restart()
    assert rig.executor.owned()[TARGET].channel is Channel.SPEC
    assert rig.tick(LIFT)[TARGET].status is Status.PENDING
    assert len(rig.runtime.asked) == 2
    answer(rig, "-1")
    rig.restart()
    rig.restore_all()
    assert rig.runtime.asked[-1] == (ID, QUOTA, 100_000)


def test_H08_a_restore_while_the_first_request_is_under_way_follows_it(rig: Rig) -> None:
    rig.tick(LIFT)
    assert rig.restore_all()[TARGET].status is Status.PENDING
    assert rig.runtime.asked == [(ID, QUOTA, None), (ID, QUOTA, 100_000)]
    assert answer(rig, "-1") is None  # of the first: overtaken
    assert rig.restore_all()[TARGET].status is Status.PENDING
    assert len(rig.runtime.asked) == 2
    assert answer(rig, "100000") is Status.RESTORED
    assert not rig.executor.owned()


def test_H08_a_file_put_back_by_hand_does_not_hide_the_spec(rig: Rig) -> None:
    rig.tick(LIFT)
    answer(rig, "-1")
    rig.host.foreign_write(APP, FILE, "100000")
    assert rig.restore_all()[TARGET].status is Status.PENDING
    assert rig.runtime.asked[-1] == (ID, QUOTA, 100_000)
    assert answer(rig, None) is Status.RESTORED


def test_a_container_that_left_takes_its_request_along(rig: Rig) -> None:
    rig.tick(LIFT)
    rig.host.remove(APP)
    assert rig.tick(LIFT)[TARGET].status is Status.GONE
    assert rig.executor.pending() == frozenset()
    assert answer(rig, None, error="not found") is None


def test_H04_the_tier_follows_once_the_runtime_has_lifted_its_child(rig: Rig) -> None:
    tier = want("be", QUOTA, 30_000)
    outcomes = rig.tick(tier, LIFT)
    assert outcomes[key("be", QUOTA)].status is Status.REFUSED
    assert APP in outcomes[key("be", QUOTA)].why
    answer(rig, "-1")
    assert rig.tick(tier, LIFT)[key("be", QUOTA)].status is Status.APPLIED
    outcomes = rig.restore_all()
    assert outcomes[key("be", QUOTA)].status is Status.RESTORED
    assert answer(rig, "100000") is Status.RESTORED
