"""Measured use of the node, pods, containers and host applications, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from koordlet.api.views.common import Unknown, number, unknown
from koordlet.metrics.readings import Level, ReadingsTable

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


@dataclass(frozen=True, slots=True)
class Usages:
    """The newest readings, found by what they are about."""

    node: Values
    tiers: Mapping[str, Values]
    pods: Mapping[str, Values]  # by metadata.uid
    containers: Mapping[str, Values]  # by container id
    apps: Mapping[str, Values]  # by name


NO_USAGES = Usages({}, {}, {}, {}, {})


def usages_in(readings: ReadingsTable) -> Usages:
    """An index over the newest readings."""
    nodes = [values for _, values in readings.at(Level.NODE)]
    return Usages(
        nodes[0] if nodes else {},
        {key.name: values for key, values in readings.at(Level.TIER)},
        {key.uid: values for key, values in readings.at(Level.POD)},
        {key.container_id: values for key, values in readings.at(Level.CONTAINER)},
        {key.name: values for key, values in readings.at(Level.APP)},
    )


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


def node_usage_data(values: Values) -> NodeUsageData:
    """Use of the node."""
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
