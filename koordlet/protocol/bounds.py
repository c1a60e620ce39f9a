"""Ranges of numbers, written beside the fields that they bind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and greatest number allowed, both included; None is no greatest one.

    Pydantic finds it as ``Annotated[int, Bounds(0, 100)]``, so that the types which the tick
    uses need not import pydantic.
    """

    low: int
    high: int | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        ranged = {**handler(source), "ge": self.low}
        return ranged if self.high is None else {**ranged, "le": self.high}


Percent = Annotated[int, Bounds(0, 100)]
