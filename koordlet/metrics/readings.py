"""What the core measured, in the compact form that goes to the front once a tick.

An entity (the node, a tier, a pod, a container, ...) has an index for life and its key is sent
once. Its values come in groups, each a tuple in the order of ``FIELDS``; None is "no value", never
zero. Only groups that were sampled again, with another result, are sent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

from koordlet.protocol.qos import PriorityClass, Qos

Values = tuple[float | None, ...]


class Level(Enum):
    """What kind of thing a reading is about."""

    NODE = "node"
    DISK = "disk"
    INTERFACE = "interface"
    TIER = "tier"
    POD = "pod"
    CONTAINER = "container"
    APP = "host_application"


@dataclass(frozen=True, slots=True)
class EntityKey:
    """Identity and labels of one entity. ``name`` is the tier, application, disk or interface;
    ``uid`` is the pod's metadata.uid.
    """

    level: Level
    name: str = ""
    namespace: str = ""
    pod: str = ""
    uid: str = ""
    container: str = ""
    container_id: str = ""
    qos: Qos | None = None
    priority_class: PriorityClass | None = None


class Group(IntEnum):
    """Values that are sampled together."""

    CPU = 0  # of a cgroup
    DETAIL = 1  # of a cgroup: memory, throttling, pressure, IO
    NODE_CPU = 2
    NODE_SHARES = 3  # how the node's CPU use divides; from the 5 Hz sampler
    NODE_MEMORY = 4
    NODE_PRESSURE = 5
    SYSTEM_MEMORY = 6
    DISK = 7
    INTERFACE = 8


_PRESSURE = (
    "cpu_some_ratio",
    "cpu_full_ratio",
    "memory_some_ratio",
    "memory_full_ratio",
    "io_some_ratio",
    "io_full_ratio",
)

FIELDS: Mapping[Group, tuple[str, ...]] = {
    Group.CPU: ("used_cpu_cores", "cpu_usage_seconds_total"),
    Group.DETAIL: (
        "memory_usage_bytes",
        "memory_working_set_bytes",
        "memory_anon_bytes",
        "throttled_ratio",
        "throttled_seconds_total",
        *_PRESSURE,
        "read_bytes_per_s",
        "written_bytes_per_s",
        "reads_per_s",
        "writes_per_s",
        "read_bytes_total",
        "written_bytes_total",
        "reads_total",
        "writes_total",
    ),
    Group.NODE_CPU: (
        "used_cpu_cores",
        "iowait_cpu_cores",
        "steal_cpu_cores",
        "busy_seconds_total",
        "iowait_seconds_total",
        "steal_seconds_total",
        "idle_seconds_total",
    ),
    Group.NODE_SHARES: ("nonbe_pods_cores", "nonbe_apps_cores", "system_cores", "be_cores"),
    Group.NODE_MEMORY: (
        "memory_total_bytes",
        "memory_available_bytes",
        "used_memory_bytes",
        "memory_usage_bytes",
        "memory_working_set_bytes",
        "memory_anon_bytes",
    ),
    Group.NODE_PRESSURE: _PRESSURE,
    Group.SYSTEM_MEMORY: (
        "system_memory_usage_bytes",
        "system_memory_working_set_bytes",
        "system_memory_anon_bytes",
    ),
    Group.DISK: (
        "read_bytes_per_s",
        "written_bytes_per_s",
        "reads_per_s",
        "writes_per_s",
        "read_bytes_total",
        "written_bytes_total",
        "reads_total",
        "writes_total",
    ),
    Group.INTERFACE: (
        "received_bytes_per_s",
        "sent_bytes_per_s",
        "received_bytes_total",
        "sent_bytes_total",
        "received_packets_total",
        "sent_packets_total",
    ),
}
"""The values of each group. Memory of a cgroup: ``usage`` is all that is charged, page cache
included; ``working_set`` is usage - inactive_file; ``anon`` is usage without page cache."""


class Scope(Enum):
    """Whether a Readings message adds to the ones before or stands for all of them."""

    DELTA = "delta"
    WHOLE = "whole"  # to a front that has just connected


@dataclass(frozen=True, slots=True)
class Readings:
    """Core to front: ``keys`` that are new or changed, ``changed`` groups by entity index, and the
    indices that are ``gone``. Indices are never used twice.
    """

    tick: int
    scope: Scope = Scope.DELTA
    keys: tuple[tuple[int, EntityKey], ...] = ()
    changed: tuple[tuple[int, int, Values], ...] = ()
    gone: tuple[int, ...] = ()


@dataclass(slots=True)
class Entity:
    """One entity with its newest values by group, and the table revision each came with.

    ``revision`` is that of the key.
    """

    key: EntityKey
    revision: int
    groups: dict[int, tuple[int, Values]]

    def values(self) -> dict[str, float]:
        """All values by field name; what is not known is left out."""
        found: dict[str, float] = {}
        for group, (_, values) in self.groups.items():
            pairs = zip(FIELDS[Group(group)], values, strict=True)
            found.update((name, value) for name, value in pairs if value is not None)
        return found


class ReadingsTable:
    """The newest readings by entity, in the front. Hold ``lock`` while walking ``entities``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.revision = 0
        self.entities: dict[int, Entity] = {}

    def apply(self, readings: Readings) -> None:
        """Put one message in. Values of an entity whose key never came are dropped."""
        with self.lock:
            self.revision += 1
            if readings.scope is Scope.WHOLE:
                self.entities.clear()
            for index in readings.gone:
                self.entities.pop(index, None)
            if readings.gone:  # else the table keeps the size that it once had
                self.entities = self.entities.copy()
            for index, key in readings.keys:
                self._put_key(index, key)
            for index, group, values in readings.changed:
                entity = self.entities.get(index)
                if entity is not None:
                    entity.groups[group] = (self.revision, values)

    def _put_key(self, index: int, key: EntityKey) -> None:
        known = self.entities.get(index)
        groups = {} if known is None else known.groups
        self.entities[index] = Entity(key, self.revision, groups)

    def at(self, level: Level) -> Iterator[tuple[EntityKey, dict[str, float]]]:
        """Key and values by name of every entity of ``level``, as of now."""
        with self.lock:
            found = [
                (entity.key, entity.values())
                for entity in self.entities.values()
                if entity.key.level is level
            ]
        return iter(found)
