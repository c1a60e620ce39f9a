"""JSON schemas of what koordletctl prints and the API answers, made from the views' own types.

``python -m tests.support.genschema [--check]`` writes docs/schema/koordletctl.COMMAND.v1.json, or
compares only and exits 1 where a file differs. Objects are open: fields are only ever added.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

from koordlet.api.views.adopt import AdoptData
from koordlet.api.views.audit import AuditData
from koordlet.api.views.common import SCHEMA_VERSION, Envelope
from koordlet.api.views.doctor import DoctorData
from koordlet.api.views.explain import ExplainData
from koordlet.api.views.metrics import MetricsData
from koordlet.api.views.modes import ModesData
from koordlet.api.views.plan import PlanData
from koordlet.api.views.pods import PodsData
from koordlet.api.views.slo import SloCheckData, SloData, SloDefaultsData
from koordlet.api.views.status import StatusData
from koordlet.api.views.ticks import TicksData
from koordlet.api.views.undo import UndoData

REPO = Path(__file__).resolve().parents[2]
FOLDER = REPO / "docs" / "schema"
DRAFT = "http://json-schema.org/draft-07/schema#"

COMMANDS: Mapping[str, type | None] = {
    "adopt": AdoptData,
    "audit": AuditData,
    "doctor": DoctorData,
    "error": None,
    "explain": ExplainData,
    "metrics": MetricsData,
    "modes": ModesData,
    "plan": PlanData,
    "pods": PodsData,
    "rollback": UndoData,
    "slo": SloData,
    "slo-check": SloCheckData,
    "slo-defaults": SloDefaultsData,
    "status": StatusData,
    "ticks": TicksData,
}
"""The type of ``data`` by the command that the schema's name holds; None is null."""

_PLAIN: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    None: {"type": "null"},
    types.NoneType: {"type": "null"},
    Any: {},
}


def schema_of(command: str) -> dict[str, Any]:
    """The schema of one command's whole output."""
    definitions: dict[str, Any] = {}
    envelope = _object(Envelope, definitions)
    name = f"koordletctl.{command}/{SCHEMA_VERSION}"
    envelope["properties"]["schema"] = {"const": name}
    envelope["properties"]["data"] = _schema(COMMANDS[command], definitions)
    return {
        "$schema": DRAFT,
        "title": name,
        **envelope,
        "definitions": {key: definitions[key] for key in sorted(definitions)},
    }


def closed(schema: Any) -> Any:
    """The same schema, refusing fields that it does not name: for our own tests only."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(part) for key, part in schema.items()}
    if "properties" in inner and inner.get("type") == "object":
        inner["additionalProperties"] = False
    return inner


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if is_typeddict(hint):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {}  # so that a type may hold itself
            definitions[hint.__name__] = _object(hint, definitions)
        return {"$ref": f"#/definitions/{hint.__name__}"}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_schema(part, definitions) for part in arguments]}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    raise TypeError(f"no JSON schema for {hint!r}: use plain types, Literal, list, dict, TypedDict")


def _object(shape: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(shape)
    return {
        "description": " ".join((inspect.getdoc(shape) or "").split()),
        "type": "object",
        "properties": {name: _schema(hint, definitions) for name, hint in hints.items()},
        "required": list(hints),
    }


def rendered(command: str) -> str:
    """The text of one schema file."""
    return json.dumps(schema_of(command), indent=2) + "\n"


def stale_files() -> list[str]:
    """Names of schema files that are missing, differ, or belong to no command."""
    wanted = {f"koordletctl.{name}.{SCHEMA_VERSION}.json": rendered(name) for name in COMMANDS}
    found = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    return sorted(
        name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)
    )


def write_files() -> None:
    """Write every schema, and remove those of commands that are gone."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for name in COMMANDS:
        path = FOLDER / f"koordletctl.{name}.{SCHEMA_VERSION}.json"
        path.write_text(rendered(name), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.genschema", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare only")
    if not parser.parse_args(arguments).check:
        write_files()
        return 0
    stale = stale_files()
    for name in stale:
        print(f"docs/schema/{name}: differs from the views; remedy: make docs", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
