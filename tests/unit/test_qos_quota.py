"""Policy cfsQuota on the BE roots themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordlet.model.knobs import Direction, Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.qosmanager import journaled
from koordlet.snapshot import RootDemand
from tests.support.snapshots import TIER, Bench, Tick, app, decide, node, pod, reset, slo, unit, use

QUOTA = slo(CpuSuppressPolicy.CFS_QUOTA)
BATCH = "host-best-effort/batch"


def bench(**changes: Any) -> Bench:
    made = Bench(node=node(8), slo=QUOTA, pods=(pod("a"),), cpu=use(pods=1.2))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def next_tick(tick: Tick, seconds: float = 1.0, **changes: Any) -> Tick:
    return decide(tick.after(seconds=seconds, **changes), tick.proposals.memory)


def test_first_write_from_unlimited_cuts_at_once() -> None:
    tick = decide(bench().snapshot())
    assert tick.value(TIER, Knob.CPU_QUOTA) == 400_000
    assert tick.write(TIER, Knob.CPU_QUOTA).direction is Direction.RESTRICT


def test_every_number_of_the_formula_is_in_the_terms() -> None:
    terms = dict(decide(bench().snapshot()).write(TIER, Knob.CPU_QUOTA).terms)
    assert terms["capacity_cores"] == 8.0
    assert terms["nonbe_pods_cores"] == 1.2
    assert terms["budget_cores"] == pytest.approx(4.0)
    assert terms["share_cores"] == pytest.approx(4.0)
    assert terms["desired_us"] == 400_000
    assert terms["before_us"] == "none of ours"
    assert terms["owner_limit_us"] == "unlimited"


def test_CQ_20_quota_is_in_force_with_and_without_pods() -> None:
    alone = bench(pods=(), apps=(app("batch"),))
    assert decide(alone.snapshot()).value(BATCH, Knob.CPU_QUOTA) == 400_000
    both = bench(apps=(app("batch"),))
    tick = decide(both.snapshot())
    assert tick.value(TIER, Knob.CPU_QUOTA) == tick.value(BATCH, Knob.CPU_QUOTA) == 200_000


def test_shrinks_at_once_and_grows_by_a_tenth_of_the_node_a_second() -> None:
    tick = decide(bench(cpu=use(pods=4.2)).snapshot())
    assert tick.value(TIER, Knob.CPU_QUOTA) == 100_000
    tick = next_tick(tick, cpu=use(pods=1.2))
    assert tick.value(TIER, Knob.CPU_QUOTA) == 180_000
    assert dict(tick.write(TIER, Knob.CPU_QUOTA).terms)["bound_by"] == "growth of 10 % of the node"
    tick = next_tick(tick, cpu=use(pods=4.2))
    assert tick.value(TIER, Knob.CPU_QUOTA) == 100_000


def test_H28_early_ticks_do_not_speed_growth_up() -> None:
    """A pressure trigger ticks five times a second; BE still grows one step in that second."""
    tick = decide(bench(cpu=use(pods=4.2)).snapshot())
    grown = []
    for _ in range(10):
        tick = next_tick(tick, 0.2, cpu=use(pods=1.2))
        grown.append(tick.value(TIER, Knob.CPU_QUOTA))
    assert grown == [180_000] * 5 + [260_000] * 5


def test_dead_band_keeps_the_value_unless_the_target_is_the_floor() -> None:
    tick = decide(bench().snapshot())
    tick = next_tick(tick, cpu=use(pods=1.2 + 0.07))
    assert tick.value(TIER, Knob.CPU_QUOTA) == 400_000
    tick = next_tick(tick, cpu=use(pods=1.2 + 0.09))
    assert tick.value(TIER, Knob.CPU_QUOTA) == 391_000
    low = decide(bench(cpu=use(pods=5.2 - 0.05)).snapshot())
    assert low.value(TIER, Knob.CPU_QUOTA) == 5_000
    floored = next_tick(low, cpu=use(pods=7.0))
    assert floored.value(TIER, Knob.CPU_QUOTA) == 2_000


def test_CQ_01_foreign_reset_is_answered_at_once_without_a_ramp() -> None:
    """Koordinator #1734: the kubelet resets the tier to -1 each minute."""
    big = Bench(node=node(16), slo=QUOTA, pods=(pod("a"),), cpu=use(pods=2.4))
    tick = decide(big.snapshot())
    assert tick.value(TIER, Knob.CPU_QUOTA) == 800_000
    tick = decide(reset(tick.after(seconds=60), TIER, Knob.CPU_QUOTA), tick.proposals.memory)
    assert tick.snapshot.value((tick.plan.writes[0].target, Knob.CPU_QUOTA)) is None
    assert tick.value(TIER, Knob.CPU_QUOTA) == 800_000


def test_CQ_01_growth_after_a_reset_starts_from_the_last_target() -> None:
    tick = decide(bench(cpu=use(pods=4.2)).snapshot())
    snapshot = reset(tick.after(), TIER, Knob.CPU_QUOTA)
    tick = decide(replace(snapshot, cpu=use(pods=1.2)), tick.proposals.memory)
    assert tick.value(TIER, Knob.CPU_QUOTA) == 180_000


def test_H17_a_reset_is_never_answered_by_giving_up() -> None:
    tick = decide(bench().snapshot())
    for _ in range(20):
        snapshot = reset(tick.after(seconds=0.2), TIER, Knob.CPU_QUOTA)
        tick = decide(snapshot, tick.proposals.memory)
        assert tick.value(TIER, Knob.CPU_QUOTA) == 400_000


def test_H07_an_owners_own_limit_is_never_exceeded_and_followed_when_it_changes() -> None:
    tick = decide(bench(values={(TIER, Knob.CPU_QUOTA): 150_000}).snapshot())
    assert tick.value(TIER, Knob.CPU_QUOTA) == 150_000
    # The owner writes a third value; the executor made it the new original.
    snapshot = tick.after()
    key = tick.plan.writes[0].key
    rebased = replace(
        snapshot,
        values={**snapshot.values, key: 90_000},
        owned={**snapshot.owned, key: replace(snapshot.owned[key], original="90000")},
    )
    tick = decide(rebased, tick.proposals.memory)
    assert tick.value(TIER, Knob.CPU_QUOTA) == 90_000


@pytest.mark.parametrize(
    ("period_us", "expected"), [(10_000, 40_000), (20_000, 80_000), (1_000_000, 4_000_000)]
)
def test_CQ_09_quota_is_at_the_period_in_the_file(period_us: int, expected: int) -> None:
    one = bench(values={(TIER, Knob.CPU_PERIOD): period_us})
    assert decide(one.snapshot()).value(TIER, Knob.CPU_QUOTA) == expected


def test_CQ_11_unlimited_is_no_number() -> None:
    assert journaled.quota_us("-1") is None
    assert journaled.quota_us("max 100000") is None
    assert journaled.quota_us("50000 100000") == 50_000
    assert isinstance(journaled.quota_us(""), Missing)
    assert isinstance(journaled.quota_us("-2"), Missing)
    assert journaled.cpus("0-2,5\n") == frozenset({0, 1, 2, 5})
    assert isinstance(journaled.cpus("all"), Missing)


def test_one_budget_follows_demand() -> None:
    demand = {TIER: RootDemand(3.9, 0.9), BATCH: RootDemand(0.4, 0.0)}
    tick = decide(bench(apps=(app("batch"),), demand=demand).snapshot())
    assert tick.value(TIER, Knob.CPU_QUOTA) == 350_000
    assert tick.value(BATCH, Knob.CPU_QUOTA) == 50_000


def test_H12_floors_win_over_the_budget_and_status_says_so() -> None:
    apps = tuple(app(f"batch{n}") for n in range(4))
    tick = decide(bench(apps=apps, cpu=use(pods=7.5)).snapshot())
    values = [w.value for w in tick.plan.writes if w.knob is Knob.CPU_QUOTA]
    assert values == [2_000] * 5
    assert "floor-bound" in tick.codes()
    report = next(r for r in tick.proposals.reports if r.name == "cpu_suppress")
    assert dict(report.decision.terms)["floor_bound"] == 1


def test_floor_scales_with_the_period_but_not_below_the_kernels_least() -> None:
    short = bench(cpu=use(pods=7.5), values={(TIER, Knob.CPU_PERIOD): 10_000})
    assert decide(short.snapshot()).value(TIER, Knob.CPU_QUOTA) == 1_000


def test_H06_a_unit_that_is_only_observed_is_named() -> None:
    batch = unit("batch", "PID 1 is not systemd (init)")
    tick = decide(bench(apps=(batch,)).snapshot())
    assert {w.target for w in tick.plan.writes} == {TIER}
    assert "be-root-systemd-unit" in tick.codes()


def test_H06_a_unit_has_its_part_of_the_budget() -> None:
    tick = decide(bench(apps=(unit("batch"),)).snapshot())
    assert {w.target for w in tick.plan.writes} == {TIER, unit("batch").cgroup}
    assert "be-root-systemd-unit" not in tick.codes()


def test_an_unreadable_root_is_held_and_its_use_left_out_of_the_split() -> None:
    tick = decide(bench(apps=(app("batch"),)).snapshot())
    batch = CgroupPath(BATCH)
    broken = {**tick.after().values, (batch, Knob.CPU_QUOTA): Missing("EIO")}
    demand = {batch: RootDemand(1.0, 0.0), TIER: RootDemand(2.0, 1.0)}
    tick = next_tick(tick, values=broken, be_demand=demand)
    assert [hold.target for hold in tick.plan.holds] == [BATCH]
    assert tick.value(TIER, Knob.CPU_QUOTA) == 280_000
    assert dict(tick.write(TIER, Knob.CPU_QUOTA).terms)["desired_us"] == 300_000


def test_a_host_without_quotas_says_so_and_writes_none() -> None:
    tick = decide(bench(unusable=(Knob.CPU_QUOTA,)).snapshot())
    assert not tick.plan.writes
    assert "cpu-quota-unsupported" in tick.codes()


def test_policy_switch_restores_what_the_other_policy_wrote() -> None:
    tick = decide(bench().snapshot())
    tick = next_tick(tick, slo=slo(CpuSuppressPolicy.CPUSET))
    assert [(r.target, r.knob) for r in tick.plan.restores] == [(TIER, Knob.CPU_QUOTA)]
    assert isinstance(tick.value(TIER, Knob.CPUSET_CPUS), frozenset)
    tick = next_tick(tick, slo=slo(CpuSuppressPolicy.CFS_QUOTA))
    assert [(r.target, r.knob) for r in tick.plan.restores] == [(TIER, Knob.CPUSET_CPUS)]


def test_H14_nothing_is_written_before_two_valid_samples() -> None:
    tick = decide(bench(cpu=Missing("one sample only")).snapshot())
    assert not tick.plan.writes


def test_nothing_is_written_where_nothing_is_marked() -> None:
    tick = decide(bench(pods=(pod("a", marked=False),)).snapshot())
    assert not (tick.plan.writes or tick.plan.restores or tick.plan.holds)
