"""The plan: what is written now, held, restored, struck, and what observe mode would write."""

from __future__ import annotations

from typing import TypedDict

from koordlet.api.views.common import Unknown, unknown
from koordlet.api.views.settings import SettingData, gather, setting_data, state_of, strategies
from koordlet.api.views.strategies import StrategyData, strategy_data
from koordlet.model.actions import Plan
from koordlet.report import CoreStatus, NodeView


class PlanData(TypedDict):
    """Every file that the plan names, with its state, the reason and the numbers behind it.

    ``decided`` is unknown before the first decision. ``dry_run`` is true where nothing is ever
    written; the files then are what would be written now. ``deferred_writes`` counts the files that
    wait for a later tick, since a start writes so many at once.
    """

    decided: bool | Unknown
    dry_run: bool | Unknown
    waiting_for: list[str]
    deferred_writes: int
    released: list[str]
    strategies: list[StrategyData]
    settings: list[SettingData]


def plan_data(view: NodeView) -> PlanData:
    """The plan of the newest tick, and what each file in it is about."""
    core = view.core
    running = isinstance(core, CoreStatus)
    return {
        "decided": True if isinstance(view.plan, Plan) else unknown(view.plan),
        "dry_run": core.dry_run if isinstance(core, CoreStatus) else unknown(core),
        "waiting_for": list(core.waiting_for) if isinstance(core, CoreStatus) else [],
        "deferred_writes": core.deferred_writes if isinstance(core, CoreStatus) else 0,
        "released": list(core.released) if isinstance(core, CoreStatus) else [],
        "strategies": [strategy_data(strategy) for strategy in strategies(view)] if running else [],
        "settings": [
            setting_data(view, key, setting)
            for key, setting in gather(view).items()
            if state_of(setting) != "past"
        ],
    }
