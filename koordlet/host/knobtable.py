"""The one table of kernel settings: for each knob its v1 and its v2 file, and what a write does.

Everything about a file that a planner or the executor must know beforehand is a field here: which
other files a write changes, which relatives may refuse it, whether it can take long, what the
kernel's default is.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from koordlet.host import formats
from koordlet.model.knobs import Knob, Value


class Relation(Enum):
    """The relative whose value can make the kernel refuse a write (hazard H4)."""

    WITHIN_PARENT = "within the parent, around every child"  # v1 quota, v1 cpuset
    BURST = "burst not above quota"
    IDLE = "shares and weight are locked while cpu.idle is 1"
    USAGE = "memory in use"
    MEMSW = "memory limit not above memory+swap limit"


_ERRNOS: Mapping[Relation, frozenset[int]] = {
    Relation.WITHIN_PARENT: frozenset({errno.EINVAL, errno.EBUSY, errno.EACCES, errno.ENOSPC}),
    Relation.BURST: frozenset({errno.EINVAL}),
    Relation.IDLE: frozenset({errno.EINVAL}),
    Relation.USAGE: frozenset({errno.EBUSY}),
    Relation.MEMSW: frozenset({errno.EINVAL}),
}


@dataclass(frozen=True, slots=True)
class KnobSpec:
    """How one knob is spelled in one dialect. The ``*_text`` fields are in canonical form.

    ``default_text`` is what a new cgroup holds, None where that depends on its parent; a file
    found at it was reset, not wished for (hazard H7). ``reset_text`` is what the kernel leaves in
    this file when the knob whose side effect it is goes back (hazard H2). ``masked_by`` names the
    knob that hides this one while it is 1; the file then reads ``masked_text``. A refusal with one
    of ``relation_errnos`` may be about ``relations`` and says nothing about support. ``slow``
    files may block for long and are written by the effects thread (hazard H11).
    """

    knob: Knob
    version: int
    controller: str
    file: str
    parse: Callable[[bytes | str], Value]
    format: Callable[[Value], str]
    normalise: Callable[[bytes | str], str] | None = None  # where format(parse(x)) would lose some
    default_text: str | None = None
    reset_text: str | None = None
    side_effects: tuple[Knob, ...] = ()
    relations: tuple[Relation, ...] = ()
    masked_by: Knob | None = None
    masked_text: str = ""
    slow: bool = False
    read_only: bool = False
    in_pages: bool = False  # the kernel rounds down to whole pages

    @property
    def unit_text(self) -> bytes | None:
        """What stands for the file in a systemd unit that has none yet; None: nothing does."""
        if self.default_text is None or self.controller not in ("cpu", "cpuset", "memory"):
            return None
        in_cpu_max = self.file == "cpu.max"
        return b"max 100000" if in_cpu_max else self.default_text.encode()

    @property
    def relation_errnos(self) -> frozenset[int]:
        """Refusals that a relative can explain."""
        return frozenset(number for each in self.relations for number in _ERRNOS[each])

    def canonical(self, text: bytes | str, page_bytes: int) -> str:
        """``text`` as the kernel would hold it, in a form that can be written: to compare with.

        Raises ValueError for text that the file never holds.
        """
        if self.normalise is not None:
            return self.normalise(text)
        value = self.parse(text)
        if self.in_pages and isinstance(value, int):
            value = value // page_bytes * page_bytes
        return self.format(value)


V1_KNOBS: tuple[KnobSpec, ...] = (
    KnobSpec(
        Knob.CPU_SHARES,
        1,
        "cpu",
        "cpu.shares",
        formats.parse_int,
        formats.format_shares,
        default_text="1024",
        reset_text="1024",
        relations=(Relation.IDLE,),
        masked_by=Knob.CPU_IDLE,
        masked_text="3",
    ),
    KnobSpec(
        Knob.CPU_QUOTA,
        1,
        "cpu",
        "cpu.cfs_quota_us",
        formats.parse_v1_quota,
        formats.format_int_or_minus_one,
        default_text="-1",
        side_effects=(Knob.CPU_BURST,),
        relations=(Relation.WITHIN_PARENT, Relation.BURST),
    ),
    KnobSpec(
        Knob.CPU_PERIOD,
        1,
        "cpu",
        "cpu.cfs_period_us",
        formats.parse_int,
        formats.format_int,
        default_text="100000",
        read_only=True,
    ),
    KnobSpec(
        Knob.CPU_BURST,
        1,
        "cpu",
        "cpu.cfs_burst_us",
        formats.parse_int,
        formats.format_int,
        default_text="0",
        side_effects=(Knob.CPU_QUOTA,),
        relations=(Relation.BURST,),
    ),
    KnobSpec(
        Knob.CPU_IDLE,
        1,
        "cpu",
        "cpu.idle",
        formats.parse_int,
        formats.format_int,
        default_text="0",
        side_effects=(Knob.CPU_SHARES,),
    ),
    KnobSpec(
        Knob.CPUSET_CPUS,
        1,
        "cpuset",
        "cpuset.cpus",
        formats.parse_cpus,
        formats.format_cpus_v1,
        normalise=formats.normalise_cpus,
        relations=(Relation.WITHIN_PARENT,),
    ),
    KnobSpec(
        Knob.CPUSET_MEMS,
        1,
        "cpuset",
        "cpuset.mems",
        formats.parse_cpus,
        formats.format_cpus_v1,
        normalise=formats.normalise_cpus,
        relations=(Relation.WITHIN_PARENT,),
        slow=True,  # migrates pages where cpuset.memory_migrate is 1
    ),
    KnobSpec(
        Knob.CPUSET_CPUS_EFFECTIVE,
        1,
        "cpuset",
        "cpuset.effective_cpus",
        formats.parse_cpus,
        formats.format_cpus_v1,
        normalise=formats.normalise_cpus,
        read_only=True,
    ),
    KnobSpec(
        Knob.MEMORY_LIMIT,
        1,
        "memory",
        "memory.limit_in_bytes",
        formats.parse_bytes,
        formats.format_int_or_minus_one,
        default_text="-1",
        side_effects=(Knob.MEMORY_SWAP_LIMIT,),
        relations=(Relation.USAGE, Relation.MEMSW),
        slow=True,
        in_pages=True,
    ),
    KnobSpec(
        Knob.MEMORY_SWAP_LIMIT,
        1,
        "memory",
        "memory.memsw.limit_in_bytes",
        formats.parse_bytes,
        formats.format_int_or_minus_one,
        default_text="-1",
        side_effects=(Knob.MEMORY_LIMIT,),
        relations=(Relation.USAGE, Relation.MEMSW),
        slow=True,
        in_pages=True,
    ),
    KnobSpec(
        Knob.PIDS_MAX,
        1,
        "pids",
        "pids.max",
        formats.parse_int_or_max,
        formats.format_int_or_max,
        default_text="max",
    ),
)

V2_KNOBS: tuple[KnobSpec, ...] = (
    KnobSpec(
        Knob.CPU_SHARES,
        2,
        "cpu",
        "cpu.weight",
        formats.parse_weight,
        formats.format_weight,
        normalise=formats.normalise_int,
        default_text="100",
        reset_text="100",
        relations=(Relation.IDLE,),
        masked_by=Knob.CPU_IDLE,
        masked_text="0",
    ),
    KnobSpec(
        Knob.CPU_QUOTA,
        2,
        "cpu",
        "cpu.max",
        formats.parse_cpu_max_quota,
        formats.format_int_or_max,
        default_text="max",
        side_effects=(Knob.CPU_BURST,),
        relations=(Relation.BURST,),
    ),
    KnobSpec(
        Knob.CPU_PERIOD,
        2,
        "cpu",
        "cpu.max",
        formats.parse_cpu_max_period,
        formats.format_int,
        default_text="100000",
        read_only=True,
    ),
    KnobSpec(
        Knob.CPU_BURST,
        2,
        "cpu",
        "cpu.max.burst",
        formats.parse_int,
        formats.format_int,
        default_text="0",
        side_effects=(Knob.CPU_QUOTA,),
        relations=(Relation.BURST,),
    ),
    KnobSpec(
        Knob.CPU_IDLE,
        2,
        "cpu",
        "cpu.idle",
        formats.parse_int,
        formats.format_int,
        default_text="0",
        side_effects=(Knob.CPU_SHARES,),
    ),
    KnobSpec(
        Knob.CPUSET_CPUS,
        2,
        "cpuset",
        "cpuset.cpus",
        formats.parse_cpus,
        formats.format_cpus_v2,
        normalise=formats.normalise_cpus,
        default_text="",
    ),
    KnobSpec(
        Knob.CPUSET_MEMS,
        2,
        "cpuset",
        "cpuset.mems",
        formats.parse_cpus,
        formats.format_cpus_v2,
        normalise=formats.normalise_cpus,
        default_text="",
        slow=True,  # migrates pages
    ),
    KnobSpec(
        Knob.CPUSET_CPUS_EFFECTIVE,
        2,
        "cpuset",
        "cpuset.cpus.effective",
        formats.parse_cpus,
        formats.format_cpus_v2,
        normalise=formats.normalise_cpus,
        read_only=True,
    ),
    KnobSpec(
        Knob.MEMORY_LIMIT,
        2,
        "memory",
        "memory.max",
        formats.parse_bytes,
        formats.format_int_or_max,
        default_text="max",
        slow=True,
        in_pages=True,
    ),
    KnobSpec(
        Knob.MEMORY_SWAP_LIMIT,
        2,
        "memory",
        "memory.swap.max",
        formats.parse_bytes,
        formats.format_int_or_max,
        default_text="max",
        slow=True,
        in_pages=True,
    ),
    KnobSpec(
        Knob.MEMORY_MIN,
        2,
        "memory",
        "memory.min",
        formats.parse_bytes,
        formats.format_int_or_max,
        default_text="0",
        in_pages=True,
    ),
    KnobSpec(
        Knob.MEMORY_LOW,
        2,
        "memory",
        "memory.low",
        formats.parse_bytes,
        formats.format_int_or_max,
        default_text="0",
        in_pages=True,
    ),
    KnobSpec(
        Knob.MEMORY_HIGH,
        2,
        "memory",
        "memory.high",
        formats.parse_bytes,
        formats.format_int_or_max,
        default_text="max",
        slow=True,
        in_pages=True,
    ),
    KnobSpec(
        Knob.MEMORY_OOM_GROUP,
        2,
        "memory",
        "memory.oom.group",
        formats.parse_int,
        formats.format_int,
        default_text="0",
    ),
    KnobSpec(
        Knob.IO_WEIGHT,
        2,
        "io",
        "io.weight",
        formats.parse_io_weight,
        formats.format_io_weight,
        default_text="default 100",
    ),
    KnobSpec(
        Knob.IO_MAX, 2, "io", "io.max", formats.parse_lines, formats.format_text, default_text=""
    ),
    KnobSpec(
        Knob.PIDS_MAX,
        2,
        "pids",
        "pids.max",
        formats.parse_int_or_max,
        formats.format_int_or_max,
        default_text="max",
    ),
)

_VENDOR_FILES = (Knob.MEMORY_MIN, Knob.MEMORY_LOW, Knob.MEMORY_HIGH, Knob.MEMORY_OOM_GROUP)


def specs(version: int) -> Mapping[Knob, KnobSpec]:
    """The table of one dialect. v1 takes the memory files of vendor kernels from v2, by name."""
    by_knob = {spec.knob: spec for spec in (V1_KNOBS if version == 1 else V2_KNOBS)}
    if version == 1:
        for spec in V2_KNOBS:
            if spec.knob in _VENDOR_FILES:
                by_knob[spec.knob] = replace(spec, version=1)
    return by_knob
