"""Cgroups by meaning: which file of which hierarchy holds a knob or a counter of a cgroup.

Above this module nobody knows v1 from v2. A value that cannot be had is Missing, with the reason;
only writes raise.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from koordlet.host import counters
from koordlet.host.counters import CpuStat, IoStat, MemoryStat
from koordlet.host.formats import parse_counter
from koordlet.host.knobtable import KnobSpec, specs
from koordlet.host.mounts import Hierarchies, Hierarchy
from koordlet.host.psi import Psi, PsiResource, read_psi
from koordlet.host.tree import Files, WriteRefusedError
from koordlet.host.unitnames import Place, place_of
from koordlet.model.knobs import Knob, Value
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing

T = TypeVar("T")

_DELEGATED = ("trusted.delegate", "user.delegate")
"""Extended attributes of a delegated unit's directory, of old and of new systemd."""


@dataclass(frozen=True, slots=True)
class CgroupId:
    """Identity of a cgroup directory: another one at the same path has another inode."""

    dev: int
    ino: int


class Cgroups:
    """The host's cgroups below the managed root.

    Cheap to build; keeps nothing about single cgroups, so cgroups that come and go cost nothing
    (case OPS-03). ``page_bytes`` is the host's page size. ``no_systemd`` says why no cgroup is
    systemd's; ``""`` where systemd is PID 1 and can be asked.
    """

    def __init__(
        self,
        files: Files,
        hierarchies: Hierarchies,
        page_bytes: int = 4_096,
        *,
        no_systemd: str = "nobody looked for systemd",
    ) -> None:
        self.files = files
        self.hierarchies = hierarchies
        self.no_systemd = no_systemd
        self._page_bytes = page_bytes
        self._specs: dict[Knob, KnobSpec] = {}
        self._managed: dict[Knob, Hierarchy] = {}
        for knob in Knob:
            self._resolve(knob)
        self._cpu = hierarchies.of("cpu")
        self._cpuacct = hierarchies.of("cpuacct")
        self._memory = hierarchies.of("memory")
        self._io = hierarchies.of("io")
        self._pids = hierarchies.of("pids")

    def _resolve(self, knob: Knob) -> None:
        for version in (1, 2):
            spec = specs(version).get(knob)
            hierarchy = self.hierarchies.of(spec.controller) if spec else None
            if spec is not None and hierarchy is not None and hierarchy.version == version:
                self._specs[knob], self._managed[knob] = spec, hierarchy
                return

    # -- where things are -----------------------------------------------------------------------

    def spec(self, knob: Knob) -> KnobSpec | None:
        """How ``knob`` is spelled on this host; None where no hierarchy offers its controller."""
        return self._specs.get(knob)

    def version_of(self, knob: Knob) -> int | None:
        """The cgroup version that carries ``knob``."""
        spec = self._specs.get(knob)
        return None if spec is None else spec.version

    def mount_of(self, knob: Knob) -> str | Missing:
        """Mount point of the hierarchy that carries ``knob``."""
        hierarchy = self._managed.get(knob)
        return self._no_file(knob) if hierarchy is None else hierarchy.mount

    def dir_of(self, cg: CgroupPath, controller: str) -> str | Missing:
        """The directory of ``cg`` in the hierarchy of ``controller``, whether or not it exists.

        Controllers: ``cpu cpuacct cpuset memory blkio|io pids`` ... and ``unified``.
        """
        hierarchy = self.hierarchies.of(controller)
        if hierarchy is None:
            return Missing(f"no cgroup hierarchy offers the {controller} controller")
        return _join(hierarchy, cg)

    def path_of(self, cg: CgroupPath, knob: Knob) -> str | Missing:
        """The file of ``knob`` in ``cg``, whether or not it exists."""
        spec = self._specs.get(knob)
        if spec is None:
            return self._no_file(knob)
        return f"{_join(self._managed[knob], cg)}/{spec.file}"

    def identity(self, cg: CgroupPath, knob: Knob) -> CgroupId | Missing:
        """Identity of the directory that holds ``knob`` of ``cg``."""
        hierarchy = self._managed.get(knob)
        if hierarchy is None:
            return self._no_file(knob)
        found = self.files.identity(_join(hierarchy, cg))
        return found if isinstance(found, Missing) else CgroupId(*found)

    def children(self, cg: CgroupPath, controller: str = "cpu") -> tuple[CgroupPath, ...] | Missing:
        """The cgroups directly below ``cg`` in the hierarchy of ``controller``, sorted."""
        directory = self.dir_of(cg, controller)
        if isinstance(directory, Missing):
            return directory
        names = self.files.list(directory)
        if isinstance(names, Missing):
            return names
        return tuple(cg.child(name) for name in names)

    # -- whose they are -------------------------------------------------------------------------

    def place(self, cg: CgroupPath) -> Place | None:
        """The systemd unit that holds ``cg``; None where no unit does (hazard H6)."""
        return None if self.no_systemd else place_of(self.host_path(cg))

    def unit_of(self, cg: CgroupPath) -> str:
        """The systemd unit whose own cgroup ``cg`` is; ``""`` where it is no unit's."""
        place = self.place(cg)
        return place.unit if place is not None and place.is_own else ""

    def host_path(self, cg: CgroupPath) -> str:
        """``cg`` counted from the root of its hierarchy: systemd's ControlGroup."""
        hierarchy = self._cpu or self.hierarchies.unified
        below = "" if hierarchy is None else hierarchy.managed.removeprefix(hierarchy.mount)
        return f"{below}/{cg}" if cg else below

    def is_delegated(self, place: Place) -> bool:
        """Whether a unit leaves what lies below its cgroup to others (Delegate=yes).

        systemd marks it on the directory, in its own hierarchy.
        """
        for hierarchy in self.hierarchies.all():
            for name in _DELEGATED:
                if self.files.attribute(f"{hierarchy.mount}/{place.own}", name) == b"1":
                    return True
        return False

    def is_there(self, cg: CgroupPath) -> bool:
        """Whether any hierarchy has ``cg``: on v1 a unit is only in those that it needs."""
        return any(self.files.exists(_join(each, cg)) for each in self.hierarchies.all())

    def forget(self, cg: CgroupPath) -> None:
        """Let go of everything kept for ``cg`` and below, in every hierarchy: it has left."""
        for hierarchy in self.hierarchies.all():
            self.files.drop(_join(hierarchy, cg))

    # -- knobs ----------------------------------------------------------------------------------

    def read_raw(self, cg: CgroupPath, knob: Knob) -> bytes | Missing:
        """The text of the file as it is.

        systemd switches a controller on where a unit needs it: without its file the kernel's
        default is in force for a unit, and is what this says.
        """
        path = self.path_of(cg, knob)
        if isinstance(path, Missing):
            return path
        raw = self.files.read(path)
        if isinstance(raw, Missing) and raw.errno == errno.ENOENT and not self.no_systemd:
            default = self._specs[knob].unit_text
            if default is not None and self.unit_of(cg) and self.is_there(cg):
                return default
        return raw

    def read(self, cg: CgroupPath, knob: Knob) -> Value | Missing:
        """The value now. Shares of an idle cgroup are Missing: the file shows a mask, not the value
        that comes back (hazard H2).
        """
        raw = self.read_raw(cg, knob)
        if isinstance(raw, Missing):
            return raw
        spec = self._specs[knob]
        try:
            value = spec.parse(raw)
        except ValueError as error:
            return Missing(f"{self.path_of(cg, knob)}: {error}")
        if spec.masked_by is not None and raw.strip() == spec.masked_text.encode():
            mask = self.read_raw(cg, spec.masked_by)
            if not isinstance(mask, Missing) and mask.strip() == b"1":
                return Missing(f"masked by {spec.masked_by.value}")
        return value

    def encode(self, knob: Knob, value: Value) -> str:
        """The text to write for ``value``.

        Raises ValueError for a value that this knob cannot have, and where no file holds it.
        """
        spec = self._specs.get(knob)
        if spec is None:
            raise ValueError(str(self._no_file(knob)))
        return spec.format(value)

    def canonical(self, knob: Knob, raw: bytes | str) -> str:
        """``raw``, read or about to be written, in the one form that texts are compared in: sets as
        ``0-2``, memory in whole pages, unlimited as it is written, of cpu.max the one field.

        Raises ValueError for text that the file never holds.
        """
        spec = self._specs.get(knob)
        if spec is None:
            raise ValueError(str(self._no_file(knob)))
        return spec.canonical(raw, self._page_bytes)

    def write(self, cg: CgroupPath, knob: Knob, text: str) -> None:
        """Write ``text`` to the file of ``knob``. An empty text, a cpuset's original, is written as
        one newline.

        Raises OSError with the kernel's errno; ENOENT where this host has no such file;
        WriteRefusedError for what may not be written at all.
        """
        spec = self._specs.get(knob)
        path = self.path_of(cg, knob)
        if spec is None or isinstance(path, Missing):
            raise OSError(errno.ENOENT, str(path), knob.value)
        if spec.read_only:
            raise WriteRefusedError(path, "is only ever read")
        self.files.write(path, text or "\n")

    def _no_file(self, knob: Knob) -> Missing:
        return Missing(f"no mounted cgroup hierarchy has a file for {knob.value}", errno.ENOENT)

    # -- counters -------------------------------------------------------------------------------

    def cpu_usage_ns(self, cg: CgroupPath) -> int | Missing:
        """CPU time used, in nanoseconds, descendants included (case V1-01: v1 asks cpuacct)."""
        hierarchy = self._cpuacct
        if hierarchy is None:
            return Missing("no cgroup hierarchy counts CPU time")
        if hierarchy.version == 1:
            return self._parsed(f"{_join(hierarchy, cg)}/cpuacct.usage", parse_counter)
        stat = self._parsed(f"{_join(hierarchy, cg)}/cpu.stat", counters.parse_cpu_stat_v2)
        return stat if isinstance(stat, Missing) else stat.usage_ns

    def cpu_stat(self, cg: CgroupPath) -> CpuStat | Missing:
        """CPU time with the cfs counters; those are None where the host has none."""
        if self._cpuacct is not None and self._cpuacct.version == 2:
            path = f"{_join(self._cpuacct, cg)}/cpu.stat"
            return self._parsed(path, counters.parse_cpu_stat_v2)
        usage_ns = self.cpu_usage_ns(cg)
        if isinstance(usage_ns, Missing):
            return usage_ns
        stat = (
            Missing("")
            if self._cpu is None
            else self.files.read(_join(self._cpu, cg) + "/cpu.stat")
        )
        return counters.parse_cpu_stat_v1(usage_ns, b"" if isinstance(stat, Missing) else stat)

    def memory(self, cg: CgroupPath) -> MemoryStat | Missing:
        """Memory by three definitions."""
        hierarchy = self._memory
        if hierarchy is None:
            return Missing("no cgroup hierarchy offers the memory controller")
        directory, version = _join(hierarchy, cg), hierarchy.version
        file = "memory.usage_in_bytes" if version == 1 else "memory.current"
        usage = self._parsed(f"{directory}/{file}", parse_counter)
        if isinstance(usage, Missing):
            return usage
        return self._parsed(
            f"{directory}/memory.stat",
            lambda stat: counters.parse_memory(usage, stat, version=version),
        )

    def io(self, cg: CgroupPath) -> IoStat | Missing:
        """Block IO by device."""
        hierarchy = self._io
        if hierarchy is None:
            return Missing("no cgroup hierarchy offers the io controller")
        directory = _join(hierarchy, cg)
        if hierarchy.version == 2:
            return self._parsed(f"{directory}/io.stat", counters.parse_io_v2)
        moved = self._blkio(directory, "io_service_bytes")
        calls = self._blkio(directory, "io_serviced")
        if isinstance(moved, Missing):
            return moved
        return counters.parse_io_v1(moved, b"" if isinstance(calls, Missing) else calls)

    def pids(self, cg: CgroupPath) -> int | Missing:
        """Number of tasks, descendants included."""
        if self._pids is None:
            return Missing("no cgroup hierarchy offers the pids controller")
        return self._parsed(f"{_join(self._pids, cg)}/pids.current", parse_counter)

    def psi_path(self, cg: CgroupPath, resource: PsiResource) -> str | Missing:
        """The pressure file of ``cg``: in the v2 hierarchy, else in the v1 cpuacct tree, where
        vendor kernels keep it (case PP-08). Missing where neither has it.
        """
        for path in self._psi_paths(cg, resource):
            if self.files.exists(path):
                return path
        return self._no_psi(cg, resource)

    def psi(self, cg: CgroupPath, resource: PsiResource) -> Psi | Missing:
        """Pressure of ``cg``. Where v1 rules and no process was put into the same path of the v2
        hierarchy, nobody measured: that is Missing, not zero.
        """
        for path in self._psi_paths(cg, resource):
            found = read_psi(self.files, path)
            if isinstance(found, Missing) and found.errno == errno.ENOENT:
                continue
            if isinstance(found, Psi) and self._is_unmeasured(found, path):
                return Missing(f"{path}: no process of this cgroup is in the v2 hierarchy")
            return found
        return self._no_psi(cg, resource)

    def _psi_paths(self, cg: CgroupPath, resource: PsiResource) -> list[str]:
        homes = (self.hierarchies.unified, self.hierarchies.v1.get("cpuacct"))
        return [f"{_join(home, cg)}/{resource.value}.pressure" for home in homes if home]

    def _no_psi(self, cg: CgroupPath, resource: PsiResource) -> Missing:
        tried = ", ".join(self._psi_paths(cg, resource)) or "no hierarchy could hold one"
        return Missing(f"no {resource.value} pressure file ({tried})", errno.ENOENT)

    def _is_unmeasured(self, psi: Psi, path: str) -> bool:
        unified = self.hierarchies.unified
        if not self.hierarchies.v1 or unified is None or not path.startswith(unified.mount + "/"):
            return False
        if any(line is not None and line.total_us for line in (psi.some, psi.full)):
            return False
        events = self.files.read(f"{path.rpartition('/')[0]}/cgroup.events")
        return not isinstance(events, Missing) and b"populated 0" in events

    def _blkio(self, directory: str, name: str) -> bytes | Missing:
        found = self.files.read(f"{directory}/blkio.throttle.{name}_recursive")
        if isinstance(found, Missing):
            return self.files.read(f"{directory}/blkio.throttle.{name}")
        return found

    def _parsed(self, path: str, parse: Callable[[bytes], T]) -> T | Missing:
        text = self.files.read(path)
        if isinstance(text, Missing):
            return text
        try:
            return parse(text)
        except ValueError as error:
            return Missing(f"{path}: {error}")


def _join(hierarchy: Hierarchy, cg: CgroupPath) -> str:
    return f"{hierarchy.managed}/{cg}" if cg else hierarchy.managed
