"""Cgroup hierarchies in memory that say no where the kernel does.

The contract suite holds these rules against a real kernel; a disagreement is a bug here.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from koordlet.protocol.cpuset import CpuSetError, format_cpuset, parse_cpuset

PAGE = 4_096
V1_UNLIMITED = 9_223_372_036_854_771_712
PSI_ZERO = (
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0"
)
_CFS_V1 = "nr_periods 0\nnr_throttled 0\nthrottled_time 0\nnr_bursts 0\nburst_time 0"
_CFS_V2 = "nr_periods 0\nnr_throttled 0\nthrottled_usec 0\nnr_bursts 0\nburst_usec 0"
_USAGE_V2 = "usage_usec 0\nuser_usec 0\nsystem_usec 0"
_LRU = ("inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")
_STAT_V1 = "\n".join([*(f"{key} 0" for key in _LRU), *(f"total_{key} 0" for key in _LRU)])
_STAT_V2 = "\n".join(["anon 0", "file 0", *(f"{key} 0" for key in _LRU)])
_EVENTS = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0"

CREATED_FILES: dict[tuple[int, str], dict[str, str]] = {
    (1, ""): {"cgroup.procs": ""},
    (1, "cpu"): {
        "cpu.shares": "1024",
        "cpu.cfs_quota_us": "-1",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_burst_us": "0",
        "cpu.idle": "0",
        "cpu.stat": _CFS_V1,
    },
    (1, "cpuacct"): {"cpuacct.usage": "0"},
    (1, "cpuset"): {"cpuset.cpus": "", "cpuset.mems": "", "cpuset.effective_cpus": ""},
    (1, "memory"): {
        "memory.limit_in_bytes": str(V1_UNLIMITED),
        "memory.memsw.limit_in_bytes": str(V1_UNLIMITED),
        "memory.usage_in_bytes": "0",
        "memory.stat": _STAT_V1,
        "memory.failcnt": "0",
    },
    (1, "blkio"): {
        "blkio.throttle.io_service_bytes": "Total 0",
        "blkio.throttle.io_serviced": "Total 0",
        "blkio.throttle.io_service_bytes_recursive": "Total 0",
        "blkio.throttle.io_serviced_recursive": "Total 0",
    },
    (1, "pids"): {"pids.current": "0", "pids.max": "max"},
    (2, ""): {
        "cgroup.controllers": "",
        "cgroup.subtree_control": "",
        "cgroup.events": "populated 0\nfrozen 0",
        "cgroup.type": "domain",
        "cgroup.procs": "",
        "cpu.stat": _USAGE_V2,
        "cpu.pressure": PSI_ZERO,
        "memory.pressure": PSI_ZERO,
        "io.pressure": PSI_ZERO,
    },
    (2, "cpu"): {
        "cpu.weight": "100",
        "cpu.max": "max 100000",
        "cpu.max.burst": "0",
        "cpu.idle": "0",
        "cpu.stat": f"{_USAGE_V2}\n{_CFS_V2}",
    },
    (2, "cpuset"): {"cpuset.cpus": "", "cpuset.mems": "", "cpuset.cpus.effective": ""},
    (2, "memory"): {
        "memory.current": "0",
        "memory.max": "max",
        "memory.high": "max",
        "memory.low": "0",
        "memory.min": "0",
        "memory.swap.max": "max",
        "memory.oom.group": "0",
        "memory.stat": _STAT_V2,
        "memory.events": _EVENTS,
    },
    (2, "io"): {"io.stat": "", "io.max": "", "io.weight": "default 100"},
    (2, "pids"): {"pids.current": "0", "pids.max": "max"},
}
_NOT_IN_V2_ROOT = frozenset(
    {"cpu.weight", "cpu.max", "cpu.max.burst", "cpu.idle", "cpuset.cpus", "cpuset.mems"}
    | {"memory.current", "memory.max", "memory.high", "memory.low", "memory.min"}
    | {"memory.swap.max", "memory.oom.group", "memory.events", "io.max", "io.weight"}
    | {"pids.current", "pids.max", "cgroup.events", "cgroup.type"}
)


def refuse(number: int, path: str) -> OSError:
    """The kernel's answer with ``number``."""
    return OSError(number, os.strerror(number), path)


@dataclass
class FakeHierarchy:
    """One mounted hierarchy and its machine."""

    mount: str
    version: int
    controllers: tuple[str, ...]
    device: int
    online: frozenset[int]
    possible: frozenset[int]
    swap_accounting: bool = True
    root: FakeCgroup = field(init=False)

    def __post_init__(self) -> None:
        self.root = FakeCgroup(self, None, "")


_inodes = itertools.count(1)


class FakeCgroup:
    """One cgroup directory: file texts as the kernel prints them, without the final newline."""

    def __init__(self, hierarchy: FakeHierarchy, parent: FakeCgroup | None, name: str) -> None:
        self.hierarchy = hierarchy
        self.parent = parent
        self.name = name
        self.inode = next(_inodes)
        self.children: dict[str, FakeCgroup] = {}
        self.tasks = 0
        self.reclaimable_bytes = 0
        self.killed = 0
        self.files = self._created_files()

    def _created_files(self) -> dict[str, str]:
        hierarchy, files = self.hierarchy, {}
        for controller in ("", *hierarchy.controllers):
            files.update(CREATED_FILES.get((hierarchy.version, controller), {}))
        if hierarchy.version == 2:
            files["cgroup.controllers"] = " ".join(hierarchy.controllers)
            files["cgroup.subtree_control"] = " ".join(hierarchy.controllers)
        if not hierarchy.swap_accounting:
            files.pop("memory.memsw.limit_in_bytes", None)
            files.pop("memory.swap.max", None)
        if self.parent is None:
            if hierarchy.version == 2:
                files = {name: text for name, text in files.items() if name not in _NOT_IN_V2_ROOT}
            elif "cpuset" in hierarchy.controllers:
                files["cpuset.cpus"] = format_cpuset(hierarchy.online)
                files["cpuset.mems"] = "0"
        return files

    @property
    def path(self) -> str:
        """Absolute path of the directory."""
        return self.hierarchy.mount if self.parent is None else f"{self.parent.path}/{self.name}"

    def lineage(self) -> Iterator[FakeCgroup]:
        """This cgroup, its parent, ... the root."""
        at: FakeCgroup | None = self
        while at is not None:
            yield at
            at = at.parent

    def walk(self) -> Iterator[FakeCgroup]:
        """This cgroup and everything below."""
        yield self
        for child in self.children.values():
            yield from child.walk()

    def find(self, relative: str) -> FakeCgroup | None:
        """The cgroup at ``relative`` below this one."""
        at: FakeCgroup | None = self
        for part in filter(None, relative.split("/")):
            at = at.children.get(part) if at is not None else None
        return at

    def make_child(self, name: str) -> FakeCgroup:
        """mkdir."""
        if name in self.children:
            raise refuse(errno.EEXIST, f"{self.path}/{name}")
        child = self.children[name] = FakeCgroup(self.hierarchy, self, name)
        return child

    def remove(self) -> None:
        """rmdir."""
        if self.parent is None or self.children or self.tasks:
            raise refuse(errno.EBUSY, self.path)
        del self.parent.children[self.name]

    def read(self, name: str) -> str:
        """The text of a file as printed now."""
        if name not in self.files:
            raise refuse(errno.ENOENT, f"{self.path}/{name}")
        if name in ("cpuset.effective_cpus", "cpuset.cpus.effective"):
            return format_cpuset(self.effective_cpus())
        if name in ("cpu.shares", "cpu.weight") and self.files["cpu.idle"] == "1":
            return "3" if name == "cpu.shares" else "0"
        if name == "pids.current":
            return str(sum(each.tasks for each in self.walk()))
        if name == "cgroup.events" and self.files[name].startswith("populated 0"):
            return self.files[name].replace("0", str(int(self.populated())), 1)
        return self.files[name]

    def write(self, name: str, text: str) -> None:
        """write(2) of ``text`` to a file."""
        if name not in self.files:
            raise refuse(errno.ENOENT, f"{self.path}/{name}")
        rule = _RULES.get(name)
        if rule is None:
            raise refuse(errno.EINVAL, f"{self.path}/{name}")
        number = rule(self, text.strip())
        if number:
            raise refuse(number, f"{self.path}/{name}")

    def populated(self) -> bool:
        """Whether a task is here or below."""
        return any(each.tasks for each in self.walk())

    def setting(self, name: str) -> str:
        """What a file says, for comparisons. A v2 cpuset is never emptied again while it has
        tasks: one with all CPUs of its parent is as good as one with none of its own.
        """
        if name == "cpuset.cpus" and self.hierarchy.version == 2 and self.parent is not None:
            is_wide = self.cpus() == self.parent.effective_cpus()
            return "" if is_wide else self.files[name]
        return self.files[name]

    def cpus(self) -> frozenset[int]:
        """cpuset.cpus as a set."""
        return parse_cpuset(self.files.get("cpuset.cpus", ""))

    def effective_cpus(self) -> frozenset[int]:
        """The CPUs that tasks here may use."""
        if self.parent is None:
            return self.hierarchy.online
        above = self.parent.effective_cpus()
        own = self.cpus() & above
        return own or above if self.hierarchy.version == 2 else self.cpus()

    def quota(self) -> tuple[int, int]:
        """cfs quota (-1: none) and period in microseconds."""
        if self.hierarchy.version == 2:
            quota, period = self.files.get("cpu.max", "max 100000").split()[:2]
            return -1 if quota == "max" else int(quota), int(period)
        return int(self.files["cpu.cfs_quota_us"]), int(self.files["cpu.cfs_period_us"])


Rule = Callable[[FakeCgroup, str], int]
"""Puts a written text in force and returns 0, or returns the errno of the refusal."""


def _set_cpus(cgroup: FakeCgroup, text: str) -> int:
    try:
        wanted = parse_cpuset(text)
    except CpuSetError:
        return errno.EINVAL
    hierarchy = cgroup.hierarchy
    if not wanted <= hierarchy.possible:
        return errno.ERANGE
    if hierarchy.version == 1:
        number = _cpus_refusal_v1(cgroup, wanted)
        if number:
            return number
    elif not wanted and cgroup.cpus() and cgroup.populated():
        return errno.ENOSPC
    cgroup.files["cpuset.cpus"] = format_cpuset(wanted)
    return 0


def _cpus_refusal_v1(cgroup: FakeCgroup, wanted: frozenset[int]) -> int:
    if cgroup.parent is None:
        return errno.EACCES
    if not wanted <= cgroup.hierarchy.online:
        return errno.EINVAL
    if any(not child.cpus() <= wanted for child in cgroup.children.values()):
        return errno.EBUSY
    if not wanted <= cgroup.parent.cpus():
        return errno.EACCES
    if not wanted and cgroup.tasks and cgroup.cpus():
        return errno.ENOSPC
    return 0


def _set_mems(cgroup: FakeCgroup, text: str) -> int:
    try:
        wanted = parse_cpuset(text)
    except CpuSetError:
        return errno.EINVAL
    if not wanted <= {0}:
        return errno.EINVAL
    had = cgroup.files["cpuset.mems"] != ""
    if not wanted and cgroup.tasks and (had or cgroup.hierarchy.version == 1):
        return errno.ENOSPC
    cgroup.files["cpuset.mems"] = format_cpuset(wanted)
    return 0


def _set_shares(cgroup: FakeCgroup, text: str) -> int:
    number = _number(text)
    if number is None or number < 0 or cgroup.files["cpu.idle"] == "1" or cgroup.parent is None:
        return errno.EINVAL
    cgroup.files["cpu.shares"] = str(min(max(number, 2), 262_144))
    return 0


def _set_weight(cgroup: FakeCgroup, text: str) -> int:
    number = _number(text)
    if number is None:
        return errno.EINVAL
    if not 1 <= number <= 10_000:
        return errno.ERANGE
    if cgroup.files["cpu.idle"] == "1":
        return errno.EINVAL
    cgroup.files["cpu.weight"] = str(number)
    return 0


def _set_idle(cgroup: FakeCgroup, text: str) -> int:
    if text not in ("0", "1") or cgroup.parent is None:
        return errno.EINVAL
    if cgroup.files["cpu.idle"] != text:
        cgroup.files["cpu.idle"] = text
        for name, text_after in (("cpu.shares", "1024"), ("cpu.weight", "100")):
            if name in cgroup.files:
                cgroup.files[name] = text_after
    return 0


def _set_quota_v1(cgroup: FakeCgroup, text: str) -> int:
    number = _number(text)
    if number is None:
        return errno.EINVAL
    return _set_bandwidth(cgroup, -1 if number < 0 else number, cgroup.quota()[1])


def _set_period_v1(cgroup: FakeCgroup, text: str) -> int:
    number = _number(text)
    return errno.EINVAL if number is None else _set_bandwidth(cgroup, cgroup.quota()[0], number)


def _set_max_v2(cgroup: FakeCgroup, text: str) -> int:
    quota, *rest = text.split() or [""]
    number = -1 if quota == "max" else _number(quota)
    period = _number(rest[0]) if rest else cgroup.quota()[1]
    if number is None or period is None or (number < 0 and quota != "max"):
        return errno.EINVAL
    return _set_bandwidth(cgroup, number, period)


def _set_bandwidth(cgroup: FakeCgroup, quota: int, period: int) -> int:
    burst = "cpu.cfs_burst_us" if cgroup.hierarchy.version == 1 else "cpu.max.burst"
    if cgroup.parent is None or not 1_000 <= period <= 1_000_000 or 0 <= quota < 1_000:
        return errno.EINVAL
    if quota >= 0 and int(cgroup.files.get(burst, "0")) > quota:
        return errno.EINVAL
    before = dict(cgroup.files)
    if cgroup.hierarchy.version == 2:
        cgroup.files["cpu.max"] = f"{'max' if quota < 0 else quota} {period}"
        return 0
    cgroup.files["cpu.cfs_quota_us"], cgroup.files["cpu.cfs_period_us"] = str(quota), str(period)
    if _fits(cgroup.hierarchy.root, None):
        return 0
    cgroup.files.update(before)
    return errno.EINVAL


def _fits(cgroup: FakeCgroup, above: float | None) -> bool:
    """v1: no cgroup's quota per period exceeds that of the nearest ancestor that has one."""
    quota, period = cgroup.quota()
    own = above if quota < 0 else quota / period
    if above is not None and own is not None and own > above:
        return False
    return all(_fits(child, own) for child in cgroup.children.values())


def _set_burst(cgroup: FakeCgroup, text: str) -> int:
    number, quota = _number(text), cgroup.quota()[0]
    if number is None or number < 0 or (quota >= 0 and number > quota):
        return errno.EINVAL
    name = "cpu.cfs_burst_us" if cgroup.hierarchy.version == 1 else "cpu.max.burst"
    cgroup.files[name] = str(number)
    return 0


def _set_limit_v1(cgroup: FakeCgroup, text: str) -> int:
    return _resize_v1(cgroup, text, "memory.limit_in_bytes")


def _set_memsw_v1(cgroup: FakeCgroup, text: str) -> int:
    return _resize_v1(cgroup, text, "memory.memsw.limit_in_bytes")


def _resize_v1(cgroup: FakeCgroup, text: str, name: str) -> int:
    number = _bytes(text, "-1")
    if number is None or cgroup.parent is None:
        return errno.EINVAL
    memory = int(cgroup.files["memory.limit_in_bytes"])
    memsw = int(cgroup.files.get("memory.memsw.limit_in_bytes", V1_UNLIMITED))
    if number > memsw if name == "memory.limit_in_bytes" else number < memory:
        return errno.EINVAL
    if not _reclaim(cgroup, number):
        return errno.EBUSY
    cgroup.files[name] = str(number)
    return 0


def _set_memory_max_v2(cgroup: FakeCgroup, text: str) -> int:
    """memory.max: what cannot be reclaimed is killed, and the write succeeds (hazard H3)."""
    number = _bytes(text, "max")
    if number is None:
        return errno.EINVAL
    cgroup.files["memory.max"] = "max" if number >= V1_UNLIMITED else str(number)
    if not _reclaim(cgroup, number):
        cgroup.killed += 1
        events = cgroup.files["memory.events"]
        cgroup.files["memory.events"] = events.replace("oom_kill 0", f"oom_kill {cgroup.killed}")
        cgroup.files["memory.current"] = "0"
    return 0


def _reclaim(cgroup: FakeCgroup, limit: int) -> bool:
    name = "memory.usage_in_bytes" if cgroup.hierarchy.version == 1 else "memory.current"
    usage = int(cgroup.files[name])
    if usage > limit:
        freed = min(usage - limit, cgroup.reclaimable_bytes)
        cgroup.reclaimable_bytes -= freed
        usage -= freed
        cgroup.files[name] = str(usage)
    return usage <= limit


def _set_bytes_v2(name: str) -> Rule:
    def rule(cgroup: FakeCgroup, text: str) -> int:
        number = _bytes(text, "max")
        if number is None:
            return errno.EINVAL
        cgroup.files[name] = "max" if number >= V1_UNLIMITED else str(number)
        return 0

    return rule


def _set_number(name: str, *spellings: str) -> Rule:
    def rule(cgroup: FakeCgroup, text: str) -> int:
        number = _number(text)
        if text not in spellings and (number is None or number < 0):
            return errno.EINVAL
        cgroup.files[name] = text
        return 0

    return rule


def _set_text(name: str) -> Rule:
    def rule(cgroup: FakeCgroup, text: str) -> int:
        cgroup.files[name] = text
        return 0

    return rule


def _number(text: str) -> int | None:
    return int(text) if text.removeprefix("-").isdigit() else None


def _bytes(text: str, unlimited: str) -> int | None:
    if text == unlimited:
        return V1_UNLIMITED
    number = _number(text)
    if number is None or number < 0:
        return None
    return min(number // PAGE * PAGE, V1_UNLIMITED)


_RULES: dict[str, Rule] = {
    "cpuset.cpus": _set_cpus,
    "cpuset.mems": _set_mems,
    "cpu.idle": _set_idle,
    "cpu.shares": _set_shares,
    "cpu.weight": _set_weight,
    "cpu.cfs_quota_us": _set_quota_v1,
    "cpu.cfs_period_us": _set_period_v1,
    "cpu.cfs_burst_us": _set_burst,
    "cpu.max": _set_max_v2,
    "cpu.max.burst": _set_burst,
    "memory.limit_in_bytes": _set_limit_v1,
    "memory.memsw.limit_in_bytes": _set_memsw_v1,
    "memory.max": _set_memory_max_v2,
    "memory.high": _set_bytes_v2("memory.high"),
    "memory.low": _set_bytes_v2("memory.low"),
    "memory.min": _set_bytes_v2("memory.min"),
    "memory.swap.max": _set_bytes_v2("memory.swap.max"),
    "memory.oom.group": _set_number("memory.oom.group"),
    "io.max": _set_text("io.max"),
    "io.weight": _set_text("io.weight"),
    "pids.max": _set_number("pids.max", "max"),
}
