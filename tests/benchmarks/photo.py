"""Everything about a set of cgroups and processes that a daemon could have changed, as bytes."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from tests.support.cgroot import CgroupRoot

Photo = dict[str, bytes]

# Writable files that count, or that do something when written: no settings.
_NO_SETTINGS = frozenset(
    {
        "cgroup.event_control",
        "cgroup.kill",
        "cgroup.procs",
        "cgroup.threads",
        "cpuacct.usage",
        "memory.oom_control",
        "memory.shown_ram_in_bytes",
        "tasks",
    }
)
_NO_SETTING_ENDS = (".pressure", "failcnt", "max_usage_in_bytes", "force_empty", "reset_stats")


def take(root: CgroupRoot, pids: Iterable[int]) -> Photo:
    """Every setting of every cgroup below ``root``, every member list, and what /proc says."""
    photo: Photo = {}
    for mount in sorted(set(root.mounts.values())):
        for directory, _, names in os.walk(mount / root.root[1:]):
            photo |= _directory(Path(directory), names)
    for pid in pids:
        photo |= _process(pid)
    return photo


def differences(before: Photo, after: Photo) -> list[str]:
    """Names whose bytes differ, or that only one of the two has."""
    return sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )


def _directory(directory: Path, names: Iterable[str]) -> Photo:
    found: Photo = {}
    for name in names:
        path = directory / name
        if name == "cgroup.procs":
            found[str(path)] = b" ".join(sorted(path.read_bytes().split()))
        elif _is_setting(path):
            with contextlib.suppress(OSError):  # write-only, or not supported here
                found[str(path)] = _cpus(path) if name == "cpuset.cpus" else path.read_bytes()
    return found


def _cpus(path: Path) -> bytes:
    """A v2 cpuset with tasks in it is never emptied again, so one with all CPUs of its parent is
    as good as one with none of its own.
    """
    own = path.read_bytes()
    above = path.parents[1] / "cpuset.cpus.effective"
    return b"\n" if above.exists() and own == above.read_bytes() else own


def _is_setting(path: Path) -> bool:
    if path.name in _NO_SETTINGS or path.name.endswith(_NO_SETTING_ENDS):
        return False
    return bool(path.stat().st_mode & stat.S_IWUSR)


def _process(pid: int) -> Photo:
    proc = Path(f"/proc/{pid}")
    status = (proc / "status").read_bytes().splitlines()
    allowed = [line for line in status if b"_allowed" in line or line.startswith(b"NSpid")]
    fields = (proc / "stat").read_bytes().rpartition(b")")[2].split()
    return {
        f"/proc/{pid}/cgroup": (proc / "cgroup").read_bytes(),
        f"/proc/{pid}/oom_score_adj": (proc / "oom_score_adj").read_bytes(),
        f"/proc/{pid}/status": b"\n".join(allowed),
        f"/proc/{pid}/stat": b" ".join((fields[16], fields[38])),  # nice, scheduling policy
    }
