"""The BE budget and its split over the BE roots."""

from __future__ import annotations

import pytest

from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import CpuSuppressPolicy, NodeSlo, ResourceUsedThreshold
from koordlet.qosmanager.budget import Budget, be_budget, present_use, safe_budget
from koordlet.qosmanager.waterfill import Claim, split, want_cores
from koordlet.snapshot import RootDemand, Snapshot
from tests.support.snapshots import TIER, Bench, app, node, pod, slo, unit, use

QUOTA = CpuSuppressPolicy.CFS_QUOTA


def budget_of(snapshot: Snapshot) -> Budget:
    assert isinstance(snapshot.slo, NodeSlo)
    budget = be_budget(snapshot, snapshot.slo.threshold)
    assert isinstance(budget, Budget)
    return budget


def test_formula_and_its_terms() -> None:
    bench = Bench(slo=slo(QUOTA), pods=(pod("a"),), cpu=use(pods=1.5, apps=0.5, system=0.2))
    bench.node = bench.node.__class__("node", bench.node.topology, 8.0, 1 << 30, reserved_cores=0.4)
    budget = budget_of(bench.snapshot())
    assert budget.cores == pytest.approx(8 * 0.65 - 1.5 - 0.5 - 0.4)
    assert [name for name, _ in budget.terms] == [
        "capacity_cores",
        "threshold_percent",
        "nonbe_pods_cores",
        "nonbe_apps_cores",
        "system_cores",
        "reserved_cores",
        "use_window_s",
        "min_cores",
        "budget_cores",
    ]


def test_never_below_the_floor_nor_below_zero() -> None:
    busy = use(pods=7.9)
    assert budget_of(Bench(slo=slo(QUOTA), cpu=busy).snapshot()).cores == 0.0
    floored = Bench(slo=slo(QUOTA, min_percent=25), cpu=busy)
    assert budget_of(floored.snapshot()).cores == pytest.approx(2.0)


def test_CQ_19_base_is_the_physical_capacity() -> None:
    """The node's capacity is 8 cores however much allocatable was amplified (12)."""
    bench = Bench(node=node(8), slo=slo(QUOTA), cpu=use())
    assert budget_of(bench.snapshot()).cores == pytest.approx(5.2)


def test_H12_use_of_a_BE_root_is_BE_use_wherever_it_lies() -> None:
    """Batch outside kubepods neither shrinks the budget nor is it paid for twice."""
    batch = app("batch")
    be = {TIER: 2.0, str(batch.cgroup): 3.0}
    bench = Bench(slo=slo(QUOTA), pods=(pod("a"),), apps=(batch,), cpu=use(pods=1.0, be=be))
    budget = budget_of(bench.snapshot())
    assert budget.cores == pytest.approx(4.2)
    assert budget.governed_cores == budget.cores


def test_H12_what_an_observed_unit_uses_is_not_given_to_the_others() -> None:
    batch = unit("batch", "PID 1 is not systemd (init)")
    cpu = use(pods=1.0, be={str(batch.cgroup): 3.0})
    bench = Bench(slo=slo(QUOTA), pods=(pod("a"),), apps=(batch,), cpu=cpu)
    budget = budget_of(bench.snapshot())
    assert budget.cores == pytest.approx(4.2)
    assert budget.governed_cores == pytest.approx(1.2)
    assert dict(budget.terms)["observed_be_units_cores"] == 3.0


def test_system_use_counts_over_the_second_also_in_a_surge() -> None:
    surge = use(pods=2.0, system=3.0, window_s=0.2)
    bench = Bench(slo=slo(QUOTA), cpu=use(pods=1.0, system=0.5), cpu_surge=surge)
    budget = budget_of(bench.snapshot())
    assert dict(budget.terms)["nonbe_pods_cores"] == 2.0
    assert dict(budget.terms)["system_cores"] == 0.5


@pytest.mark.parametrize(
    ("surge_pods", "expected"),
    [(1.39, 1.0), (1.41, 1.41), (0.2, 1.0)],
    ids=["within 5 % of capacity", "a surge", "never grows on one interval"],
)
def test_H28_a_surge_counts_at_once(surge_pods: float, expected: float) -> None:
    bench = Bench(slo=slo(QUOTA), cpu=use(pods=1.0), cpu_surge=use(pods=surge_pods, window_s=0.2))
    used = present_use(bench.snapshot())
    assert not isinstance(used, Missing)
    assert used.nonbe_pods_cores == expected


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_missing(broken: float) -> None:
    """NaN passes no comparison: it would clear every threshold and never trip one."""
    nan_use = Bench(slo=slo(QUOTA), cpu=use(pods=broken)).snapshot()
    assert isinstance(be_budget(nan_use, ResourceUsedThreshold()), Missing)
    nan_surge = Bench(slo=slo(QUOTA), cpu=use(pods=1.0), cpu_surge=use(system=broken))
    assert budget_of(nan_surge.snapshot()).cores == pytest.approx(4.2)
    facts = node(4)
    sizeless = facts.__class__(facts.name, facts.topology, broken, 0)
    assert isinstance(be_budget(Bench(node=sizeless).snapshot(), ResourceUsedThreshold()), Missing)


def test_no_capacity_is_missing_not_a_budget_of_zero() -> None:
    empty = node(0)
    snapshot = Bench(node=empty).snapshot()
    assert isinstance(be_budget(snapshot, ResourceUsedThreshold()), Missing)
    assert isinstance(safe_budget(snapshot), Missing)


@pytest.mark.parametrize(("told", "cores"), [(None, 0.8), (5, 0.8), (25, 2.0)])
def test_safe_budget_is_the_larger_of_told_and_ten_percent(told: int | None, cores: float) -> None:
    budget = safe_budget(Bench(slo=slo(QUOTA, min_percent=told)).snapshot())
    assert isinstance(budget, Budget)
    assert budget.cores == pytest.approx(cores)


A, B, C = CgroupPath("a"), CgroupPath("b"), CgroupPath("c")


def claim(want: float, ceiling: float = 8.0, floor: float = 0.02) -> Claim:
    return Claim(want, floor, ceiling)


@pytest.mark.parametrize(
    ("budget", "claims", "expected"),
    [
        (4.0, {A: claim(8)}, {A: 4.0}),
        (4.0, {A: claim(8), B: claim(8)}, {A: 2.0, B: 2.0}),
        (4.0, {A: claim(8), B: claim(0.5)}, {A: 3.5, B: 0.5}),
        (4.0, {A: claim(1.0), B: claim(0.5)}, {A: 2.0, B: 2.0}),
        (4.0, {A: claim(8), B: claim(0.0)}, {A: 3.98, B: 0.02}),
        (4.0, {A: claim(8, ceiling=1.0), B: claim(8)}, {A: 1.0, B: 3.0}),
        (4.0, {A: claim(8), B: claim(8), C: claim(1)}, {A: 1.5, B: 1.5, C: 1.0}),
        (0.0, {A: claim(8), B: claim(8)}, {A: 0.02, B: 0.02}),
        (9.0, {A: claim(8, ceiling=2.0)}, {A: 2.0}),
        (4.0, {}, {}),
    ],
)
def test_split(
    budget: float, claims: dict[CgroupPath, Claim], expected: dict[CgroupPath, float]
) -> None:
    assert split(budget, claims) == pytest.approx(expected)


def test_a_throttled_or_unknown_root_wants_the_whole_node() -> None:
    assert want_cores(RootDemand(0.5, 0.2), 8.0) == 8.0
    assert want_cores(RootDemand(0.5, float("nan")), 8.0) == 8.0
    assert want_cores(None, 8.0) == 8.0
    assert want_cores(RootDemand(0.4, 0.01), 8.0) == pytest.approx(0.5)
