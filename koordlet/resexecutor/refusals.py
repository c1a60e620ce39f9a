"""When the kernel says no: for good, for now, and because of whom (hazards H4, H18)."""

from __future__ import annotations

import errno
import math
import os
from dataclasses import dataclass

from koordlet.host.cgroup import Cgroups
from koordlet.host.knobtable import KnobSpec, Relation
from koordlet.model.actions import Target
from koordlet.model.knobs import Knob
from koordlet.model.paths import ROOT, CgroupPath
from koordlet.model.readings import Missing
from koordlet.protocol.cpuset import parse_cpuset
from koordlet.resexecutor.ordering import amount
from koordlet.resexecutor.reads import Reads, descendants
from koordlet.units import MIB

PROBE_AGAIN_S = 60.0
RETRY_FIRST_S = 0.95
RETRY_MOST_S = 60.0
MEMORY_MARGIN_BYTES = 64 * MIB
MEMORY_MARGIN_PERCENT = 5
_FOR_GOOD = frozenset({errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL})
_GONE = frozenset({errno.ENODEV, errno.ENOENT})


def is_for_good(spec: KnobSpec, number: int) -> bool:
    """Whether a refusal means that this kernel cannot do it, and not that a relative objects."""
    return number in _FOR_GOOD and number not in spec.relation_errnos


def is_gone(number: int) -> bool:
    """Whether a refusal may mean that the cgroup left."""
    return number in _GONE


class Unsupported:
    """Knobs that a level of the tree cannot do: told once, tried again once a minute (OPS-01)."""

    def __init__(self) -> None:
        self._until_s: dict[tuple[Knob, int], float] = {}
        self._why: dict[tuple[Knob, int], str] = {}

    def mark(self, key: Target, why: str, now_s: float) -> None:
        """The kernel cannot do this knob at this depth."""
        level = (key[1], key[0].depth)
        self._until_s[level] = now_s + PROBE_AGAIN_S
        self._why[level] = why

    def why(self, key: Target, now_s: float) -> str:
        """Why not to try; ``""`` where it is time to: then one target of the level may."""
        level = (key[1], key[0].depth)
        until_s = self._until_s.get(level)
        if until_s is None:
            return ""
        if now_s < until_s:
            return self._why[level]
        self._until_s[level] = now_s + PROBE_AGAIN_S
        return ""

    def works(self, key: Target) -> None:
        """A write of this level went through."""
        level = (key[1], key[0].depth)
        if self._until_s.pop(level, None) is not None:
            del self._why[level]


@dataclass(slots=True)
class _Refusal:
    wanted: str
    errno: int
    why: str
    wait_s: float
    until_s: float


class Refusals:
    """Writes that were refused, so that the same one is not hammered (case V1-07).

    ``patient`` refusals wait twice as long each time, up to a minute; others about a second.
    """

    def __init__(self) -> None:
        self._refusals: dict[Target, _Refusal] = {}

    def note(
        self, key: Target, wanted: str, number: int, why: str, now_s: float, *, patient: bool
    ) -> None:
        """``wanted`` was refused."""
        last = self._refusals.get(key)
        wait_s = RETRY_FIRST_S
        if patient and last is not None and last.wanted == wanted:
            wait_s = min(last.wait_s * 2, RETRY_MOST_S)
        self._refusals = {
            other: each
            for other, each in self._refusals.items()
            if now_s < each.until_s + RETRY_MOST_S
        }
        self._refusals[key] = _Refusal(wanted, number, why, wait_s, now_s + wait_s)

    def now(self, key: Target, wanted: str, now_s: float) -> tuple[int, str] | None:
        """errno and reason of the last refusal, where it is too early to try again."""
        last = self._refusals.get(key)
        if last is None or last.wanted != wanted or now_s >= last.until_s:
            return None
        return last.errno, last.why

    def recent(self, key: Target, now_s: float) -> tuple[int, str] | None:
        """errno and reason of the last refusal, whatever was wanted, while it is not due again."""
        last = self._refusals.get(key)
        return None if last is None or now_s >= last.until_s else (last.errno, last.why)

    def drop(self, key: Target) -> None:
        """The file took a value; its relatives may now take what they refused for its sake."""
        if not self._refusals:
            return
        path, knob = key
        self._refusals = {
            other: each
            for other, each in self._refusals.items()
            if other[1] is not knob
            or not (other[0].is_at_or_below(path) or path.is_below(other[0]))
        }

    def clear(self) -> None:
        """All may be tried again at once."""
        self._refusals.clear()


def explain(cgroups: Cgroups, reads: Reads, key: Target, text: str, number: int) -> str:
    """What the kernel said to ``text``, and which relative made it say so."""
    path = cgroups.path_of(*key)
    what = f"{path}: {text!r}: {os.strerror(number)}"
    spec = cgroups.spec(key[1])
    relative = "" if spec is None else _relative(cgroups, reads, key, text, spec)
    return f"{what}; {relative}" if relative else what


def _relative(cgroups: Cgroups, reads: Reads, key: Target, text: str, spec: KnobSpec) -> str:
    if key[1] is Knob.CPU_QUOTA:
        return blocking_burst(reads, key[0], text) or blocking_quota(cgroups, reads, key[0], text)
    if Relation.WITHIN_PARENT in spec.relations:
        return blocking_cpuset(cgroups, reads, key, text)
    if Relation.IDLE in spec.relations and reads.text((key[0], Knob.CPU_IDLE)) == "1":
        return "cpu.idle is 1 here"
    if Relation.USAGE in spec.relations:
        memory = cgroups.memory(key[0])
        return "" if isinstance(memory, Missing) else f"usage is {memory.usage_bytes} bytes"
    return ""


def blocking_burst(reads: Reads, cg: CgroupPath, text: str) -> str:
    """Names the burst of ``cg`` where it is above the quota ``text``."""
    burst = reads.text((cg, Knob.CPU_BURST))
    if isinstance(burst, Missing) or amount(burst) <= amount(text):
        return ""
    return f"its burst is {burst} us"


def blocking_quota(cgroups: Cgroups, reads: Reads, cg: CgroupPath, text: str) -> str:
    """Names the relative whose quota forbids ``text`` in ``cg``, by quota/period (CQ-08)."""
    wanted = _share(reads, cg, text)
    highest: tuple[float, CgroupPath, str] | None = None
    for child in sorted(descendants(cgroups, cg, Knob.CPU_QUOTA)):
        quota = reads.text((child, Knob.CPU_QUOTA))
        share = _share(reads, child, quota) if isinstance(quota, str) else math.inf
        if math.inf > share > (highest[0] if highest else wanted):
            highest = (share, child, str(quota))
    if highest is not None:
        share, child, quota = highest
        return f"child {child} has a quota of {quota} us, {share:.2f} cores"
    above = cg
    while above != ROOT:
        above = above.parent
        quota = reads.text((above, Knob.CPU_QUOTA))
        if isinstance(quota, str) and _share(reads, above, quota) < wanted:
            share = _share(reads, above, quota)
            return f"parent {above or '/'} has a quota of {quota} us, {share:.2f} cores"
    return ""


def _share(reads: Reads, cg: CgroupPath, quota: str) -> float:
    period = reads.text((cg, Knob.CPU_PERIOD))
    return amount(quota) / (amount(period) if isinstance(period, str) and period else 1e5)


def blocking_cpuset(cgroups: Cgroups, reads: Reads, key: Target, text: str) -> str:
    """Names the deepest directory below that is not within ``text``, or the parent that does not
    hold all of it (hazard H18).
    """
    cg, knob = key
    wanted = parse_cpuset(text)
    strays = [
        child
        for child in descendants(cgroups, cg, knob)
        if not _cpus(reads, (child, knob)) <= wanted
    ]
    if strays:
        deepest = max(strays, key=lambda path: (path.depth, path))
        return f"{deepest} holds {reads.text((deepest, knob))}"
    parent = (cg.parent, knob)
    if cg != ROOT and wanted - _cpus(reads, parent):
        return f"parent {cg.parent or '/'} holds {reads.text(parent)}"
    return ""


def _cpus(reads: Reads, key: Target) -> frozenset[int]:
    text = reads.text(key)
    return frozenset() if isinstance(text, Missing) else parse_cpuset(text)


def memory_floor(cgroups: Cgroups, key: Target, before: str, wanted: str) -> str:
    """Why a limit may not go down to ``wanted`` now; ``""`` where it may (hazard H3).

    v2 kills at once where a hard limit falls below the usage, so usage + max(64 MiB, 5 %) is the
    least that is ever set; v1's memory+swap limit counts as a memory limit.
    """
    if key[1] not in (Knob.MEMORY_LIMIT, Knob.MEMORY_SWAP_LIMIT):
        return ""
    if amount(wanted) >= amount(before):
        return ""
    memory = cgroups.memory(key[0])
    if isinstance(memory, Missing):
        return f"memory in use is not known ({memory.why}); the limit is not lowered"
    usage = memory.usage_bytes
    floor = usage + max(MEMORY_MARGIN_BYTES, usage * MEMORY_MARGIN_PERCENT // 100)
    if amount(wanted) >= floor:
        return ""
    return f"usage is {usage} bytes: not lowered below {floor}, which would kill"
