"""Modes of strategies and releases in force, as data."""

from __future__ import annotations

from typing import TypedDict

from koordlet.api.views.settings import strategies
from koordlet.api.views.strategies import StrategyData, strategy_data
from koordlet.report import CoreStatus, NodeView


class ModesData(TypedDict):
    """What strategies may do, and what was released: restored, and only observed since.

    ``changed`` says what the command that answers with this changed, "" for none.
    """

    changed: str
    strategies: list[StrategyData]
    released: list[str]


def modes_data(view: NodeView, *, changed: str = "") -> ModesData:
    """Modes and releases as the core last reported them."""
    return {
        "changed": changed,
        "strategies": [strategy_data(strategy) for strategy in strategies(view)],
        "released": list(view.core.released) if isinstance(view.core, CoreStatus) else [],
    }
