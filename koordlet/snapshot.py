"""The frozen picture of one tick, from which every decision is made and can be replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from koordlet.model.actions import Mode, Owned, Target
from koordlet.model.capabilities import Capabilities
from koordlet.model.knobs import Value
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import BeRoot, Workloads
from koordlet.model.readings import Missing
from koordlet.model.topology import NodeFacts
from koordlet.protocol.nodeslo import NodeSlo


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU use in cores over ``window_s`` seconds; every term comes from counters of one instant.

    ``nonbe_pods_cores``: the kubepods tree without governed BE roots in it.
    ``nonbe_apps_cores``: host applications outside kubepods that are no BE roots.
    ``system_cores``: node - kubepods - all host applications, never negative.
    ``be_roots_cores``: each governed BE root, wherever it lies (hazard H12).
    """

    window_s: float
    node_cores: float
    nonbe_pods_cores: float
    nonbe_apps_cores: float
    system_cores: float
    be_roots_cores: Mapping[CgroupPath, float] = field(default_factory=dict)

    @property
    def nonbe_workload_cores(self) -> float:
        """Pods and host applications that batch work must make room for."""
        return self.nonbe_pods_cores + self.nonbe_apps_cores


@dataclass(frozen=True, slots=True)
class RootDemand:
    """How much one BE root wants: mean use over the last 10 s, and the share of its cfs periods
    that were throttled in that time (0 where it has no quota).
    """

    used_cores: float
    throttled_ratio: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a strategy may look at. Built once a tick, never changed.

    ``cpu`` covers about the last second, ``cpu_surge`` the last 5 Hz interval; both are Missing
    until two valid samples exist. ``be_tree`` lists the direct children of every directory at or
    below a BE root (nested cgroups that no workload names included, hazard H18). ``values`` holds
    what the kernel files now say, for every target that a strategy asked to see and every one in
    the journal. ``slo`` is Missing until a source has answered once.
    """

    now_s: float
    tick: int
    node: NodeFacts
    workloads: Workloads
    be_roots: tuple[BeRoot, ...]
    be_tree: Mapping[CgroupPath, tuple[CgroupPath, ...]]
    cpu: CpuUse | Missing
    cpu_surge: CpuUse | Missing
    be_demand: Mapping[CgroupPath, RootDemand]
    values: Mapping[Target, Value | Missing]
    owned: Mapping[Target, Owned]
    capabilities: Capabilities
    slo: NodeSlo | Missing
    modes: Mapping[str, Mode] = field(default_factory=dict)
    pending: frozenset[Target] = frozenset()  # effects not yet answered
    foreign_resets: frozenset[Target] = frozenset()  # put back by somebody since our last write
    memory_used_bytes: Mapping[CgroupPath, int] = field(default_factory=dict)  # of cgroups that a
    # strategy would limit; a limit where this is unknown is never written (hazard H3)

    def value(self, target: Target) -> Value | Missing:
        """The kernel's present value; Missing where nobody asked to read it."""
        return self.values.get(target, Missing("not read in this tick"))
