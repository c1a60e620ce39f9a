"""One tick: observe, decide, write, report. The pipeline itself; when it runs is core.py's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from koordlet import ipc
from koordlet.config import Config
from koordlet.model.actions import Outcome, Plan, Status, Target
from koordlet.model.adoption import Adopted
from koordlet.model.capabilities import Capabilities
from koordlet.model.pods import Workloads
from koordlet.model.readings import Missing
from koordlet.model.topology import NodeFacts
from koordlet.protocol.nodeslo import NodeSlo
from koordlet.protocol.problem import Problem
from koordlet.qosmanager.arbiter import arbitrate
from koordlet.qosmanager.budget import SurgeLine, surge_line
from koordlet.qosmanager.guard import guard
from koordlet.qosmanager.registry import Memory, Proposals, decide_all, needs_all
from koordlet.qosmanager.strategy import NeedsContext
from koordlet.qosmanager.takeover import hold_adopted, stand_by
from koordlet.report import TickCause, TickReport
from koordlet.reporter import Reporter, Ticked
from koordlet.resexecutor.audit import AuditEvent
from koordlet.resexecutor.review import Review
from koordlet.snapshot import CpuUse, Snapshot
from koordlet.standing import Standing, Withheld
from koordlet.tickparts import TickParts

AUDIT_KEPT = 4096  # events that wait for a front; the oldest above it are lost
USE_WINDOW_S = 0.95  # "the last second" of 5 Hz samples, less their jitter
PROBE_EVERY_S = 60.0


def order_text(order: ipc.Order) -> str:
    """An operator's order as they gave it."""
    match order:
        case ipc.AdoptCommand(scope, entries):
            return f"adopt {scope}, {len(entries)} files"
        case ipc.ReleaseCommand(scope):
            return f"release {scope}"
        case ipc.ResumeCommand(scope):
            return f"resume {scope or 'all'}"
        case ipc.ModeCommand(strategy, mode, for_s):
            limit = "" if for_s is None else f" for {for_s:g} s"
            return f"mode {strategy or 'of all'} {mode.value}{limit}"


@dataclass(slots=True)
class _Now:
    """The working state of the pipeline between ticks."""

    tick: int = 0
    memory: Memory = field(default_factory=Memory)
    capabilities: Capabilities | None = None
    probed_at_s: float = float("-inf")
    audit: list[AuditEvent] = field(default_factory=list)
    late_outcomes: list[Outcome] = field(default_factory=list)
    standing: Standing | None = None
    waiting_for: tuple[str, ...] = ("the first tick",)
    sampled: bool = False
    needs_failed: tuple[Problem, ...] = ()
    other_agent: Problem | None = None


class Tick:
    """The pipeline. ``run`` makes one tick and gives back what the front is to be told.

    ``surge_line`` is what the last decision rested on; None where there was no batch work to
    decide about, or no use was known.
    """

    def __init__(self, parts: TickParts) -> None:
        self._parts = parts
        self._now = _Now()
        self._reporter = Reporter(parts)
        self.surge_line: SurgeLine | None = None

    # -- what the core asks -----------------------------------------------------------------------

    @property
    def standing(self) -> Standing:
        """The operator's orders; until they were told nothing is decided."""
        return self._now.standing or Standing()

    @standing.setter
    def standing(self, standing: Standing) -> None:
        self._now.standing = standing

    @property
    def pending(self) -> bool:
        """True while the effects thread or the runtime still owes an answer."""
        return bool(self._parts.executor.pending())

    @property
    def nothing_owned(self) -> bool:
        """True when every value has been given back."""
        return not self._parts.executor.owned()

    @property
    def summary(self) -> str:
        """One line about the last tick, for whoever started us."""
        if self._now.waiting_for:
            return "waiting for " + ", ".join(self._now.waiting_for)
        config, owned = self._parts.config, self._parts.executor.owned()
        held = "dry run" if config.dry_run else f"{len(owned)} values in force"
        roots = len(self._parts.observer.seen.be_roots)
        released = ", released" if self.standing.released else ""
        return f"{held}, {roots} BE roots{released}"

    def reconfigure(self, config: Config) -> None:
        """Decide by ``config`` from the next tick on."""
        self._parts = replace(self._parts, config=config)
        self._parts.facts.reconfigure(config)

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

    def hear_of_agent(self, problem: Problem | None) -> bool:
        """Another agent manages this node now, or none does; True where that is news."""
        is_news = problem != self._now.other_agent
        self._now.other_agent = problem
        return is_news

    def adopt(self, order: ipc.AdoptCommand) -> tuple[Adopted, ...]:
        """Journal known originals; what no strategy asks for is given back by the next tick."""
        return self._parts.executor.adopt(order.entries, self._parts.clock.now_s())

    def note_order(self, command: ipc.Command) -> None:
        """Put an operator's order into the audit trail."""
        event = AuditEvent(
            at_wall_s=self._parts.clock.wall_s(),
            kind="order",
            owner=f"uid {command.uid}",
            reason=order_text(command.order),
        )
        self._now.audit.append(event)

    def keep_audit(self, untold: TickReport) -> None:
        """``untold`` reached no front: its audit events go with the next report."""
        kept = [*untold.audit, *self._now.audit]
        self._now.audit = kept[-AUDIT_KEPT:]

    # -- the tick ---------------------------------------------------------------------------------

    def run(self, cause: TickCause, *, overrun: bool, whole: bool) -> TickReport:
        """Observe, decide, write. ``whole`` sends every part, for a front that knows none."""
        started_s = self._parts.clock.now_s()
        self._now.tick += 1
        snapshot = self._observe(started_s)
        proposals, plan = None, Plan()
        outcomes: tuple[Outcome, ...] = ()
        if snapshot is not None:
            proposals = self._decide(snapshot)
            plan = guard(arbitrate(self._without_released(proposals), snapshot), snapshot)
            owned_before = len(self._parts.executor.owned())
            outcomes = self._parts.executor.apply(plan, started_s)
            if any(outcome.status is Status.REFUSED for outcome in outcomes):
                self._parts.observer.values_are_doubtful()
            if not owned_before and self._parts.executor.owned():
                self.probe_again()  # enforcement is on from here
        ticked = Ticked(
            tick=self._now.tick,
            cause=cause,
            started_s=started_s,
            overrun=overrun,
            standing=self.standing,
            waiting_for=self._now.waiting_for,
            capabilities=self._now.capabilities,
            proposals=proposals,
            plan=plan,
            outcomes=(*outcomes, *self._take_late()),
            audit=self._take_audit(),
            other_agent=self._now.other_agent,
        )
        return self._reporter.report(ticked, whole=whole)

    def _observe(self, now_s: float) -> Snapshot | None:
        """The snapshot of this tick; None while not even the node's size is known."""
        parts, now = self._parts, self._now
        parts.observer.refresh(now_s)
        seen = parts.observer.seen
        parts.hot.set_roots(seen.workloads.layout, seen.be_roots, seen.workloads.apps)
        facts = parts.facts.refresh(now_s, parts.observer.inputs.kubelet)
        if now.capabilities is None or now_s - now.probed_at_s >= PROBE_EVERY_S:
            now.probed_at_s, now.capabilities = now_s, self._probe()
        parts.executor.adopt_inherited(seen.be_tree, now_s)
        review = parts.executor.review(now_s)
        now.audit.extend(review.events)
        cpu = parts.hot.cpu_use(USE_WINDOW_S, now_s)
        active = self._active_pods(seen.workloads)
        parts.collector.collect(now_s, seen.workloads, cpu, active)
        if isinstance(facts, Missing) or now.capabilities is None:
            return None
        return self._snapshot(now_s, facts, now.capabilities, cpu, review)

    def _probe(self) -> Capabilities:
        """Look; and where values of ours are in force anyway, prove by writing (H25)."""
        found = self._parts.probe()
        return self._parts.prove(found) if self._parts.executor.owned() else found

    def _snapshot(
        self,
        now_s: float,
        facts: NodeFacts,
        capabilities: Capabilities,
        cpu: CpuUse | Missing,
        review: Review,
    ) -> Snapshot:
        parts = self._parts
        seen = parts.observer.seen
        slo = self._slo(cpu)
        context = NeedsContext(
            facts, seen.workloads, seen.be_roots, seen.be_tree, capabilities, slo
        )
        needed, self._now.needs_failed = needs_all(context, parts.strategies)
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
            values=parts.observer.values(needed, owned, now_s),
            owned=owned,
            capabilities=capabilities,
            slo=slo,
            modes={s.name: self.standing.mode_of(s.name, wall_s) for s in parts.strategies},
            pending=parts.executor.pending(),
            foreign_resets=review.resets,
        )

    def _decide(self, snapshot: Snapshot) -> Proposals:
        parts = self._parts
        proposals = decide_all(
            snapshot, self._now.memory, parts.config.hold_max_seconds, parts.strategies
        )
        self._now.memory = proposals.memory
        self.surge_line = surge_line(snapshot)
        if self._now.other_agent is not None:
            proposals = stand_by(proposals, snapshot, self._now.other_agent.what)
        proposals = hold_adopted(proposals, snapshot)
        return replace(proposals, problems=(*self._now.needs_failed, *proposals.problems))

    def _slo(self, cpu: CpuUse | Missing) -> NodeSlo | Missing:
        """The NodeSLO, once everything that the first decision needs has been heard (H14).

        Samples that go missing later are a strategy's own business.
        """
        now, inputs = self._now, self._parts.observer.inputs
        now.sampled = now.sampled or not isinstance(cpu, Missing)
        needed = {
            "the operator's standing orders": now.standing is not None,
            "the NodeSLO": inputs.slo is not None,
            "the first pod list": inputs.pods is not None,
            "the host application files": inputs.apps is not None,
            "two valid samples": now.sampled,
        }
        now.waiting_for = tuple(what for what, there in needed.items() if not there)
        if now.waiting_for or inputs.slo is None:
            return Missing("waiting for " + ", ".join(now.waiting_for))
        return inputs.slo.slo

    def _active_pods(self, workloads: Workloads) -> frozenset[str]:
        """Pods whose containers are worth a sample each second: those with values of ours in a
        container. What others do shows in the pod's own use, which is read each second anyway.
        """
        parents = {target.parent for target, _ in self._parts.executor.owned()}
        return frozenset(pod.uid for pod in workloads.known_pods() if pod.cgroup in parents)

    def _without_released(self, proposals: Proposals) -> Proposals:
        """Proposals less what the operator took out: with no wish left, it is restored."""
        withheld = self._withheld()
        if not withheld.below and not withheld.files:
            return proposals

        def is_free(target: Target) -> bool:
            path = self._parts.cgroups.path_of(*target)
            return not withheld.covers(target[0], "" if isinstance(path, Missing) else path)

        return replace(
            proposals,
            actions=tuple(action for action in proposals.actions if is_free(action.key)),
            holds=tuple(hold for hold in proposals.holds if is_free(hold.key)),
        )

    def _withheld(self) -> Withheld:
        scopes = [scope.partition(":") for scope in self.standing.released]
        uids = {name for kind, _, name in scopes if kind == "pod"}
        pods = self._parts.observer.seen.workloads.known_pods() if uids else ()
        below = tuple(
            pod.cgroup
            for pod in pods
            if not isinstance(pod.cgroup, Missing) and uids & {pod.uid, pod.record.api_uid}
        )
        return Withheld(below, frozenset(name for kind, _, name in scopes if kind == "file"))

    def _take_late(self) -> tuple[Outcome, ...]:
        late, self._now.late_outcomes = tuple(self._now.late_outcomes), []
        return late

    def _take_audit(self) -> tuple[AuditEvent, ...]:
        audit, self._now.audit = tuple(self._now.audit), []
        return audit

    # -- the end ----------------------------------------------------------------------------------

    def restore_all(self, why: str) -> TickReport:
        """Give everything back; what the runtime must confirm stays pending. What was born since
        the last tick as a copy of a value of ours comes along (hazard H5).
        """
        executor = self._parts.executor
        started_s = self._parts.clock.now_s()
        executor.adopt_inherited(executor.cpuset_tree(), started_s)
        return self._told_of(executor.restore_all(why, started_s), started_s)

    def finish(self) -> TickReport:
        """Restore what became restorable since, end the effects thread, close the journal."""
        report = self.restore_all("clean stop")
        self._parts.executor.close()
        return report

    def leave(self) -> TickReport:
        """End with every value as it is; the journal keeps them for the next writer."""
        report = self._told_of((), self._parts.clock.now_s())
        self._parts.executor.close()
        return report

    def _told_of(self, outcomes: tuple[Outcome, ...], started_s: float) -> TickReport:
        self._now.tick += 1
        ticked = Ticked(
            tick=self._now.tick,
            cause=TickCause.COMMAND,
            started_s=started_s,
            overrun=False,
            standing=self.standing,
            waiting_for=(),
            capabilities=self._now.capabilities,
            outcomes=outcomes,
            audit=self._take_audit(),
        )
        return self._reporter.report(ticked, whole=False)
