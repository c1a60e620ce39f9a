"""The core: one thread that observes, decides and writes, on monotonic deadlines.

It is the only writer of kernel files (slow ones go to the effects thread). It waits for nothing
but time and readiness: the front's socket never blocks, and kernel files answer at once.
"""

from __future__ import annotations

import gc
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from koordlet import ipc, logs
from koordlet.clock import Clock
from koordlet.config import Config
from koordlet.corelink import CoreLink
from koordlet.eventloop import EventLoop
from koordlet.memory import COLLECT_ALL_EVERY_S, give_back
from koordlet.metrics.hot import HotSampler
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.observer import Observer, Word
from koordlet.pressure import PressureWatch, latency_sensitive_cgroups
from koordlet.protocol.problem import Problem
from koordlet.qosmanager.budget import REST_RATIO, SURGE_RATIO
from koordlet.report import TickCause, TickReport
from koordlet.sdnotify import Heartbeat
from koordlet.standing import Standing
from koordlet.supervisor import STOP_LEAVING, STOPS, Signals
from koordlet.tick import Tick, order_text

EARLY_APART_S = 0.2
STOP_SPEC_S = 5.0  # how long a clean stop waits for the runtime's answers
FLUSH_S = 2.0  # how long it waits for the front to take the last reports
LATE_SHARE = 0.5  # of the time between two: a tick that starts so much later is an overrun

_STOPPING = Problem(
    "stopping",
    "core",
    "koordlet is being stopped and has given everything back",
    remedy="the order is stored and holds from the next start on",
)


@dataclass(slots=True)
class _Deadlines:
    hot_s: float
    tick_s: float
    last_tick_s: float = float("-inf")
    early: TickCause | None = None
    commands: list[ipc.Command] = field(default_factory=list)


class Core:
    """Runs until it is told to stop, then restores everything or leaves it for the next one;
    ``run`` returns the exit code.
    """

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
        heartbeat: Heartbeat,
    ) -> None:
        self._config = config
        self._clock = clock
        self._loop = loop
        self._tick = tick
        self._observer = observer
        self._hot = hot
        self._link = make_link(self._on_message)
        self._pressure = make_pressure(lambda _path: self._want(TickCause.PSI))
        self._heartbeat = heartbeat
        self._log = structlog.get_logger("core")
        self._stop_by: signal.Signals | None = None
        now_s = clock.now_s()
        self._collected_at_s = now_s
        self._surged = False  # the last tick was called by a surge; its rest is still to come
        self._due = _Deadlines(hot_s=now_s, tick_s=now_s)
        self._handlers: dict[type, Callable[[Any], None]] = {
            ipc.PodsUpdate: self._on_word,
            ipc.PodsChange: self._on_word,
            ipc.PodsStillTrue: self._on_word,
            ipc.AppsUpdate: self._on_word,
            ipc.SloUpdate: self._on_word,
            ipc.KubeletUpdate: self._on_word,
            ipc.StandingUpdate: lambda update: self._on_standing(update.standing),
            ipc.ConfigUpdate: self._on_config,
            ipc.OtherAgentUpdate: self._on_other_agent,
            ipc.SpecAnswer: self._tick.spec_answered,
            ipc.Command: self._on_command,
        }

    def run(self, signals: Signals) -> int:
        """The loop: 5 Hz samples, a tick a second, early ticks when something calls for one."""
        self._loop.watch(signals.fd, select.POLLIN, lambda _events: self._on_signals(signals))
        watch_fd = self._observer.watch_fd
        if watch_fd is not None:
            self._loop.watch(watch_fd, select.POLLIN, lambda _events: self._on_tree_change())
        while self._stop_by is None:
            self._loop.wait(self._wait_s())
            self._run_due()
        return self._leave() if self._stop_by is STOP_LEAVING else self._stop()

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
            period_s = self._config.tick_seconds
            late = now_s - due.tick_s > LATE_SHARE * period_s
            due.tick_s = _next(due.tick_s, now_s, period_s)
            if self._observer.is_blind:
                self._on_tree_change()
            self._run_tick(due.early or TickCause.REGULAR, late=late)
            self._collect_garbage()
        elif due.early is not None and now_s >= due.last_tick_s + EARLY_APART_S:
            self._run_tick(due.early, late=False)

    def _collect_garbage(self) -> None:
        """Between ticks: young garbage after each, all of it every COLLECT_ALL_EVERY_S."""
        now_s = self._clock.now_s()
        is_due = now_s - self._collected_at_s >= COLLECT_ALL_EVERY_S
        if is_due:
            self._collected_at_s = now_s
            give_back()
        else:
            gc.collect(1)

    def _look_for_surge(self, now_s: float) -> None:
        """A jump of what batch work must make room for calls a tick; one that the last decision
        already knew of, or that batch work is not in the way of, does not.
        """
        surge = self._hot.surge(now_s)
        line = self._tick.surge_line
        least_ratio = REST_RATIO if self._surged else SURGE_RATIO
        self._surged = False
        if line is None or isinstance(surge, Missing):
            return
        if line.is_crossed(surge, least_ratio):
            self._want(TickCause.SURGE)

    def _want(self, cause: TickCause) -> None:
        self._due.early = self._due.early or cause

    def _run_tick(self, cause: TickCause, *, late: bool) -> None:
        due = self._due
        due.early = None
        due.last_tick_s = self._clock.now_s()
        self._surged = self._surged or cause is TickCause.SURGE
        commands, due.commands = due.commands, []
        adopted = {
            command.id: self._tick.adopt(command.order)
            for command in commands
            if isinstance(command.order, ipc.AdoptCommand)
        }
        whole = self._link.fresh
        report = self._tick.run(cause, overrun=late, whole=whole)
        if not self._config.dry_run:  # a trigger is armed by a write (hazard H25)
            self._pressure.follow(latency_sensitive_cgroups(self._observer.seen.workloads))
        self._ask_runtime()
        told = self._tell(report)
        if told and whole:
            self._link.sent_whole()
        for command in commands:
            result = {"outcomes": report.outcomes, "adopted": adopted.get(command.id, ())}
            self._link.send(ipc.CommandReply(command.id, result))
        self._heartbeat.beat(self._tick.summary, serves=told)

    def _tell(self, report: TickReport) -> bool:
        told = self._link.send(report, droppable=True)
        if not told:
            self._tick.keep_audit(report)
        return told

    def _ask_runtime(self) -> None:
        for request in self._tick.take_spec_requests():
            self._link.send(request)

    # -- messages of the front --------------------------------------------------------------------

    def _on_message(self, message: object) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            self._log.error("unknown message", kind=type(message).__name__)
            return
        handler(message)

    def _on_word(self, word: Word) -> None:
        if self._observer.hear(word, self._clock.now_s()):
            self._want(TickCause.WORKLOADS)

    def _on_standing(self, standing: Standing) -> None:
        self._tick.standing = standing
        self._want(TickCause.COMMAND)

    def _on_command(self, command: ipc.Command) -> None:
        self._log.info("order", order=order_text(command.order), uid=command.uid)
        self._due.commands.append(command)
        self._tick.note_order(command)
        self._on_standing(command.standing)

    def _on_other_agent(self, update: ipc.OtherAgentUpdate) -> None:
        """Two writers would undo each other: while there is another one, we only watch (H14)."""
        if not self._tick.hear_of_agent(update.problem):
            return
        if update.problem is None:
            self._log.info("no other agent manages this node any more")
        else:
            self._log.warning("another agent: nothing is written", why=str(update.problem))
        self._want(TickCause.COMMAND)

    def _on_config(self, update: ipc.ConfigUpdate) -> None:
        """The front has read the configuration again; what can change while we run has changed."""
        config = update.config
        if config == self._config:
            return
        self._config = config
        self._due.tick_s = self._due.hot_s = self._clock.now_s()  # one grid for both, from now on
        self._heartbeat.pace(config.tick_seconds)
        logs.change(config.log_level, config.log_format)
        self._tick.reconfigure(config)
        self._want(TickCause.COMMAND)

    def _on_tree_change(self) -> None:
        if self._observer.tree_changed():
            self._link.send(ipc.Relist("a cgroup directory came or went"))
            self._want(TickCause.WORKLOADS)

    # -- the end ----------------------------------------------------------------------------------

    def _on_signals(self, signals: Signals) -> None:
        came = signals.take()
        for how in STOPS:
            if how in came and self._stop_by is None:
                self._stop_by = how
        if signal.SIGHUP in came:
            self._tick.probe_again()

    def _leave(self) -> int:
        """End with every value in force: who takes our place takes the journal over (H16)."""
        self._pressure.close()
        self._tell(self._tick.leave())
        self._wait_while(lambda: self._link.wants_write, FLUSH_S)
        self._link.close()
        self._log.info("stopped, values stay in force", journaled=not self._tick.nothing_owned)
        return 0

    def _stop(self) -> int:
        """Restore everything; wait a bounded time for what the runtime has to confirm."""
        self._pressure.close()
        self._tell(self._tick.restore_all("clean stop"))
        self._ask_runtime()
        self._wait_while(lambda: self._tick.pending, STOP_SPEC_S)
        self._tell(self._tick.finish())
        for command in self._due.commands:
            self._link.send(ipc.CommandReply(command.id, problems=(_STOPPING,)))
        self._wait_while(lambda: self._link.wants_write, FLUSH_S)
        self._link.close()
        if self._tick.nothing_owned:
            self._log.info("stopped, every value is given back")
            return 0
        self._log.warning("stopped, some values stay: see koordletctl rollback")
        return 4

    def _wait_while(self, condition: Callable[[], bool], within_s: float) -> None:
        deadline_s = self._clock.now_s() + within_s
        while condition() and self._clock.now_s() < deadline_s:
            self._loop.wait(deadline_s - self._clock.now_s())


def _next(due_s: float, now_s: float, period_s: float) -> float:
    """The next deadline on the same grid; missed ones are skipped, never caught up.

    In whole microseconds: sums of 0.2 drift, and the sample before a tick would come after it.
    """
    missed = int((now_s - due_s) / period_s)
    return round(due_s + (missed + 1) * period_s, 6)
