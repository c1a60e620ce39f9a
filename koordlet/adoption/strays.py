"""What Koordinator's agent leaves outside of what koordlet governs: found and told, never touched.

The names are Koordinator's own: groups LSR, LS and BE in resctrl, the HTB root ``1:``,
``/etc/runtime/hookserver.d/koordlet.json``, ``cpu.bvt_warp_ns`` and its relatives of Anolis OS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from koordlet.host.cgroup import Cgroups
from koordlet.host.mounts import Roots
from koordlet.host.qdiscs import Qdisc
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing

Qdiscs = Callable[[], tuple[Qdisc, ...] | Missing]

RESCTRL_GROUPS = ("LSR", "LS", "BE")
RESCTRL_POD_PREFIX = "koordlet-"
HOOK_SERVERS = ("/etc/runtime/hookserver.d/koordlet.json",)
NRI_PLUGINS = ("/opt/nri/plugins/00-koordlet_nri", "/etc/nri/conf.d/00-koordlet_nri.conf")


@dataclass(frozen=True, slots=True)
class Stray:
    """One thing that is not koordlet's to undo: what it is, where, and what a person may do."""

    area: str
    where: str
    found: str
    default: str
    remedy: str


@dataclass(frozen=True, slots=True)
class _CgroupFile:
    """A vendor kernel's file in each cgroup of one hierarchy, and what it holds by default."""

    controller: str
    name: str
    default: str


_CGROUP_FILES = (
    _CgroupFile("cpu", "cpu.bvt_warp_ns", "0"),
    _CgroupFile("memory", "memory.wmark_ratio", "0"),
    _CgroupFile("memory", "memory.wmark_scale_factor", "50"),
    _CgroupFile("memory", "memory.wmark_min_adj", "0"),
    _CgroupFile("memory", "memory.priority", "0"),
    _CgroupFile("memory", "memory.use_priority_oom", "0"),
)


def find_strays(
    cgroups: Cgroups, roots: Roots, paths: Iterable[CgroupPath], qdiscs: Qdiscs
) -> tuple[Stray, ...]:
    """All of them; ``paths`` are the cgroups to look into. Reads, never writes."""
    return (
        *_in_cgroups(cgroups, tuple(paths)),
        *_switches(cgroups, roots),
        *_resctrl(cgroups, roots),
        *_traffic(qdiscs),
        *_registrations(cgroups),
    )


def _in_cgroups(cgroups: Cgroups, paths: tuple[CgroupPath, ...]) -> Iterator[Stray]:
    for file in _CGROUP_FILES:
        for path in paths:
            directory = cgroups.dir_of(path, file.controller)
            if isinstance(directory, Missing):
                break
            raw = cgroups.files.read(f"{directory}/{file.name}")
            if isinstance(raw, Missing):
                continue
            found = raw.decode(errors="replace").strip()
            if found not in ("", file.default):
                where = f"{directory}/{file.name}"
                remedy = f"echo {file.default} > {where}"
                yield Stray(file.name, where, found, file.default, remedy)


def _switches(cgroups: Cgroups, roots: Roots) -> Iterator[Stray]:
    path = f"{roots.proc}/sys/kernel/sched_group_identity_enabled"
    raw = cgroups.files.read(path)
    if not isinstance(raw, Missing) and raw.strip() == b"1":
        remedy = f"echo 0 > {path}, unless this kernel's default is 1"
        yield Stray("group identity", path, "1", "0", remedy)


def _resctrl(cgroups: Cgroups, roots: Roots) -> Iterator[Stray]:
    top = f"{roots.sysfs}/fs/resctrl"
    names = cgroups.files.list(top)
    for name in () if isinstance(names, Missing) else names:
        if name in RESCTRL_GROUPS or name.startswith(RESCTRL_POD_PREFIX):
            schemata = cgroups.files.read(f"{top}/{name}/schemata")
            text = "" if isinstance(schemata, Missing) else schemata.decode(errors="replace")
            found = "; ".join(line.strip() for line in text.splitlines() if line.strip())
            remedy = f"rmdir {top}/{name}: its tasks go back to the default group"
            yield Stray("resctrl group", f"{top}/{name}", found, "no such group", remedy)


def _traffic(qdiscs: Qdiscs) -> Iterator[Stray]:
    found = qdiscs()
    for qdisc in () if isinstance(found, Missing) else found:
        if qdisc.kind == "htb" and qdisc.handle == 1:
            remedy = (
                f"tc qdisc del dev {qdisc.interface} root, and remove its ipsets system_class,"
                " ls_class, be_class with their CLASSIFY rules in iptables' mangle POSTROUTING"
            )
            yield Stray("tc", qdisc.interface, "root qdisc htb 1:", "the kernel's own", remedy)


def _registrations(cgroups: Cgroups) -> Iterator[Stray]:
    for area, paths in (("runtime hook server", HOOK_SERVERS), ("NRI plugin", NRI_PLUGINS)):
        for path in paths:
            if cgroups.files.exists(path):
                remedy = f"rm {path}, unless a koordlet of yours registered itself there"
                yield Stray(area, path, "registered", "no such file", remedy)
