"""What a drill does to a daemon: start, kill, stop, undo; as a process, or through its unit."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from tests.benchmarks.common import CannotMeasureError
from tests.support.koordletd import Koordlet, kill_tree
from tests.support.waiting import until

SLOW_WRITE_MS = 15
SLOW = (
    *("strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", "trace=write"),
    *("-e", f"inject=write:delay_enter={SLOW_WRITE_MS}ms"),
)
UNIT_S = 300.0  # a guest's CPU is slow
ROLLBACK = "koordlet-rollback.service"


class Driven(Protocol):
    """One daemon in a drill. ``start`` slows its writes down where that was asked for."""

    run_dir: Path

    def start(self) -> None: ...

    def kill(self) -> None:
        """SIGKILL for all its processes at once; gone at the return."""

    def stop(self) -> int:
        """A clean stop; its exit code."""
        ...

    def rollback(self) -> tuple[int, str]:
        """Restore with no daemon; exit code, and what was said."""
        ...

    def broken_rollback(self, began: Callable[[], bool], more_s: float) -> bool:
        """A slowed rollback, killed ``more_s`` after it ``began``; whether that hit it."""
        ...

    def log_tail(self) -> str: ...


class Process:
    """The daemon as its console script, a child of ours."""

    def __init__(self, koordlet: Koordlet) -> None:
        self.run_dir = koordlet.run_dir
        self._koordlet = koordlet
        self._tree: tuple[int, ...] = ()

    def start(self) -> None:
        self._koordlet.start()
        self._tree = self._koordlet.tree()

    def kill(self) -> None:
        self._koordlet.kill(self._tree)

    def stop(self) -> int:
        return self._koordlet.stop()

    def rollback(self) -> tuple[int, str]:
        done = self._koordlet.ctl("rollback")
        return done.returncode, done.stdout + done.stderr

    def broken_rollback(self, began: Callable[[], bool], more_s: float) -> bool:
        command = [*SLOW, *self._koordlet.ctl_command("rollback")]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not began():
            time.sleep(0.005)
        time.sleep(more_s)
        hit = process.poll() is None
        kill_tree(process.pid)
        process.wait()
        return hit

    def log_tail(self) -> str:
        return self._koordlet.log_tail()


class Unit:
    """The daemon as its installed unit, which a drop-in points at ``config``.

    It is not started again by itself, so that a drill decides who comes first. The rollback is the
    one of the dead-man timer.
    """

    def __init__(self, unit: str, config: Path, wrapper: tuple[str, ...] = ()) -> None:
        self.run_dir = Path("/run/koordlet")
        self._unit = unit
        self._config = config
        self._wrapper = wrapper

    def start(self) -> None:
        self._point()
        _systemctl("start", self._unit)

    def _point(self) -> None:
        koordlet, ctl = (shutil.which(name) for name in ("koordlet", "koordletctl"))
        if koordlet is None or ctl is None:
            raise CannotMeasureError(f"{self._unit} is not installed; remedy: make install")
        wrapper = " ".join([*self._wrapper, ""])
        strace = f"{' '.join(SLOW)} "
        _drop_in(
            self._unit,
            "[Unit]\nStartLimitIntervalSec=0\n"
            "[Service]\nRestartSec=1d\nTimeoutStartSec=5min\nWatchdogSec=5min\n"
            f"SystemCallFilter=@debug\nExecStart=\nExecStopPost=\n"
            f"ExecStart={wrapper}{koordlet} run --on-sigterm leave --config {self._config}\n"
            f"ExecStopPost={koordlet} after-stop %n --config {self._config}\n",
        )
        _drop_in(
            ROLLBACK,
            "[Service]\nSystemCallFilter=@debug\nExecStart=\n"
            f"ExecStart={strace}{ctl} --config {self._config} rollback --if-no-daemon\n",
        )
        _systemctl("daemon-reload")

    def kill(self) -> None:
        _systemctl("kill", "--signal=KILL", self._unit)
        until(lambda: _property(self._unit, "SubState") == "auto-restart", UNIT_S, "its end")

    def stop(self) -> int:
        _systemctl("stop", self._unit)
        return 0 if _property(self._unit, "Result") == "success" else 1

    def rollback(self) -> tuple[int, str]:
        _systemctl("stop", self._unit)  # it waits to be started again
        done = _systemctl("start", ROLLBACK, check=False)
        return done.returncode, done.stderr

    def broken_rollback(self, began: Callable[[], bool], more_s: float) -> bool:
        _systemctl("stop", self._unit)
        _systemctl("start", "--no-block", ROLLBACK)
        while _property(ROLLBACK, "ActiveState") == "activating" and not began():
            time.sleep(0.05)
        time.sleep(more_s)
        hit = _property(ROLLBACK, "ActiveState") == "activating"
        _systemctl("kill", "--signal=KILL", ROLLBACK, check=False)
        until(lambda: _property(ROLLBACK, "ActiveState") != "activating", UNIT_S, "its end")
        return hit

    def log_tail(self) -> str:
        words = ("journalctl", "--no-pager", "--lines=40", "--unit", self._unit)
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout


@contextlib.contextmanager
def unit_as_before(unit: str) -> Iterator[None]:
    """Whatever a drill makes of ``unit``, afterwards it is as it was."""
    if not Path("/run/systemd/system").is_dir():
        raise CannotMeasureError(f"{unit} needs systemd as the first process")
    was_active = _property(unit, "ActiveState") == "active"
    try:
        _systemctl("stop", unit)
        yield
    finally:
        _systemctl("stop", unit, ROLLBACK, ROLLBACK.replace(".service", ".timer"), check=False)
        for name in (unit, ROLLBACK):
            shutil.rmtree(f"/run/systemd/system/{name}.d", ignore_errors=True)
        _systemctl("daemon-reload")
        _systemctl("reset-failed", unit, ROLLBACK, check=False)
        if was_active:
            _systemctl("start", unit)


def _drop_in(unit: str, text: str) -> None:
    path = Path(f"/run/systemd/system/{unit}.d/drill.conf")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def _property(unit: str, name: str) -> str:
    return _systemctl("show", "--value", f"--property={name}", unit).stdout.strip()


def _systemctl(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["systemctl", *words],
        env={**os.environ, "SYSTEMD_COLORS": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=UNIT_S,
        check=False,
    )
    if check and done.returncode:
        raise CannotMeasureError(f"systemctl {' '.join(words)}: {done.stderr.strip()}")
    return done
