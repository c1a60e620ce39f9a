"""What the journal keeps of a value that systemd holds, beside the texts of its file: each property
behind it as it was before our first change, and whether it had a drop-in of this boot then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from koordlet.host.unitprops import PERIOD, PROPERTIES, PropertyValue


@dataclass(frozen=True, slots=True)
class Original:
    """One property. ``value`` None: its owner has changed it since, and systemd has to be asked
    anew before it is set again.
    """

    name: str
    value: PropertyValue | None
    had_drop_in: bool


def to_text(properties: Iterable[Original]) -> str:
    """``properties`` as the journal stores them; ``""`` for none."""
    found = {each.name: [_plain(each.value), each.had_drop_in] for each in properties}
    return json.dumps(found) if found else ""


def from_text(text: str) -> tuple[Original, ...]:
    """Read back. Raises ValueError for what ``to_text`` never writes (hazard H27)."""
    if not text:
        return ()
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("the properties of a unit are no object")
    return tuple(_original(name, entry) for name, entry in found.items())


def _original(name: str, entry: Any) -> Original:
    if name != PERIOD and name not in PROPERTIES:
        raise ValueError(f"{name!r:.80} is no property that koordlet sets")
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], bool):
        raise ValueError(f"{name}: {entry!r:.80} is not in the form of the journal")
    value, had_drop_in = entry
    is_set = name in PROPERTIES and PROPERTIES[name].signature == "ay"
    if value is not None and (isinstance(value, list) is not is_set or not _are_counts(value)):
        raise ValueError(f"{name}: {value!r:.80} is no value of it")
    return Original(name, frozenset(value) if is_set and value is not None else value, had_drop_in)


def _are_counts(value: Any) -> bool:
    numbers = value if isinstance(value, list) else [value]
    return all(type(each) is int and 0 <= each < 1 << 64 for each in numbers)


def _plain(value: PropertyValue | None) -> int | list[int] | None:
    return sorted(value) if isinstance(value, frozenset) else value
