"""What tests may leave behind on a machine, listed before and after a run.

Other people's runs and the machine itself change things at the same time. So only what carries
this run's mark counts: names ``koordtest-<pid>-...`` of its own processes, paths below its own
temporary directory, and processes that inherited its environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MARK = "KOORDTEST_RUN"  # environment variable that every process of one run inherits
RESULTS = "KOORDTEST_RESULTS"  # file that a test run leaves its counts in, as JSON
INNER_RUN = "inner-run"  # property of a test: such counts, of tests that it ran elsewhere
_NAME = re.compile(r"koordtest-(\d+)-")


@dataclass(frozen=True)
class Ground:
    """One look: kind of thing to the names found, and the root qdisc of each device."""

    things: dict[str, frozenset[str]] = field(default_factory=dict)
    qdiscs: dict[str, str] = field(default_factory=dict)

    def left_behind(self, before: Ground) -> list[str]:
        """What is here now and was not ``before``, and each device whose qdisc changed."""
        new = [
            f"{kind}: {name}"
            for kind, names in sorted(self.things.items())
            for name in sorted(names - before.things.get(kind, frozenset()))
        ]
        changed = [
            f"qdisc of {device}: {before.qdiscs[device]!r} became {self.qdiscs[device]!r}"
            for device in sorted(before.qdiscs.keys() & self.qdiscs.keys())
            if before.qdiscs[device] != self.qdiscs[device]
        ]
        return new + changed


class Surveyor:
    """Lists what belongs to one run: that of process ``pid``, with files below ``scratch``."""

    def __init__(self, pid: int, scratch: str) -> None:
        self._pid = pid
        self._scratch = scratch
        self._pids = {pid}  # every process of the run seen so far

    def look(self) -> Ground:
        """List everything now."""
        ours = _processes_of(self._pid)
        self._pids |= ours.keys()
        return Ground(
            things={
                "process": frozenset(f"{pid} {command}" for pid, command in ours.items()),
                "cgroup": frozenset(filter(self._is_ours, _cgroups())),
                "mount": frozenset(filter(self._is_ours, _mount_points())),
                "network namespace": frozenset(filter(self._is_ours, _names("/run/netns"))),
                "socket": frozenset(filter(self._is_ours, _sockets())),
            },
            qdiscs=_qdiscs(),
        )

    def adopt(self, pid: int) -> None:
        """Count what carries the number of ``pid`` too."""
        self._pids.add(pid)

    def _is_ours(self, name: str) -> bool:
        if self._scratch and name.startswith(self._scratch):
            return True
        found = _NAME.search(name)
        if found is None:
            return False
        owner = int(found[1])
        return owner in self._pids or (not _alive(owner) and not _other_runs(self._pid))


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _marks() -> Iterator[tuple[int, int]]:
    """Process id and run of each process that carries a mark."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            found = re.search(rb"(?:^|\0)" + MARK.encode() + rb"=(\d+)", _environ(entry))
            if found:
                yield int(entry.name), int(found[1])


def _environ(entry: Path) -> bytes:
    return (entry / "environ").read_bytes()


def _processes_of(run: int) -> dict[int, str]:
    """Commands of the processes that inherited the mark of ``run``, itself left out."""
    found: dict[int, str] = {}
    for pid, mark in _marks():
        if mark != run or pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            found[pid] = b" ".join(words).decode(errors="replace").strip()[:120]
    return found


def _other_runs(run: int) -> bool:
    """Whether somebody else tests on this machine now, whose leftovers would look like ours."""
    ours = {run, *_processes_of(run)}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in ours:
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if any(word == b"pytest" or word.endswith(b"/pytest") for word in words):
                return True
    return False


def _mount_points(kinds: tuple[str, ...] = ()) -> list[str]:
    points = []
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        head, _, tail = line.partition(" - ")
        if not kinds or tail.split(" ", 1)[0] in kinds:
            points.append(head.split(" ")[4])
    return points


def _cgroups() -> Iterator[str]:
    """Topmost cgroup directories called ``koordtest...``, at any depth of any hierarchy."""
    for mount in _mount_points(("cgroup", "cgroup2")):
        for directory, names, _ in os.walk(mount):
            tests = [name for name in names if "koordtest" in name]
            yield from (f"{directory}/{name}" for name in tests)
            names[:] = [name for name in names if name not in tests]


def _names(directory: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return os.listdir(directory)
    return []


def _sockets() -> Iterator[str]:
    """Unix sockets that somebody holds, and socket files in /run."""
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        fields = line.split(None, 7)
        if len(fields) == 8:
            yield fields[7]
    for directory, names, files in os.walk("/run"):
        if directory.count("/") >= 3:
            names.clear()
        for name in files:
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(os.lstat(f"{directory}/{name}").st_mode):
                    yield f"{directory}/{name}"


def _qdiscs() -> dict[str, str]:
    """All qdiscs by device, as tc prints them; empty where there is no tc."""
    if shutil.which("tc") is None:
        return {}
    listed = subprocess.run(["tc", "qdisc", "show"], capture_output=True, text=True, check=False)
    found: dict[str, str] = {}
    for line in listed.stdout.splitlines():
        words = line.split()
        if "dev" in words:
            device = words[words.index("dev") + 1]
            found[device] = found.get(device, "") + line + "\n"
    return found
