"""Taking a node over: originals that are known better than by what a file says (hazard H14)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from koordlet.model.actions import Target
from koordlet.model.knobs import Channel, Knob
from koordlet.model.paths import CgroupPath

ADOPTED = "adopted"
"""Owner of a value that nobody but its former writer asks for: it is given back."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """One file whose original is ``original``, whatever was ``found`` there when it was listed.

    Texts are canonical. ``source`` says where the original comes from. ``inode`` is that of the
    cgroup's directory. ``side_effect`` is a weight that hides behind a ``cpu.idle`` (hazard H2).
    """

    target: CgroupPath
    knob: Knob
    found: str
    original: str
    source: str
    inode: int
    channel: Channel = Channel.FILE
    container_id: str = ""
    side_effect: bool = False

    @property
    def key(self) -> Target:
        return (self.target, self.knob)


class AdoptStatus(Enum):
    """What came of one adoption."""

    ADOPTED = "adopted"
    ALREADY = "already"  # its original was the same before
    CHANGED = "changed"  # another value than the one that was listed; nothing was done
    GONE = "gone"  # the cgroup left
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Adopted:
    """The result of one adoption, and why where nothing was done."""

    target: CgroupPath
    knob: Knob
    status: AdoptStatus
    why: str = ""

    @property
    def key(self) -> Target:
        return (self.target, self.knob)


@dataclass(frozen=True, slots=True)
class RuntimeSpec:
    """The resources in a container's OCI spec as its runtime keeps it now, updates included.

    None is what the spec leaves unset; ``quota_us`` is None for unlimited, too. ``unified`` are
    cgroup v2 files by name.
    """

    shares: int | None = None
    quota_us: int | None = None
    cpus: str = ""
    mems: str = ""
    burst_us: int | None = None
    idle: int | None = None
    memory_bytes: int | None = None
    limits_io: bool = False
    unified: Mapping[str, str] = field(default_factory=dict)
