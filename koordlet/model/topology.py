"""CPU topology as a value: which CPUs are online and what they share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Cpu:
    """One online logical CPU. ``l3`` is None where the machine reports no L3 (case CS-10).

    ``core`` is unique within a socket only; compare (socket, core).
    """

    id: int
    core: int
    socket: int
    numa: int
    l3: int | None


@dataclass(frozen=True, slots=True)
class Topology:
    """The online CPUs, ascending by id, and those that the kernel isolates."""

    cpus: tuple[Cpu, ...]
    isolated: frozenset[int] = frozenset()

    @property
    def online(self) -> frozenset[int]:
        return frozenset(cpu.id for cpu in self.cpus)


class CpuManagerPolicy(Enum):
    """The kubelet's CPU manager policy; UNKNOWN where there is no kubelet state to read."""

    NONE = "none"
    STATIC = "static"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What this node is. ``capacity_cores`` is the physical size (case CQ-19), never amplified.

    ``reserved_cores`` is max(capacity - allocatable, configured or annotated reservation).
    ``exclusive_cpus`` are CPUs that the kubelet's static policy gave to containers.
    """

    name: str
    topology: Topology
    capacity_cores: float
    memory_bytes: int
    reserved_cores: float = 0.0
    reserved_memory_bytes: int = 0
    reserved_cpus: frozenset[int] = frozenset()
    cpu_manager: CpuManagerPolicy = CpuManagerPolicy.UNKNOWN
    exclusive_cpus: frozenset[int] = frozenset()
