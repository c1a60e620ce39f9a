"""The weight of BE roots, and cpu.idle where nobody else writes the weight."""

from __future__ import annotations

from typing import Any

from koordlet.model.knobs import Knob
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from tests.support.snapshots import LAYOUT, TIER, Bench, Tick, app, decide, pod, slo, unit

WEIGHT = slo(priority=True)
IDLE = slo(priority=True, idle=1)
BATCH = "host-best-effort/batch"


def bench(**changes: Any) -> Bench:
    made = Bench(slo=WEIGHT, pods=(pod("a"), pod("web", Qos.LS)), apps=(app("batch"),))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def idle_at(tick: Tick) -> set[str]:
    return {w.target for w in tick.plan.writes if w.knob is Knob.CPU_IDLE}


def test_every_be_root_gets_the_lowest_weight() -> None:
    tick = decide(bench().snapshot())
    assert {(w.target, w.knob, w.value) for w in tick.plan.writes} == {
        (TIER, Knob.CPU_SHARES, 2),
        (BATCH, Knob.CPU_SHARES, 2),
    }


def test_H23_a_switch_that_is_off_owns_nothing() -> None:
    """schedIdle 0 is "not ours", not "write 0"; so is a class that is not enabled."""
    assert idle_at(decide(bench().snapshot())) == set()
    off = decide(bench(slo=slo(priority=False, idle=1)).snapshot())
    assert not off.plan.writes


def test_H01_CQ_23_idle_goes_on_pod_directories_and_applications_only() -> None:
    """Never on a tier, whose weight the kubelet writes, nor on a container of a runtime."""
    tick = decide(bench(slo=IDLE, nested=(f"{TIER}/poda/a-main/inner",)).snapshot())
    assert idle_at(tick) == {f"{TIER}/poda", BATCH}
    assert tick.value(TIER, Knob.CPU_SHARES) == 2
    assert not tick.plan.struck


def test_H01_an_application_declared_on_a_tier_gets_no_idle() -> None:
    for tier in (LAYOUT.besteffort, LAYOUT.burstable, LAYOUT.kubepods):
        tick = decide(bench(slo=IDLE, apps=(app("odd", cgroup=tier),)).snapshot())
        assert tier not in idle_at(tick)


def test_unlabelled_pods_in_a_governed_tier_are_governed_with_it() -> None:
    pods = (pod("a"), pod("b", marked=False))
    tick = decide(bench(slo=IDLE, pods=pods, apps=()).snapshot())
    assert idle_at(tick) == {f"{TIER}/poda", f"{TIER}/podb"}


def test_a_tier_without_a_marked_pod_is_left_alone() -> None:
    tick = decide(bench(slo=IDLE, pods=(pod("b", marked=False),), apps=()).snapshot())
    assert not tick.plan.writes


def test_H26_a_refused_claim_is_governed_as_what_it_is() -> None:
    """A BestEffort pod labelled LSR: refused, so BE, so idle like the others."""
    pods = (pod("a"), pod("liar", Qos.BE, refused="LSR needs Guaranteed"))
    assert f"{TIER}/podliar" in idle_at(decide(bench(slo=IDLE, pods=pods).snapshot()))


def test_H06_a_unit_that_is_only_observed_is_named_and_not_written() -> None:
    batch = unit("batch", "PID 1 is not systemd (init)")
    tick = decide(bench(slo=IDLE, pods=(), apps=(batch,)).snapshot())
    assert not tick.plan.writes
    note = next(p for p in tick.proposals.problems if p.code == "be-root-systemd-unit")
    assert "PID 1 is not systemd" in note.what


def test_H06_a_unit_gets_weight_and_idle() -> None:
    tick = decide(bench(slo=IDLE, pods=(), apps=(unit("batch"),)).snapshot())
    assert {w.knob for w in tick.plan.writes} == {Knob.CPU_SHARES, Knob.CPU_IDLE}
    assert not tick.proposals.problems


def test_a_kernel_without_idle_still_gets_the_weight() -> None:
    tick = decide(bench(slo=IDLE, unusable=(Knob.CPU_IDLE,)).snapshot())
    assert {w.knob for w in tick.plan.writes} == {Knob.CPU_SHARES}
    assert "cpu-idle-unsupported" in tick.codes()


def test_idle_switched_off_is_restored_and_the_weight_stays() -> None:
    tick = decide(bench(slo=IDLE).snapshot())
    tick = decide(tick.after(slo=WEIGHT), tick.proposals.memory)
    assert {(r.target, r.knob) for r in tick.plan.restores} == {
        (f"{TIER}/poda", Knob.CPU_IDLE),
        (BATCH, Knob.CPU_IDLE),
    }
    assert tick.value(BATCH, Knob.CPU_SHARES) == 2


def test_a_pod_that_leaves_is_restored() -> None:
    tick = decide(bench(slo=IDLE).snapshot())
    gone = bench(slo=IDLE, pods=(pod("web", Qos.LS),)).snapshot()
    tick = decide(
        tick.after(workloads=gone.workloads, be_roots=gone.be_roots), tick.proposals.memory
    )
    assert {r.target for r in tick.plan.restores} == {TIER, f"{TIER}/poda"}


def test_H30_weight_comes_before_quota_and_cpuset() -> None:
    both = slo(CpuSuppressPolicy.CFS_QUOTA, priority=True, idle=1)
    knobs = [w.knob for w in decide(bench(slo=both).snapshot()).plan.writes]
    assert knobs == sorted(knobs, key=[Knob.CPU_SHARES, Knob.CPU_IDLE, Knob.CPU_QUOTA].index)
    assert set(knobs) == {Knob.CPU_SHARES, Knob.CPU_IDLE, Knob.CPU_QUOTA}
