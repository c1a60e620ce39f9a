"""Measured use of the node, pods, containers and host applications, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from koordlet.api.views.common import Unknown, number, unknown
from koordlet.metrics.readings import EntityKey, Level, ReadingsTable

Values = Mapping[str, float]


class UsageData(TypedDict):
    """What a pod, container or host application uses.

    ``memory_usage_bytes`` is all that is charged, page cache included; ``memory_working_set_bytes``
    is that without inactive file pages, ``memory_anon_bytes`` without any page cache.
    ``throttled_ratio`` is the share of cfs periods in which it had to wait for its quota.
    """

    used_cpu_cores: float | Unknown
    memory_usage_bytes: float | Unknown
    memory_working_set_bytes: float | Unknown
    memory_anon_bytes: float | Unknown
    throttled_ratio: float | Unknown


class NodeUsageData(TypedDict):
    """How the node's CPU and memory divide. The cores come from counters of one instant:
    ``used_cpu_cores`` of the node, and of it non-BE pods, non-BE applications, BE roots, system.
    """

    used_cpu_cores: float | Unknown
    nonbe_pods_cores: float | Unknown
    nonbe_apps_cores: float | Unknown
    be_cores: float | Unknown
    system_cores: float | Unknown
    memory_total_bytes: float | Unknown
    memory_available_bytes: float | Unknown
    used_memory_bytes: float | Unknown
    cpu_some_ratio: float | Unknown
    memory_some_ratio: float | Unknown
    io_some_ratio: float | Unknown


class Usages:
    """The newest readings, found by what they are about; a level is indexed when first asked for.

    Pods are named by metadata.uid, containers by their id, tiers and applications by name, the
    node by "".
    """

    def __init__(self, readings: ReadingsTable) -> None:
        self._readings = readings
        self._levels: dict[Level, Mapping[str, Values]] = {}

    def of(self, level: Level, name: str = "") -> Values | None:
        """Values by field name; None where nothing was measured under that name."""
        if level not in self._levels:
            found = self._readings.at(level)
            self._levels[level] = {_identity(key): values for key, values in found}
        return self._levels[level].get(name)


def _identity(key: EntityKey) -> str:
    if key.level is Level.POD:
        return key.uid
    return key.container_id if key.level is Level.CONTAINER else key.name


def usage_data(values: Values | None) -> UsageData:
    """Use of one workload; None where it has never been measured."""
    found = {} if values is None else values
    return {
        "used_cpu_cores": _field(found, "used_cpu_cores"),
        "memory_usage_bytes": _field(found, "memory_usage_bytes"),
        "memory_working_set_bytes": _field(found, "memory_working_set_bytes"),
        "memory_anon_bytes": _field(found, "memory_anon_bytes"),
        "throttled_ratio": _field(found, "throttled_ratio"),
    }


def node_usage_data(measured: Values | None) -> NodeUsageData:
    """Use of the node; None where it has never been measured."""
    values = {} if measured is None else measured
    return {
        "used_cpu_cores": _field(values, "used_cpu_cores"),
        "nonbe_pods_cores": _field(values, "nonbe_pods_cores"),
        "nonbe_apps_cores": _field(values, "nonbe_apps_cores"),
        "be_cores": _field(values, "be_cores"),
        "system_cores": _field(values, "system_cores"),
        "memory_total_bytes": _field(values, "memory_total_bytes"),
        "memory_available_bytes": _field(values, "memory_available_bytes"),
        "used_memory_bytes": _field(values, "used_memory_bytes"),
        "cpu_some_ratio": _field(values, "cpu_some_ratio"),
        "memory_some_ratio": _field(values, "memory_some_ratio"),
        "io_some_ratio": _field(values, "io_some_ratio"),
    }


def _field(values: Values, name: str) -> float | Unknown:
    value = values.get(name)
    return unknown("not measured yet, or not measurable here") if value is None else number(value)
