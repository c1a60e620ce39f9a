"""The supervisor of strategies: modes, failures, holds and their age."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest

from koordlet.model.actions import Decision, Mode, Owned, SetValue, Target
from koordlet.model.knobs import Channel, Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import Workloads
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import CpuSuppressPolicy, NodeSlo
from koordlet.qosmanager.arbiter import arbitrate
from koordlet.qosmanager.guard import guard
from koordlet.qosmanager.registry import STRATEGIES, Memory, decide_all, needs_all
from koordlet.qosmanager.strategy import NeedsContext, Numbers
from koordlet.snapshot import Snapshot
from tests.support.snapshots import LAYOUT, TIER, Bench, Tick, app, decide, pod, slo, use

QUOTA = slo(CpuSuppressPolicy.CFS_QUOTA, priority=True)
POD = f"{TIER}/poda"


def bench(**changes: Any) -> Bench:
    made = Bench(slo=QUOTA, pods=(pod("a"),), cpu=use(pods=1.2))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def started(**changes: Any) -> Tick:
    return decide(bench(**changes).snapshot())


def next_tick(tick: Tick, seconds: float = 1.0, **changes: Any) -> Tick:
    return decide(tick.after(seconds=seconds, **changes), tick.proposals.memory)


def report(tick: Tick, name: str = "cpu_suppress") -> Any:
    return next(r for r in tick.proposals.reports if r.name == name)


@dataclass(frozen=True)
class Broken:
    """A strategy with a defect."""

    name: str = "broken"
    safe_fails: bool = False

    def enabled(self, slo: NodeSlo) -> bool:
        return True

    def needs(self, context: NeedsContext) -> Iterable[Target]:
        yield (TIER, Knob.CPU_QUOTA)
        raise KeyError("needs")

    def decide(self, snapshot: Snapshot, memory: Numbers) -> tuple[Decision, Numbers]:
        raise ZeroDivisionError("no roots")

    def safe(self, snapshot: Snapshot, held: tuple[Owned, ...]) -> tuple[SetValue, ...]:
        if self.safe_fails:
            raise ValueError("no safe value either")
        return tuple(SetValue(r.target, r.knob, 2_000, self.name, "safe") for r in held)


def broken_snapshot() -> Snapshot:
    row = Owned(TIER, Knob.CPU_QUOTA, "broken", Channel.FILE, "-1", "50000", 0.0)
    return replace(bench().snapshot(), owned={row.key: row})


def test_an_exception_holds_what_the_strategy_owns_and_stops_nobody_else() -> None:
    proposals = decide_all(broken_snapshot(), Memory(), strategies=(Broken(), *STRATEGIES))
    assert [(h.target, h.owner) for h in proposals.holds] == [(TIER, "broken")]
    assert "ZeroDivisionError: no roots" in proposals.holds[0].why
    assert {p.code for p in proposals.problems} >= {"strategy-failed"}
    assert {a.owner for a in proposals.actions} == {"be_priority", "cpu_suppress"}


def test_an_exception_keeps_the_strategys_memory() -> None:
    before = Memory(strategies={"broken": {"x": 1.0}})
    proposals = decide_all(broken_snapshot(), before, strategies=(Broken(),))
    assert proposals.memory.strategies == {"broken": {"x": 1.0}}


def test_a_failing_safe_value_leaves_the_hold() -> None:
    strategies = (Broken(safe_fails=True),)
    snapshot = broken_snapshot()
    memory = decide_all(snapshot, Memory(), strategies=strategies).memory
    late = replace(snapshot, now_s=snapshot.now_s + 31)
    proposals = decide_all(late, memory, strategies=strategies)
    assert not proposals.actions
    assert [hold.age_s for hold in proposals.holds] == [31]


def test_needs_of_a_failing_strategy_are_none_and_the_others_are_asked() -> None:
    snapshot = bench().snapshot()
    context = NeedsContext(
        snapshot.node,
        snapshot.workloads,
        snapshot.be_roots,
        snapshot.be_tree,
        snapshot.capabilities,
        snapshot.slo,
    )
    targets, problems = needs_all(context, (Broken(), *STRATEGIES))
    assert [p.code for p in problems] == ["strategy-failed"]
    assert targets == {
        (TIER, Knob.CPU_SHARES),
        (TIER, Knob.CPU_QUOTA),
        (TIER, Knob.CPU_PERIOD),
    }
    assert needs_all(replace(context, slo=slo())) == (frozenset(), ())
    on_v1 = replace(context, capabilities=bench(version=1).snapshot().capabilities)
    assert (CgroupPath(f"{POD}/a-main"), Knob.CPU_PERIOD) in needs_all(on_v1)[0]
    by_cpuset = replace(on_v1, slo=slo(CpuSuppressPolicy.CPUSET, priority=True, idle=1))
    assert (CgroupPath(f"{POD}/a-main"), Knob.CPUSET_CPUS) in needs_all(by_cpuset)[0]
    assert (CgroupPath(POD), Knob.CPU_IDLE) in needs_all(by_cpuset)[0]


def test_H17_off_restores_and_asks_for_nothing() -> None:
    tick = next_tick(started(), modes={"cpu_suppress": Mode.OFF})
    assert [(r.knob, r.why) for r in tick.plan.restores] == [
        (Knob.CPU_QUOTA, "cpu_suppress is switched off")
    ]
    assert tick.value(TIER, Knob.CPU_SHARES) == 2


def test_H17_observe_decides_but_nothing_of_it_is_in_force() -> None:
    tick = next_tick(started(), modes={"cpu_suppress": Mode.OBSERVE})
    assert [(r.knob, r.why) for r in tick.plan.restores] == [
        (Knob.CPU_QUOTA, "cpu_suppress only observes")
    ]
    assert [w.knob for w in tick.plan.writes] == [Knob.CPU_SHARES]
    assert [(w.target, w.knob) for w in report(tick).would] == [(TIER, Knob.CPU_QUOTA)]


def test_switched_off_by_the_nodeslo_restores() -> None:
    tick = next_tick(started(), slo=slo())
    assert {(r.knob, r.why) for r in tick.plan.restores} == {
        (Knob.CPU_SHARES, "be_priority is not enabled by the NodeSLO"),
        (Knob.CPU_QUOTA, "cpu_suppress is not enabled by the NodeSLO"),
    }


def test_no_nodeslo_yet_holds_everything() -> None:
    tick = next_tick(started(), slo=Missing("no source has answered yet"))
    assert not tick.plan.writes
    assert not tick.plan.restores
    assert {hold.knob for hold in tick.plan.holds} == {Knob.CPU_SHARES, Knob.CPU_QUOTA}


def test_missing_use_holds_then_turns_into_the_safe_value() -> None:
    tick = started()
    assert tick.value(TIER, Knob.CPU_QUOTA) == 400_000
    tick = next_tick(tick, cpu=Missing("counters went away"))
    assert [(h.knob, h.age_s) for h in tick.plan.holds] == [(Knob.CPU_QUOTA, 0.0)]
    tick = next_tick(tick, 30.0)
    assert [h.age_s for h in tick.plan.holds] == [30.0]
    assert report(tick).hold_why == "counters went away"
    assert report(tick).hold_age_s == 30.0
    tick = next_tick(tick)
    assert tick.value(TIER, Knob.CPU_QUOTA) == 80_000, "10 % of 8 cores"
    assert not tick.plan.holds
    assert "hold-expired" in tick.codes()
    still = next_tick(tick)
    assert still.value(TIER, Knob.CPU_QUOTA) == 80_000
    back = next_tick(still, cpu=use(pods=1.2))
    assert back.value(TIER, Knob.CPU_QUOTA) == 160_000, "grows from the safe value"
    assert "hold-expired" not in back.codes()


def test_safe_value_is_the_min_percent_where_that_is_more_and_at_least_the_floor() -> None:
    generous = slo(CpuSuppressPolicy.CFS_QUOTA, min_percent=40)
    tick = next_tick(started(slo=generous), cpu=Missing("x"))
    assert next_tick(tick, 31).value(TIER, Knob.CPU_QUOTA) == 320_000
    apps = tuple(app(f"batch{n}") for n in range(49))
    tick = next_tick(started(apps=apps), cpu=Missing("x"))
    values = {w.value for w in next_tick(tick, 31).plan.writes if w.knob is Knob.CPU_QUOTA}
    assert values == {2_000}


def test_H04_what_was_lifted_stays_lifted_at_the_safe_value() -> None:
    values = {(POD, Knob.CPU_QUOTA): 300_000}
    busy = use(pods=3.2)
    tick = started(version=1, values=values, cpu=busy)
    assert tick.value(POD, Knob.CPU_QUOTA) is None
    tick = next_tick(next_tick(tick, cpu=Missing("x")), 31)
    assert tick.value(TIER, Knob.CPU_QUOTA) == 80_000
    assert tick.value(POD, Knob.CPU_QUOTA) is None


def test_safe_cpuset_is_of_the_safe_size() -> None:
    by_cpuset = slo(CpuSuppressPolicy.CPUSET)
    tick = started(slo=by_cpuset, version=1)
    tick = next_tick(next_tick(tick, cpu=Missing("x")), 31)
    sizes = {w.target: len(w.value) for w in tick.plan.writes if isinstance(w.value, frozenset)}
    assert sizes == {TIER: 2, POD: 2, f"{POD}/a-main": 2}


def test_without_a_capacity_the_hold_goes_on() -> None:
    tick = started()
    facts = replace(tick.snapshot.node, capacity_cores=float("nan"))
    tick = next_tick(next_tick(tick, node=facts), 31)
    assert [hold.knob for hold in tick.plan.holds] == [Knob.CPU_QUOTA]
    assert "hold-expired" in tick.codes()


def test_the_lowest_weight_is_its_own_safe_value() -> None:
    with_idle = slo(CpuSuppressPolicy.CFS_QUOTA, priority=True, idle=1)
    tick = next_tick(started(slo=with_idle), slo=Missing("x"))
    tick = next_tick(tick, 31)
    assert tick.value(TIER, Knob.CPU_SHARES) == 2
    assert tick.value(POD, Knob.CPU_IDLE) == 1


def test_pods_that_nobody_has_told_yet_are_held_not_restored() -> None:
    """After a restart the journal knows values of pods that no source has listed yet."""
    tick = started(apps=(app("batch"),))
    unknown = Workloads(Missing("starting"), 0.0, (app("batch"),), LAYOUT)
    roots = bench(pods=(), apps=(app("batch"),)).snapshot().be_roots
    tick = next_tick(tick, workloads=unknown, be_roots=roots)
    assert not tick.plan.restores
    assert {hold.target for hold in tick.plan.holds} == {TIER}
    assert tick.value("host-best-effort/batch", Knob.CPU_SHARES) == 2
    tick = next_tick(tick, 31)
    assert tick.value(TIER, Knob.CPU_SHARES) == 2
    assert tick.value(TIER, Knob.CPU_QUOTA) == 40_000, "half of the safe budget: two roots"
    assert not tick.plan.struck


@pytest.mark.parametrize("unknown", ["slo", "pods"])
def test_the_safe_quota_of_a_tier_that_nobody_told_yet_can_be_computed(unknown: str) -> None:
    snapshot = bench().snapshot()
    context = NeedsContext(
        snapshot.node,
        snapshot.workloads if unknown == "slo" else Workloads(Missing("starting"), 0.0, (), LAYOUT),
        snapshot.be_roots if unknown == "slo" else (),
        {},
        snapshot.capabilities,
        Missing("starting") if unknown == "slo" else snapshot.slo,
    )
    assert (TIER, Knob.CPU_PERIOD) in needs_all(context)[0]


def test_side_effect_rows_are_not_held_on_their_own() -> None:
    tick = started()
    snapshot = tick.after(cpu=Missing("x"))
    key = (TIER, Knob.CPU_BURST)
    row = Owned(*key, "cpu_suppress", Channel.FILE, "0", "0", 0.0, side_effect=True)
    snapshot = replace(snapshot, owned={**snapshot.owned, key: row})
    tick = decide(snapshot, tick.proposals.memory)
    assert key not in {hold.key for hold in tick.plan.holds}
    assert key not in {restore.key for restore in tick.plan.restores}


def test_memory_is_plain_json_and_forgets_what_ended() -> None:
    tick = next_tick(started(cpu=use(pods=4.2)), cpu=use(pods=1.2))
    tick = next_tick(tick, cpu=Missing("x"))
    memory = tick.proposals.memory
    assert memory.strategies["cpu_suppress"]
    assert memory.held_since_s
    assert Memory(**json.loads(json.dumps(asdict(memory)))) == memory
    assert next_tick(tick, slo=slo()).proposals.memory == Memory()


def test_a_memory_from_another_boots_clock_is_void() -> None:
    tick = started()
    snapshot = tick.after(cpu=Missing("x"))
    memory = Memory(
        strategies={"cpu_suppress": {f"grown_at_s:{TIER}": 1e9}},
        held_since_s={"cpu_suppress": 1e9, f"cpu_suppress cpu.quota {TIER}": 1e9},
    )
    tick = decide(snapshot, memory)
    assert [hold.age_s for hold in tick.plan.holds] == [0.0]


def test_the_plan_does_not_depend_on_the_order_of_strategies() -> None:
    snapshot = started().after(cpu=use(pods=3.0))
    plans = []
    for order in (STRATEGIES, tuple(reversed(STRATEGIES))):
        proposals = decide_all(snapshot, Memory(), strategies=order)
        plans.append(guard(arbitrate(proposals, snapshot), snapshot))
    assert plans[0] == plans[1]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_every_strategy_survives_an_empty_snapshot(strategy: Any) -> None:
    empty = Bench(slo=Missing("x"), pods=Missing("x"), cpu=Missing("x")).snapshot()
    assert strategy.decide(empty, {})[0].hold_all
    assert strategy.safe(empty, ()) == ()
