"""The NodeSLO in force, as a document, with what was said about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict

from koordlet.api.views.common import ProblemData, Unknown, iso_time, problems_data, unknown
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import DEFAULT_NODESLO, NodeSlo
from koordlet.protocol.nodeslo_schema import LoadedSlo, to_document
from koordlet.protocol.problem import Problem
from koordlet.report import NodeView


class SloData(TypedDict):
    """The NodeSLO in force. ``document`` has Koordinator's names, every default filled in;
    ``changed`` lists the paths in it that differ from the defaults. ``refused`` are the faults of
    a newer text that was not put in force.
    """

    where: str | Unknown
    version: int | Unknown
    loaded_at: str | Unknown
    document: dict[str, Any] | Unknown
    changed: list[str]
    warnings: list[ProblemData]
    refused: list[ProblemData]


class SloCheckData(TypedDict):
    """What became of a checked file: put in force it would be ``document``."""

    where: str
    verdict: str
    document: dict[str, Any] | None
    changed: list[str]
    warnings: list[ProblemData]
    refused: list[ProblemData]


class SloDefaultsData(TypedDict):
    """The built-in NodeSLO: everything off."""

    document: dict[str, Any]


def slo_data(view: NodeView) -> SloData:
    """The NodeSLO in force and where it came from."""
    status = view.slo
    if isinstance(status, Missing):
        why = unknown(status)
        return {
            "where": why,
            "version": why,
            "loaded_at": why,
            "document": why,
            "changed": [],
            "warnings": [],
            "refused": [],
        }
    return {
        "where": status.where,
        "version": status.version,
        "loaded_at": iso_time(status.loaded_wall_s),
        "document": to_document(status.slo),
        "changed": changed_paths(status.slo),
        "warnings": problems_data(status.problems),
        "refused": problems_data(status.refused),
    }


def slo_check_data(where: str, loaded: LoadedSlo | tuple[Problem, ...]) -> SloCheckData:
    """The verdict on a file: what was loaded from it, or the faults it was refused for."""
    if isinstance(loaded, tuple):
        return {
            "where": where,
            "verdict": "refused",
            "document": None,
            "changed": [],
            "warnings": [],
            "refused": problems_data(loaded),
        }
    return {
        "where": where,
        "verdict": "warnings" if loaded.problems else "clean",
        "document": to_document(loaded.slo),
        "changed": changed_paths(loaded.slo),
        "warnings": problems_data(loaded.problems),
        "refused": [],
    }


def slo_defaults_data() -> SloDefaultsData:
    """The NodeSLO that is in force where no file says otherwise."""
    return {"document": to_document(DEFAULT_NODESLO)}


def changed_paths(slo: NodeSlo) -> list[str]:
    """Dotted paths of the document whose values differ from the defaults, in document order."""
    return list(_changed(to_document(DEFAULT_NODESLO), to_document(slo), ""))


def _changed(default: Any, value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict) and isinstance(default, dict):
        for key in dict.fromkeys((*value, *default)):
            yield from _changed(default.get(key), value.get(key), f"{path}.{key}" if path else key)
    elif value != default:
        yield path
