"""One tick: observe, decide, write, report. The pipeline itself; when it runs is core.py's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from koordlet import ipc
from koordlet.clock import Clock
from koordlet.config import Config
from koordlet.host.cgroup import Cgroups
from koordlet.host.tree import Tree
from koordlet.metrics.collector import Collector
from koordlet.metrics.hot import HotSampler
from koordlet.metrics.readings import Scope
from koordlet.model.actions import Outcome, Owned, Plan, Status, Target
from koordlet.model.capabilities import Capabilities
from koordlet.model.pods import Workloads
from koordlet.model.readings import Missing
from koordlet.model.topology import NodeFacts
from koordlet.nodefacts import NodeFactsReader
from koordlet.observer import Observer
from koordlet.protocol.nodeslo import NodeSlo
from koordlet.protocol.problem import Problem
from koordlet.qosmanager.arbiter import arbitrate
from koordlet.qosmanager.budget import present_use
from koordlet.qosmanager.guard import guard
from koordlet.qosmanager.registry import Memory, Proposals, decide_all, needs_all
from koordlet.qosmanager.strategy import NeedsContext, Strategy
from koordlet.report import CoreStatus, StrategyStatus, TickCause, TickReport, TickStats
from koordlet.resexecutor.audit import AuditEvent
from koordlet.resexecutor.executor import Executor
from koordlet.snapshot import Snapshot
from koordlet.specoutbox import SpecOutbox
from koordlet.standing import ALL, Standing, Withheld

USE_WINDOW_S = 0.95  # "the last second" of 5 Hz samples, less their jitter
PROBE_EVERY_S = 60.0
STATUS_EVERY_S = 5.0
OUTCOMES_TOLD = frozenset(Status) - {Status.UNCHANGED}


@dataclass(frozen=True, slots=True)
class TickParts:
    """What the composition root hands in. ``probe`` reads the host's capabilities; ``scratch`` is
    True where they may be proven in a cgroup of our own (hazard H25).
    """

    config: Config
    clock: Clock
    files: Tree
    cgroups: Cgroups
    observer: Observer
    facts: NodeFactsReader
    hot: HotSampler
    collector: Collector
    executor: Executor
    spec: SpecOutbox
    strategies: tuple[Strategy, ...]
    probe: Callable[[], Capabilities]
    takeover: str
    journal_path: str
    problems: tuple[Problem, ...] = ()


@dataclass(slots=True)
class _Told:
    """What the front has been told; a part is sent again only when it is another object."""

    workloads: Workloads | None = None
    plan: Plan | None = None
    owned: Mapping[Target, Owned] | None = None
    capabilities: Capabilities | None = None
    status: CoreStatus | None = None
    status_at_s: float = float("-inf")


@dataclass(slots=True)
class _Counts:
    reads: int = 0
    opens: int = 0
    run_s: float = 0.0


@dataclass(slots=True)
class _Now:
    """The working state of the pipeline between ticks."""

    tick: int = 0
    memory: Memory = field(default_factory=Memory)
    capabilities: Capabilities | None = None
    probed_at_s: float = float("-inf")
    audit: list[AuditEvent] = field(default_factory=list)
    late_outcomes: list[Outcome] = field(default_factory=list)
    standing_known: bool = False


class Tick:
    """The pipeline. ``run`` makes one tick and gives back what the front is to be told."""

    def __init__(self, parts: TickParts) -> None:
        self._parts = parts
        self._now = _Now()
        self._told = _Told()
        self._counts = _Counts()
        self._started_wall_s = parts.clock.wall_s()
        self._standing = Standing()
        self.decided_nonbe_cores: float | None = None
        self.capacity_cores = 0.0

    # -- what the core asks -----------------------------------------------------------------------

    @property
    def standing(self) -> Standing:
        """The operator's orders. Until they were told nothing is decided."""
        return self._standing

    @standing.setter
    def standing(self, standing: Standing) -> None:
        self._standing = standing
        self._now.standing_known = True

    @property
    def pending(self) -> bool:
        """True while the effects thread or the runtime still owes an answer."""
        return bool(self._parts.executor.pending())

    @property
    def nothing_owned(self) -> bool:
        """True when every value has been given back."""
        return not self._parts.executor.owned()

    def probe_again(self) -> None:
        """Look at the host's capabilities anew in the next tick."""
        self._now.probed_at_s = float("-inf")

    def take_spec_requests(self) -> list[ipc.SpecRequest]:
        """Requests to the runtime that arose since the last call."""
        return self._parts.spec.take()

    def spec_answered(self, answer: ipc.SpecAnswer) -> None:
        """The runtime answered one request."""
        outcome = self._parts.executor.spec_answered(
            answer.container_id, answer.knob, answer.error or None, self._parts.clock.now_s()
        )
        if outcome is not None:
            self._now.late_outcomes.append(outcome)

    def note_order(self, command: ipc.Command) -> None:
        """Put an operator's order into the audit trail."""
        event = AuditEvent(
            at_wall_s=self._parts.clock.wall_s(),
            kind="order",
            owner=f"uid {command.uid}",
            reason=str(command.order),
        )
        self._now.audit.append(event)

    # -- the tick ---------------------------------------------------------------------------------

    def run(self, cause: TickCause, *, overrun: bool, whole: bool) -> TickReport:
        """Observe, decide, write. ``whole`` sends every part, for a front that knows none."""
        parts, now = self._parts, self._now
        started_s = parts.clock.now_s()
        now.tick += 1
        snapshot, proposals = self._decide(started_s)
        plan = Plan()
        outcomes: tuple[Outcome, ...] = ()
        if snapshot is not None and proposals is not None:
            plan = guard(arbitrate(proposals, snapshot), snapshot)
            outcomes = parts.executor.apply(plan, started_s)
        late, now.late_outcomes = tuple(now.late_outcomes), []
        outcomes += late
        status = self._status(snapshot, proposals, started_s)
        return self._report(
            cause,
            started_s,
            overrun=overrun,
            whole=whole,
            plan=plan,
            outcomes=outcomes,
            status=status,
        )

    def _decide(self, now_s: float) -> tuple[Snapshot | None, Proposals | None]:
        parts, now = self._parts, self._now
        parts.observer.refresh(now_s)
        seen = parts.observer.seen
        parts.hot.set_roots(seen.workloads.layout, seen.be_roots, seen.workloads.apps)
        facts = parts.facts.refresh(now_s, parts.observer.inputs.kubelet)
        self._probe(now_s)
        review = parts.executor.review(now_s)
        now.audit.extend(review.events)
        if isinstance(facts, Missing) or now.capabilities is None:
            return None, None
        self.capacity_cores = facts.capacity_cores
        snapshot = self._snapshot(now_s, facts, now.capabilities, review.resets)
        active = self._active_pods(seen.workloads)
        parts.collector.collect(now_s, seen.workloads, snapshot.cpu, active)
        parts.executor.adopt_inherited(seen.be_tree, now_s)
        proposals = decide_all(
            snapshot, now.memory, parts.config.hold_max_seconds, parts.strategies
        )
        now.memory = proposals.memory
        use = present_use(snapshot)
        self.decided_nonbe_cores = None if isinstance(use, Missing) else use.nonbe_cores
        return snapshot, self._without_released(proposals)

    def _snapshot(
        self,
        now_s: float,
        facts: NodeFacts,
        capabilities: Capabilities,
        resets: frozenset[Target],
    ) -> Snapshot:
        parts = self._parts
        seen = parts.observer.seen
        cpu = parts.hot.cpu_use(USE_WINDOW_S, now_s)
        slo = self._slo(cpu)
        context = NeedsContext(
            facts, seen.workloads, seen.be_roots, seen.be_tree, capabilities, slo
        )
        needed, _ = needs_all(context, parts.strategies)
        owned = parts.executor.owned()
        wall_s = parts.clock.wall_s()
        return Snapshot(
            now_s=now_s,
            tick=self._now.tick,
            node=facts,
            workloads=seen.workloads,
            be_roots=seen.be_roots,
            be_tree=seen.be_tree,
            cpu=cpu,
            cpu_surge=parts.hot.surge(now_s),
            be_demand=parts.hot.demand(now_s),
            values=parts.observer.values(needed, owned),
            owned=owned,
            capabilities=capabilities,
            slo=slo,
            modes={s.name: self._standing.mode_of(s.name, wall_s) for s in parts.strategies},
            pending=parts.executor.pending(),
            foreign_resets=resets,
        )

    def _slo(self, cpu: object) -> NodeSlo | Missing:
        """The NodeSLO, once everything that the first decision needs has been heard (H14)."""
        waiting = self.waiting_for(cpu)
        if waiting:
            return Missing("waiting for " + ", ".join(waiting))
        update = self._parts.observer.inputs.slo
        return Missing("not told yet") if update is None else update.slo

    def waiting_for(self, cpu: object) -> tuple[str, ...]:
        """What the first decision still waits for; data that goes missing later is a strategy's
        own business.
        """
        inputs = self._parts.observer.inputs
        needed = {
            "the operator's standing orders": self._now.standing_known,
            "the NodeSLO": inputs.slo is not None,
            "the first pod list": inputs.pods is not None,
            "the host application files": inputs.apps is not None,
            "two valid samples": self.decided_nonbe_cores is not None
            or not isinstance(cpu, Missing),
        }
        return tuple(what for what, there in needed.items() if not there)

    def _active_pods(self, workloads: Workloads) -> frozenset[str]:
        """Pods whose containers are worth a sample each second: those with values of ours."""
        owned = {target for target, _ in self._parts.executor.owned()}
        return frozenset(
            pod.uid
            for pod in workloads.known_pods()
            if not isinstance(pod.cgroup, Missing) and pod.cgroup in owned
        )

    def _without_released(self, proposals: Proposals) -> Proposals:
        """Proposals less what the operator took out: with no wish left, it is restored."""
        withheld = self._withheld()
        if withheld is None:
            return proposals
        paths = self._parts.cgroups

        def free(target: Target) -> bool:
            path = paths.path_of(*target)
            return not withheld.covers(target[0], "" if isinstance(path, Missing) else path)

        return replace(
            proposals,
            actions=tuple(action for action in proposals.actions if free(action.key)),
            holds=tuple(hold for hold in proposals.holds if free(hold.key)),
        )

    def _withheld(self) -> Withheld | None:
        scopes = [scope.partition(":") for scope in self._standing.released if scope != ALL]
        uids = {name for kind, _, name in scopes if kind == "pod"}
        files = frozenset(name for kind, _, name in scopes if kind == "file")
        if not uids and not files:
            return None
        pods = self._parts.observer.seen.workloads.known_pods()
        below = tuple(
            pod.cgroup
            for pod in pods
            if not isinstance(pod.cgroup, Missing)
            and (pod.uid in uids or pod.record.api_uid in uids)
        )
        return Withheld(below, files)

    def _probe(self, now_s: float) -> None:
        if now_s - self._now.probed_at_s >= PROBE_EVERY_S:
            self._now.probed_at_s = now_s
            self._now.capabilities = self._parts.probe()

    # -- the end ----------------------------------------------------------------------------------

    def restore_all(self, why: str) -> TickReport:
        """Give everything back; what the runtime must confirm stays pending."""
        started_s = self._parts.clock.now_s()
        self._now.tick += 1
        outcomes = self._parts.executor.restore_all(why, started_s)
        return self._report(
            TickCause.COMMAND,
            started_s,
            overrun=False,
            whole=False,
            plan=Plan(),
            outcomes=outcomes,
            status=self._status(None, None, started_s),
        )

    def finish(self) -> TickReport:
        """Restore what became restorable since, end the effects thread, close the journal."""
        report = self.restore_all("clean stop")
        self._parts.executor.close()
        return report

    # -- what is told -----------------------------------------------------------------------------

    def _status(
        self, snapshot: Snapshot | None, proposals: Proposals | None, now_s: float
    ) -> CoreStatus | None:
        facts = self._parts.facts.facts
        if isinstance(facts, Missing):
            return None
        parts = self._parts
        seen = parts.observer.seen
        cpu = Missing("no snapshot") if snapshot is None else snapshot.cpu
        return CoreStatus(
            pid=os.getpid(),
            started_wall_s=self._started_wall_s,
            dry_run=parts.config.dry_run,
            released=self._standing.released,
            takeover=parts.takeover,
            journal_path=parts.journal_path,
            node=facts,
            be_roots=seen.be_roots,
            floor_bound=_floor_bound(proposals),
            strategies=() if proposals is None else self._strategies(proposals),
            problems=self._problems(proposals),
            waiting_for=self.waiting_for(cpu),
        )

    def _problems(self, proposals: Proposals | None) -> tuple[Problem, ...]:
        parts = self._parts
        refused = parts.executor.problems()
        decided = () if proposals is None else proposals.problems
        seen = parts.observer.seen.problems
        return tuple(dict.fromkeys((*parts.problems, *seen, *decided, *refused)))

    def _strategies(self, proposals: Proposals) -> tuple[StrategyStatus, ...]:
        owned: dict[str, int] = {}
        for row in self._parts.executor.owned().values():
            owned[row.owner] = owned.get(row.owner, 0) + 1
        wall_s = self._parts.clock.wall_s()
        return tuple(
            StrategyStatus(
                name=report.name,
                mode=report.mode,
                mode_until_wall_s=self._until(report.name, wall_s),
                enabled=report.enabled,
                owned=owned.get(report.name, 0),
                hold_why=report.hold_why,
                hold_age_s=report.hold_age_s,
                terms=report.decision.terms,
                notes=report.decision.notes,
                would=report.would,
            )
            for report in proposals.reports
        )

    def _until(self, strategy: str, wall_s: float) -> float | None:
        order = self._standing.order_for(strategy, wall_s)
        return None if order is None else order.until_wall_s

    def _report(
        self,
        cause: TickCause,
        started_s: float,
        *,
        overrun: bool,
        whole: bool,
        plan: Plan,
        outcomes: tuple[Outcome, ...],
        status: CoreStatus | None,
    ) -> TickReport:
        parts, now, told = self._parts, self._now, self._told
        if whole:
            self._told = told = _Told()
        readings = parts.collector.readings(now.tick, Scope.WHOLE if whole else Scope.DELTA)
        audit = (*now.audit, *parts.executor.take_events())
        now.audit = []
        owned = parts.executor.owned()
        workloads = parts.observer.seen.workloads
        report = TickReport(
            stats=self._stats(cause, started_s, outcomes, overrun=overrun),
            readings=readings,
            status=self._due_status(status, started_s),
            plan=None if plan == told.plan else plan,
            workloads=None if workloads is told.workloads else workloads,
            owned=None if owned is told.owned else tuple(owned.values()),
            capabilities=None if now.capabilities is told.capabilities else now.capabilities,
            outcomes=tuple(o for o in outcomes if o.status in OUTCOMES_TOLD),
            audit=audit,
        )
        told.plan, told.workloads, told.owned = plan, workloads, owned
        told.capabilities = now.capabilities
        return report

    def _due_status(self, status: CoreStatus | None, now_s: float) -> CoreStatus | None:
        told = self._told
        if status == told.status and now_s - told.status_at_s < STATUS_EVERY_S:
            return None
        told.status, told.status_at_s = status, now_s
        return status

    def _stats(
        self, cause: TickCause, started_s: float, outcomes: tuple[Outcome, ...], *, overrun: bool
    ) -> TickStats:
        files, before = self._parts.files, self._counts
        self._counts = _Counts(files.reads, files.opens, time.thread_time())
        return TickStats(
            tick=self._now.tick,
            at_wall_s=self._parts.clock.wall_s(),
            cause=cause,
            duration_s=self._parts.clock.now_s() - started_s,
            run_s=self._counts.run_s - before.run_s,
            reads=self._counts.reads - before.reads,
            opens=self._counts.opens - before.opens,
            writes=sum(o.status in (Status.APPLIED, Status.RESTORED) for o in outcomes),
            overrun=overrun,
        )


def _floor_bound(proposals: Proposals | None) -> bool:
    """True where the floors of the roots, not the budget, decide what BE work gets (H12)."""
    if proposals is None:
        return False
    return any(
        name == "floor_bound" and bool(value)
        for report in proposals.reports
        for name, value in report.decision.terms
    )
