"""NodeSLO documents: read with every fault told, merged over the defaults, and written again.

A document is a bare spec or a whole NodeSLO object, YAML or JSON. An unknown field is a warning
and stays out; a wrong type, a number out of range or two values that contradict each other refuse
the whole document. ``extensions.koordlet`` is ours and strict; other extensions are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from koordlet.protocol.bounds import Bounds
from koordlet.protocol.document import nearest, parse_document
from koordlet.protocol.names import NODESLO_API_VERSION, NODESLO_KIND
from koordlet.protocol.nodeslo import HostApplicationSpec, KoordletExtensions, NodeSlo
from koordlet.protocol.nodeslo_check import contradictions
from koordlet.protocol.nodeslo_qos import (
    CLASS_DEFAULTS,
    BlockConfig,
    ClassQos,
    ResourceQosStrategy,
)
from koordlet.protocol.problem import Problem, RefusedError, Severity

MAX_PROBLEMS = 100
"""A document with more than these is something else; reading it on would only cost time."""

_EXTENSIONS = "extensions.koordlet"
_JSON_NAMES: dict[tuple[type, str], str] = {
    (NodeSlo, "threshold"): "resourceUsedThresholdWithBE",
    (NodeSlo, "qos"): "resourceQOSStrategy",
    (NodeSlo, "cpu_burst"): "cpuBurstStrategy",
    (NodeSlo, "system"): "systemStrategy",
    (NodeSlo, "extensions"): _EXTENSIONS,
    (ResourceQosStrategy, "lsr"): "lsrClass",
    (ResourceQosStrategy, "ls"): "lsClass",
    (ResourceQosStrategy, "be"): "beClass",
    (ResourceQosStrategy, "system"): "systemClass",
    (BlockConfig, "kind"): "type",
    (HostApplicationSpec, "priority_class"): "priority",
}
"""Where Koordinator's name is not the camelCase of ours."""
_UPPER_WORDS = frozenset({"be", "qos", "iops", "bps"})
_ENVELOPE = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})
_EMPTY_IN_KOORDINATOR = (HostApplicationSpec, "strategy")
_PAIRS = tuple[tuple[str, bool], ...]
_BASE = NodeSlo(qos=CLASS_DEFAULTS)
"""What a document is laid over: a block that it enables starts from its class's settings."""


@dataclass(frozen=True, slots=True)
class LoadedSlo:
    """A NodeSLO in force, and the warnings that came with it."""

    slo: NodeSlo
    problems: tuple[Problem, ...] = ()


def load_nodeslo(text: str, where: str) -> LoadedSlo:
    """The NodeSLO in ``text`` (a file or what a person pipes in; ``where`` names it in problems).

    Raises RefusedError with all problems found.
    """
    reader = _Reader(where)
    given = reader.fields_of(NodeSlo, _spec(parse_document(text, where), reader), "spec")
    merged = _overlay(asdict(_BASE), given)
    try:
        slo = _adapter().validate_json(json.dumps(merged, default=_plain), strict=True)
    except ValidationError as fault:
        reader.problems += _problems_of(fault, where)
        raise RefusedError(tuple(reader.problems)) from None
    reader.problems += contradictions(slo, where)
    if any(problem.severity is Severity.ERROR for problem in reader.problems):
        raise RefusedError(tuple(reader.problems))
    return LoadedSlo(_without_disabled(slo), tuple(reader.problems))


def to_document(slo: NodeSlo) -> dict[str, Any]:
    """The bare spec of ``slo`` in Koordinator's names; what is not set is left out.

    load_nodeslo reads it back as the same value.
    """
    document: dict[str, Any] = _document(slo)
    document["extensions"] = {"koordlet": document.pop(_EXTENSIONS)}
    return document


@cache
def _adapter() -> TypeAdapter[NodeSlo]:
    return TypeAdapter(NodeSlo)


@cache
def _json_names(cls: type) -> dict[str, str]:
    """Koordinator's name of each field of ``cls``, with ours."""
    names = [field.name for field in fields(cls)]
    return {_JSON_NAMES.get((cls, name)) or _camel(name): name for name in names}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(
        word.upper() if word in _UPPER_WORDS else word.capitalize() for word in others
    )


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _dataclass_in(hint: Any) -> type | None:
    """The dataclass that ``hint`` is, may be, or is a tuple of."""
    for candidate in (hint, *get_args(hint)):
        if isinstance(candidate, type) and is_dataclass(candidate):
            return candidate
    return None


def _spec(document: dict[Any, Any], reader: _Reader) -> Any:
    """The spec of a whole object or the bare one, our extensions lifted to the top."""
    spec: Any = document
    if _ENVELOPE.intersection(document):
        reader.check_envelope(document)
        spec = document.get("spec")
    if not isinstance(spec, Mapping):
        return {} if spec is None else spec
    extensions = spec.get("extensions")
    if isinstance(extensions, Mapping):
        extensions = extensions.get("koordlet")
    rest = {key: value for key, value in spec.items() if key != "extensions"}
    return {**rest, _EXTENSIONS: extensions}


class _Reader:
    """Turns Koordinator's names into ours and notes those that nobody knows."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.problems: list[Problem] = []

    def check_envelope(self, document: dict[Any, Any]) -> None:
        """Note a kind or version that is not NodeSLO's, and fields that belong into the spec."""
        kind = document.get("kind", NODESLO_KIND)
        if kind != NODESLO_KIND:
            self._note("slo-wrong-kind", "kind", f"kind is {kind!r}", NODESLO_KIND, Severity.ERROR)
        version = document.get("apiVersion", NODESLO_API_VERSION)
        if version != NODESLO_API_VERSION:
            self._note(
                "slo-api-version", "apiVersion", f"version is {version!r}", NODESLO_API_VERSION
            )
        for key in document:
            if key in _json_names(NodeSlo) or key == "extensions":
                self._note("slo-unknown-field", key, "stands beside spec", "inside spec")
            elif key not in _ENVELOPE:
                self._unknown(key, str(key), _ENVELOPE, Severity.WARNING)

    def fields_of(self, cls: type, raw: Any, path: str) -> Any:
        """``raw`` with our field names, as far as it is a mapping; null is "not set"."""
        if not isinstance(raw, Mapping):
            return raw
        names, hints = _json_names(cls), _hints(cls)
        strictness = Severity.ERROR if cls is KoordletExtensions else Severity.WARNING
        found: dict[str, Any] = {}
        for key, value in raw.items():
            if key not in names:
                if (cls, key) != _EMPTY_IN_KOORDINATOR:
                    self._unknown(key, f"{path}.{key}", names, strictness)
            elif value is not None:
                found[names[key]] = self._value(hints[names[key]], value, f"{path}.{key}")
        return found

    def _value(self, hint: Any, value: Any, path: str) -> Any:
        if hint == _PAIRS and isinstance(value, Mapping):
            return sorted(value.items(), key=lambda pair: str(pair[0]))
        cls = _dataclass_in(hint)
        if cls is None:
            return value
        if isinstance(value, list):
            return [self.fields_of(cls, item, f"{path}[{at}]") for at, item in enumerate(value)]
        return self.fields_of(cls, value, path)

    def _unknown(self, key: Any, path: str, known: Any, severity: Severity) -> None:
        guess = nearest(str(key), known)
        remedy = f"did you mean {guess}?" if guess else "remove it"
        self._note("slo-unknown-field", path, "unknown field, not in force", "", severity, remedy)

    def _note(
        self,
        code: str,
        path: str,
        what: str,
        limit: str,
        severity: Severity = Severity.WARNING,
        remedy: str = "",
    ) -> None:
        place = f"{self.where}: {path[:200]}"
        remedy = remedy or f"write {limit}"
        self.problems.append(Problem(code, place, what, limit, remedy, severity))
        if len(self.problems) >= MAX_PROBLEMS:
            raise RefusedError(tuple(self.problems))


def _overlay(base: Any, over: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    return base | {key: _overlay(base.get(key), value) for key, value in over.items()}


def _plain(value: object) -> Any:
    """For JSON: an enum's own text, and YAML's dates and sets as the texts they were."""
    return value.value if isinstance(value, Enum) else str(value)


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in our types: Koordinator's path to it, its type, and the default there."""

    path: str
    hint: Any
    default: Any


def _locate(loc: tuple[int | str, ...]) -> _Place:
    place = _Place("spec", NodeSlo, _BASE)
    for step in loc:
        cls = _dataclass_in(place.hint)
        if isinstance(step, int):
            place = _Place(f"{place.path}[{step}]", place.hint, None)
        elif cls is not None and step in _hints(cls):
            name = next(name for name, ours in _json_names(cls).items() if ours == step)
            default = getattr(place.default, step, None)
            place = _Place(f"{place.path}.{name}", _hints(cls)[step], default)
    return place


def _problems_of(fault: ValidationError, where: str) -> list[Problem]:
    """One problem for each place, with every form that would have been accepted there."""
    by_path: dict[str, Problem] = {}
    for error in fault.errors(include_url=False, include_context=False)[:MAX_PROBLEMS]:
        place = _locate(error["loc"])
        problem = _problem_of(error, place, where)
        earlier = by_path.get(place.path)
        if earlier is not None and earlier.limit != problem.limit:
            problem = replace(problem, limit=f"{earlier.limit} or {problem.limit}")
        by_path[place.path] = problem
    return list(by_path.values())


def _problem_of(error: ErrorDetails, place: _Place, where: str) -> Problem:
    missing = error["type"] == "missing"
    default = place.default.value if isinstance(place.default, Enum) else place.default
    if missing:
        remedy = "add it"
    elif isinstance(default, bool | int | str):
        remedy = f"correct it, or leave it out for the default, {json.dumps(default)}"
    else:
        remedy = "correct it, or leave it out"
    value = json.dumps(error["input"], default=_plain)[:80]
    return Problem(
        code="slo-invalid-value",
        where=f"{where}: {place.path}",
        what="it is missing" if missing else f"{value} is not accepted",
        limit=_limit_of(error, place.hint),
        remedy=remedy,
    )


def _limit_of(error: ErrorDetails, hint: Any) -> str:
    numeric = error["type"].startswith("int_") or error["type"].endswith("_equal")
    for candidate in (hint, *get_args(hint)):
        for bounds in getattr(candidate, "__metadata__", ()):
            if numeric and isinstance(bounds, Bounds):
                return str(bounds)
    return error["msg"].removeprefix("Input should be ").removeprefix("Field ")


def _without_disabled(slo: NodeSlo) -> NodeSlo:
    qos = slo.qos
    return replace(
        slo,
        qos=replace(
            qos,
            lsr=_enabled_blocks(qos.lsr),
            ls=_enabled_blocks(qos.ls),
            be=_enabled_blocks(qos.be),
            system=_enabled_blocks(qos.system),
            cgroup_root=_enabled_blocks(qos.cgroup_root),
        ),
    )


def _enabled_blocks(settings: ClassQos) -> ClassQos:
    names = [field.name for field in fields(settings)]
    enabled = {name: getattr(settings, name) for name in names if getattr(settings, name).enable}
    return ClassQos(**enabled)


def _document(value: Any) -> Any:
    cls = _dataclass_in(type(value))
    if cls is not None:
        hints = _hints(cls)
        held = {name: (ours, getattr(value, ours)) for name, ours in _json_names(cls).items()}
        return {
            name: dict(item) if hints[ours] == _PAIRS else _document(item)
            for name, (ours, item) in held.items()
            if item is not None
        }
    if isinstance(value, tuple):
        return [_document(item) for item in value]
    return value.value if isinstance(value, Enum) else value
