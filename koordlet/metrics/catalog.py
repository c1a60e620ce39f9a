"""The one table of what is exported about the node and its workloads, and on which page.

Names on ``/metrics`` pass promtool's lint: base units, ``_total`` for counters. The pages
``/internal-metrics`` and ``/external-metrics`` have Koordinator's exact names, labels and units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from koordlet.metrics.readings import FIELDS, Group, Level


class Page(Enum):
    """The page by its path."""

    OURS = "/metrics"
    INTERNAL = "/internal-metrics"
    EXTERNAL = "/external-metrics"


class Kind(Enum):
    """Prometheus types that are in use here."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Series:
    """Where one line of a family comes from: a field of a group, times ``scale``.

    ``labels`` are added to those of the entity. Where ``full_field`` is set, Koordinator's label
    ``cpu_full_supported`` says whether that field has a value.
    """

    group: Group
    field: str
    labels: tuple[tuple[str, str], ...] = ()
    scale: float = 1.0
    full_field: str = ""

    @property
    def position(self) -> int:
        """Index of the value in its group."""
        return FIELDS[self.group].index(self.field)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its lines for each entity of ``level``. ``label_names`` are the entity's."""

    name: str
    kind: Kind
    level: Level
    help: str
    series: tuple[Series, ...]
    pages: tuple[Page, ...] = (Page.OURS,)


LABELS: dict[tuple[Page, Level], tuple[tuple[str, str], ...]] = {
    (Page.OURS, Level.NODE): (),
    (Page.OURS, Level.DISK): (("device", "name"),),
    (Page.OURS, Level.INTERFACE): (("device", "name"),),
    (Page.OURS, Level.TIER): (("tier", "name"),),
    (Page.OURS, Level.POD): (
        ("namespace", "namespace"),
        ("pod", "pod"),
        ("uid", "uid"),
        ("qos", "qos"),
        ("priority_class", "priority_class"),
    ),
    (Page.OURS, Level.CONTAINER): (
        ("namespace", "namespace"),
        ("pod", "pod"),
        ("uid", "uid"),
        ("container", "container"),
        ("qos", "qos"),
    ),
    (Page.OURS, Level.APP): (
        ("application", "name"),
        ("qos", "qos"),
        ("priority_class", "priority_class"),
    ),
    (Page.INTERNAL, Level.NODE): (),
    (Page.INTERNAL, Level.APP): (
        ("host_application_name", "name"),
        ("priority_class", "priority_class"),
        ("qos", "qos"),
    ),
    (Page.EXTERNAL, Level.POD): (
        ("pod_uid", "uid"),
        ("pod_name", "pod"),
        ("pod_namespace", "namespace"),
    ),
    (Page.EXTERNAL, Level.CONTAINER): (
        ("container_id", "container_id"),
        ("container_name", "container"),
        ("pod_uid", "uid"),
        ("pod_name", "pod"),
        ("pod_namespace", "namespace"),
    ),
}
"""Label names by page and level, each with the part of the entity's key that it shows. The pages
with Koordinator's names have ``node`` before them."""


def _one(name: str, level: Level, group: Group, field: str, help: str) -> Family:
    kind = Kind.COUNTER if name.endswith("_total") else Kind.GAUGE
    return Family(name, kind, level, help, (Series(group, field),))


_PRESSURE_LINES = tuple(
    (resource, degree) for resource in ("cpu", "memory", "io") for degree in ("some", "full")
)
_KOORDINATOR_RESOURCE = {"cpu": "cpu", "memory": "mem", "io": "io"}


def _pressure(prefix: str, level: Level, group: Group, of: str) -> Family:
    return Family(
        f"{prefix}_pressure_ratio",
        Kind.GAUGE,
        level,
        f"Share of the last 10 s in which some or all tasks of {of} waited for the resource (PSI"
        " avg10), 0 to 1.",
        tuple(
            Series(
                group, f"{resource}_{degree}_ratio", (("resource", resource), ("degree", degree))
            )
            for resource, degree in _PRESSURE_LINES
        ),
    )


def _node() -> Iterator[Family]:
    node, memory = Level.NODE, Group.NODE_MEMORY
    both = (Page.OURS, Page.INTERNAL)
    yield Family(
        "koordlet_node_used_cpu_cores",
        Kind.GAUGE,
        node,
        "CPU in use on the node: user, nice, system, irq and softirq time; neither iowait nor"
        " steal.",
        (Series(Group.NODE_CPU, "used_cpu_cores"),),
        both,
    )
    yield Family(
        "koordlet_node_cpu_seconds_total",
        Kind.COUNTER,
        node,
        "CPU time of the node since boot by mode; busy is user, nice, system, irq and softirq.",
        tuple(
            Series(Group.NODE_CPU, f"{mode}_seconds_total", (("mode", mode),))
            for mode in ("busy", "iowait", "steal", "idle")
        ),
    )
    yield Family(
        "koordlet_node_used_memory_bytes",
        Kind.GAUGE,
        node,
        "Memory of the node that is not available: MemTotal - MemAvailable.",
        (Series(memory, "used_memory_bytes"),),
        both,
    )
    yield _one(
        "koordlet_node_memory_capacity_bytes", node, memory, "memory_total_bytes", "MemTotal."
    )
    yield _one(
        "koordlet_node_memory_available_bytes",
        node,
        memory,
        "memory_available_bytes",
        "MemAvailable.",
    )
    yield from _memory("koordlet_node", node, memory, "the node")
    yield _pressure("koordlet_node", node, Group.NODE_PRESSURE, "the node")


def _system() -> Iterator[Family]:
    node, shares = Level.NODE, Group.NODE_SHARES
    yield _one(
        "koordlet_system_used_cpu_cores",
        node,
        shares,
        "system_cores",
        "CPU in use by what is no workload: node less kubepods less host applications, over the"
        " same two instants; never negative.",
    )
    yield from _memory(
        "koordlet_system",
        node,
        Group.SYSTEM_MEMORY,
        "the node less kubepods and host applications",
        field_prefix="system_",
    )
    yield _one(
        "koordlet_nonbe_applications_used_cpu_cores",
        node,
        shares,
        "nonbe_apps_cores",
        "CPU in use by host applications that are not best effort.",
    )
    for name, field, help in (
        (
            "koordlet_be_suppress_ls_used_cpu_cores",
            "nonbe_pods_cores",
            "CPU in use by pods outside of all BE roots.",
        ),
        ("koordlet_be_suppress_be_used_cpu_cores", "be_cores", "CPU in use by all BE roots."),
    ):
        pages = (Page.OURS, Page.INTERNAL)
        yield Family(name, Kind.GAUGE, node, help, (Series(shares, field),), pages)


_NODE_MEMORY = (
    ("usage", "page cache included: MemTotal - MemFree"),
    ("working_set", "without inactive page cache: usage - Inactive(file), not below 0"),
    ("anon", "without page cache: anonymous and unevictable pages, not above usage"),
)
_CGROUP_MEMORY = (
    ("usage", "all that is charged, page cache included"),
    ("working_set", "without inactive page cache: usage - inactive_file, not below 0"),
    ("anon", "without page cache: anonymous and unevictable pages, not above usage"),
)


def _memory(
    prefix: str, level: Level, group: Group, of: str, *, field_prefix: str = ""
) -> Iterator[Family]:
    for name, what in _NODE_MEMORY if level is Level.NODE else _CGROUP_MEMORY:
        field = f"{field_prefix}memory_{name}_bytes"
        help = f"Memory of {of}, {what}."
        yield _one(f"{prefix}_memory_{name}_bytes", level, group, field, help)


def _devices() -> Iterator[Family]:
    for level, group, prefix, of, rows in (
        (
            Level.DISK,
            Group.DISK,
            "koordlet_disk",
            "whole disk, partitions included",
            (
                ("read_bytes_total", "read_bytes_total", "Bytes read"),
                ("written_bytes_total", "written_bytes_total", "Bytes written"),
                ("read_operations_total", "reads_total", "Reads completed"),
                ("write_operations_total", "writes_total", "Writes completed"),
            ),
        ),
        (
            Level.INTERFACE,
            Group.INTERFACE,
            "koordlet_network",
            "network interface of the node",
            (
                ("received_bytes_total", "received_bytes_total", "Bytes received"),
                ("sent_bytes_total", "sent_bytes_total", "Bytes sent"),
                ("received_packets_total", "received_packets_total", "Packets received"),
                ("sent_packets_total", "sent_packets_total", "Packets sent"),
            ),
        ),
    ):
        for name, field, what in rows:
            yield _one(f"{prefix}_{name}", level, group, field, f"{what}, by {of}.")


def _cgroup(level: Level, of: str) -> Iterator[Family]:
    prefix, detail = f"koordlet_{level.value}", Group.DETAIL
    window = "1 to 5 s" if level is Level.CONTAINER else "second"
    yield _one(
        f"{prefix}_used_cpu_cores",
        level,
        Group.CPU,
        "used_cpu_cores",
        f"CPU in use by {of}, mean of the last {window}.",
    )
    yield _one(
        f"{prefix}_cpu_usage_seconds_total",
        level,
        Group.CPU,
        "cpu_usage_seconds_total",
        f"CPU time used by {of}, as the kernel counts it.",
    )
    yield from _memory(prefix, level, detail, of)
    yield _one(
        f"{prefix}_throttled_periods_ratio",
        level,
        detail,
        "throttled_ratio",
        f"Share of the cfs periods of {of} that were throttled, over 10 s; 0 without a quota.",
    )
    yield _one(
        f"{prefix}_throttled_seconds_total",
        level,
        detail,
        "throttled_seconds_total",
        f"Time that {of} was throttled by its cfs quota, summed over CPUs.",
    )
    yield _pressure(prefix, level, detail, of)
    operations = (("read", "read_bytes", "reads"), ("write", "written_bytes", "writes"))
    yield Family(
        f"{prefix}_io_bytes_total",
        Kind.COUNTER,
        level,
        f"Bytes that {of} read from and wrote to block devices.",
        tuple(
            Series(detail, f"{field}_total", (("operation", operation),))
            for operation, field, _ in operations
        ),
    )
    yield Family(
        f"{prefix}_io_operations_total",
        Kind.COUNTER,
        level,
        f"Operations of {of} on block devices.",
        tuple(
            Series(detail, f"{field}_total", (("operation", operation),))
            for operation, _, field in operations
        ),
    )


def _koordinator() -> Iterator[Family]:
    yield Family(
        "koordlet_host_application_resource_usage",
        Kind.GAUGE,
        Level.APP,
        "Host application resource usage: cpu in cores, memory in bytes without page cache.",
        (
            Series(Group.CPU, "used_cpu_cores", (("resource", "cpu"),)),
            Series(Group.DETAIL, "memory_anon_bytes", (("resource", "memory"),)),
        ),
        (Page.INTERNAL,),
    )
    for level in (Level.CONTAINER, Level.POD):
        yield Family(
            f"koordlet_{level.value}_psi",
            Kind.GAUGE,
            level,
            f"PSI of the {level.value} in percent; only avg10 is kept.",
            tuple(
                Series(
                    Group.DETAIL,
                    f"{resource}_{degree}_ratio",
                    (
                        ("psi_resource_type", _KOORDINATOR_RESOURCE[resource]),
                        ("psi_precision", "avg10"),
                        ("psi_degree", degree),
                    ),
                    scale=100.0,
                    full_field=f"{resource}_full_ratio",
                )
                for resource, degree in _PRESSURE_LINES
            ),
            (Page.EXTERNAL,),
        )


def families() -> tuple[Family, ...]:
    """Every family, in the order of the pages."""
    return (
        *_node(),
        *_system(),
        *_devices(),
        *_cgroup(Level.TIER, "a tier of the kubelet"),
        *_cgroup(Level.POD, "a pod"),
        *_cgroup(Level.CONTAINER, "a container"),
        *_cgroup(Level.APP, "a host application"),
        *_koordinator(),
    )
