"""One mapping out of a YAML or JSON text that somebody wrote by hand, or all that is wrong in it.

Duplicate keys, anchors and several documents are refused: each of them lets a person and the
program read different things in the same text.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any

import yaml

from koordlet.protocol.problem import Problem, RefusedError

MAX_DOCUMENT_BYTES = 1 << 20
CONSTRUCTOR_ERRORS = (ValueError, LookupError, AttributeError, TypeError, RecursionError)
"""What PyYAML raises beside its own errors: for 2020-99-99, numbers without end, and values that do
not suit their explicit tag (``!!bool x``, ``!!int ''``, ``!!timestamp x``, ``!!map [a]``).
"""


def parse_document(text: str, where: str) -> dict[Any, Any]:
    """The mapping in ``text``; an empty text is an empty mapping. ``where`` names it in problems.

    Raises RefusedError. Keys may be of any scalar type; values are as YAML types them.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_DOCUMENT_BYTES:
        raise _refused("document-too-large", where, "the text is too large", "1 MiB")
    data = _parse(text, where)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise _refused(
            "document-no-mapping",
            where,
            f"the text is a {_kind(data)}",
            "a mapping of names to values",
        )
    return data


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that ``name`` was probably meant to be, or ``""``."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[found[0]] if found else ""


def _parse(text: str, where: str) -> Any:
    try:
        return _load(text)
    except _DuplicateKeyError as fault:
        raise _refused(
            "document-duplicate-key", where, str(fault), "each key once", "remove one of the two"
        ) from None
    except RecursionError:
        raise _refused("document-unreadable", where, "nested too deeply") from None
    except (yaml.YAMLError, *CONSTRUCTOR_ERRORS) as fault:
        what = " ".join(str(fault).split())[:300]
        raise _refused("document-unreadable", where, what, "one YAML or JSON document") from None


def _load(text: str) -> Any:
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text, object_pairs_hook=_unique)
        except json.JSONDecodeError:
            pass  # YAML's flow style begins alike; its error then speaks for both
    return yaml.load(text, _Loader)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise _DuplicateKeyError(f"key {key!r} stands twice in one mapping")
        seen[key] = value
    return seen


class _DuplicateKeyError(Exception):
    """A mapping names one key twice."""


class _Loader(yaml.SafeLoader):
    """Safe YAML without aliases (which grow without bound when walked) and duplicate keys."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.YAMLError(f"line {event.start_mark.line + 1}: anchors are not read")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            text = (key.tag, str(key.value))
            if text in seen:
                raise _DuplicateKeyError(
                    f"line {key.start_mark.line + 1}: key {key.value!r} stands twice in one mapping"
                )
            seen.add(text)
        found = super().construct_mapping(node, deep)
        for key in found:
            if not isinstance(key, str | int | float | None):  # dates, bytes: no key in JSON
                raise yaml.YAMLError(
                    f"line {node.start_mark.line + 1}: key {str(key)!r} is a {type(key).__name__}"
                )
        return found


def _kind(data: object) -> str:
    names = {list: "list", str: "text", bool: "boolean", int: "number", float: "number"}
    return names.get(type(data), type(data).__name__)


def _refused(
    code: str, where: str, what: str, limit: str = "", remedy: str = "correct the text"
) -> RefusedError:
    return RefusedError((Problem(code, where, what, limit, remedy),))
