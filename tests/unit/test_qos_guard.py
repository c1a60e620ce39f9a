"""Hard limits that no plan crosses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordlet.model.actions import Owned, Plan, SetValue, Struck
from koordlet.model.knobs import Channel, Knob, Value
from koordlet.model.paths import ROOT, CgroupPath
from koordlet.model.pods import Workloads
from koordlet.model.readings import Missing
from koordlet.protocol.cpuset import parse_cpuset
from koordlet.protocol.qos import Qos
from koordlet.qosmanager.guard import guard, memory_floor_bytes
from koordlet.snapshot import Snapshot
from koordlet.units import MIB
from tests.support.snapshots import LAYOUT, TIER, Bench, app, node, pod, unit

POD = CgroupPath(f"{TIER}/poda")
CONTAINER = CgroupPath(f"{POD}/a-main")
BATCH = CgroupPath("host-best-effort/batch")


def bench(**changes: Any) -> Snapshot:
    made = Bench(node=node(8), pods=(pod("a"), pod("web", Qos.LS)), apps=(app("batch"),))
    for name, value in changes.items():
        setattr(made, name, value)
    return made.snapshot()


def strike(
    target: str, knob: Knob, value: Value, snapshot: Snapshot | None = None
) -> tuple[Plan, str]:
    """The guarded plan of one write, and why it was struck (``""`` if it was not)."""
    action = SetValue(CgroupPath(target), knob, value, "test", "because")
    plan = guard(Plan(writes=(action,)), snapshot or bench())
    if plan.writes:
        assert not plan.struck
        return plan, ""
    assert plan.struck == (Struck(action, plan.struck[0].why),)
    return plan, plan.struck[0].why


def test_what_is_right_passes() -> None:
    for target, knob, value in (
        (TIER, Knob.CPU_SHARES, 2),
        (TIER, Knob.CPU_QUOTA, 2_000),
        (CONTAINER, Knob.CPU_QUOTA, None),
        (POD, Knob.CPU_IDLE, 1),
        (BATCH, Knob.CPU_IDLE, 1),
        (TIER, Knob.CPUSET_CPUS, frozenset({0, 1})),
        (LAYOUT.burstable.child("podweb"), Knob.CPU_SHARES, 512),
    ):
        assert strike(target, knob, value)[1] == ""


@pytest.mark.parametrize("tier", [LAYOUT.kubepods, LAYOUT.burstable, LAYOUT.besteffort])
def test_H01_CQ_23_no_idle_on_a_tier(tier: CgroupPath) -> None:
    assert "keeps the kubelet from starting" in strike(tier, Knob.CPU_IDLE, 1)[1]


@pytest.mark.parametrize("target", [CONTAINER, f"{CONTAINER}/inner"])
def test_H01_no_idle_on_a_container(target: str) -> None:
    assert "update by its runtime" in strike(target, Knob.CPU_IDLE, 1)[1]


def test_H03_a_memory_limit_stays_above_use_and_a_margin() -> None:
    """100 MiB over 300 MiB in use would kill at once on cgroup v2."""
    used = {CONTAINER: 300 * MIB}
    at = replace(bench(), memory_used_bytes=used)
    for knob in (Knob.MEMORY_LIMIT, Knob.MEMORY_SWAP_LIMIT):
        assert "would kill" in strike(CONTAINER, knob, 100 * MIB, at)[1]
        assert "would kill" in strike(CONTAINER, knob, 364 * MIB - 1, at)[1]
        assert strike(CONTAINER, knob, 364 * MIB, at)[1] == ""
        assert strike(CONTAINER, knob, None, at)[1] == ""
    assert "unknown" in strike(CONTAINER, Knob.MEMORY_LIMIT, 1 << 40)[1]
    assert memory_floor_bytes(100 * MIB) == 164 * MIB
    assert memory_floor_bytes(4000 * MIB) == 4200 * MIB


def test_a_quota_below_the_kernels_least() -> None:
    assert "least quota" in strike(TIER, Knob.CPU_QUOTA, 999)[1]


def test_CS_01_an_empty_cpuset() -> None:
    assert "empty cpuset" in strike(TIER, Knob.CPUSET_CPUS, frozenset())[1]


def test_a_cpuset_of_which_nothing_may_be_used() -> None:
    facts = replace(node(8), reserved_cpus=parse_cpuset("0-1"), exclusive_cpus=parse_cpuset("2-3"))
    why = strike(TIER, Knob.CPUSET_CPUS, parse_cpuset("0-3,9"), bench(node=facts))[1]
    assert "every CPU of 0-3,9 is offline, reserved or exclusive" in why


@pytest.mark.parametrize(
    "target",
    ["", "kubepods", "kubepods/burstable", "kubepods/burstable/podother", "system.slice/x"],
)
def test_nothing_outside_be_roots_and_marked_workloads(target: str) -> None:
    assert strike(target, Knob.CPU_SHARES, 2)[1]


def test_no_write_to_a_tier_without_marked_work() -> None:
    unmarked = bench(pods=(pod("a", marked=False),))
    assert "no marked workload" in strike(TIER, Knob.CPU_SHARES, 2, unmarked)[1]
    assert "no marked workload" in strike(POD, Knob.CPU_IDLE, 1, unmarked)[1]


def test_an_application_declared_on_the_root_opens_nothing() -> None:
    odd = replace(app("odd"), cgroup=ROOT)
    at = bench(pods=(), apps=(odd,))
    assert strike("system.slice/x", Knob.CPU_SHARES, 2, at)[1]


def test_H06_what_can_only_be_observed_is_unsupported() -> None:
    batch = unit("batch", "PID 1 is not systemd (init)")
    for target in (batch.cgroup, f"{batch.cgroup}/inner"):
        why = strike(str(target), Knob.CPU_SHARES, 2, bench(apps=(batch,)))[1]
        assert why == "unsupported: host application batch: PID 1 is not systemd (init)"


def test_H06_a_systemd_unit_may_be_written() -> None:
    batch = unit("batch")
    assert not strike(str(batch.cgroup), Knob.CPU_SHARES, 2, bench(apps=(batch,)))[1]


def owned(snapshot: Snapshot, target: str, knob: Knob) -> Snapshot:
    row = Owned(CgroupPath(target), knob, "test", Channel.FILE, "1", "2", 0.0)
    return replace(snapshot, owned={row.key: row})


def test_a_struck_value_of_ours_is_held_a_struck_place_restored() -> None:
    plan, _ = strike(TIER, Knob.CPU_QUOTA, 1, owned(bench(), TIER, Knob.CPU_QUOTA))
    assert [hold.target for hold in plan.holds] == [TIER]
    assert not plan.restores
    plan, _ = strike("gone", Knob.CPU_QUOTA, 9_000, owned(bench(), "gone", Knob.CPU_QUOTA))
    assert [restore.target for restore in plan.restores] == ["gone"]
    assert not plan.holds


def test_while_pods_are_unknown_the_journal_says_what_is_ours() -> None:
    at = owned(bench(), TIER, Knob.CPU_QUOTA)
    unknown = Workloads(Missing("starting"), 0.0, (), LAYOUT)
    at = replace(at, workloads=unknown, be_roots=())
    assert strike(TIER, Knob.CPU_QUOTA, 80_000, at)[1] == ""
    assert strike(POD, Knob.CPU_QUOTA, 80_000, at)[1]
