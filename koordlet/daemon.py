"""``koordlet``: takes the lock, then starts and watches core, front and, if asked, the screen."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

import structlog

from koordlet import logs
from koordlet.clock import Clock, SystemClock
from koordlet.config import Config, load_config
from koordlet.host.machine import Machine, open_machine
from koordlet.host.otheragent import find_other_agent
from koordlet.memory import keep_small
from koordlet.protocol.problem import Problem, RefusedError
from koordlet.resexecutor.lock import Busy, Lock, LockError, acquire
from koordlet.supervisor import Child, Signals, Supervisor

CORE_STOP_S = 20.0
STOPPED_CLEAN = (0, 4)
FRONT_STOP_S = 10.0
SCREEN_STOP_S = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Exit: 0 restored and ended, 1 failed, 2 bad usage or input, 4 ended,
    but something was left that is not as it was.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    words = words[1:] if words[:1] == ["run"] else words
    summary = "--summary" in words
    try:
        config = load_config([word for word in words if word != "--summary"])
        return _run(config, summary=summary)
    except RefusedError as refused:
        for problem in refused.problems:
            print(f"koordlet: {problem}", file=sys.stderr)
        return 2 if refused.problems[0].code.startswith("config") else 1


def _run(config: Config, *, summary: bool) -> int:
    _prepare(config, summary=summary)
    machine = open_machine(config.roots, keeps_fds=False)
    other = find_other_agent(config.proc_root, str(config.run_dir))
    if other is not None:
        raise RefusedError((other,))
    lock = _lock(machine)
    clock = SystemClock()
    children = [
        Child("core", lambda signals: _run_core(config, clock, signals), CORE_STOP_S),
        Child("front", lambda signals: _run_front(config, clock, signals), FRONT_STOP_S),
    ]
    if summary:
        screen = Child(
            "screen", lambda signals: _run_screen(config, signals), SCREEN_STOP_S, optional=True
        )
        children.append(screen)
    keep_small()
    _load_shared_modules()
    machine.files.close()
    try:
        code = Supervisor(tuple(children), clock).run()
    finally:
        lock.release()
    return code if code in STOPPED_CLEAN else _undo_for_the_core(config)


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


def _lock(machine: Machine) -> Lock:
    try:
        lock = acquire(machine.root_identity)
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


def _run_core(config: Config, clock: Clock, signals: Signals) -> int:
    from koordlet.corewiring import run_core

    return run_core(config, clock, signals)


def _run_front(config: Config, clock: Clock, signals: Signals) -> int:
    from koordlet.frontwiring import run_front

    return run_front(config, clock, signals)


def _run_screen(config: Config, signals: Signals) -> int:
    from koordlet.ctl.screen import run

    came: set[signal.Signals] = set()

    def stopped() -> bool:
        came.update(signals.take())
        return signal.SIGTERM in came

    run(config.run_dir / "api.sock", stopped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
