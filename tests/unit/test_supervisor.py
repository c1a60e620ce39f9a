"""Processes come back one by one, stop in order, and die with their parent."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

from koordlet.clock import SystemClock
from koordlet.supervisor import Child, Signals, Supervisor

ChildRun = Callable[[Signals], int]


def _until_stopped(mark: Path, code: int = 0, slow_start_s: float = 0.0) -> ChildRun:
    """Notes its start, each SIGHUP and its stop; hears nothing in its first ``slow_start_s``."""

    def note(text: str) -> None:
        with mark.open("a") as file:
            file.write(f"{text}\n")

    def run(signals: Signals) -> int:
        note(f"start {os.getpid()}")
        time.sleep(slow_start_s)
        while True:
            select.select([signals.fd], [], [])
            came = signals.take()
            if signal.SIGHUP in came:
                note("reload")
            if signal.SIGTERM in came:
                note("stop")
                return code

    return run


def _wait(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "condition did not become true in time"
        time.sleep(0.01)


def _starts(mark: Path) -> list[int]:
    if not mark.exists():
        return []
    return [int(line.split()[1]) for line in mark.read_text().splitlines() if "start" in line]


def _fork_supervisor(children: tuple[Child, ...]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = Supervisor(children, SystemClock()).run()
        finally:
            os._exit(code)
    return pid


def test_a_killed_child_comes_back_alone_and_the_stop_reports_the_first_childs_code(
    tmp_path: Path,
) -> None:
    core, front = tmp_path / "core", tmp_path / "front"
    pid = _fork_supervisor(
        (
            Child("core", _until_stopped(core, code=4), stop_s=5),
            Child("front", _until_stopped(front), stop_s=5),
        )
    )
    _wait(lambda: len(_starts(core)) == 1 and len(_starts(front)) == 1)
    os.kill(_starts(front)[0], signal.SIGKILL)
    _wait(lambda: len(_starts(front)) == 2)
    assert len(_starts(core)) == 1
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 4
    assert core.read_text().endswith("stop\n")
    assert front.read_text().endswith("stop\n")


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    mark = tmp_path / "core"
    pid = _fork_supervisor((Child("core", _until_stopped(mark), stop_s=5),))
    _wait(lambda: len(_starts(mark)) == 1)
    child = _starts(mark)[0]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    _wait(lambda: _is_gone(child))


def _is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in ("Z", "X")
