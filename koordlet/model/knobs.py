"""The kernel settings we know, by meaning. The files behind them are host/'s business."""

from __future__ import annotations

from enum import Enum


class Knob(Enum):
    """One kernel setting of a cgroup. The comment gives the type of its value.

    Unlimited is ``None`` everywhere; a cpuset is a ``frozenset`` of CPU ids.
    """

    CPU_SHARES = "cpu.shares"  # int, v1 shares 2..262144; v2 converts to weight
    CPU_QUOTA = "cpu.quota"  # int us in one period, or None
    CPU_PERIOD = "cpu.period"  # int us; read only for us
    CPU_BURST = "cpu.burst"  # int us
    CPU_IDLE = "cpu.idle"  # int 0 or 1
    CPUSET_CPUS = "cpuset.cpus"  # frozenset[int]; empty on v2 means "inherit"
    CPUSET_MEMS = "cpuset.mems"  # frozenset[int]
    CPUSET_CPUS_EFFECTIVE = "cpuset.cpus.effective"  # frozenset[int]; read only
    MEMORY_LIMIT = "memory.limit"  # int bytes or None
    MEMORY_SWAP_LIMIT = "memory.swap.limit"  # int bytes or None; v1 memsw is memory + swap
    MEMORY_MIN = "memory.min"  # int bytes
    MEMORY_LOW = "memory.low"  # int bytes
    MEMORY_HIGH = "memory.high"  # int bytes or None
    MEMORY_OOM_GROUP = "memory.oom.group"  # int 0 or 1
    IO_WEIGHT = "io.weight"  # int 1..10000 (v2 scale)
    IO_MAX = "io.max"  # str, one device line
    PIDS_MAX = "pids.max"  # int or None

    # Members are singletons; Enum's own hash is a Python call in each of a tick's many look-ups.
    __hash__ = object.__hash__

    # Members are singletons: the identity is a hash, and much cheaper than Enum's own, which a
    # tick would ask for tens of thousands of times.
    __hash__ = object.__hash__


Value = int | str | frozenset[int] | None


class Channel(Enum):
    """How a value reaches the kernel, and so how it is taken back (hazards H6, H8).

    Strategies choose between file and spec; whether a cgroup is a unit's the executor finds out.
    """

    FILE = "file"
    SPEC = "spec"  # the container runtime's stored spec, by CRI UpdateContainerResources
    UNIT = "unit"  # a property of the systemd unit that owns the cgroup


class Direction(Enum):
    """Which way a write pulls, for fights with other writers (hazard H17)."""

    RESTRICT = "restrict"  # protects latency-sensitive work; never yields
    RELAX = "relax"  # for our benefit; yields to a foreign writer
