"""In which order a set of writes reaches the kernel, intermediate values included.

The kernel checks each write alone, so a valid end is reached only over valid steps. Every prefix
of an ordering is valid too: a caller may stop anywhere and order the rest again later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from koordlet.model.actions import Target
from koordlet.model.knobs import Direction, Knob
from koordlet.model.paths import CgroupPath
from koordlet.protocol.cpuset import format_cpuset, parse_cpuset

_ORDERED = frozenset(
    {
        Knob.CPU_SHARES,
        Knob.CPU_IDLE,
        Knob.CPU_QUOTA,
        Knob.CPU_BURST,
        Knob.CPUSET_CPUS,
        Knob.CPUSET_MEMS,
        Knob.MEMORY_LIMIT,
        Knob.MEMORY_SWAP_LIMIT,
    }
)


@dataclass(frozen=True, slots=True)
class Change:
    """Bring one file to ``text``, canonical as the kernel shows it."""

    target: CgroupPath
    knob: Knob
    text: str
    direction: Direction = Direction.RESTRICT

    @property
    def key(self) -> Target:
        return (self.target, self.knob)


@dataclass(frozen=True, slots=True)
class Step:
    """One write(2). ``final`` is False for an intermediate value."""

    target: CgroupPath
    knob: Knob
    text: str
    final: bool = True

    @property
    def key(self) -> Target:
        return (self.target, self.knob)


def order(
    changes: Sequence[Change], current: Mapping[Target, str], versions: Mapping[Knob, int]
) -> tuple[Step, ...]:
    """Steps that the kernel accepts one by one, if both ``current`` and the end are valid.

    ``current`` gives the canonical text of every changed file; ``versions`` the cgroup version
    (1 or 2) by knob. Of settings that are free to order, restrictions go before relaxations and
    tiers before pods (hazard H14). A file that is at its text already gets no step, except a
    weight below an idle that is lifted: that write resets it (hazard H2).
    """
    by_knob: dict[Knob, list[Change]] = {}
    for change in changes:
        by_knob.setdefault(change.knob, []).append(change)
    steps: list[Step] = []
    steps += _weights(by_knob, current, Direction.RESTRICT)
    steps += _quotas(by_knob, current, versions.get(Knob.CPU_QUOTA, 1))
    for knob in (Knob.CPUSET_MEMS, Knob.CPUSET_CPUS):
        steps += _cpusets(by_knob.get(knob, []), current, versions.get(knob, 1))
    steps += _memory(by_knob, current)
    for knob in Knob:
        if knob not in _ORDERED:
            steps += _free(by_knob.get(knob, []), current)
    steps += _weights(by_knob, current, Direction.RELAX)
    return (*steps, *_idles(by_knob, current))


def amount(text: str) -> float:
    """A limit as a number; every spelling of "no limit" is infinite (case V2-03)."""
    stripped = text.strip()
    if stripped.startswith(("max", "-")):
        return math.inf
    return float(int(stripped.split()[0])) if stripped else 0.0


def _free(changes: Iterable[Change], current: Mapping[Target, str]) -> list[Step]:
    ranked = sorted(
        (change for change in changes if current.get(change.key) != change.text),
        key=lambda change: (change.direction is Direction.RELAX, *_top_down(change)),
    )
    return [_step(change) for change in ranked]


def _weights(
    by_knob: Mapping[Knob, list[Change]], current: Mapping[Target, str], direction: Direction
) -> list[Step]:
    """cpu.idle 1 -> 0, then shares or weight; ``_idles`` come last. Weight is the first rung of
    protection (H30), so what restricts goes before all else, and what relaxes after it.

    While idle is 1 the kernel refuses a weight, and idle going to 0 resets it (hazard H2).
    """
    weights = by_knob.get(Knob.CPU_SHARES, [])
    restricted = {change.target for change in weights if change.direction is Direction.RESTRICT}
    is_first = direction is Direction.RESTRICT
    lifted = [
        change
        for change in by_knob.get(Knob.CPU_IDLE, [])
        if change.text == "0" and (change.target in restricted) is is_first
    ]
    after_lift = {change.target for change in lifted if current.get(change.key) != "0"}
    kept = {key: text for key, text in current.items() if key[0] not in after_lift}
    own = (change for change in weights if change.direction is direction)
    return [*_free(lifted, current), *_free(own, kept)]


def _idles(by_knob: Mapping[Knob, list[Change]], current: Mapping[Target, str]) -> list[Step]:
    """cpu.idle 0 -> 1: one for each pod, so what protects by a single write goes before."""
    idles = by_knob.get(Knob.CPU_IDLE, [])
    return _free((change for change in idles if change.text != "0"), current)


def _quotas(
    by_knob: Mapping[Knob, list[Change]], current: Mapping[Target, str], version: int
) -> list[Step]:
    """Bursts down, quotas up from the top, quotas down from the bottom, bursts up.

    v1 keeps a quota within that of its nearest limited ancestor (case CQ-06), both dialects keep
    a burst within its quota (case CQ-05). v2 lets restrictions go first, the tier's before all.
    """
    bursts = by_knob.get(Knob.CPU_BURST, [])
    quotas = by_knob.get(Knob.CPU_QUOTA, [])
    up = _in_order(quotas, current, rising=True, rank=_top_down)
    down = _in_order(quotas, current, rising=False, rank=_bottom_up if version == 1 else _top_down)
    return [
        *_in_order(bursts, current, rising=False, rank=_top_down),
        *((*up, *down) if version == 1 else (*down, *up)),
        *_in_order(bursts, current, rising=True, rank=_top_down),
    ]


def _memory(by_knob: Mapping[Knob, list[Change]], current: Mapping[Target, str]) -> list[Step]:
    """v1 keeps memory+swap at or above memory: up first for the one, last for the other."""
    both = by_knob.get(Knob.MEMORY_SWAP_LIMIT, [])
    limits = by_knob.get(Knob.MEMORY_LIMIT, [])
    return [
        *_in_order(both, current, rising=True, rank=_top_down),
        *_in_order(limits, current, rising=True, rank=_top_down),
        *_in_order(limits, current, rising=False, rank=_bottom_up),
        *_in_order(both, current, rising=False, rank=_bottom_up),
    ]


def _in_order(
    changes: Iterable[Change],
    current: Mapping[Target, str],
    *,
    rising: bool,
    rank: Callable[[Change], tuple[int, str]],
) -> list[Step]:
    moved = [
        change
        for change in changes
        if amount(change.text) != amount(current[change.key])
        and (amount(change.text) > amount(current[change.key])) is rising
    ]
    return [_step(change) for change in sorted(moved, key=rank)]


def _cpusets(changes: Sequence[Change], current: Mapping[Target, str], version: int) -> list[Step]:
    """v1: from the top to the union of old and new, then from the bottom to the exact set.

    A v1 cpuset lies within its parent's and around every child's at all times. v2 takes any.
    """
    if version != 1:
        return _free(changes, current)
    now = {change.key: parse_cpuset(current[change.key]) for change in changes}
    wanted = {change.key: parse_cpuset(change.text) for change in changes}
    steps: list[Step] = []
    for change in sorted(changes, key=_top_down):
        union = now[change.key] | wanted[change.key]
        if union != now[change.key]:
            final = union == wanted[change.key]
            steps.append(Step(change.target, change.knob, format_cpuset(union), final))
    for change in sorted(changes, key=_bottom_up):
        if now[change.key] - wanted[change.key]:
            steps.append(_step(change))
    return steps


def _step(change: Change) -> Step:
    return Step(change.target, change.knob, change.text)


def _top_down(change: Change) -> tuple[int, str]:
    return (change.target.depth, change.target)


def _bottom_up(change: Change) -> tuple[int, str]:
    return (-change.target.depth, change.target)
