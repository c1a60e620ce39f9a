"""What cgroup counter files say: pure parsers and the values they give.

Counters are raw and only grow while a cgroup lives; rates and resets are the metrics' business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from koordlet.host.formats import parse_flat_keyed, pick_flat_keyed
from koordlet.units import usec_to_ns

_V2_LISTS = (b"inactive_file", b"inactive_anon", b"active_anon", b"unevictable")
_MOST_DIGITS = 20  # of a 64-bit counter
_V1_LISTS = tuple(b"total_" + name for name in _V2_LISTS)


@dataclass(frozen=True, slots=True)
class CpuStat:
    """CPU counters of one cgroup, descendants included.

    The cfs counters are None where the cgroup has none (v2 without the cpu controller), the burst
    ones also on kernels before 5.14: unknown, not zero (case CQ-16).
    """

    usage_ns: int
    nr_periods: int | None = None
    nr_throttled: int | None = None
    throttled_ns: int | None = None
    nr_bursts: int | None = None
    burst_ns: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryStat:
    """Memory of one cgroup, descendants included, by three definitions.

    ``usage_bytes``: all that is charged, page cache included.
    ``working_set_bytes``: usage - inactive_file, not below 0; what the kubelet evicts by.
    ``anon_bytes``: inactive_anon + active_anon + unevictable, not above usage; Koordinator's
    usage without page cache.
    ``consistent`` is False where the parts exceeded the whole: dead child cgroups, or a sample torn
    between two files (case V1-13); nothing may be evicted on such a sample.
    """

    usage_bytes: int
    working_set_bytes: int
    anon_bytes: int
    consistent: bool = True


@dataclass(frozen=True, slots=True)
class IoCounters:
    """Block IO with one device, or the sum over devices."""

    read_bytes: int = 0
    write_bytes: int = 0
    read_ios: int = 0
    write_ios: int = 0


@dataclass(frozen=True, slots=True)
class IoStat:
    """Block IO of one cgroup by device (``major:minor``)."""

    devices: Mapping[str, IoCounters]

    @property
    def total(self) -> IoCounters:
        """The sum over all devices."""
        all_devices = self.devices.values()
        return IoCounters(
            sum(each.read_bytes for each in all_devices),
            sum(each.write_bytes for each in all_devices),
            sum(each.read_ios for each in all_devices),
            sum(each.write_ios for each in all_devices),
        )


def parse_cpu_stat_v1(usage_ns: int, stat: bytes) -> CpuStat:
    """cpuacct.usage with cpu.stat, whose times are nanoseconds (case V1-12)."""
    found = parse_flat_keyed(stat)
    return CpuStat(
        usage_ns,
        found.get(b"nr_periods"),
        found.get(b"nr_throttled"),
        found.get(b"throttled_time"),
        found.get(b"nr_bursts"),
        found.get(b"burst_time"),
    )


def parse_cpu_stat_v2(stat: bytes) -> CpuStat:
    """v2's cpu.stat, whose times are microseconds (case V2-09).

    Raises ValueError where it has no usage_usec.
    """
    found = parse_flat_keyed(stat)
    throttled_us, burst_us = found.get(b"throttled_usec"), found.get(b"burst_usec")
    try:
        usage_us = found[b"usage_usec"]
    except KeyError:
        raise ValueError("cpu.stat has no usage_usec") from None
    return CpuStat(
        usec_to_ns(usage_us),
        found.get(b"nr_periods"),
        found.get(b"nr_throttled"),
        None if throttled_us is None else usec_to_ns(throttled_us),
        found.get(b"nr_bursts"),
        None if burst_us is None else usec_to_ns(burst_us),
    )


def parse_memory(usage_bytes: int, stat: bytes, *, version: int) -> MemoryStat:
    """Usage and memory.stat together; v1's hierarchical numbers are the ``total_`` ones.

    Raises ValueError where memory.stat lacks one of the LRU sizes.
    """
    lists = _V1_LISTS if version == 1 else _V2_LISTS
    found = pick_flat_keyed(stat, lists)
    try:
        inactive_file, *anon_lists = [found[name] for name in lists]
    except KeyError as error:
        raise ValueError(f"memory.stat lacks {error}") from None
    anon = sum(anon_lists)
    return MemoryStat(
        usage_bytes,
        max(usage_bytes - inactive_file, 0),
        min(anon, usage_bytes),
        consistent=anon <= usage_bytes and inactive_file <= usage_bytes,
    )


def parse_io_v1(service_bytes: bytes, serviced: bytes) -> IoStat:
    """blkio.throttle.io_service_bytes and io_serviced; a device that the kernel cannot name is
    left out (case BL-05).
    """
    moved, calls = _blkio_rows(service_bytes), _blkio_rows(serviced)
    devices = sorted({device for device, _ in (*moved, *calls)})
    return IoStat(
        {
            device: IoCounters(
                moved.get((device, "Read"), 0),
                moved.get((device, "Write"), 0),
                calls.get((device, "Read"), 0),
                calls.get((device, "Write"), 0),
            )
            for device in devices
        }
    )


def parse_io_v2(text: bytes) -> IoStat:
    """io.stat; numbers of any size pass through (case BL-09), odd rows are left out."""
    devices: dict[str, IoCounters] = {}
    for row in text.decode(errors="replace").splitlines():
        fields = row.split()
        if not fields or not _is_device(fields[0]):
            continue
        values = {key: int(number) for key, number in _pairs(fields[1:])}
        devices[fields[0]] = IoCounters(
            values.get("rbytes", 0),
            values.get("wbytes", 0),
            values.get("rios", 0),
            values.get("wios", 0),
        )
    return IoStat(devices)


def _blkio_rows(text: bytes) -> dict[tuple[str, str], int]:
    rows: dict[tuple[str, str], int] = {}
    for row in text.decode(errors="replace").splitlines():
        fields = row.split()
        if len(fields) == 3 and _is_device(fields[0]) and _is_number(fields[2]):
            rows[fields[0], fields[1]] = int(fields[2])
    return rows


def _pairs(texts: list[str]) -> list[tuple[str, str]]:
    split = [text.partition("=") for text in texts]
    return [(key, number) for key, _, number in split if _is_number(number)]


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def _is_device(text: str) -> bool:
    major, _, minor = text.partition(":")
    return major.isdecimal() and minor.isdecimal()
