"""A fault told to a person: what is wrong, where, which limit it crossed, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How much a problem matters to whoever reads it."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault: ``code`` is stable and greppable, the other fields are sentences."""

    code: str
    where: str
    what: str
    limit: str = ""
    remedy: str = ""
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.what}"]
        if self.limit:
            parts.append(f"limit: {self.limit}")
        if self.remedy:
            parts.append(f"remedy: {self.remedy}")
        return "; ".join(parts)


class RefusedError(Exception):
    """Input that cannot be put in force; carries every problem found, not only the first."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems
