"""The core: one thread that observes, decides and writes, on monotonic deadlines.

It is the only writer of kernel files (slow ones go to the effects thread). It waits for nothing
but time and readiness: the front's socket never blocks, and kernel files answer at once.
"""

from __future__ import annotations

import select
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from koordlet import ipc
from koordlet.clock import Clock
from koordlet.config import Config
from koordlet.corelink import CoreLink
from koordlet.eventloop import EventLoop
from koordlet.metrics.hot import HotSampler
from koordlet.model.actions import Outcome, Status
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.observer import Observer
from koordlet.pressure import PressureWatch, latency_sensitive_cgroups
from koordlet.report import TickCause
from koordlet.standing import Standing
from koordlet.supervisor import Signals
from koordlet.tick import Tick

EARLY_APART_S = 0.2
SURGE_SHARE = 0.05  # of capacity: a smaller jump waits for the next regular tick
STOP_SPEC_S = 5.0  # how long a clean stop waits for the runtime's answers
LATE_S = 0.5  # a regular tick that starts later than this counts as an overrun


@dataclass(slots=True)
class _Deadlines:
    hot_s: float
    tick_s: float
    last_tick_s: float = float("-inf")
    early: TickCause | None = None
    commands: list[ipc.Command] = field(default_factory=list)


class Core:
    """Runs until SIGTERM, then restores everything; ``run`` returns the exit code."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        loop: EventLoop,
        tick: Tick,
        observer: Observer,
        hot: HotSampler,
        make_link: Callable[[Callable[[Any], None]], CoreLink],
        make_pressure: Callable[[Callable[[CgroupPath], None]], PressureWatch],
    ) -> None:
        self._config = config
        self._clock = clock
        self._loop = loop
        self._tick = tick
        self._observer = observer
        self._hot = hot
        self._link = make_link(self._on_message)
        self._pressure = make_pressure(lambda _path: self._want(TickCause.PSI))
        self._log = structlog.get_logger("core")
        self._stopping = False
        now_s = clock.now_s()
        self._due = _Deadlines(hot_s=now_s, tick_s=now_s)
        self._handlers: dict[type, Callable[[Any], None]] = {
            ipc.PodsUpdate: self._on_pods,
            ipc.PodsStillTrue: self._on_pods_still_true,
            ipc.AppsUpdate: self._on_apps,
            ipc.SloUpdate: self._on_slo,
            ipc.KubeletUpdate: self._on_kubelet,
            ipc.StandingUpdate: lambda update: self._on_standing(update.standing),
            ipc.SpecAnswer: self._tick.spec_answered,
            ipc.Command: self._on_command,
        }

    def run(self) -> int:
        """The loop: 5 Hz samples, a tick a second, early ticks when something calls for one."""
        signals = Signals((signal.SIGTERM, signal.SIGHUP))
        self._loop.watch(signals.fd, select.POLLIN, lambda _events: self._on_signals(signals))
        watch_fd = self._observer.watch_fd
        if watch_fd is not None:
            self._loop.watch(watch_fd, select.POLLIN, lambda _events: self._on_tree_change())
        while not self._stopping:
            self._loop.wait(self._wait_s())
            self._run_due()
        return self._stop()

    # -- what calls for a tick --------------------------------------------------------------------

    def _wait_s(self) -> float:
        due = self._due
        next_s = min(due.hot_s, due.tick_s)
        if due.early is not None:
            next_s = min(next_s, due.last_tick_s + EARLY_APART_S)
        return next_s - self._clock.now_s()

    def _run_due(self) -> None:
        due = self._due
        now_s = self._clock.now_s()
        if now_s >= due.hot_s:
            due.hot_s = _next(due.hot_s, now_s, self._config.hot_sample_seconds)
            self._hot.sample(now_s)
            self._look_for_surge(now_s)
        if now_s >= due.tick_s:
            late = now_s - due.tick_s > LATE_S
            due.tick_s = _next(due.tick_s, now_s, self._config.tick_seconds)
            self._run_tick(due.early or TickCause.REGULAR, late=late)
        elif due.early is not None and now_s >= due.last_tick_s + EARLY_APART_S:
            self._run_tick(due.early, late=False)

    def _look_for_surge(self, now_s: float) -> None:
        """A jump of what batch work must make room for calls a tick; one that the last decision
        already knew of does not.
        """
        surge = self._hot.surge(now_s)
        decided = self._tick.decided_nonbe_cores
        if isinstance(surge, Missing) or decided is None:
            return
        if surge.nonbe_cores - decided > SURGE_SHARE * self._tick.capacity_cores:
            self._want(TickCause.SURGE)

    def _want(self, cause: TickCause) -> None:
        self._due.early = self._due.early or cause

    def _run_tick(self, cause: TickCause, *, late: bool) -> None:
        due = self._due
        due.early = None
        due.last_tick_s = self._clock.now_s()
        commands, due.commands = due.commands, []
        report = self._tick.run(cause, overrun=late, whole=self._link.fresh)
        self._pressure.follow(latency_sensitive_cgroups(self._observer.seen.workloads))
        for request in self._tick.take_spec_requests():
            self._link.send(request)
        whole = self._link.fresh
        self._link.send(report, droppable=True)
        if whole:
            self._link.sent_whole()
        for command in commands:
            self._link.send(ipc.CommandReply(command.id, _result(report.outcomes)))

    # -- messages of the front --------------------------------------------------------------------

    def _on_message(self, message: object) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            self._log.error("unknown message", kind=type(message).__name__)
            return
        handler(message)

    def _workloads_changed(self) -> None:
        self._observer.mark_dirty()
        self._want(TickCause.WORKLOADS)

    def _on_pods(self, update: ipc.PodsUpdate) -> None:
        self._observer.inputs.pods = update
        self._observer.inputs.pods_at_s = self._clock.now_s()
        self._workloads_changed()

    def _on_pods_still_true(self, update: ipc.PodsStillTrue) -> None:
        inputs = self._observer.inputs
        if inputs.pods is not None:
            inputs.pods = ipc.PodsUpdate(inputs.pods.records, update.age_s)
            inputs.pods_at_s = self._clock.now_s()

    def _on_apps(self, update: ipc.AppsUpdate) -> None:
        self._observer.inputs.apps = update
        self._workloads_changed()

    def _on_slo(self, update: ipc.SloUpdate) -> None:
        self._observer.inputs.slo = update
        self._workloads_changed()

    def _on_kubelet(self, update: ipc.KubeletUpdate) -> None:
        self._observer.inputs.kubelet = update
        self._workloads_changed()

    def _on_standing(self, standing: Standing) -> None:
        self._tick.standing = standing
        self._want(TickCause.COMMAND)

    def _on_command(self, command: ipc.Command) -> None:
        self._log.info("order", order=str(command.order), uid=command.uid)
        self._due.commands.append(command)
        self._tick.note_order(command)
        self._on_standing(command.standing)

    def _on_tree_change(self) -> None:
        if self._observer.tree_changed():
            self._link.send(ipc.Relist("a cgroup directory came or went"))
            self._want(TickCause.WORKLOADS)

    # -- the end ----------------------------------------------------------------------------------

    def _on_signals(self, signals: Signals) -> None:
        came = signals.take()
        if signal.SIGTERM in came:
            self._stopping = True
        if signal.SIGHUP in came:
            self._tick.probe_again()

    def _stop(self) -> int:
        """Restore everything; wait a bounded time for what the runtime has to confirm."""
        self._pressure.close()
        report = self._tick.restore_all("clean stop")
        for request in self._tick.take_spec_requests():
            self._link.send(request)
        deadline_s = self._clock.now_s() + STOP_SPEC_S
        while self._tick.pending and self._clock.now_s() < deadline_s:
            self._loop.wait(deadline_s - self._clock.now_s())
        last = self._tick.finish()
        self._link.send(report, droppable=True)
        self._link.send(last, droppable=True)
        self._link.close()
        return 0 if self._tick.nothing_owned else 4


def _next(due_s: float, now_s: float, period_s: float) -> float:
    """The next deadline on the same grid; missed ones are skipped, never caught up."""
    missed = int((now_s - due_s) / period_s)
    return due_s + (missed + 1) * period_s


def _result(outcomes: tuple[Outcome, ...]) -> dict[str, Any]:
    """What a command's tick did, by status."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome.status.value] = counts.get(outcome.status.value, 0) + 1
    left = [
        {"target": str(o.target), "knob": o.knob.value, "status": o.status.value, "why": o.why}
        for o in outcomes
        if o.status in (Status.FOREIGN, Status.REFUSED, Status.UNSUPPORTED)
    ]
    return {"outcomes": counts, "not_as_wanted": left}
