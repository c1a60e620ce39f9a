"""Node-wide counters from procfs: CPU time, memory, network, disks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from koordlet.host.formats import parse_counter
from koordlet.host.mounts import Roots
from koordlet.host.tree import Files
from koordlet.model.readings import Missing
from koordlet.units import SECTOR_BYTES

T = TypeVar("T")
_KIB = 1_024
_OLDEST_COLUMNS = 4  # user, nice, system, idle


@dataclass(frozen=True, slots=True)
class NodeCpu:
    """CPU time of the node since boot, in clock ticks (``sysconf(SC_CLK_TCK)`` a second).

    ``busy`` is user + nice + system + irq + softirq; waiting for IO and time stolen by a hypervisor
    are no use of this node's CPUs and shown apart (case OPS-12). Guest time is part of user.
    """

    user: int
    nice: int
    system: int
    idle: int
    iowait: int
    irq: int
    softirq: int
    steal: int

    @property
    def busy(self) -> int:
        return self.user + self.nice + self.system + self.irq + self.softirq


@dataclass(frozen=True, slots=True)
class Meminfo:
    """Memory of the node in bytes. ``total_bytes`` is above 0 (case MEM-10). The LRU sizes are None
    where a kernel does not tell them.
    """

    total_bytes: int
    free_bytes: int
    available_bytes: int
    cached_bytes: int  # page cache and buffers
    inactive_file_bytes: int | None = None
    anon_bytes: int | None = None  # both anon lists and what is unevictable

    @property
    def used_bytes(self) -> int:
        """Total - available. Never from the root cgroup's usage, which can exceed the machine
        (case MEM-02).
        """
        return max(self.total_bytes - self.available_bytes, 0)


@dataclass(frozen=True, slots=True)
class NetCounters:
    """Bytes and packets of one network device since it came up."""

    rx_bytes: int
    rx_packets: int
    tx_bytes: int
    tx_packets: int


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """IO of one block device since boot."""

    read_bytes: int
    read_ios: int
    write_bytes: int
    write_ios: int


def node_cpu(files: Files, roots: Roots) -> NodeCpu | Missing:
    """The first line of ``<proc>/stat``."""
    return _parsed(files, f"{roots.proc}/stat", parse_stat)


def meminfo(files: Files, roots: Roots) -> Meminfo | Missing:
    """``<proc>/meminfo``."""
    return _parsed(files, f"{roots.proc}/meminfo", parse_meminfo)


def net_dev(files: Files, roots: Roots, pid: str = "self") -> Mapping[str, NetCounters] | Missing:
    """Counters by device in the network namespace of ``pid``."""
    return _parsed(files, f"{roots.proc}/{pid}/net/dev", parse_net_dev)


def diskstats(files: Files, roots: Roots) -> Mapping[str, DiskCounters] | Missing:
    """Counters by block device name, partitions included."""
    return _parsed(files, f"{roots.proc}/diskstats", parse_diskstats)


def boot_id(files: Files, roots: Roots) -> str | Missing:
    """A text that changes at each boot."""
    path = f"{roots.proc}/sys/kernel/random/boot_id"
    return _parsed(files, path, lambda text: text.decode().strip())


def own_cgroups(files: Files, roots: Roots) -> Mapping[str, str] | Missing:
    """This process's cgroup by controller, ``unified`` for v2, as paths inside each hierarchy.

    They differ between controllers: one path must never be used for another one.
    """
    return _parsed(files, f"{roots.proc}/self/cgroup", parse_own_cgroups)


def parse_stat(text: bytes) -> NodeCpu:
    """Raises ValueError where there is no ``cpu`` line, or one without idle time; other columns
    that old kernels lack are 0.
    """
    for line in text.replace(b"\0", b"").splitlines():
        name, *fields = line.split() or [b""]
        if name == b"cpu":
            ticks = [parse_counter(field) for field in fields[:8]]
            if len(ticks) < _OLDEST_COLUMNS:
                raise ValueError(f"the cpu line has {len(ticks)} columns")
            return NodeCpu(*(ticks + [0] * (8 - len(ticks))))
    raise ValueError("no cpu line")


def parse_meminfo(text: bytes) -> Meminfo:
    """Raises ValueError without MemTotal, or where it is 0: there is nothing to divide by.

    Rows that are not ``name: number kB`` and the NULs that some kernels append (case MEM-09) are
    skipped. Kernels without MemAvailable count free memory and page cache.
    """
    sizes: dict[bytes, int] = {}
    for line in text.replace(b"\0", b"").splitlines():
        name, _, rest = line.partition(b":")
        number = rest.split()[:1]
        if number and number[0].isdigit():
            sizes[name.strip()] = int(number[0]) * _KIB
    total = sizes.get(b"MemTotal", 0)
    if total <= 0:
        raise ValueError("MemTotal is 0 or missing")
    free = min(sizes.get(b"MemFree", 0), total)
    cached = sizes.get(b"Cached", 0) + sizes.get(b"Buffers", 0)
    anon = [sizes.get(name) for name in (b"Active(anon)", b"Inactive(anon)", b"Unevictable")]
    known_anon = [size for size in anon if size is not None]
    return Meminfo(
        total,
        free,
        min(sizes.get(b"MemAvailable", free + cached), total),
        cached,
        sizes.get(b"Inactive(file)"),
        sum(known_anon) if len(known_anon) == len(anon) else None,
    )


def parse_net_dev(text: bytes) -> dict[str, NetCounters]:
    """One row a device; the two heading rows have no colon followed by numbers."""
    found: dict[str, NetCounters] = {}
    for line in text.decode(errors="replace").splitlines():
        name, _, rest = line.rpartition(":")
        fields = rest.split()
        if name and len(fields) >= 10 and all(field.isdecimal() for field in fields):
            found[name.strip()] = NetCounters(
                int(fields[0]), int(fields[1]), int(fields[8]), int(fields[9])
            )
    return found


def parse_diskstats(text: bytes) -> dict[str, DiskCounters]:
    """One row a device: sectors are 512 bytes whatever the device says."""
    found: dict[str, DiskCounters] = {}
    for line in text.decode(errors="replace").splitlines():
        fields = line.split()
        if len(fields) >= 10 and all(field.isdecimal() for field in fields[3:10]):
            found[fields[2]] = DiskCounters(
                int(fields[5]) * SECTOR_BYTES,
                int(fields[3]),
                int(fields[9]) * SECTOR_BYTES,
                int(fields[7]),
            )
    return found


def parse_own_cgroups(text: bytes) -> dict[str, str]:
    """``id:controllers:path`` rows; the path may hold colons, named hierarchies are left out."""
    found: dict[str, str] = {}
    for line in text.decode(errors="surrogateescape").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            found["unified"] = path
        found.update(
            {name: path for name in names.split(",") if name and not name.startswith("name=")}
        )
    return found


def _parsed(files: Files, path: str, parse: Callable[[bytes], T]) -> T | Missing:
    text = files.read(path)
    if isinstance(text, Missing):
        return text
    try:
        return parse(text)
    except ValueError as error:
        return Missing(f"{path}: {error}")
