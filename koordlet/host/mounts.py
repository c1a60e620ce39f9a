"""Which cgroup hierarchy offers which controller, and where it is mounted.

Controllers may be mounted together (``cpu,cpuacct``), apart, symlinked, on cgroup v2, or on both
at once (hybrid). Nothing is guessed from directory names: mountinfo says it, per controller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from koordlet.host.tree import Confinement, Files
from koordlet.model.readings import Missing

_V1_CONTROLLERS = frozenset({"cpu", "cpuacct", "cpuset", "memory", "blkio", "pids"})
_ESCAPED = re.compile(r"\\([0-3][0-7]{2})")
_TWINS = {"io": "blkio", "blkio": "io"}  # one controller, two names


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the host's file systems are seen from here, and which cgroup is treated as the root.

    ``cgroup`` is a path inside every hierarchy, e.g. ``/`` or ``/koordtest-1``.
    """

    cgroup: str = "/"
    sysfs: str = "/sys"
    proc: str = "/proc"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted cgroup hierarchy. ``managed`` is the managed root's directory in it."""

    mount: str
    version: int  # 1 or 2
    controllers: frozenset[str]
    managed: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """The mounted hierarchies, v1 ones by controller, and the v2 one if there is any."""

    v1: Mapping[str, Hierarchy] = field(default_factory=dict)
    unified: Hierarchy | None = None

    def of(self, controller: str) -> Hierarchy | None:
        """The hierarchy that carries ``controller``; ``io`` and ``blkio`` mean the same.

        ``unified`` is the v2 hierarchy whatever its controllers. On v2, ``cpuacct`` is there
        without any controller (cpu.stat).
        """
        if controller == "unified":
            return self.unified
        found = self.v1.get(controller) or self.v1.get(_TWINS.get(controller, ""))
        if found is not None:
            return found
        unified = self.unified
        if unified is None:
            return None
        names = {controller, _TWINS.get(controller, controller)}
        if names & unified.controllers or controller == "cpuacct":
            return unified
        return None

    def all(self) -> tuple[Hierarchy, ...]:
        """Each hierarchy once, by mount point."""
        found = {hierarchy.mount: hierarchy for hierarchy in self.v1.values()}
        if self.unified is not None:
            found[self.unified.mount] = self.unified
        return tuple(found[mount] for mount in sorted(found))

    def versions(self) -> dict[str, int]:
        """1 or 2 by controller, for ``Capabilities``."""
        found = dict.fromkeys(self.unified.controllers if self.unified else (), 2)
        return found | dict.fromkeys(self.v1, 1)

    def confinements(self) -> tuple[Confinement, ...]:
        """What ``Tree.confine`` wants."""
        return tuple(Confinement(each.mount, each.managed) for each in self.all())


def discover(files: Files, roots: Roots) -> Hierarchies | Missing:
    """Find the hierarchies from ``<proc>/self/mountinfo``; Missing where no cgroup is mounted.

    Of several mounts of one hierarchy the one that shows most of it, writable, below sysfs wins.
    """
    path = f"{roots.proc}/self/mountinfo"
    text = files.read(path)
    if isinstance(text, Missing):
        return text
    mounts = [mount for mount in parse_mountinfo(text) if mount.fs_type in ("cgroup", "cgroup2")]
    mounts.sort(key=lambda mount: _preference(mount))
    v1: dict[str, Hierarchy] = {}
    unified: Hierarchy | None = None
    for mount in mounts:
        if mount.fs_type == "cgroup":
            controllers = mount.super_options & _V1_CONTROLLERS
            hierarchy = _hierarchy(mount, 1, controllers, roots)
            for controller in controllers:
                v1.setdefault(controller, hierarchy)
        elif unified is None:
            unified = _unified(files, mount, roots)
    if not v1 and unified is None:
        return Missing(f"{path}: no cgroup hierarchy is mounted")
    return Hierarchies(v1, unified)


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo. ``root`` is the part of the file system that the mount shows."""

    root: str
    point: str
    options: frozenset[str]
    fs_type: str
    super_options: frozenset[str]

    @property
    def read_only(self) -> bool:
        """Whether the mount or its file system refuses writes."""
        return "ro" in self.options or "ro" in self.super_options


def parse_mountinfo(text: bytes) -> tuple[Mount, ...]:
    """The mounts in force: of several on one mount point the last, which hides the others.

    Lines that are not in the form of proc(5) are skipped.
    """
    found: dict[str, Mount] = {}
    for line in text.decode(errors="surrogateescape").split("\n"):
        left, separator, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if not separator or len(before) < 6 or len(after) < 3:
            continue
        point = _unescape(before[4])
        found.pop(point, None)
        found[point] = Mount(
            _unescape(before[3]),
            point,
            frozenset(before[5].split(",")),
            after[0],
            frozenset(after[2].split(",")),
        )
    return tuple(found.values())


def _unescape(text: str) -> str:
    """The kernel writes blanks, tabs, newlines, ``\\`` and ``#`` as three octal digits."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def _preference(mount: Mount) -> tuple[bool, bool, bool, int, str]:
    shows_all = mount.root == "/" or mount.root.startswith("/..")
    return (
        not shows_all,
        mount.read_only,
        not mount.point.startswith("/sys/fs/cgroup"),
        len(mount.point),
        mount.point,
    )


def _hierarchy(mount: Mount, version: int, controllers: frozenset[str], roots: Roots) -> Hierarchy:
    point = mount.point
    if roots.sysfs != "/sys" and point.startswith("/sys/"):
        point = roots.sysfs.rstrip("/") + point.removeprefix("/sys")
    inside = roots.cgroup.strip("/")
    shown = mount.root.strip("/")
    if shown and not shown.startswith("..") and (inside + "/").startswith(shown + "/"):
        inside = inside.removeprefix(shown).strip("/")
    managed = f"{point}/{inside}" if inside else point
    return Hierarchy(point, version, controllers, managed, mount.read_only)


def _unified(files: Files, mount: Mount, roots: Roots) -> Hierarchy:
    bare = _hierarchy(mount, 2, frozenset(), roots)
    text = files.read(f"{bare.mount}/cgroup.controllers")
    names = "" if isinstance(text, Missing) else text.decode(errors="replace")
    return Hierarchy(bare.mount, 2, frozenset(names.split()), bare.managed, bare.read_only)
