"""What holds for every node, load and setting."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.model.actions import Hold, SetValue
from koordlet.model.knobs import Knob, Value
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import AppBackend
from koordlet.model.topology import CpuManagerPolicy
from koordlet.protocol.nodeslo import CpuSuppressPolicy, NodeSlo
from koordlet.protocol.qos import Qos
from koordlet.qosmanager.arbiter import arbitrate
from koordlet.qosmanager.budget import Budget, be_budget
from koordlet.qosmanager.quota_policy import FLOOR_CORES
from koordlet.qosmanager.registry import Proposals
from koordlet.qosmanager.waterfill import Claim, split
from koordlet.snapshot import CpuUse, RootDemand, Snapshot
from koordlet.units import QUOTA_MIN_US
from tests.support.snapshots import TIER, Bench, Tick, app, decide, node, pod, slo

cores = st.floats(0, 32, allow_nan=False)
any_float = st.one_of(cores, st.sampled_from([math.nan, math.inf, -math.inf, -1.0]))
periods = st.sampled_from([1_000, 10_000, 22_968, 100_000, 1_000_000])
quotas = st.one_of(st.none(), st.integers(1_000, 3_000_000))
PODS = ("p0", "p1", "p2")
APPS = ("a0", "a1", "a2")


@st.composite
def uses(draw: st.DrawFn, number: st.SearchStrategy[float] = cores) -> CpuUse:
    roots = (TIER, *(CgroupPath(f"host-best-effort/{name}") for name in APPS))
    return CpuUse(
        draw(st.floats(0.1, 5)),
        draw(number),
        draw(number),
        draw(number),
        draw(number),
        {root: draw(number) for root in draw(st.sets(st.sampled_from(roots)))},
    )


@st.composite
def snapshots(draw: st.DrawFn, number: st.SearchStrategy[float] = cores) -> Snapshot:
    """Any node that a test bench can build; ``number`` draws what was measured."""
    cpus = draw(st.integers(0, 12))
    ids = st.frozensets(st.integers(0, 12))
    facts = replace(
        node(cpus, threads=draw(st.sampled_from([1, 2])), nodes=draw(st.sampled_from([1, 2]))),
        reserved_cores=draw(number),
        reserved_cpus=draw(st.one_of(st.just(frozenset(range(cpus))), ids)),
        exclusive_cpus=draw(ids),
        cpu_manager=draw(st.sampled_from(CpuManagerPolicy)),
    )
    names = draw(st.sets(st.sampled_from(PODS)))
    pods = tuple(pod(name, marked=draw(st.booleans())) for name in sorted(names))
    lsr = (pod("lsr", Qos.LSR, cpuset="0-1"),) if draw(st.booleans()) else ()
    apps = tuple(
        app(name, backend=draw(st.sampled_from(AppBackend)))
        for name in sorted(draw(st.sets(st.sampled_from(APPS))))
    )
    bench = Bench(
        node=facts,
        version=draw(st.sampled_from([1, 2])),
        slo=slo(
            draw(st.sampled_from(CpuSuppressPolicy)),
            threshold_percent=draw(st.integers(0, 100)),
            min_percent=draw(st.one_of(st.none(), st.integers(0, 100))),
            priority=draw(st.booleans()),
            idle=draw(st.sampled_from([0, 1])),
            lsr_exclusive=draw(st.booleans()),
        ),
        pods=(*pods, *lsr),
        apps=apps,
        cpu=draw(uses(number)),
        cpu_surge=draw(uses(number)),
        demand={
            path: RootDemand(draw(number), draw(st.floats(0, 1)))
            for path in draw(st.sets(st.sampled_from([TIER, "host-best-effort/a0"])))
        },
    )
    for one in pods:
        for path in (str(one.cgroup), str(one.containers[0].cgroup)):
            period_us = draw(periods)
            bench.values = {
                **bench.values,
                (path, Knob.CPU_PERIOD): period_us,
                (path, Knob.CPU_QUOTA): draw(quotas),
            }
    return bench.snapshot()


def root_quotas(tick: Tick) -> dict[CgroupPath, tuple[int, int]]:
    """Planned quota and period of each BE root."""
    found = {}
    for root in tick.snapshot.be_roots:
        value = tick.value(root.path, Knob.CPU_QUOTA)
        period = tick.snapshot.value((root.path, Knob.CPU_PERIOD))
        if isinstance(value, int) and isinstance(period, int):
            found[root.path] = (value, period)
    return found


@settings(max_examples=60, deadline=None)
@given(snapshots(any_float))
def test_no_exception_whatever_was_measured(snapshot: Snapshot) -> None:
    """Every CPU reserved, no pods, no capacity, NaN in every number."""
    tick = decide(snapshot)
    assert "strategy-failed" not in tick.codes()
    for write in tick.plan.writes:
        assert write.value is None or isinstance(write.value, int | frozenset)
        assert all(number == number for _, number in write.terms)
    late = decide(tick.after(seconds=60), tick.proposals.memory)
    assert "strategy-failed" not in late.codes()


@settings(max_examples=60, deadline=None)
@given(snapshots())
def test_be_never_falls_below_its_floor(snapshot: Snapshot) -> None:
    tick = decide(snapshot)
    for quota_us, period_us in root_quotas(tick).values():
        assert quota_us >= max(QUOTA_MIN_US, round(FLOOR_CORES * period_us))
    floor = max(1, min(2, len(snapshot.node.topology.cpus) - 1))
    free = snapshot.node.topology.online - snapshot.node.reserved_cpus
    free -= snapshot.node.exclusive_cpus
    for write in tick.plan.writes:
        if isinstance(write.value, frozenset):
            assert write.value, "an empty set is never written"
            assert write.value <= free
            assert len(write.value) >= min(floor, len(free - {0, 1}))


@settings(max_examples=60, deadline=None)
@given(snapshots())
def test_roots_share_one_budget(snapshot: Snapshot) -> None:
    """Within rounding, unless the floors of the roots exceed it."""
    quotas = root_quotas(decide(snapshot))
    assert isinstance(snapshot.slo, NodeSlo)
    budget = be_budget(snapshot, snapshot.slo.threshold)
    if not quotas or not isinstance(budget, Budget) or snapshot.capabilities.version_of("cpu") == 1:
        return
    total = sum(quota_us / period_us for quota_us, period_us in quotas.values())
    assert total <= max(budget.governed_cores, len(quotas) * FLOOR_CORES) + 1e-4 * len(quotas)


@settings(max_examples=60, deadline=None)
@given(snapshots())
def test_v1_children_fit_their_parents_once_the_runtime_has_lifted(snapshot: Snapshot) -> None:
    first = decide(snapshot)
    second = decide(first.after(), first.proposals.memory)
    state = second.after()
    for root, (quota_us, period_us) in root_quotas(second).items():
        if state.capabilities.version_of("cpu") != 1:
            continue
        for (path, knob), value in state.values.items():
            if path.is_below(root) and knob is Knob.CPU_QUOTA and isinstance(value, int):
                child_period = state.value((path, Knob.CPU_PERIOD))
                assert isinstance(child_period, int)
                assert value * period_us <= quota_us * child_period
    sets = {w.target: w.value for w in second.plan.writes if isinstance(w.value, frozenset)}
    for path, cpus in sets.items():
        assert cpus <= sets.get(path.parent, cpus)


@settings(max_examples=60, deadline=None)
@given(snapshots())
def test_deciding_again_on_the_result_changes_nothing(snapshot: Snapshot) -> None:
    first = decide(snapshot)
    second = decide(first.after(), first.proposals.memory)
    third = decide(second.after(), second.proposals.memory)
    values = [{write.key: write.value for write in tick.plan.writes} for tick in (second, third)]
    assert values[0] == values[1]
    assert not second.plan.restores
    at_once = decide(second.after(seconds=0.0), second.proposals.memory)
    assert {write.key: write.value for write in at_once.plan.writes} == values[0]


@settings(deadline=None)
@given(snapshots(), st.sampled_from(CpuSuppressPolicy))
def test_switching_everything_off_restores_all_that_is_owned(
    snapshot: Snapshot, policy: CpuSuppressPolicy
) -> None:
    assert isinstance(snapshot.slo, NodeSlo)
    tick = decide(snapshot)
    after = tick.after()
    off = decide(replace(after, slo=slo()), tick.proposals.memory)
    assert {restore.key for restore in off.plan.restores} == set(after.owned)
    assert decide(off.after(), off.proposals.memory).plan.restores == ()
    assert {k: v for k, v in off.after().values.items() if k in snapshot.values} == snapshot.values


OWNERS = st.sampled_from(["one", "two", "three", "four"])
TARGETS = st.sampled_from([CgroupPath("a"), CgroupPath("a/b"), CgroupPath("c")])
SETS = st.frozensets(st.integers(0, 5), min_size=1)
LIMITS = st.one_of(st.none(), st.integers(1, 5))


@st.composite
def wishes(draw: st.DrawFn) -> SetValue:
    knob = draw(st.sampled_from([Knob.CPU_SHARES, Knob.CPU_IDLE, Knob.CPU_QUOTA, Knob.CPUSET_CPUS]))
    value: Value = {
        Knob.CPU_SHARES: draw(st.integers(2, 5)),
        Knob.CPU_IDLE: draw(st.integers(0, 1)),
        Knob.CPU_QUOTA: draw(LIMITS),
        Knob.CPUSET_CPUS: draw(SETS),
    }[knob]
    return SetValue(draw(TARGETS), knob, value, draw(OWNERS), "because")


@st.composite
def holds(draw: st.DrawFn) -> Hold:
    knob = draw(st.sampled_from([Knob.CPU_QUOTA, Knob.CPUSET_CPUS]))
    return Hold(draw(TARGETS), knob, draw(OWNERS), "no data")


@settings(deadline=None)
@given(st.lists(wishes(), max_size=12), st.lists(holds(), max_size=4), st.randoms())
def test_the_plan_does_not_depend_on_the_order_of_proposals(
    actions: list[SetValue], held: list[Hold], random: Random
) -> None:
    snapshot = Bench().snapshot()
    plan = arbitrate(Proposals(actions=tuple(actions), holds=tuple(held)), snapshot)
    random.shuffle(actions)
    random.shuffle(held)
    assert arbitrate(Proposals(actions=tuple(actions), holds=tuple(held)), snapshot) == plan
    keys = [entry.key for entry in (*plan.writes, *plan.holds, *plan.restores)]
    assert len(keys) == len(set(keys)), "one entry for each target"


@settings(deadline=None)
@given(
    cores,
    st.dictionaries(
        TARGETS,
        st.builds(Claim, cores, st.floats(0.0, 0.5), st.floats(0.01, 32)),
    ),
)
def test_split_gives_everything_and_no_more(budget: float, claims: dict[CgroupPath, Claim]) -> None:
    shares = split(budget, claims)
    floors = {root: min(c.floor_cores, c.ceiling_cores) for root, c in claims.items()}
    most = sum(claim.ceiling_cores for claim in claims.values())
    total = sum(shares.values())
    assert total <= max(budget, sum(floors.values())) + 1e-6
    assert total >= min(budget, most) - 1e-6
    for root, share in shares.items():
        assert floors[root] - 1e-9 <= share <= claims[root].ceiling_cores + 1e-9
