"""The second rung: BE work is kept within what latency-sensitive work leaves of the node.

Switched by ``resourceUsedThresholdWithBE.enable``. The budget is split by one of two policies;
the targets of the other one are no longer asked for, and so restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from koordlet.model.actions import Decision, Owned, SetValue, Target
from koordlet.model.knobs import Knob
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import CpuSuppressPolicy, NodeSlo
from koordlet.protocol.problem import Problem
from koordlet.qosmanager import journaled
from koordlet.qosmanager.budget import Budget, be_budget, safe_budget
from koordlet.qosmanager.cpuset_policy import cpuset_needs, decide_cpuset, safe_cpuset
from koordlet.qosmanager.growth import Growth
from koordlet.qosmanager.names import CPU_SUPPRESS
from koordlet.qosmanager.notes import unit_notes, unsupported
from koordlet.qosmanager.quota_lift import stay_lifted
from koordlet.qosmanager.quota_policy import decide_quota, quota_needs, safe_quota
from koordlet.qosmanager.scope import kube_tier, writable
from koordlet.qosmanager.strategy import NeedsContext, Numbers
from koordlet.snapshot import Snapshot

_KNOB = {
    CpuSuppressPolicy.CFS_QUOTA: Knob.CPU_QUOTA,
    CpuSuppressPolicy.CPUSET: Knob.CPUSET_CPUS,
}


@dataclass(frozen=True, slots=True)
class CpuSuppress:
    """One BE budget, as quotas or as one cpuset."""

    name: str = CPU_SUPPRESS

    def enabled(self, slo: NodeSlo) -> bool:
        return slo.threshold.enable

    def needs(self, context: NeedsContext) -> Iterable[Target]:
        slo = context.slo
        if isinstance(slo, Missing):
            return _periods(context)
        if not self.enabled(slo):
            return ()
        if slo.threshold.cpu_suppress_policy is CpuSuppressPolicy.CFS_QUOTA:
            return (*quota_needs(context), *_periods(context))
        return (*cpuset_needs(context), *_periods(context))

    def decide(self, snapshot: Snapshot, memory: Numbers) -> tuple[Decision, Numbers]:
        slo = snapshot.slo
        if isinstance(slo, Missing):
            return Decision(hold_all=f"no NodeSLO: {slo.why}"), memory
        if not self.enabled(slo) or not snapshot.be_roots:
            return Decision(), {}
        units = unit_notes(snapshot.be_roots)
        knob = _KNOB[slo.threshold.cpu_suppress_policy]
        if not snapshot.capabilities.knob(knob).usable:
            note = unsupported(snapshot.capabilities, knob, self.name)
            return Decision(notes=(*units, note)), {}
        budget = be_budget(snapshot, slo.threshold)
        if isinstance(budget, Missing):
            return Decision(hold_all=budget.why, notes=units), memory
        growth = Growth(snapshot.now_s, memory)
        if knob is Knob.CPU_QUOTA:
            decision = decide_quota(snapshot, budget, growth)
        else:
            exclusive = slo.extensions.lsr_exclusive
            decision = decide_cpuset(snapshot, budget, growth, lsr_exclusive=exclusive)
        return _with_notes(decision, units), growth.after

    def safe(self, snapshot: Snapshot, held: tuple[Owned, ...]) -> tuple[SetValue, ...]:
        """max(cpuSuppressMinPercent, 10 %) of capacity, at least 2000 us a root."""
        budget = safe_budget(snapshot)
        if isinstance(budget, Missing):
            return ()
        quotas = tuple(row for row in held if row.knob is Knob.CPU_QUOTA)
        cpusets = tuple(row for row in held if row.knob is Knob.CPUSET_CPUS)
        slo = snapshot.slo
        exclusive = not isinstance(slo, Missing) and slo.extensions.lsr_exclusive
        return (
            *_safe_quotas(snapshot, budget, quotas),
            *safe_cpuset(snapshot, budget, cpusets, lsr_exclusive=exclusive),
        )


def _periods(context: NeedsContext) -> Iterator[Target]:
    """Periods of what may be held without being a known BE root: its safe quota needs them.

    After a restart the journal knows a quota on the tier before any source has told its pods.
    """
    tier = kube_tier(context.workloads)
    unknown = isinstance(context.slo, Missing) or isinstance(context.workloads.pods, Missing)
    if unknown:
        yield from ((root.path, Knob.CPU_PERIOD) for root in writable(context.be_roots))
        if tier is not None:
            yield (tier, Knob.CPU_PERIOD)


def _with_notes(decision: Decision, notes: tuple[Problem, ...]) -> Decision:
    return replace(decision, notes=(*notes, *decision.notes))


def _safe_quotas(
    snapshot: Snapshot, budget: Budget, rows: tuple[Owned, ...]
) -> tuple[SetValue, ...]:
    """Roots get an even share of the safe budget; what was lifted below them stays lifted."""
    lifted = [row for row in rows if journaled.quota_us(row.last_written) is None]
    roots = [row for row in rows if row not in lifted]
    known = {row.target for row in roots} | {root.path for root in writable(snapshot.be_roots)}
    share = budget.cores / max(len(known), 1)
    values: dict[Target, SetValue] = {}
    for row in roots:
        found = safe_quota(snapshot, row.target, share, budget.terms)
        values.update({value.key: value for value in found})
    for row in lifted:
        values.setdefault(row.key, stay_lifted(row))
    return tuple(values.values())
