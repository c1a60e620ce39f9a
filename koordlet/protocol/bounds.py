"""Ranges of numbers, written beside the fields that they bind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and greatest number allowed, both included; by default what an int64 holds.

    Pydantic finds it as ``Annotated[int, Bounds(0, 100)]``, so that the types which the tick
    uses need not import pydantic.
    """

    low: int
    high: int = INT64_MAX

    def __str__(self) -> str:
        if self.high == INT64_MAX:
            return f"a whole number from {self.low} up"
        return f"a whole number from {self.low} to {self.high}"

    def __get_pydantic_core_schema__(
        self, source: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        return {**handler(source), "ge": self.low, "le": self.high}


Percent = Annotated[int, Bounds(0, 100)]
