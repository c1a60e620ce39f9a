"""The first rung: BE work runs in what others leave, by the weight of its roots (hazard H30).

Switched by ``resourceQOSStrategy.beClass.cpuQOS``. ``enable`` keeps every BE root at the lowest
weight. ``schedIdle`` adds cpu.idle, but only where nobody else writes the weight: pod directories
and cgroups of declared applications. On a kubepods tier it would stop the kubelet from starting,
on a container it would fail every update by the runtime (hazard H1, case CQ-23).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from koordlet.model.actions import Decision, Owned, SetValue, Target
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import BeRoot, Workloads
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import NodeSlo
from koordlet.protocol.qos import Qos
from koordlet.qosmanager.names import BE_PRIORITY
from koordlet.qosmanager.notes import unit_notes, unsupported
from koordlet.qosmanager.scope import tiers, writable
from koordlet.qosmanager.strategy import NeedsContext, Numbers
from koordlet.snapshot import Snapshot
from koordlet.units import SHARES_MIN

_IDLE = 1


@dataclass(frozen=True, slots=True)
class BePriority:
    """Lowest weight for BE roots, cpu.idle for BE pods and applications."""

    name: str = BE_PRIORITY

    def enabled(self, slo: NodeSlo) -> bool:
        return slo.qos.be.cpu_qos.enable

    def needs(self, context: NeedsContext) -> Iterable[Target]:
        slo = context.slo
        if isinstance(slo, Missing) or not self.enabled(slo):
            return
        for root in writable(context.be_roots):
            yield (root.path, Knob.CPU_SHARES)
        if slo.qos.be.cpu_qos.sched_idle:
            for path, _ in _idle_candidates(context.workloads, context.be_roots):
                yield (path, Knob.CPU_IDLE)

    def decide(self, snapshot: Snapshot, memory: Numbers) -> tuple[Decision, Numbers]:
        slo = snapshot.slo
        if isinstance(slo, Missing):
            return Decision(hold_all=f"no NodeSLO: {slo.why}"), memory
        if not self.enabled(slo) or not snapshot.be_roots:
            return Decision(), memory
        wanted = [(Knob.CPU_SHARES, tuple(_weights(snapshot)))]
        if slo.qos.be.cpu_qos.sched_idle:
            wanted.append((Knob.CPU_IDLE, tuple(_idles(snapshot))))
        actions: tuple[SetValue, ...] = ()
        notes = unit_notes(snapshot.be_roots)
        for knob, values in wanted:
            if snapshot.capabilities.knob(knob).usable:
                actions += values
            elif values:
                notes += (unsupported(snapshot.capabilities, knob, BE_PRIORITY),)
        return Decision(actions, notes=notes), memory

    def safe(self, snapshot: Snapshot, held: tuple[Owned, ...]) -> tuple[SetValue, ...]:
        """The lowest weight is safe whatever the node does."""
        return tuple(
            _set(row.target, row.knob, SHARES_MIN if row.knob is Knob.CPU_SHARES else _IDLE, "held")
            for row in held
        )


def _weights(snapshot: Snapshot) -> Iterator[SetValue]:
    for root in writable(snapshot.be_roots):
        why = f"the lowest weight: BE root ({root.claimed_by}) gives way to all other work"
        yield _set(root.path, Knob.CPU_SHARES, SHARES_MIN, why)


def _idles(snapshot: Snapshot) -> Iterator[SetValue]:
    for path, what in _idle_candidates(snapshot.workloads, snapshot.be_roots):
        yield _set(path, Knob.CPU_IDLE, _IDLE, f"schedIdle is 1, and nobody else weighs {what}")


def _set(path: CgroupPath, knob: Knob, value: int, reason: str) -> SetValue:
    return SetValue(path, knob, value, owner=BE_PRIORITY, reason=reason)


def _idle_candidates(
    workloads: Workloads, roots: tuple[BeRoot, ...]
) -> Iterator[tuple[CgroupPath, str]]:
    """Directories of BE pods in governed roots, and of BE applications."""
    governed = tuple(root.path for root in writable(roots))
    for pod in workloads.known_pods():
        path = pod.cgroup
        if pod.qos is not Qos.BE or isinstance(path, Missing):
            continue
        if any(path.is_below(root) for root in governed):
            yield path, f"pod {pod.full_name}"
    kubelets = tiers(workloads.layout)
    for app in workloads.apps:
        path = app.cgroup
        if app.qos is not Qos.BE or isinstance(path, Missing):
            continue
        if path not in kubelets and any(path.is_at_or_below(root) for root in governed):
            yield path, f"host application {app.name}"
