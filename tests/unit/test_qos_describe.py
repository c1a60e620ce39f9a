"""Plans as prose."""

from __future__ import annotations

from typing import Any

from koordlet.model.actions import Conflict, Hold, Plan, Restore, SetValue, Struck
from koordlet.model.knobs import Channel, Knob, Value
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.qosmanager.describe import describe, format_terms, format_value

A, B = CgroupPath("a"), CgroupPath("b")


def wish(target: CgroupPath, value: Value, owner: str = "one", **more: Any) -> SetValue:
    return SetValue(target, Knob.CPU_QUOTA, value, owner, "there is a reason", **more)


def test_every_part_of_a_plan_is_told() -> None:
    plan = Plan(
        writes=(wish(A, 50_000, terms=(("capacity_cores", 4.0), ("be_roots", 1))),),
        restores=(Restore(A, Knob.CPU_IDLE, "one", "one is switched off"),),
        holds=(Hold(B, Knob.CPU_QUOTA, "one", "no data", 12.4),),
        conflicts=(Conflict(wish(A, 50_000), wish(A, 70_000, "two"), "the tighter wins"),),
        struck=(Struck(wish(B, 10), "too small"),),
    )
    would = (wish(B, None, channel=Channel.SPEC),)
    assert describe(plan, {(A, Knob.CPU_QUOTA): None}, would) == (
        "write   /a cpu.quota: unlimited -> 50000 us [one]",
        "        because there is a reason",
        "        capacity_cores 4, be_roots 1",
        "restore /a cpu.idle: one is switched off [one]",
        "hold    /b cpu.quota: no data [one], for 12 s",
        "would   /b cpu.quota: unknown (not read) -> unlimited through the container runtime [one]",
        "        because there is a reason",
        "lost    /a cpu.quota: 70000 us [two] to [one]: the tighter wins",
        "struck  /b cpu.quota: 10 us [one]: too small",
    )


def test_a_value_that_is_there_already_is_kept() -> None:
    lines = describe(Plan(writes=(wish(A, 50_000),)), {(A, Knob.CPU_QUOTA): 50_000})
    assert lines[0] == "keep    /a cpu.quota: 50000 us [one]"


def test_H02_a_weight_that_idle_masks_is_no_change() -> None:
    """While cpu.idle is 1 the kernel shows shares 3, whatever was written before."""
    weight = SetValue(A, Knob.CPU_SHARES, 2, "one", "a reason")
    values = {(A, Knob.CPU_SHARES): 3, (A, Knob.CPU_IDLE): 1}
    lines = describe(Plan(writes=(weight,)), values)
    assert lines[0] == "keep    /a cpu.shares: 2 [one], masked while cpu.idle is 1"


def test_terms_that_writes_share_are_told_once() -> None:
    shared = (("capacity_cores", 4.0), ("budget_cores", 1.5))
    writes = (
        wish(A, 50_000, terms=(*shared, ("share_cores", 0.5))),
        wish(B, 99_000, terms=(*shared, ("share_cores", 1.0))),
        wish(B, 99_000, terms=(*shared, ("share_cores", 1.0))),
    )
    lines = describe(Plan(writes=writes), {})
    assert [line.strip() for line in lines if "cores " in line] == [
        "capacity_cores 4, budget_cores 1.5, share_cores 0.5",
        "..., share_cores 1",
    ]


def test_an_empty_plan_says_so() -> None:
    assert describe(Plan(), {}) == ("nothing to write, restore or hold",)


def test_format_value() -> None:
    assert format_value(Knob.CPU_QUOTA, None) == "unlimited"
    assert format_value(Knob.CPU_SHARES, 2) == "2"
    assert format_value(Knob.CPUSET_CPUS, frozenset({0, 1, 2, 5})) == "CPUs 0-2,5"
    assert format_value(Knob.CPUSET_CPUS, frozenset()) == "CPUs of the parent"
    assert format_value(Knob.MEMORY_LIMIT, 3 << 19) == "1.5 MiB"
    assert format_value(Knob.CPU_QUOTA, Missing("EIO")) == "unknown (EIO)"
    assert format_terms((("a_cores", 1.23456), ("b", 2), ("c", "x"))) == "a_cores 1.235, b 2, c x"
