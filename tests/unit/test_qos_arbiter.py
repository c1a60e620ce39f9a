"""One plan out of many wishes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from koordlet.model.actions import Hold, Owned, Plan, SetValue, Target
from koordlet.model.knobs import Channel, Knob, Value
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.qosmanager.arbiter import arbitrate
from koordlet.qosmanager.registry import Proposals
from koordlet.snapshot import Snapshot
from tests.support.snapshots import TIER, Bench

A = CgroupPath("a")


def wish(owner: str, knob: Knob, value: Value, target: CgroupPath = A) -> SetValue:
    return SetValue(target, knob, value, owner, f"{owner} says so")


def row(knob: Knob, owner: str = "one", *, side_effect: bool = False) -> Owned:
    return Owned(A, knob, owner, Channel.FILE, "1", "2", 0.0, side_effect=side_effect)


def snapshot(*rows: Owned, values: Mapping[Target, Value | Missing] | None = None) -> Snapshot:
    owned = {one.key: one for one in rows}
    return replace(Bench().snapshot(), owned=owned, values=values or {})


def plan(*actions: SetValue, holds: tuple[Hold, ...] = (), at: Snapshot | None = None) -> Plan:
    return arbitrate(Proposals(actions=actions, holds=holds), at or snapshot())


@pytest.mark.parametrize(
    ("knob", "one", "two", "wins"),
    [
        (Knob.CPU_QUOTA, 100_000, 50_000, 50_000),
        (Knob.CPU_QUOTA, None, 50_000, 50_000),
        (Knob.CPU_QUOTA, None, None, None),
        (Knob.CPU_SHARES, 1024, 2, 2),
        (Knob.CPU_IDLE, 0, 1, 1),
        (Knob.MEMORY_LIMIT, None, 1 << 30, 1 << 30),
        (Knob.MEMORY_HIGH, 1 << 31, 1 << 30, 1 << 30),
        (Knob.CPUSET_CPUS, frozenset({0, 1, 2}), frozenset({1, 2, 3}), frozenset({1, 2})),
        (Knob.CPUSET_CPUS, frozenset({0, 1}), frozenset({5}), frozenset({5})),
        (Knob.PIDS_MAX, 7, 5, 7),
    ],
)
def test_the_table(knob: Knob, one: Value, two: Value, wins: Value) -> None:
    for actions in (
        (wish("one", knob, one), wish("two", knob, two)),
        (wish("two", knob, two), wish("one", knob, one)),
    ):
        made = plan(*actions)
        assert [write.value for write in made.writes] == [wins]


def test_a_conflict_names_winner_loser_and_rule() -> None:
    made = plan(wish("one", Knob.CPU_QUOTA, 9_000), wish("two", Knob.CPU_QUOTA, 5_000))
    (conflict,) = made.conflicts
    assert (conflict.winner.owner, conflict.loser.owner) == ("two", "one")
    assert conflict.rule == "the tighter quota wins"
    same = plan(wish("one", Knob.CPU_QUOTA, 5_000), wish("two", Knob.CPU_QUOTA, 5_000))
    assert not same.conflicts


def test_what_nobody_asks_for_is_restored_with_the_reason() -> None:
    proposals = Proposals(silent={"one": "one is switched off"})
    at = snapshot(row(Knob.CPU_QUOTA), row(Knob.CPU_SHARES, owner="gone"))
    assert [(r.knob, r.why) for r in arbitrate(proposals, at).restores] == [
        (Knob.CPU_SHARES, "there is no strategy gone"),
        (Knob.CPU_QUOTA, "one is switched off"),
    ]


def test_H02_a_side_effect_row_goes_with_its_main_row() -> None:
    at = snapshot(row(Knob.CPU_IDLE), row(Knob.CPU_SHARES, side_effect=True))
    assert [r.knob for r in plan(at=at).restores] == [Knob.CPU_IDLE]
    kept = plan(wish("one", Knob.CPU_IDLE, 1), at=at)
    assert not kept.restores


def test_H02_no_weight_of_another_owner_beside_idle() -> None:
    idle, shares = wish("one", Knob.CPU_IDLE, 1), wish("two", Knob.CPU_SHARES, 2)
    made = plan(idle, shares)
    assert [write.knob for write in made.writes] == [Knob.CPU_IDLE]
    assert [c.rule for c in made.conflicts] == ["idle masks the weight, and wins"]
    both = plan(idle, wish("one", Knob.CPU_SHARES, 2))
    assert {write.knob for write in both.writes} == {Knob.CPU_IDLE, Knob.CPU_SHARES}
    off = plan(wish("one", Knob.CPU_IDLE, 0), shares)
    assert {write.knob for write in off.writes} == {Knob.CPU_IDLE, Knob.CPU_SHARES}


@pytest.mark.parametrize("asked", [True, False])
def test_H02_a_masked_weight_waits_for_its_restore(asked: bool) -> None:
    """A restore of the weight while idle is 1 would be refused by the kernel."""
    at = snapshot(row(Knob.CPU_SHARES, owner="two"))
    more = (wish("two", Knob.CPU_SHARES, 2),) if asked else ()
    made = plan(wish("one", Knob.CPU_IDLE, 1), *more, at=at)
    assert not made.restores
    assert [hold.knob for hold in made.holds] == [Knob.CPU_SHARES]


def held(owner: str = "one", knob: Knob = Knob.CPU_QUOTA) -> Hold:
    return Hold(A, knob, owner, "no data")


def test_a_hold_keeps_what_is_there() -> None:
    made = plan(holds=(held(),), at=snapshot(row(Knob.CPU_QUOTA)))
    assert made.holds == (held(),)
    assert not made.restores
    both = plan(wish("one", Knob.CPU_QUOTA, 5_000), holds=(held(),))
    assert not both.writes
    assert both.holds == (held(),)


@pytest.mark.parametrize(
    ("present", "written"), [(50_000, True), (3_000, False), (5_000, False), (None, True)]
)
def test_a_hold_yields_to_a_tighter_value_of_another_owner(
    present: int | None, written: bool
) -> None:
    at = snapshot(values={(A, Knob.CPU_QUOTA): present})
    made = plan(wish("two", Knob.CPU_QUOTA, 5_000), holds=(held(),), at=at)
    assert bool(made.writes) is written
    assert bool(made.holds) is not written


def test_a_hold_on_an_unknown_value_stands() -> None:
    made = plan(wish("two", Knob.CPU_QUOTA, 5_000), holds=(held(),))
    assert not made.writes
    assert made.holds[0].why == "no data; two wanted another value"


def test_weight_comes_first_and_parents_before_children() -> None:
    child = CgroupPath(f"{TIER}/pod")
    made = plan(
        wish("one", Knob.CPUSET_CPUS, frozenset({0})),
        wish("one", Knob.CPU_QUOTA, 5_000, child),
        wish("one", Knob.CPU_QUOTA, 5_000, TIER),
        wish("one", Knob.CPU_SHARES, 2, child),
    )
    assert [(w.knob, w.target) for w in made.writes] == [
        (Knob.CPU_SHARES, child),
        (Knob.CPU_QUOTA, TIER),
        (Knob.CPU_QUOTA, child),
        (Knob.CPUSET_CPUS, A),
    ]
