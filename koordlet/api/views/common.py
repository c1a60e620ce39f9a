"""Pieces that every answer is made of: the envelope, unknown values, problems, terms, times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict

from koordlet.model.actions import Terms
from koordlet.model.knobs import Knob, Value
from koordlet.model.readings import Missing
from koordlet.protocol.cpuset import format_cpuset
from koordlet.protocol.problem import Problem

SCHEMA_VERSION = "v1"


class Unknown(TypedDict):
    """A value that is not known, and why. Never stands for zero."""

    missing: str


class ProblemData(TypedDict):
    """One fault: a stable code, and what, where, which limit and which remedy as sentences."""

    code: str
    severity: Literal["error", "warning", "info"]
    where: str
    what: str
    limit: str
    remedy: str


class Term(TypedDict):
    """One number of a calculation, its unit in its name."""

    name: str
    value: float | int | str


class Envelope(TypedDict):
    """What every command prints with ``-o json`` and every endpoint answers."""

    schema: str
    node: str
    taken_at: str
    data: Any
    problems: list[ProblemData]


Unit = Literal["", "us", "bytes", "cpus", "shares", "switch", "weight", "count"]

_UNITS: Mapping[Knob, Unit] = {
    Knob.CPU_SHARES: "shares",
    Knob.CPU_QUOTA: "us",
    Knob.CPU_PERIOD: "us",
    Knob.CPU_BURST: "us",
    Knob.CPU_IDLE: "switch",
    Knob.CPUSET_CPUS: "cpus",
    Knob.CPUSET_CPUS_EFFECTIVE: "cpus",
    Knob.MEMORY_LIMIT: "bytes",
    Knob.MEMORY_SWAP_LIMIT: "bytes",
    Knob.MEMORY_MIN: "bytes",
    Knob.MEMORY_LOW: "bytes",
    Knob.MEMORY_HIGH: "bytes",
    Knob.MEMORY_OOM_GROUP: "switch",
    Knob.IO_WEIGHT: "weight",
    Knob.PIDS_MAX: "count",
}


def envelope(
    command: str,
    data: Any,
    *,
    node: str,
    taken_wall_s: float,
    problems: Iterable[Problem] = (),
) -> Envelope:
    """The one object around every answer; ``command`` names its schema."""
    return {
        "schema": f"koordletctl.{command}/{SCHEMA_VERSION}",
        "node": node,
        "taken_at": iso_time(taken_wall_s),
        "data": data,
        "problems": [problem_data(problem) for problem in problems],
    }


def unknown(missing: Missing | str) -> Unknown:
    """``{"missing": why}``; an empty reason would say nothing, so it becomes a sentence."""
    why = missing.why if isinstance(missing, Missing) else missing
    return {"missing": why or "not known"}


def number(value: float | Missing) -> float | Unknown:
    """A finite number, or why there is none: JSON has no NaN and no infinity."""
    if isinstance(value, Missing):
        return unknown(value)
    return value if math.isfinite(value) else unknown("not a finite number")


def iso_time(wall_s: float) -> str:
    """Seconds since the epoch as RFC 3339 in UTC, with milliseconds."""
    text = datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def problem_data(problem: Problem) -> ProblemData:
    """The JSON form of a problem."""
    return {
        "code": problem.code,
        "severity": problem.severity.value,
        "where": problem.where,
        "what": problem.what,
        "limit": problem.limit,
        "remedy": problem.remedy,
    }


def problems_data(problems: Iterable[Problem]) -> list[ProblemData]:
    """The JSON form of several problems, in their order."""
    return [problem_data(problem) for problem in problems]


def terms_data(terms: Terms) -> list[Term]:
    """The numbers behind a value, in the order of the calculation."""
    return [{"name": name, "value": _term_value(value)} for name, value in terms]


def _term_value(value: float | int | str) -> float | int | str:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def unit_of(knob: Knob) -> Unit:
    """The unit of a knob's value; ``""`` where the value is a text of the kernel's own form."""
    return _UNITS.get(knob, "")


def value_data(value: Value) -> int | str | None:
    """A knob's value: unlimited is null, a cpuset its list form (``0-2,5``)."""
    return format_cpuset(value) if isinstance(value, frozenset) else value
