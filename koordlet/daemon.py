"""``koordlet``: takes the lock, then starts and watches core, front and, if asked, the screen."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import partial

import structlog

from koordlet import logs
from koordlet.clock import SystemClock
from koordlet.config import Config, load_config
from koordlet.host.machine import Machine, open_machine
from koordlet.host.otheragent import find_other_agent
from koordlet.memory import keep_small
from koordlet.protocol.problem import Problem, RefusedError
from koordlet.reload import Reloaded, reload_config
from koordlet.resexecutor.lock import Busy, Lock, LockError, acquire_within
from koordlet.sdnotify import Heartbeat, ServiceManager
from koordlet.supervisor import (
    LEAVES_ON_SIGTERM,
    RESTORES,
    STOP_LEAVING,
    STOPS,
    Child,
    Signals,
    Supervisor,
)
from koordlet.units import US_PER_S

PREDECESSOR_S = 10.0
"""How long a service waits for the lock: a killed predecessor may still be in a slow write."""
CORE_STOP_S = 20.0
STOPPED_CLEAN = (0, 4)
FRONT_STOP_S = 10.0
SCREEN_STOP_S = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Exit: 0 ended as told, 1 failed, 2 bad usage or input, 4 ended, but
    something was left that is not as it was.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["after-stop"]:
        from koordlet.afterstop import after_stop

        return after_stop(words[1:], os.environ)
    words = words[1:] if words[:1] == ["run"] else words
    options = [word for word in words if word != "--summary"]
    try:
        config = load_config(options)
    except RefusedError as refused:
        return _say(refused, 2)
    try:
        _prepare(config, summary="--summary" in words)
        return _Daemon(config, options, summary="--summary" in words).run()
    except RefusedError as refused:
        return _say(refused, 1)


def _say(refused: RefusedError, code: int) -> int:
    for problem in refused.problems:
        print(f"koordlet: {problem}", file=sys.stderr)
    return code


class _Daemon:
    """The supervisor with its children; ``options`` are those of the command line."""

    def __init__(self, config: Config, options: Sequence[str], *, summary: bool) -> None:
        self._config = config
        self._read_again = partial(reload_config, argv=options)
        self._clock = SystemClock()
        self._manager = ServiceManager.of(os.environ)
        self._log = structlog.get_logger("daemon")
        self._children = [
            Child("core", self._run_core, CORE_STOP_S),
            Child("front", self._run_front, FRONT_STOP_S),
        ]
        if summary:
            screen = Child("screen", self._run_screen, SCREEN_STOP_S, optional=True)
            self._children.append(screen)

    def run(self) -> int:
        """Until it is stopped; the exit code."""
        machine = open_machine(self._config.roots, keeps_fds=False)
        self._refuse_beside_another_agent()
        leaves = self._config.on_sigterm == "leave"
        lock = _lock(machine, PREDECESSOR_S if leaves else 0.0)
        keep_small()
        _load_shared_modules()
        machine.files.close()
        stops = LEAVES_ON_SIGTERM if leaves else RESTORES
        supervisor = Supervisor(
            tuple(self._children), self._clock, stops=stops, reload=self._reload
        )
        try:
            code = supervisor.run()
        finally:
            lock.release()
        if supervisor.stop_by is STOP_LEAVING:
            return 0
        return code if code in STOPPED_CLEAN else _undo_for_the_core(self._config)

    def _refuse_beside_another_agent(self) -> None:
        """Two writers would undo each other (hazard H14); who only looks, or was told, may run."""
        config = self._config
        if config.dry_run or config.other_agent == "ignore":
            return
        other = find_other_agent(config.proc_root, str(config.run_dir))
        if other is not None:
            raise RefusedError((other,))

    def _reload(self) -> None:
        """Children that are started from now on begin with what is in force now."""
        self._manager.tell("RELOADING=1", f"MONOTONIC_USEC={round(time.monotonic() * US_PER_S)}")
        reloaded: Reloaded = self._read_again(self._config)
        self._config = reloaded.config
        logs.change(self._config.log_level, self._config.log_format)
        self._log.info("configuration read again", changed=", ".join(reloaded.changed) or "nothing")
        for problem in reloaded.problems:
            self._log.warning("not taken from the configuration", why=str(problem))
        self._manager.tell("READY=1")

    # -- children: their modules are imported after the fork, where they are paid for -------------

    def _run_core(self, signals: Signals) -> int:
        from koordlet.corewiring import run_core

        heartbeat = Heartbeat(self._manager, self._config.tick_seconds)
        return run_core(self._config, self._clock, signals, heartbeat)

    def _run_front(self, signals: Signals) -> int:
        from koordlet.frontwiring import run_front

        return run_front(self._config, self._clock, signals, self._read_again)

    def _run_screen(self, signals: Signals) -> int:
        from koordlet.ctl.screen import run

        came: set[object] = set()

        def stopped() -> bool:
            came.update(signals.take())
            return not came.isdisjoint(STOPS)

        run(self._config.run_dir / "api.sock", stopped)
        return 0


def _undo_for_the_core(config: Config) -> int:
    """The core was not there to restore at the stop: it had just crashed, or it hung."""
    if config.dry_run:
        return 1
    from koordlet.journalundo import undo
    from koordlet.resexecutor.rollback import RollbackOptions

    report = undo(config, RollbackOptions(), cgroup_root=config.cgroup_root).report
    log = structlog.get_logger("daemon")
    log.warning("restored from the journal in place of the core", files=len(report.restored))
    for problem in report.problems:
        log.error("not restored", why=str(problem))
    return 4 if report.problems else 0


def _prepare(config: Config, *, summary: bool) -> None:
    """Logs, and the directories that are ours alone."""
    for directory in (config.run_dir, config.state_dir):
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
        except OSError as error:
            what = f"cannot be made ours: {error.strerror}"
            remedy = "run as root, or name another directory"
            raise RefusedError(
                (Problem("run-dir", str(directory), what, remedy=remedy),)
            ) from error
    if summary and sys.stderr.isatty():
        # A screen and log lines on one terminal would overwrite each other.
        log_file = (config.run_dir / "koordlet.log").open("a", encoding="utf-8", buffering=1)
        logs.configure(config.log_level, config.log_format, log_file)
    else:
        logs.configure(config.log_level, config.log_format)


def _lock(machine: Machine, wait_s: float) -> Lock:
    try:
        lock = acquire_within(machine.root_identity, wait_s)
    except LockError as error:
        problem = Problem("lock", "writer's lock", str(error), remedy="see the message")
        raise RefusedError((problem,)) from error
    if isinstance(lock, Busy):
        raise RefusedError(
            (
                Problem(
                    "second-instance",
                    str(lock.path),
                    f"process {lock.pid or '(unknown)'} manages {machine.managed_root} already",
                    limit="one koordlet for each managed cgroup root",
                    remedy="stop it first (koordletctl status shows it)",
                ),
            )
        )
    return lock


def _load_shared_modules() -> None:
    """Import before the fork what both children need: its pages are then shared."""
    import koordlet.frontstate
    import koordlet.metrics.readings  # noqa: F401


if __name__ == "__main__":
    sys.exit(main())
