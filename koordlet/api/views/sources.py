"""Sources of workloads and configuration as data, with their ages."""

from __future__ import annotations

from typing import Literal, TypedDict

from koordlet.api.views.common import ProblemData, Unknown, number, problems_data
from koordlet.report import NodeView, SourceStatus


class SourceData(TypedDict):
    """One source; ``age_s`` is null where it has never answered or has nothing to age."""

    name: str
    state: Literal["ok", "off", "stale", "failed"]
    detail: str
    age_s: float | Unknown | None
    problems: list[ProblemData]


def sources_data(view: NodeView) -> list[SourceData]:
    """All sources, by name."""
    return [source_data(source) for source in sorted(view.sources, key=lambda s: s.name)]


def source_data(source: SourceStatus) -> SourceData:
    """The JSON form of one source."""
    return {
        "name": source.name,
        "state": source.state.value,
        "detail": source.detail,
        "age_s": None if source.age_s is None else number(source.age_s),
        "problems": problems_data(source.problems),
    }
