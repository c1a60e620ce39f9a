"""CPU topology from sysfs: what is online, and which CPUs share core, socket, node and L3."""

from __future__ import annotations

from koordlet.host.mounts import Roots
from koordlet.host.tree import Files
from koordlet.model.readings import Missing
from koordlet.model.topology import Cpu, Topology
from koordlet.protocol.cpuset import CpuSetError, parse_cpuset


def read_topology(files: Files, roots: Roots) -> Topology | Missing:
    """The online CPUs.

    A CPU that is offline has no topology and is left out (case CS-07); cpu0 usually has no
    ``online`` file of its own (CS-08); machines without L3 (CS-10) or NUMA are whole. Where sysfs
    gives no topology at all, each CPU counts as a core of socket 0.
    """
    base = f"{roots.sysfs}/devices/system"
    online = _cpu_list(files, f"{base}/cpu/online")
    if isinstance(online, Missing):
        return online
    if not online:
        return Missing(f"{base}/cpu/online: no CPU is online")
    placed = {cpu: _place(files, f"{base}/cpu/cpu{cpu}/topology") for cpu in online}
    known = {cpu: place for cpu, place in placed.items() if place is not None}
    if not known:
        known = {cpu: (cpu, 0) for cpu in online}
    numa = _numa_nodes(files, f"{base}/node")
    isolated = _cpu_list(files, f"{base}/cpu/isolated")
    return Topology(
        tuple(
            Cpu(cpu, core, socket, numa.get(cpu, 0), _l3(files, f"{base}/cpu/cpu{cpu}/cache"))
            for cpu, (core, socket) in sorted(known.items())
        ),
        frozenset() if isinstance(isolated, Missing) else isolated & frozenset(known),
    )


def _place(files: Files, directory: str) -> tuple[int, int] | None:
    core = _number(files, f"{directory}/core_id")
    socket = _number(files, f"{directory}/physical_package_id")
    if core is None:
        return None
    return core, max(socket or 0, 0)  # firmware that knows no sockets says -1


def _numa_nodes(files: Files, directory: str) -> dict[int, int]:
    found: dict[int, int] = {}
    names = files.list(directory)
    for name in () if isinstance(names, Missing) else names:
        number = name.removeprefix("node")
        cpus = _cpu_list(files, f"{directory}/{name}/cpulist") if number.isdigit() else Missing("")
        if not isinstance(cpus, Missing):
            found.update(dict.fromkeys(cpus, int(number)))
    return found


def _l3(files: Files, directory: str) -> int | None:
    """The L3's id; where the kernel numbers no caches, the lowest CPU that shares it."""
    names = files.list(directory)
    for name in () if isinstance(names, Missing) else reversed(names):
        if _number(files, f"{directory}/{name}/level") == 3:
            number = _number(files, f"{directory}/{name}/id")
            if number is not None:
                return number
            shared = _cpu_list(files, f"{directory}/{name}/shared_cpu_list")
            return None if isinstance(shared, Missing) else min(shared, default=None)
    return None


def _cpu_list(files: Files, path: str) -> frozenset[int] | Missing:
    text = files.read(path)
    if isinstance(text, Missing):
        return text
    try:
        return parse_cpuset(text.decode().strip())
    except (CpuSetError, UnicodeDecodeError) as error:
        return Missing(f"{path}: {error}")


def _number(files: Files, path: str) -> int | None:
    text = files.read(path)
    try:
        return None if isinstance(text, Missing) else int(text)
    except ValueError:
        return None
