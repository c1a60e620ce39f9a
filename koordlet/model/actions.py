"""What a strategy may ask for, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from koordlet.model.knobs import Channel, Direction, Knob, Value
from koordlet.model.paths import CgroupPath
from koordlet.protocol.problem import Problem

Terms = tuple[tuple[str, float | int | str], ...]
"""The numbers behind a value, by name with the unit in it, in the order of the calculation."""

Target = tuple[CgroupPath, Knob]
"""One kernel file, by meaning."""


def target_order(target: Target) -> tuple[str, str]:
    """Sort key of targets: parents before children, then by knob."""
    return (target[0], target[1].value)


@dataclass(frozen=True, slots=True)
class SetValue:
    """Keep ``knob`` of ``target`` at ``value``; restored when its owner no longer asks for it."""

    target: CgroupPath
    knob: Knob
    value: Value
    owner: str
    reason: str
    terms: Terms = ()
    channel: Channel = Channel.FILE
    container_id: str = ""  # for Channel.SPEC
    direction: Direction = Direction.RESTRICT

    @property
    def key(self) -> Target:
        return (self.target, self.knob)


@dataclass(frozen=True, slots=True)
class Hold:
    """Leave ``target`` as it is, whoever wrote it, and why; ``age_s``: held for so long."""

    target: CgroupPath
    knob: Knob
    owner: str
    why: str
    age_s: float = 0.0

    @property
    def key(self) -> Target:
        return (self.target, self.knob)


@dataclass(frozen=True, slots=True)
class Decision:
    """All that one strategy wants now. ``hold_all`` holds all that it owns in the journal."""

    actions: tuple[SetValue, ...] = ()
    holds: tuple[Hold, ...] = ()
    hold_all: str = ""
    notes: tuple[Problem, ...] = ()
    terms: Terms = ()  # node-wide numbers, shown by status and explain


@dataclass(frozen=True, slots=True)
class Owned:
    """One journaled value that we hold: what was there before, what we wrote, and since when."""

    target: CgroupPath
    knob: Knob
    owner: str
    channel: Channel
    original: str  # as the file read, stripped
    last_written: str  # canonical text
    since_s: float  # monotonic seconds of this process; negative after a takeover
    container_id: str = ""
    side_effect: bool = False  # journaled only because another knob's write changes it
    source: str = ""  # where the original comes from; "" is the file, before our first write

    @property
    def key(self) -> Target:
        return (self.target, self.knob)


@dataclass(frozen=True, slots=True)
class Restore:
    """Give ``target`` back its original; ``why`` says who stopped asking for it."""

    target: CgroupPath
    knob: Knob
    owner: str
    why: str
    channel: Channel = Channel.FILE
    container_id: str = ""

    @property
    def key(self) -> Target:
        return (self.target, self.knob)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two owners wanted one file; what won, what lost, by which rule."""

    winner: SetValue
    loser: SetValue
    rule: str


@dataclass(frozen=True, slots=True)
class Struck:
    """An action that the guard removed, and the hard limit it crossed."""

    action: SetValue
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The one agreed set for this tick: at most one entry for each target."""

    writes: tuple[SetValue, ...] = ()
    restores: tuple[Restore, ...] = ()
    holds: tuple[Hold, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    struck: tuple[Struck, ...] = ()


class Status(Enum):
    """What came of one write."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    RESTORED = "restored"
    GONE = "gone"  # the cgroup left
    REFUSED = "refused"  # the kernel said no; errno says why
    UNSUPPORTED = "unsupported"  # no such file here, or a backend that does not exist yet
    PENDING = "pending"  # handed to the effects thread or to the runtime
    FOREIGN = "foreign"  # holds a value that is not ours; left alone
    DRY_RUN = "dry-run"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one planned write or restore; before/after are file texts, stripped."""

    target: CgroupPath
    knob: Knob
    owner: str
    status: Status
    before: str = ""
    after: str = ""
    errno: int = 0
    why: str = ""
    reason: str = ""
    terms: Terms = field(default=())

    @property
    def key(self) -> Target:
        return (self.target, self.knob)


class Mode(Enum):
    """What a strategy may do: nothing (and restore), decide without writing, or write."""

    OFF = "off"
    OBSERVE = "observe"
    ENFORCE = "enforce"
