"""Golden plans: every scenario's plans, as prose, are what its plan.txt says.

A scenario is a directory with a ``scenario.py`` that has ``STORY`` and ``ticks()``. After a wanted
change, ``UPDATE_PLANS=1 pytest tests/scenarios`` writes the new plans, to be read before they are
committed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.qosmanager.describe import describe
from tests.scenarios.told import Told

HERE = Path(__file__).parent
NAMES = sorted(path.parent.name for path in HERE.glob("*/scenario.py"))


@pytest.mark.parametrize("name", NAMES)
def test_plan(name: str) -> None:
    scenario = importlib.import_module(f"tests.scenarios.{name}.scenario")
    prose = "\n".join(_render(scenario.STORY, scenario.ticks())) + "\n"
    golden = HERE / name / "plan.txt"
    if os.environ.get("UPDATE_PLANS"):
        golden.write_text(prose)
    assert prose == golden.read_text(), f"see the docstring of {Path(__file__).name}"


def test_there_are_scenarios() -> None:
    assert len(NAMES) >= 8


def _render(story: str, ticks: Iterator[Told]) -> Iterator[str]:
    yield story
    for told in ticks:
        tick = told.tick
        yield ""
        yield f"== {tick.snapshot.now_s - 1000:g} s: {told.caption}"
        would = [action for report in tick.proposals.reports for action in report.would]
        yield from describe(tick.plan, tick.snapshot.values, would)
        for problem in tick.proposals.problems:
            yield f"{problem.severity.value:<8}{problem.code}: {problem}"
