"""The latest answer of a source that may stall, with its age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Aged(Generic[T]):
    """An answer, how old it is in seconds, and what failed since (None: nothing did)."""

    value: T
    age_s: float
    problem: Problem | None = None


class Slot(Generic[T]):
    """One writing thread publishes, any number of threads read; neither ever waits.

    The whole state is one tuple that is replaced at once, so no lock is needed.
    """

    def __init__(self) -> None:
        self._held: tuple[T, float] | None = None
        self._problem: Problem | None = None

    def publish(self, value: T, now_s: float) -> None:
        """A good answer of monotonic time ``now_s``; clears the last failure."""
        self._held, self._problem = (value, now_s), None

    def fail(self, problem: Problem) -> None:
        """The source did not answer: the last good answer stays and grows older."""
        self._problem = problem

    def latest(self, now_s: float) -> Aged[T] | Missing:
        """The last good answer; Missing, with the failure as the reason, before the first one."""
        held, problem = self._held, self._problem
        if held is None:
            return Missing(str(problem) if problem else "the source has not answered yet")
        value, taken_s = held
        return Aged(value, max(0.0, now_s - taken_s), problem)
