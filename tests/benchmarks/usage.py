"""What a daemon costs, read from /proc and its cgroup by somebody else."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from koordlet.units import MIB, NS_PER_S
from tests.support.cgroot import CgroupRoot

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
KIB = 1024


class OwnCgroup:
    """A cgroup of the daemon's own in the memory and cpuacct hierarchies.

    On v1 it is in no cpu cgroup: there it stays among the machine's other services.
    """

    def __init__(self) -> None:
        self._root = CgroupRoot()

    @property
    def directories(self) -> tuple[Path, ...]:
        return tuple({self._root.dir("", "memory"), self.cpuacct})

    @property
    def cpuacct(self) -> Path:
        return self._root.dir("", "cpuacct")

    def pids(self) -> tuple[int, ...]:
        """All processes of the daemon now."""
        text = (self._root.dir("", "memory") / "cgroup.procs").read_text()
        return tuple(int(word) for word in text.split())

    def memory_mib(self) -> float:
        """All memory charged to it, the kernel's own included."""
        name = "memory.usage_in_bytes" if self._root.version == 1 else "memory.current"
        return int(self._root.read("", name, "memory")) / MIB

    def __enter__(self) -> OwnCgroup:
        self._root.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._root.close()


def cpu_s(pids: Iterable[int]) -> float:
    """User and system time of the processes and of their children that were waited for."""
    return sum(_ticks(pid) for pid in pids) / _TICKS_PER_S


def _ticks(pid: int) -> int:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15])
    return 0


def pss_mib(pids: Iterable[int]) -> float:
    """Sum of the processes' proportional set sizes."""
    return sum(_pss_kib(pid) for pid in pids) * KIB / MIB


def _pss_kib(pid: int) -> int:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def thread_run_s(pid: int, thread: int) -> float:
    """Seconds that one thread ran, from its schedstat."""
    return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0]) / NS_PER_S


def busiest_thread(pid: int) -> int:
    """The thread of ``pid`` that ran most."""
    threads = [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    return max(threads, key=lambda thread: thread_run_s(pid, thread))


class MemoryWatch:
    """Samples memory once a second while the context lasts."""

    def __init__(self, own: OwnCgroup) -> None:
        self._own = own
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)
        self.pss_mib: list[float] = []
        self.cgroup_mib: list[float] = []

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.pss_mib.append(pss_mib(self._own.pids()))
            self.cgroup_mib.append(self._own.memory_mib())
            if self._stop.wait(1.0):
                return
