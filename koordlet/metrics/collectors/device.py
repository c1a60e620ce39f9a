"""Counters of whole disks and of the node's network interfaces."""

from __future__ import annotations

from collections.abc import Mapping

from koordlet.host.mounts import Roots
from koordlet.host.procfs import DiskCounters, NetCounters
from koordlet.host.tree import Files
from koordlet.metrics.collectors.cadence import DETAIL_EVERY_S
from koordlet.metrics.collectors.sink import Sink
from koordlet.metrics.readings import FIELDS, EntityKey, Group, Level
from koordlet.metrics.series import step_rate
from koordlet.model.readings import Missing

_CEILING = 1e13  # bytes or operations a second: more than any device does
_NOT_DISKS = ("loop", "ram", "zram")
_NOT_INTERFACES = ("lo", "veth")


class DeviceMeters:
    """Devices of one kind. Of the fields of ``group`` the ones ending in ``_per_s`` come first and
    are the rates of as many counters, which are the fields after them.
    """

    def __init__(self, level: Level, group: Group, sink: Sink) -> None:
        self._level = level
        self._group = group
        self._sink = sink
        self._rated = sum(name.endswith("_per_s") for name in FIELDS[group])
        self._indices: dict[str, int] = {}
        self._before: dict[str, tuple[int, ...]] = {}
        self._before_s = float("-inf")

    def sample(self, now_s: float, counters: Mapping[str, tuple[int, ...]]) -> None:
        """Take the counters of every device that there is, in the order of the fields."""
        for name in [name for name in self._indices if name not in counters]:
            self._sink.leave(self._indices.pop(name))
        elapsed_s = now_s - self._before_s
        known = self._before if elapsed_s <= 3 * DETAIL_EVERY_S else {}
        for name, totals in counters.items():
            if name not in self._indices:
                self._indices[name] = self._sink.enter(EntityKey(self._level, name=name))
            before = known.get(name, self._rated * (None,))
            rates = (
                step_rate(before[at], totals[at], elapsed_s, _CEILING) for at in range(self._rated)
            )
            self._sink.put(self._indices[name], self._group, (*rates, *totals))
        self._before = dict(counters)
        self._before_s = now_s


def disks(
    files: Files, roots: Roots, counters: Mapping[str, DiskCounters] | Missing
) -> dict[str, tuple[int, ...]]:
    """Whole disks that did any IO since boot; partitions would count it twice."""
    if isinstance(counters, Missing):
        return {}
    return {
        name: (each.read_bytes, each.write_bytes, each.read_ios, each.write_ios)
        for name, each in counters.items()
        if each.read_ios + each.write_ios > 0
        and not name.startswith(_NOT_DISKS)
        and files.exists(f"{roots.sysfs}/block/{name}")
    }


def interfaces(
    files: Files, roots: Roots, counters: Mapping[str, NetCounters] | Missing
) -> dict[str, tuple[int, ...]]:
    """Interfaces with hardware below them; where none has (a container), all but loopback and the
    host's ends of pods.
    """
    if isinstance(counters, Missing):
        return {}
    physical = {name for name in counters if files.exists(f"{roots.sysfs}/class/net/{name}/device")}
    chosen = physical or {name for name in counters if not name.startswith(_NOT_INTERFACES)}
    return {
        name: (each.rx_bytes, each.tx_bytes, each.rx_packets, each.tx_packets)
        for name, each in counters.items()
        if name in chosen
    }
