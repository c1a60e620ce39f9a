"""What the front is told of a tick: numbers always, every other part only when it changed."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from koordlet.metrics.readings import Scope
from koordlet.model.actions import Outcome, Owned, Plan, Status, Target
from koordlet.model.capabilities import Capabilities
from koordlet.model.knobs import Value
from koordlet.model.pods import Workloads
from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem
from koordlet.qosmanager.registry import Proposals
from koordlet.report import CoreStatus, StrategyStatus, TickCause, TickReport, TickStats
from koordlet.resexecutor.audit import AuditEvent
from koordlet.standing import Standing
from koordlet.tickparts import TickParts

NUMBERS_EVERY_S = 2.0
"""A plan or a status of which only the numbers moved is told this often: they can be long."""
_SETTLED = frozenset({Status.APPLIED, Status.UNCHANGED, Status.RESTORED, Status.GONE})


Shape = tuple[tuple[Target, str, Value], ...]


@dataclass(frozen=True, slots=True)
class Ticked:
    """One tick as it went. ``proposals`` is None where nothing was decided."""

    tick: int
    cause: TickCause
    started_s: float
    overrun: bool
    standing: Standing
    waiting_for: tuple[str, ...]
    capabilities: Capabilities | None
    proposals: Proposals | None = None
    plan: Plan = field(default_factory=Plan)
    outcomes: tuple[Outcome, ...] = ()
    audit: tuple[AuditEvent, ...] = ()
    other_agent: Problem | None = None


@dataclass(slots=True)
class _Told:
    """What the front has been told; a part is sent again only when it is another one."""

    workloads: Workloads | None = None
    plan: Shape | None = None
    plan_at_s: float = float("-inf")
    owned: Mapping[Target, Owned] | None = None
    capabilities: Capabilities | None = None
    status: CoreStatus | None = None
    status_at_s: float = float("-inf")
    unsettled: set[Target] = field(default_factory=set)  # whose last outcome was no success


@dataclass(frozen=True, slots=True)
class _Counts:
    reads: int = 0
    opens: int = 0
    run_s: float = 0.0


class Reporter:
    """Makes TickReports; remembers what was told before."""

    def __init__(self, parts: TickParts) -> None:
        self._parts = parts
        self._told = _Told()
        self._counts = _Counts()
        self._started_wall_s = parts.clock.wall_s()

    def report(self, ticked: Ticked, *, whole: bool) -> TickReport:
        """The report of one tick; ``whole`` sends every part, to a front that knows none."""
        if whole:
            self._told = _Told()
        told, parts = self._told, self._parts
        owned = parts.executor.owned()
        workloads = parts.observer.seen.workloads
        changed, pod_uids = _changed_workloads(workloads, told.workloads)
        report = TickReport(
            stats=self._stats(ticked),
            readings=parts.collector.readings(ticked.tick, Scope.WHOLE if whole else Scope.DELTA),
            status=self._due_status(ticked),
            plan=self._due_plan(ticked),
            workloads=changed,
            pod_uids=pod_uids,
            owned=None if owned is told.owned else tuple(owned.values()),
            capabilities=None if ticked.capabilities is told.capabilities else ticked.capabilities,
            outcomes=self._outcomes(ticked),
            audit=(*ticked.audit, *parts.executor.take_events()),
        )
        told.workloads, told.owned = workloads, owned
        told.capabilities = ticked.capabilities
        return report

    def _outcomes(self, ticked: Ticked) -> tuple[Outcome, ...]:
        """All but those that found a file as wanted, unless the last word on it was another one."""
        unsettled = self._told.unsettled
        told = []
        for outcome in ticked.outcomes:
            if outcome.status is not Status.UNCHANGED or outcome.key in unsettled:
                told.append(outcome)
            if outcome.status in _SETTLED:
                unsettled.discard(outcome.key)
            else:
                unsettled.add(outcome.key)
        return tuple(told)

    def _due_plan(self, ticked: Ticked) -> Plan | None:
        """The plan where it wants something else than the one told last; where only the numbers
        behind its values moved, every NUMBERS_EVERY_S: a plan can have hundreds of values.
        """
        told = self._told
        shape = _shape(ticked.plan)
        if shape == told.plan and ticked.started_s - told.plan_at_s < NUMBERS_EVERY_S:
            return None
        told.plan, told.plan_at_s = shape, ticked.started_s
        return ticked.plan

    def _stats(self, ticked: Ticked) -> TickStats:
        files, before = self._parts.files, self._counts
        self._counts = _Counts(files.reads, files.opens, time.thread_time())
        written = (Status.APPLIED, Status.RESTORED)
        return TickStats(
            tick=ticked.tick,
            at_wall_s=self._parts.clock.wall_s(),
            cause=ticked.cause,
            duration_s=self._parts.clock.now_s() - ticked.started_s,
            run_s=self._counts.run_s - before.run_s,
            reads=self._counts.reads - before.reads,
            opens=self._counts.opens - before.opens,
            writes=sum(outcome.status in written for outcome in ticked.outcomes),
            overrun=ticked.overrun,
        )

    def _due_status(self, ticked: Ticked) -> CoreStatus | None:
        """The status where it says something new; else every NUMBERS_EVERY_S, for its numbers."""
        told = self._told
        status = self._status(ticked)
        shape = None if status is None else _without_numbers(status)
        if shape == told.status and ticked.started_s - told.status_at_s < NUMBERS_EVERY_S:
            return None
        told.status, told.status_at_s = shape, ticked.started_s
        return status

    def _status(self, ticked: Ticked) -> CoreStatus | None:
        parts = self._parts
        facts = parts.facts.facts
        if isinstance(facts, Missing):
            return None
        return CoreStatus(
            pid=os.getpid(),
            started_wall_s=self._started_wall_s,
            dry_run=parts.config.dry_run,
            released=ticked.standing.released,
            takeover=parts.takeover,
            journal_path=parts.journal_path,
            node=facts,
            be_roots=parts.observer.seen.be_roots,
            floor_bound=_floor_bound(ticked.proposals),
            strategies=self._strategies(ticked),
            problems=self._problems(ticked),
            waiting_for=ticked.waiting_for,
            deferred_writes=parts.executor.deferred,
        )

    def _problems(self, ticked: Ticked) -> tuple[Problem, ...]:
        parts = self._parts
        decided = () if ticked.proposals is None else ticked.proposals.problems
        other = () if ticked.other_agent is None else (ticked.other_agent,)
        found = (*other, *parts.problems, *parts.facts.problems, *parts.observer.problems)
        return tuple(dict.fromkeys((*found, *decided, *parts.executor.problems())))

    def _strategies(self, ticked: Ticked) -> tuple[StrategyStatus, ...]:
        if ticked.proposals is None:
            return ()
        owned = Counter(row.owner for row in self._parts.executor.owned().values())
        wall_s = self._parts.clock.wall_s()
        orders = {
            report.name: ticked.standing.order_for(report.name, wall_s)
            for report in ticked.proposals.reports
        }
        return tuple(
            StrategyStatus(
                name=report.name,
                mode=report.mode,
                mode_until_wall_s=order.until_wall_s if (order := orders[report.name]) else None,
                enabled=report.enabled,
                owned=owned[report.name],
                hold_why=report.hold_why,
                hold_age_s=report.hold_age_s,
                terms=report.decision.terms,
                notes=report.decision.notes,
                would=report.would,
            )
            for report in ticked.proposals.reports
        )


def _changed_workloads(
    now: Workloads, told: Workloads | None
) -> tuple[Workloads | None, tuple[str, ...] | None]:
    """Workloads with only the pods that are other objects than those told last, and the uids of
    all; (None, None) where nothing was looked up since.
    """
    if now is told:
        return None, None
    if told is None or isinstance(now.pods, Missing) or isinstance(told.pods, Missing):
        return now, None
    known = {pod.uid: pod for pod in told.pods}
    changed = tuple(pod for pod in now.pods if known.get(pod.uid) is not pod)
    return replace(now, pods=changed), tuple(pod.uid for pod in now.pods)


def _without_numbers(status: CoreStatus) -> CoreStatus:
    """What does not move from tick to tick while nothing happens."""
    quiet = tuple(
        replace(strategy, terms=(), hold_age_s=0.0, would=()) for strategy in status.strategies
    )
    return replace(status, strategies=quiet)


def _shape(plan: Plan) -> Shape:
    """What a plan wants, without reasons and numbers."""
    return (
        *((write.key, write.owner, write.value) for write in plan.writes),
        *((restore.key, restore.owner, "restore") for restore in plan.restores),
        *((hold.key, hold.owner, "hold") for hold in plan.holds),
        *((struck.action.key, struck.action.owner, "struck") for struck in plan.struck),
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
