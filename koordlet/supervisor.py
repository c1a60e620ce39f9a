"""Starts the daemon's processes, watches them, starts them again, and stops them in order.

The children are forks: what the parent imported is shared memory. They die with the parent
(PR_SET_PDEATHSIG), so a SIGKILL of the daemon never leaves a writer behind its back.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from koordlet.clock import Clock
from koordlet.eventloop import EventLoop
from koordlet.protocol.problem import RefusedError

PR_SET_PDEATHSIG = 1
RESTART_FIRST_S = 0.2
RESTART_MAX_S = 5.0
STABLE_S = 30.0  # a child that lived this long starts its back-off anew
STOP_RESTORING, STOP_LEAVING = signal.SIGTERM, signal.SIGUSR1
"""How a child is told to end: values in force are given back, or left for whoever comes next."""
STOPS = (STOP_RESTORING, STOP_LEAVING)
CHILD_SIGNALS = (*STOPS, signal.SIGHUP)
RESTORES = {signal.SIGINT: STOP_RESTORING, signal.SIGTERM: STOP_RESTORING}
LEAVES_ON_SIGTERM = {signal.SIGINT: STOP_RESTORING, signal.SIGTERM: STOP_LEAVING}


@dataclass(slots=True)
class Child:
    """One process: ``run`` is its whole life and returns the exit code; CHILD_SIGNALS reach it
    through the Signals that it is given. ``stop_s`` bounds its clean stop. ``optional`` children
    are not started again.
    """

    name: str
    run: Callable[[Signals], int]
    stop_s: float
    optional: bool = False
    pid: int = 0
    started_s: float = 0.0
    exit_code: int | None = None
    failures: int = 0
    restart_at_s: float | None = None


class Signals:
    """Signals of this process as readable bytes, for a thread that polls ``fd``."""

    def __init__(self, handled: tuple[signal.Signals, ...]) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in handled:
            signal.signal(number, lambda *_args: None)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def take(self) -> set[signal.Signals]:
        """The signals that came since the last call."""
        try:
            return {signal.Signals(byte) for byte in os.read(self.fd, 4096)}
        except BlockingIOError:
            return set()

    def close(self) -> None:
        """Give the wake-up descriptor back (in a fork, before the child sets its own)."""
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._write_fd)


class Supervisor:
    """Runs children until a stop is asked for; ``children`` are stopped in their order.

    ``stops`` says which of our signals stops them how. ``reload`` is called at SIGHUP, before the
    children hear of it.
    """

    def __init__(
        self,
        children: tuple[Child, ...],
        clock: Clock,
        *,
        stops: Mapping[signal.Signals, signal.Signals] = RESTORES,
        reload: Callable[[], None] = lambda: None,
    ) -> None:
        self._children = children
        self._clock = clock
        self._stops = stops
        self._reload = reload
        self._log = structlog.get_logger("daemon")
        self._parent_pid = os.getpid()
        self._stop_by: signal.Signals | None = None

    @property
    def stop_by(self) -> signal.Signals | None:
        """How the children were stopped, one of STOPS; None while they run."""
        return self._stop_by

    def run(self) -> int:
        """Until SIGINT or SIGTERM; then the exit code of the first child's clean stop."""
        signals = Signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD))
        loop = EventLoop()
        loop.watch(signals.fd, select.POLLIN, lambda _events: self._on_signals(signals))
        gc.collect()
        gc.freeze()  # keeps the collector from touching (and so copying) shared pages
        for child in self._children:
            self._start(child, signals)
        while self._stop_by is None:
            loop.wait(self._next_restart_s())
            self._reap()
            self._restart_due(signals)
        return self._stop_all(self._stop_by)

    def _on_signals(self, signals: Signals) -> None:
        came = signals.take()
        for number, stop in self._stops.items():
            if number in came and self._stop_by is None:
                self._stop_by = stop
        if signal.SIGHUP in came:
            self._reload()
            for child in self._children:
                if child.pid:
                    os.kill(child.pid, signal.SIGHUP)

    def _start(self, child: Child, signals: Signals) -> None:
        # A stop that comes before the child can hear of it waits, and is not lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, CHILD_SIGNALS)
        pid = os.fork()
        if pid == 0:
            signals.close()
            own = Signals(CHILD_SIGNALS)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os._exit(_life(child, own, self._parent_pid))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        child.pid, child.started_s, child.restart_at_s = pid, self._clock.now_s(), None

    def _reap(self) -> None:
        for child in self._children:
            if child.pid == 0:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: Child, code: int) -> None:
        now_s = self._clock.now_s()
        child.pid, child.exit_code = 0, code
        if child.optional or self._stop_by is not None:
            return
        child.failures = 1 if now_s - child.started_s > STABLE_S else child.failures + 1
        delay_s = min(RESTART_FIRST_S * 2 ** (child.failures - 1), RESTART_MAX_S)
        child.restart_at_s = now_s + delay_s
        self._log.error("process ended, starting it again", process=child.name, code=code)

    def _next_restart_s(self) -> float:
        due = [child.restart_at_s for child in self._children if child.restart_at_s is not None]
        return min(1.0, max(0.0, min(due) - self._clock.now_s())) if due else 1.0

    def _restart_due(self, signals: Signals) -> None:
        for child in self._children:
            if child.restart_at_s is not None and child.restart_at_s <= self._clock.now_s():
                self._start(child, signals)

    def _stop_all(self, how: signal.Signals) -> int:
        first = self._children[0]
        if not first.pid and how is STOP_RESTORING:
            self._log.error("process does not run, and cannot clean up", process=first.name)
        for child in self._children:
            if child.pid:
                self._stop(child, how)
        code = self._children[0].exit_code
        return 1 if code is None or code < 0 else code

    def _stop(self, child: Child, how: signal.Signals) -> None:
        os.kill(child.pid, how)
        deadline_s = self._clock.now_s() + child.stop_s
        pidfd = os.pidfd_open(child.pid)
        try:
            waiter = select.poll()
            waiter.register(pidfd, select.POLLIN)
            while not waiter.poll(max(0.0, deadline_s - self._clock.now_s()) * 1000):
                if self._clock.now_s() >= deadline_s:
                    self._log.error("process did not stop in time, killed", process=child.name)
                    os.kill(child.pid, signal.SIGKILL)
                    break
        finally:
            os.close(pidfd)
        _, status = os.waitpid(child.pid, 0)
        self._ended(child, os.waitstatus_to_exitcode(status))


def _life(child: Child, signals: Signals, parent_pid: int) -> int:
    """A child from fork to exit. The one place beside the tick that may catch everything: a
    fork must never run on into its parent's code.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the group; the parent decides
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        return 1  # the parent died between fork and prctl
    try:
        return child.run(signals)
    except RefusedError as refused:
        for problem in refused.problems:
            structlog.get_logger("daemon").error("cannot run", process=child.name, why=str(problem))
        return 1
    except BaseException:  # noqa: BLE001
        structlog.get_logger("daemon").exception("process failed", process=child.name)
        return 1
