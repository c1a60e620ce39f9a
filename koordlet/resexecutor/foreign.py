"""Somebody else wrote one of our files: was it put back, or is it a new wish (hazard H7)?"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from koordlet.host.knobtable import KnobSpec
from koordlet.model.actions import Target
from koordlet.model.knobs import Direction, Knob
from koordlet.protocol.cpuset import parse_cpuset
from koordlet.resexecutor.journal import Row


class Verdict(Enum):
    """How a file stands to its row."""

    IN_FORCE = "in force"
    OURS = "another value of ours"  # a plan that was cut short
    RESET = "reset"
    REBASED = "rebased"


def judge_text(row: Row, text: str, spec: KnobSpec, online: frozenset[int] | None) -> Verdict:
    """Judge ``text``, the file's canonical text now.

    Back to the original or to the kernel's default is a reset; any other value is what the owner
    wants from now on. A v1 cpuset that lost only CPUs which are no longer ``online`` was changed
    by the kernel, not by an owner (None: not known).
    """
    if text == row.last_written:
        return Verdict.IN_FORCE
    if text in (row.original, spec.default_text, spec.reset_text):
        return Verdict.RESET
    if text in row.may_write:
        return Verdict.OURS
    if row.knob is Knob.CPUSET_CPUS and online and spec.version == 1:
        lost = parse_cpuset(row.last_written) - parse_cpuset(text)
        if parse_cpuset(text) < parse_cpuset(row.last_written) and not lost & online:
            return Verdict.OURS
    return Verdict.REBASED


@dataclass(frozen=True, slots=True)
class FightRules:
    """How often a value is put back before we yield, in seconds (hazard H17).

    A restriction is re-applied once in ``reapply_every_s`` for ever: a second, less the jitter of
    a tick. A relaxation yields for ``yield_for_s`` after ``yield_after`` resets within
    ``window_s``.
    """

    reapply_every_s: float = 0.95
    yield_after: int = 5
    window_s: float = 10.0
    yield_for_s: float = 60.0


@dataclass(slots=True)
class _Fight:
    resets_s: deque[float] = field(default_factory=deque)
    reapplied_s: float = float("-inf")
    yields_until_s: float = float("-inf")


class Fights:
    """Resets by target, and what they allow."""

    def __init__(self, rules: FightRules) -> None:
        self._rules = rules
        self._fights: dict[Target, _Fight] = {}
        self.resets = 0

    def reset(self, key: Target, now_s: float) -> None:
        """Somebody put ``key`` back."""
        self.resets += 1
        fight = self._fights.setdefault(key, _Fight())
        fight.resets_s.append(now_s)
        while fight.resets_s and fight.resets_s[0] <= now_s - self._rules.window_s:
            fight.resets_s.popleft()

    def waits(self, key: Target, direction: Direction, now_s: float) -> str:
        """Why ``key`` may not be written again now; ``""`` where it may."""
        fight = self._fights.get(key)
        if fight is None:
            return ""
        rules = self._rules
        if direction is Direction.RELAX:
            if now_s >= fight.yields_until_s and len(fight.resets_s) >= rules.yield_after:
                fight.yields_until_s = now_s + rules.yield_for_s
                fight.resets_s.clear()
            if now_s < fight.yields_until_s:
                return (
                    f"yields to another writer for {fight.yields_until_s - now_s:.0f} s:"
                    f" put back {rules.yield_after} times within {rules.window_s:.0f} s"
                )
        if now_s < fight.reapplied_s + rules.reapply_every_s:
            return "another writer puts it back; re-applied at most once a second"
        return ""

    def yielded(self, key: Target, now_s: float) -> bool:
        """Whether ``key`` is left to its other writer now."""
        fight = self._fights.get(key)
        return fight is not None and now_s < fight.yields_until_s

    def reapplied(self, key: Target, now_s: float) -> None:
        """``key`` was written after a reset."""
        fight = self._fights.get(key)
        if fight is not None:
            fight.reapplied_s = now_s

    def drop(self, key: Target) -> None:
        """``key`` is no longer ours."""
        self._fights.pop(key, None)
