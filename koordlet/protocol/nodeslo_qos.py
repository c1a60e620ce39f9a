"""``resourceQOSStrategy`` of NodeSLO: the settings of each QoS class.

A block that is not enabled is always the "None" block, the dataclass's own defaults: nothing
that it holds can come into force by accident. Koordinator leaves systemClass out of this rule;
we do not, since a disabled block that still acts surprises whoever disabled it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from koordlet.protocol.bounds import Bounds, Percent

Switch = Annotated[int, Bounds(0, 1)]
Rate = Annotated[int, Bounds(0)]
ModelRate = Annotated[int, Bounds(1)]
NetworkRate = Percent | str
"""Percent of the node's bandwidth, or a quantity in bit/s as text (``"50M"``)."""


@dataclass(frozen=True, slots=True)
class CpuQos:
    """``cpuQOS``: Anolis group identity, ``cpu.idle``, and expelling idle siblings."""

    enable: bool = False
    group_identity: Annotated[int, Bounds(-1, 2)] = 0
    sched_idle: Switch = 0
    core_expeller: bool = False


@dataclass(frozen=True, slots=True)
class MemoryQos:
    """``memoryQOS``: protection and throttling of memory, as shares of request and limit.

    The watermark, page cache and priority fields need an Anolis kernel.
    """

    enable: bool = False
    min_limit_percent: Percent = 0
    low_limit_percent: Percent = 0
    throttling_percent: Percent = 0
    wmark_ratio: Percent = 0
    wmark_scale_permill: Annotated[int, Bounds(1, 1000)] = 50
    wmark_min_adj: Annotated[int, Bounds(-25, 50)] = 0
    page_cache_enable: bool | None = None
    page_cache_limit_percent: Percent | None = None
    page_cache_limit_size: Annotated[int, Bounds(0)] | None = None
    page_cache_reclaim_sync: bool | None = None
    priority_enable: Switch = 0
    priority: Annotated[int, Bounds(0, 12)] = 0
    oom_kill_group: Switch = 0


class BlockKind(Enum):
    """What the name of a block setting names."""

    DEVICE = "device"
    VOLUME_GROUP = "volumegroup"
    POD_VOLUME = "podvolume"


@dataclass(frozen=True, slots=True)
class IoConfig:
    """``ioCfg``: limits (0 is off), weight, and the latency target of one block device."""

    read_iops: Rate = 0
    write_iops: Rate = 0
    read_bps: Rate = 0
    write_bps: Rate = 0
    io_weight_percent: Annotated[int, Bounds(1, 100)] = 100
    read_latency: Annotated[int, Bounds(1)] = 3000  # us
    write_latency: Annotated[int, Bounds(1)] = 3000  # us
    read_latency_percent: Percent = 95
    write_latency_percent: Percent = 95
    enable_user_model: bool = False
    model_read_bps: ModelRate | None = None
    model_write_bps: ModelRate | None = None
    model_read_seq_iops: ModelRate | None = None
    model_write_seq_iops: ModelRate | None = None
    model_read_rand_iops: ModelRate | None = None
    model_write_rand_iops: ModelRate | None = None


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """One of ``blocks``: a device, volume group or pod volume and its settings."""

    name: str = ""
    kind: BlockKind = BlockKind.DEVICE
    io_cfg: IoConfig = IoConfig()


@dataclass(frozen=True, slots=True)
class BlkioQos:
    """``blkioQOS``."""

    enable: bool = False
    blocks: tuple[BlockConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class ResctrlQos:
    """``resctrlQOS``: the range of cache ways and the share of memory bandwidth."""

    enable: bool = False
    cat_range_start_percent: Percent = 0
    cat_range_end_percent: Percent = 100
    mba_percent: Percent = 100


@dataclass(frozen=True, slots=True)
class NetworkQos:
    """``networkQOS``; 0 is off."""

    enable: bool = False
    ingress_request: NetworkRate = 0
    ingress_limit: NetworkRate = 0
    egress_request: NetworkRate = 0
    egress_limit: NetworkRate = 0


@dataclass(frozen=True, slots=True)
class ClassQos:
    """All settings of one QoS class."""

    cpu_qos: CpuQos = CpuQos()
    memory_qos: MemoryQos = MemoryQos()
    blkio_qos: BlkioQos = BlkioQos()
    resctrl_qos: ResctrlQos = ResctrlQos()
    network_qos: NetworkQos = NetworkQos()


class CpuPolicy(Enum):
    """What implements ``cpuQOS``."""

    GROUP_IDENTITY = "groupIdentity"
    CORE_SCHED = "coreSched"


class NetQosPolicy(Enum):
    """What implements ``networkQOS``."""

    TC = "tc"
    TERWAY_QOS = "terway-qos"


@dataclass(frozen=True, slots=True)
class QosPolicies:
    """``policies``."""

    cpu_policy: CpuPolicy = CpuPolicy.GROUP_IDENTITY
    net_qos_policy: NetQosPolicy = NetQosPolicy.TC


@dataclass(frozen=True, slots=True)
class ResourceQosStrategy:
    """``resourceQOSStrategy``; ``cgroup_root`` is the node itself, for blkio only."""

    policies: QosPolicies = QosPolicies()
    lsr: ClassQos = ClassQos()
    ls: ClassQos = ClassQos()
    be: ClassQos = ClassQos()
    system: ClassQos = ClassQos()
    cgroup_root: ClassQos = ClassQos()


_LATENCY_SENSITIVE = ClassQos(
    cpu_qos=CpuQos(group_identity=2, core_expeller=True),
    memory_qos=MemoryQos(wmark_ratio=95, wmark_scale_permill=20, wmark_min_adj=-25),
)

CLASS_DEFAULTS = ResourceQosStrategy(
    lsr=_LATENCY_SENSITIVE,
    ls=_LATENCY_SENSITIVE,
    be=ClassQos(
        cpu_qos=CpuQos(group_identity=-1),
        memory_qos=MemoryQos(wmark_ratio=95, wmark_scale_permill=20, wmark_min_adj=50),
        resctrl_qos=ResctrlQos(cat_range_end_percent=30),
    ),
)
"""What an enabled block holds in the fields that a document leaves out."""
