"""A host in memory: cgroup hierarchies with the kernel's rules, procfs and sysfs as plain text.

    host = fake_host("v1", cpus="0-7", cgroups={
        "kubepods": {"besteffort": {"cpu.shares": "2", "pod1": {"tasks": 1}}}})
    host.cgroups().read(CgroupPath("kubepods/besteffort"), Knob.CPU_SHARES)     # 2

``cgroups`` nests: a dict is a cgroup, made in every hierarchy; a text is a file's content, put in
as it is, without any rule; ``tasks`` is the number of tasks in it.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from koordlet.host.cgroup import Cgroups
from koordlet.host.mounts import Hierarchies, Roots, discover
from koordlet.host.tree import Confinement, Tap, WriteRefusedError
from koordlet.host.unitowner import PRIVATE_SOCKET, no_systemd
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.protocol.cpuset import format_cpuset, parse_cpuset
from tests.support.fakekernel import PSI_ZERO, FakeCgroup, FakeHierarchy, refuse

CgroupTree = Mapping[str, "CgroupTree | str | int"]
Log = list[tuple[str, str]]

_V1_APART = ("cpu", "cpuacct", "cpuset", "memory", "blkio", "pids")
_V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "pids")


class FakeFiles:
    """``koordlet.host.tree.Files`` in memory.

    ``writes`` lists what was written and taken, in order; ``refused`` what was not, with the errno.
    """

    def __init__(self, hierarchies: tuple[FakeHierarchy, ...]) -> None:
        self.hierarchies = hierarchies
        self.tap: Tap | None = None
        self.texts: dict[str, bytes] = {}
        self.writes: Log = []
        self.refused: list[tuple[str, str, int]] = []
        self.dropped: set[str] = set()
        self.attributes: dict[tuple[str, str], bytes] = {}
        self.reads = 0
        self.opens = 0
        self._confinements: tuple[Confinement, ...] = ()
        self._failures: dict[tuple[str, str], list[int]] = {}

    # -- for tests ------------------------------------------------------------------------------

    def put(self, path: str, text: str | bytes) -> None:
        """Make or replace a plain file (procfs, sysfs, configuration)."""
        self.texts[path] = text.encode() if isinstance(text, str) else text

    def remove(self, path: str) -> None:
        """Remove a plain file, or a directory of such with all in it."""
        for each in [each for each in self.texts if each == path or each.startswith(path + "/")]:
            del self.texts[each]

    def fail(self, path: str, number: int, *, on: str = "read", times: int = 1_000_000) -> None:
        """Let the next ``times`` calls (``on`` is ``read`` or ``write``) fail with ``number``."""
        self._failures[on, path] = [number, times]

    def confine(
        self, confinements: tuple[Confinement, ...], *, keep_below: tuple[str, ...] = ()
    ) -> None:
        """Name what may be written, as for the real tree."""
        self._confinements = confinements

    def cgroup_at(self, path: str) -> tuple[FakeHierarchy, FakeCgroup | None, str] | None:
        """The hierarchy of ``path``, the cgroup it names if there is one, and the rest."""
        best: FakeHierarchy | None = None
        for hierarchy in self.hierarchies:
            mount = hierarchy.mount
            inside = path == mount or path.startswith(mount + "/")
            if inside and (best is None or len(mount) > len(best.mount)):
                best = hierarchy
        if best is None:
            return None
        relative = path[len(best.mount) :].strip("/")
        return best, best.root.find(relative), relative

    # -- Files ----------------------------------------------------------------------------------

    def read(self, path: str) -> bytes | Missing:
        self.reads += 1
        try:
            answer: bytes | Missing = self._text(path)
        except OSError as error:
            answer = Missing(f"{path}: {error.strerror}", error.errno or 0)
        if self.tap is not None:
            self.tap(path, answer)
        return answer

    def write(self, path: str, text: str) -> None:
        if not text:
            raise ValueError(f"{path}: an empty write never reaches the kernel; write a newline")
        directory, _, name = path.rpartition("/")
        self._require_managed(path, directory)
        try:
            self._injected("write", path)
            self._cgroup(directory).write(name, text)
        except OSError as error:
            self.refused.append((path, text, error.errno or 0))
            raise
        self.writes.append((path, text))

    def list(self, path: str) -> tuple[str, ...] | Missing:
        found = self.cgroup_at(path)
        if found is not None:
            cgroup = found[1]
            return _gone(path) if cgroup is None else tuple(sorted(cgroup.children))
        prefix = path.rstrip("/") + "/"
        below = [each[len(prefix) :] for each in self._all_paths() if each.startswith(prefix)]
        names = sorted({each.split("/")[0] for each in below if "/" in each})
        return tuple(names) if below else _gone(path)

    def identity(self, path: str) -> tuple[int, int] | Missing:
        found = self.cgroup_at(path)
        if found is not None and found[1] is not None:
            return found[0].device, found[1].inode
        return (1, hash(path) & 0xFFFF_FFFF) if self.exists(path) else _gone(path)

    def mode(self, path: str) -> int | Missing:
        found = self.cgroup_at(path)
        if found is not None:
            if found[1] is not None:
                return stat.S_IFDIR | 0o755
            parent = found[0].root.find(found[2].rpartition("/")[0])
            known = parent is not None and found[2].rpartition("/")[2] in parent.files
            return stat.S_IFREG | 0o644 if known else _gone(path)
        if path in self.texts:
            return stat.S_IFREG | 0o644
        is_dir = any(each.startswith(path.rstrip("/") + "/") for each in self._all_paths())
        return stat.S_IFDIR | 0o755 if is_dir else _gone(path)

    def exists(self, path: str) -> bool:
        return not isinstance(self.mode(path), Missing)

    def attribute(self, path: str, name: str) -> bytes | Missing:
        return self.attributes.get((path, name), Missing(f"{path}: no {name}", errno.ENODATA))

    def make_dir(self, path: str) -> None:
        self._require_managed(path, path)
        parent, _, name = path.rpartition("/")
        self._cgroup(parent).make_child(name)

    def remove_dir(self, path: str) -> None:
        self._require_managed(path, path)
        self._cgroup(path).remove()

    def drop(self, prefix: str) -> None:
        self.dropped.add(prefix)

    # -------------------------------------------------------------------------------------------

    def _text(self, path: str) -> bytes:
        self._injected("read", path)
        if self.cgroup_at(path) is None:
            if path not in self.texts:
                raise refuse(errno.EISDIR if self.exists(path) else errno.ENOENT, path)
            return self.texts[path]
        directory, _, name = path.rpartition("/")
        text = self._cgroup(directory).read(name)
        return f"{text}\n".encode() if text or name in ("cpuset.cpus", "cpuset.mems") else b""

    def _cgroup(self, directory: str) -> FakeCgroup:
        found = self.cgroup_at(directory)
        if found is None or found[1] is None:
            raise refuse(errno.ENOENT, directory)
        return found[1]

    def _injected(self, on: str, path: str) -> None:
        failure = self._failures.get((on, path))
        if failure is not None and failure[1] > 0:
            failure[1] -= 1
            raise refuse(failure[0], path)

    def _require_managed(self, path: str, directory: str) -> None:
        plain = not any(part in ("", ".", "..") for part in path[1:].split("/"))
        managed = any(directory.startswith(each.managed + "/") for each in self._confinements)
        if not (plain and managed):
            raise WriteRefusedError(path, "is not below the managed root; nothing was written")

    def _all_paths(self) -> Iterable[str]:
        return (*self.texts, *(f"{hierarchy.mount}/." for hierarchy in self.hierarchies))


def _gone(path: str) -> Missing:
    return Missing(f"{path}: No such file or directory", errno.ENOENT)


@dataclass
class FakeHost:
    """The parts of a fake host, and a hand to move them as other programs would."""

    files: FakeFiles
    roots: Roots
    hierarchies: Hierarchies
    copy_parent_cpuset: bool = True  # as runc does for each new v1 cpuset directory
    _cgroups: Cgroups = field(init=False)

    def __post_init__(self) -> None:
        absent = no_systemd(self.files, self.roots)
        self._cgroups = Cgroups(self.files, self.hierarchies, no_systemd=absent)

    def cgroups(self) -> Cgroups:
        """The host layer over this host."""
        return self._cgroups

    def make(self, cg: str, content: CgroupTree | None = None) -> CgroupPath:
        """Make a cgroup, its parents too, in every hierarchy, and fill it as ``fake_host`` does."""
        relative = f"{self.roots.cgroup.strip('/')}/{cg}".strip("/")
        for hierarchy in self.files.hierarchies:
            at = hierarchy.root
            for part in filter(None, relative.split("/")):
                child = at.children.get(part)
                if child is None:
                    child = at.make_child(part)
                    self._inherit_cpuset(child)
                at = child
        for name, value in (content or {}).items():
            if isinstance(value, Mapping):
                self.make(f"{cg}/{name}".strip("/"), value)
            elif name == "tasks":
                self.set_tasks(cg, int(value))
            else:
                self.set_text(cg, name, str(value))
        return CgroupPath.parse(cg)

    def remove(self, cg: str) -> None:
        """Kill everything in a cgroup and remove it, children first, in every hierarchy."""
        for cgroup in self._everywhere(cg):
            for each in reversed(list(cgroup.walk())):
                each.tasks = 0
                each.remove()

    def group(self, cg: str, file: str) -> FakeCgroup:
        """The cgroup that has ``file``, in whichever hierarchy that is."""
        found = [each for each in self._everywhere(cg) if file in each.files]
        if not found:
            raise refuse(errno.ENOENT, f"{cg}/{file}")
        return next((each for each in found if each.hierarchy.version == 1), found[0])

    def text(self, cg: str, file: str) -> str:
        """What ``file`` of ``cg`` reads now."""
        return self.group(cg, file).read(file)

    def set_text(self, cg: str, file: str, text: str) -> None:
        """Put ``text`` into a file, made if need be, without any rule: a state found, a counter."""
        try:
            group = self.group(cg, file)
        except OSError:
            controller = {"io": "blkio"}.get(file.split(".")[0], file.split(".")[0])
            hierarchy = self.hierarchies.of(controller) or self.hierarchies.unified
            group = next(
                each
                for each in self._everywhere(cg)
                if hierarchy is None or each.hierarchy.mount == hierarchy.mount
            )
        group.files[file] = text.rstrip("\n")

    def foreign_write(self, cg: str, file: str, text: str) -> None:
        """Another program's write: the kernel's rules hold, ``files.writes`` does not list it."""
        self.group(cg, file).write(file, text)

    def delete_file(self, cg: str, file: str) -> None:
        """Take a file away, as if this kernel had none."""
        del self.group(cg, file).files[file]

    def set_tasks(self, cg: str, count: int) -> None:
        """Put ``count`` tasks into ``cg`` in every hierarchy."""
        for each in self._everywhere(cg):
            each.tasks = count

    def set_memory(self, cg: str, usage_bytes: int, *, reclaimable_bytes: int = 0) -> None:
        """Set the memory usage of one cgroup."""
        version = 1 if "memory" in self.hierarchies.v1 else 2
        file = "memory.usage_in_bytes" if version == 1 else "memory.current"
        group = self.group(cg, file)
        group.files[file] = str(usage_bytes)
        group.reclaimable_bytes = reclaimable_bytes

    def use_cpu(self, cg: str, used_ns: int) -> None:
        """Let ``cg`` use CPU time; all its ancestors count it too."""
        for group in self._everywhere(cg):
            for each in group.lineage():
                if "cpuacct.usage" in each.files:
                    each.files["cpuacct.usage"] = str(int(each.files["cpuacct.usage"]) + used_ns)
                elif each.hierarchy.version == 2:
                    _add_flat(each, "cpu.stat", "usage_usec", used_ns // 1_000)

    def throttle(self, cg: str, *, periods: int, throttled: int, throttled_ns: int = 0) -> None:
        """Let cfs periods pass in ``cg``, some of them throttled."""
        group = self.group(cg, "cpu.shares" if "cpu" in self.hierarchies.v1 else "cpu.weight")
        _add_flat(group, "cpu.stat", "nr_periods", periods)
        _add_flat(group, "cpu.stat", "nr_throttled", throttled)
        v1 = group.hierarchy.version == 1
        unit = ("throttled_time", 1) if v1 else ("throttled_usec", 1_000)
        _add_flat(group, "cpu.stat", unit[0], throttled_ns // unit[1])

    def _everywhere(self, cg: str) -> list[FakeCgroup]:
        relative = f"{self.roots.cgroup.strip('/')}/{cg}".strip("/")
        found = [hierarchy.root.find(relative) for hierarchy in self.files.hierarchies]
        return [each for each in found if each is not None]

    def _inherit_cpuset(self, child: FakeCgroup) -> None:
        parent = child.parent
        if self.copy_parent_cpuset and child.hierarchy.version == 1 and parent is not None:
            for file in ("cpuset.cpus", "cpuset.mems"):
                if file in child.files:
                    child.files[file] = parent.files[file]


def fake_host(
    layout: str = "v1",
    *,
    cpus: str = "0-3",
    cgroups: CgroupTree | None = None,
    root: str = "/",
    memory_bytes: int = 8 << 30,
    smt: int = 1,
    swap_accounting: bool = True,
    copy_parent_cpuset: bool = True,
    systemd: bool = False,
) -> FakeHost:
    """Build a host. ``layout`` is ``v1`` (every controller apart), ``v1-together`` (cpu with
    cpuacct), ``hybrid`` (v1, and a v2 tree without controllers) or ``v2``.

    ``smt`` neighbouring CPUs share a core; all CPUs share one socket, NUMA node and L3.
    ``systemd``: it is PID 1.
    """
    online = parse_cpuset(cpus)
    mounts = _mounts(layout)
    hierarchies = tuple(
        FakeHierarchy(mount, version, controllers, device, online, online, swap_accounting)
        for device, (mount, version, controllers) in enumerate(mounts, start=30)
    )
    files = FakeFiles(hierarchies)
    roots = Roots(cgroup=root)
    files.put("/proc/self/mountinfo", _mountinfo(hierarchies))
    put_topology(files, online, smt=smt)
    put_proc(files, memory_bytes)
    files.put("/proc/1/comm", "systemd\n" if systemd else "init\n")
    if systemd:
        files.put(PRIVATE_SOCKET, "")
    found = discover(files, roots)
    assert isinstance(found, Hierarchies)
    files.confine(found.confinements())
    host = FakeHost(files, roots, found, copy_parent_cpuset)
    host.make("", cgroups)
    return host


def put_topology(files: FakeFiles, online: frozenset[int], *, smt: int = 1) -> None:
    """Write ``/sys/devices/system/{cpu,node}``."""
    base = "/sys/devices/system/cpu"
    everything = format_cpuset(online)
    files.put(f"{base}/online", everything + "\n")
    files.put(f"{base}/possible", everything + "\n")
    files.put(f"{base}/isolated", "\n")
    files.put("/sys/devices/system/node/online", "0\n")
    files.put("/sys/devices/system/node/node0/cpulist", everything + "\n")
    for cpu in sorted(online):
        files.put(f"{base}/cpu{cpu}/topology/core_id", f"{cpu // smt}\n")
        files.put(f"{base}/cpu{cpu}/topology/physical_package_id", "0\n")
        files.put(f"{base}/cpu{cpu}/cache/index3/level", "3\n")
        files.put(f"{base}/cpu{cpu}/cache/index3/id", "0\n")


def put_proc(files: FakeFiles, memory_bytes: int) -> None:
    """Write the procfs files that a node's counters come from."""
    total = memory_bytes >> 10
    files.put(
        "/proc/meminfo",
        f"MemTotal:       {total} kB\nMemFree:        {total // 2} kB\n"
        f"MemAvailable:   {total * 3 // 4} kB\nBuffers:        0 kB\nCached:         0 kB\n",
    )
    files.put("/proc/stat", "cpu  0 0 0 0 0 0 0 0 0 0\nbtime 1700000000\n")
    files.put("/proc/sys/kernel/random/boot_id", "00000000-0000-0000-0000-000000000001\n")
    for resource in ("cpu", "memory", "io"):
        files.put(f"/proc/pressure/{resource}", PSI_ZERO + "\n")


def _mounts(layout: str) -> list[tuple[str, int, tuple[str, ...]]]:
    base = "/sys/fs/cgroup"
    if layout == "v2":
        return [(base, 2, _V2_CONTROLLERS)]
    found: list[tuple[str, int, tuple[str, ...]]] = [
        (f"{base}/{controller}", 1, (controller,)) for controller in _V1_APART
    ]
    if layout == "v1-together":
        found = [(f"{base}/cpu,cpuacct", 1, ("cpu", "cpuacct")), *found[2:]]
    elif layout == "hybrid":
        found.append((f"{base}/unified", 2, ()))
    elif layout != "v1":
        raise ValueError(f"unknown layout {layout!r}: v1, v1-together, hybrid or v2")
    return found


def _mountinfo(hierarchies: tuple[FakeHierarchy, ...]) -> str:
    lines = ["22 1 0:21 / /proc rw - proc proc rw", "23 1 0:22 / /sys rw - sysfs sysfs rw"]
    for number, each in enumerate(hierarchies, start=30):
        fs_type = "cgroup" if each.version == 1 else "cgroup2"
        options = ",".join(("rw", *(each.controllers if each.version == 1 else ())))
        mount = f"{number} 23 0:{number} / {each.mount} rw,nosuid"
        lines.append(f"{mount} - {fs_type} {fs_type} {options}")
    return "\n".join(lines) + "\n"


def _add_flat(group: FakeCgroup, file: str, key: str, amount: int) -> None:
    rows = []
    for row in group.files[file].splitlines():
        name, number = row.split(" ")
        rows.append(f"{name} {int(number) + amount}" if name == key else row)
    group.files[file] = "\n".join(rows)
