"""Processes come back one by one, stop in order, and die with their parent."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from koordlet.clock import SystemClock
from koordlet.protocol.problem import Problem, RefusedError
from koordlet.supervisor import LEAVES_ON_SIGTERM, STOP_LEAVING, Child, Signals, Supervisor
from tests.support.waiting import until

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
            if STOP_LEAVING in came:
                note("leave")
                return code
            if signal.SIGTERM in came:
                note("stop")
                return code

    return run


def _wait(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    until(condition, within_s)


def _starts(mark: Path) -> list[int]:
    if not mark.exists():
        return []
    return [int(line.split()[1]) for line in mark.read_text().splitlines() if "start" in line]


def _fork_supervisor(children: tuple[Child, ...], **options: Any) -> int:
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = Supervisor(children, SystemClock(), **options).run()
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


# -- signals --------------------------------------------------------------------------------------


def test_a_stop_that_comes_before_a_child_listens_is_not_lost(tmp_path: Path) -> None:
    mark = tmp_path / "core"
    pid = _fork_supervisor((Child("core", _until_stopped(mark, slow_start_s=0.3), stop_s=5),))
    _wait(lambda: len(_starts(mark)) == 1)
    started_s = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert time.monotonic() - started_s < 3.0
    assert mark.read_text().endswith("stop\n")


def test_SIGHUP_reaches_every_child_and_SIGINT_stops_them(tmp_path: Path) -> None:
    core, front = tmp_path / "core", tmp_path / "front"
    pid = _fork_supervisor(
        (
            Child("core", _until_stopped(core), stop_s=5),
            Child("front", _until_stopped(front), stop_s=5),
        )
    )
    _wait(lambda: len(_starts(core)) == 1 and len(_starts(front)) == 1)
    os.kill(pid, signal.SIGHUP)
    _wait(lambda: "reload" in core.read_text() and "reload" in front.read_text())
    os.kill(pid, signal.SIGINT)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert core.read_text().endswith("stop\n")


def test_H16_a_service_manager_SIGTERM_leaves_and_SIGINT_restores(tmp_path: Path) -> None:
    for number, word in ((signal.SIGTERM, "leave"), (signal.SIGINT, "stop")):
        mark = tmp_path / word
        child = Child("core", _until_stopped(mark), stop_s=5)
        pid = _fork_supervisor((child,), stops=LEAVES_ON_SIGTERM)
        _wait(lambda mark=mark: len(_starts(mark)) == 1)
        os.kill(pid, number)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert mark.read_text().endswith(f"{word}\n")


def test_a_reload_comes_before_the_children_hear_of_it(tmp_path: Path) -> None:
    mark = tmp_path / "core"

    def reload() -> None:
        with mark.open("a") as file:
            file.write("read again\n")

    pid = _fork_supervisor((Child("core", _until_stopped(mark), stop_s=5),), reload=reload)
    _wait(lambda: len(_starts(mark)) == 1)
    os.kill(pid, signal.SIGHUP)
    _wait(lambda: "reload" in mark.read_text())
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    assert mark.read_text().splitlines()[1:] == ["read again", "reload", "stop"]


def test_a_child_that_does_not_stop_in_time_is_killed_and_counts_as_failed(
    tmp_path: Path,
) -> None:
    mark = tmp_path / "core"

    def deaf(_signals: Signals) -> int:
        mark.write_text(f"start {os.getpid()}\n")
        while True:
            time.sleep(1)

    pid = _fork_supervisor((Child("core", deaf, stop_s=0.2),))
    _wait(lambda: len(_starts(mark)) == 1)
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert _is_gone(_starts(mark)[0])


# -- ends -----------------------------------------------------------------------------------------


class _HandClock:
    def __init__(self) -> None:
        self.at_s = 100.0

    def now_s(self) -> float:
        return self.at_s

    def wall_s(self) -> float:
        return self.at_s


def test_a_child_that_fails_again_and_again_waits_longer_each_time_up_to_a_bound() -> None:
    clock = _HandClock()
    child = Child("core", lambda _signals: 1, stop_s=1)
    supervisor = Supervisor((child,), clock)
    waits = []
    for _ in range(8):
        child.started_s = clock.at_s
        supervisor._ended(child, 1)
        assert child.restart_at_s is not None
        waits.append(round(child.restart_at_s - clock.at_s, 3))
        clock.at_s = child.restart_at_s
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    child.started_s = clock.at_s
    clock.at_s += 31  # a long life makes it new
    supervisor._ended(child, -9)
    assert child.restart_at_s is not None
    assert round(child.restart_at_s - clock.at_s, 3) == 0.2


def test_an_optional_child_is_not_started_again() -> None:
    child = Child("screen", lambda _signals: 0, stop_s=1, optional=True)
    Supervisor((child,), _HandClock())._ended(child, 0)
    assert child.restart_at_s is None


def test_whatever_a_child_raises_ends_that_child_alone_and_is_logged(tmp_path: Path) -> None:
    mark = tmp_path / "front"
    problem = Problem("no-cgroups", "/proc", "no cgroup is mounted", remedy="mount one")

    def raises(_signals: Signals) -> int:
        with mark.open("a") as file:
            file.write(f"start {os.getpid()}\n")
        if len(_starts(mark)) == 1:
            raise RefusedError((problem,))
        raise SystemExit("no way on")

    pid = _fork_supervisor((Child("front", raises, stop_s=1),))
    _wait(lambda: len(_starts(mark)) >= 2)
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1


def test_signals_are_told_once_and_bursts_do_not_fill_the_pipe() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    signals = Signals((signal.SIGUSR1, signal.SIGUSR2))
    try:
        assert signals.take() == set()
        for _ in range(1_000):
            signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR2)
        assert signals.take() == {signal.SIGUSR1, signal.SIGUSR2}
        assert signals.take() == set()
    finally:
        signals.close()
        for number, handler in before.items():
            signal.signal(number, handler)
