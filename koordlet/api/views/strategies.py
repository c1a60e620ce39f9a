"""Strategies as data: mode, holds with their age, the numbers behind their decisions."""

from __future__ import annotations

from typing import TypedDict

from koordlet.api.views.common import (
    ProblemData,
    Term,
    Unknown,
    iso_time,
    number,
    problems_data,
    terms_data,
)
from koordlet.report import StrategyStatus


class StrategyData(TypedDict):
    """One strategy now. ``enabled`` is what the NodeSLO says, ``mode`` what the operator says.

    ``mode_until`` is null where the mode has no end; ``hold_why`` is "" while nothing is held.
    ``terms`` are node-wide numbers in the order of the calculation. ``would`` counts the files
    that observe mode leaves alone and enforce mode would write.
    """

    name: str
    mode: str
    mode_until: str | None
    enabled: bool
    owned_files: int
    hold_why: str
    hold_age_s: float | Unknown | None
    terms: list[Term]
    notes: list[ProblemData]
    would: int


def strategy_data(strategy: StrategyStatus) -> StrategyData:
    """The JSON form of one strategy."""
    until = strategy.mode_until_wall_s
    return {
        "name": strategy.name,
        "mode": strategy.mode.value,
        "mode_until": None if until is None else iso_time(until),
        "enabled": strategy.enabled,
        "owned_files": strategy.owned,
        "hold_why": strategy.hold_why,
        "hold_age_s": number(strategy.hold_age_s) if strategy.hold_why else None,
        "terms": terms_data(strategy.terms),
        "notes": problems_data(strategy.notes),
        "would": len(strategy.would),
    }
