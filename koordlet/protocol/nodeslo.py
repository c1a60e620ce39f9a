"""NodeSLO: Koordinator's node settings as frozen values, with its defaults.

Names are Koordinator's in snake_case (``cpuSuppressThresholdPercent`` is
``cpu_suppress_threshold_percent``). Percents are whole numbers; ``None`` is "not set". The
settings of one QoS class are in nodeslo_qos; how a document becomes one of these is
nodeslo_schema's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from koordlet.protocol.bounds import Bounds, Percent
from koordlet.protocol.nodeslo_qos import ResourceQosStrategy
from koordlet.protocol.qos import PriorityClass, Qos

Switch = Annotated[int, Bounds(0, 1)]
Positive = Annotated[int, Bounds(1)]
Priority = Annotated[int, Bounds(-(2**31), 2**31 - 1)]


class CpuSuppressPolicy(Enum):
    """How BE work is kept within its CPU budget."""

    CPUSET = "cpuset"
    CFS_QUOTA = "cfsQuota"


class CpuEvictPolicy(Enum):
    """Against what BE satisfaction is measured."""

    BY_REAL_LIMIT = "evictByRealLimit"
    BY_ALLOCATABLE = "evictByAllocatable"


@dataclass(frozen=True, slots=True)
class ResourceUsedThreshold:
    """``resourceUsedThresholdWithBE``: how much of the node may be used before BE gives way.

    ``enable`` gates suppression and all evictions. A ``..._lower_percent`` that is not set is its
    threshold - 2. The allocatable percents may exceed 100.
    """

    enable: bool = False
    cpu_suppress_threshold_percent: Percent = 65
    cpu_suppress_min_percent: Percent | None = None
    cpu_suppress_policy: CpuSuppressPolicy = CpuSuppressPolicy.CPUSET
    memory_evict_threshold_percent: Percent = 70
    memory_evict_lower_percent: Percent | None = None
    cpu_evict_be_usage_threshold_percent: Percent | None = None
    cpu_evict_be_satisfaction_lower_percent: Percent | None = None
    cpu_evict_be_satisfaction_upper_percent: Percent | None = None
    cpu_evict_time_window_seconds: Positive | None = None
    cpu_evict_policy: CpuEvictPolicy = CpuEvictPolicy.BY_REAL_LIMIT
    cpu_evict_threshold_percent: Percent | None = None
    cpu_evict_lower_percent: Percent | None = None
    evict_enabled_priority_threshold: Priority | None = None
    cpu_allocatable_evict_threshold_percent: Annotated[int, Bounds(0)] | None = None
    cpu_allocatable_evict_lower_percent: Annotated[int, Bounds(0)] | None = None
    memory_allocatable_evict_threshold_percent: Annotated[int, Bounds(0)] | None = None
    memory_allocatable_evict_lower_percent: Annotated[int, Bounds(0)] | None = None
    allocatable_evict_priority_threshold: Annotated[int, Bounds(-(2**31), 7999)] | None = None


class CpuBurstPolicy(Enum):
    """Which of the two bursts are on: ``cpu.cfs_burst_us``, scaling the quota, or both."""

    NONE = "none"
    CPU_BURST_ONLY = "cpuBurstOnly"
    CFS_QUOTA_BURST_ONLY = "cfsQuotaBurstOnly"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class CpuBurstStrategy:
    """``cpuBurstStrategy``; a period of -1 s is no token bucket."""

    policy: CpuBurstPolicy = CpuBurstPolicy.NONE
    cpu_burst_percent: Annotated[int, Bounds(1, 10_000)] = 1_000
    cfs_quota_burst_percent: Annotated[int, Bounds(100)] = 300
    cfs_quota_burst_period_seconds: Annotated[int, Bounds(-1)] = -1
    share_pool_threshold_percent: Percent = 50


@dataclass(frozen=True, slots=True)
class SystemStrategy:
    """``systemStrategy``: settings of the kernel as a whole; none is set by default.

    ``sched_features`` are (name, on) pairs by name; ``total_network_bandwidth`` is a quantity in
    bit/s, ``"0"`` for "ask the device".
    """

    min_free_kbytes_factor: Positive | None = None
    watermark_scale_factor: Annotated[int, Bounds(1, 400)] | None = None
    memcg_reap_back_ground: Switch | None = None
    sched_group_identity_enabled: Switch | None = None
    sched_idle_saver_wmark: Annotated[int, Bounds(0)] | None = None
    sched_features: tuple[tuple[str, bool], ...] = ()
    page_cache_limit_enabled: Switch | None = None
    total_network_bandwidth: str = "0"


class HostCgroupBase(Enum):
    """Where the cgroup path of a host application starts."""

    CGROUP_ROOT = "CgroupRoot"
    KUBEPODS = "Kubepods"
    KUBEPODS_BURSTABLE = "KubepodsBurstable"
    KUBEPODS_BESTEFFORT = "KubepodsBesteffort"


@dataclass(frozen=True, slots=True)
class HostCgroupPath:
    """A cgroup by its base, a directory below it and a path below that."""

    base: HostCgroupBase = HostCgroupBase.CGROUP_ROOT
    parent_dir: str = ""
    relative_path: str = ""


@dataclass(frozen=True, slots=True)
class HostApplicationSpec:
    """One of ``hostApplications``: work outside Kubernetes.

    Without a ``cgroup_path`` it lies in ``host-best-effort/<name>`` (BE) or
    ``host-latency-sensitive/<name>`` (the other classes).
    """

    name: str
    qos: Qos | None = None
    priority_class: PriorityClass = PriorityClass.NONE
    cgroup_path: HostCgroupPath | None = None


@dataclass(frozen=True, slots=True)
class KoordletExtensions:
    """``extensions.koordlet``: the settings that Koordinator does not have.

    ``lsr_exclusive`` makes the CPUs of LSR pods as untouchable for BE as those of LSE (H22).
    """

    lsr_exclusive: bool = False


@dataclass(frozen=True, slots=True)
class NodeSlo:
    """A whole NodeSLO spec, every field filled."""

    threshold: ResourceUsedThreshold = ResourceUsedThreshold()
    qos: ResourceQosStrategy = field(default_factory=ResourceQosStrategy)
    cpu_burst: CpuBurstStrategy = CpuBurstStrategy()
    system: SystemStrategy = SystemStrategy()
    host_applications: tuple[HostApplicationSpec, ...] = ()
    extensions: KoordletExtensions = KoordletExtensions()


DEFAULT_NODESLO = NodeSlo()
"""What is in force where no NodeSLO was ever read: everything off."""
