"""Values as words for people: never a control character, never a unit left out."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

UNKNOWN = "?"
_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories that steer a terminal or reorder what is read: controls, formats such as bidirectional
overrides, lone surrogates, line and paragraph separators."""
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DURATIONS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def clean(text: object) -> str:
    """``text`` on one line, with every character that could steer a terminal spelled out."""
    return "".join(
        _escaped(char) if unicodedata.category(char) in _STEERING else char for char in str(text)
    )


def clean_lines(text: str) -> str:
    """As ``clean``, keeping line ends: for documents of several lines."""
    return "\n".join(clean(line) for line in text.split("\n"))


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


def missing_why(value: object) -> str | None:
    """The reason where ``value`` is ``{"missing": why}``, else None."""
    if isinstance(value, Mapping) and set(value) == {"missing"}:
        return str(value["missing"])
    return None


def cores(value: object) -> str:
    """CPU cores with two decimals."""
    return f"{value:.2f}" if isinstance(value, int | float) else UNKNOWN


def ratio(value: object) -> str:
    """A share as percent."""
    return f"{value * 100:.1f} %" if isinstance(value, int | float) else UNKNOWN


def size(value: object) -> str:
    """Bytes in the largest binary unit that leaves a digit before the point; null is unlimited."""
    if value is None:
        return "unlimited"
    if not isinstance(value, int | float):
        return UNKNOWN
    amount, unit = float(value), 0
    while abs(amount) >= 1024 and unit < len(_BINARY) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} {_BINARY[unit]}" if unit == 0 else f"{amount:.1f} {_BINARY[unit]}"


def duration(value: object) -> str:
    """Seconds in the two largest units: ``3h 5m``, ``12s``, ``0.4s``."""
    if not isinstance(value, int | float):
        return UNKNOWN
    if value < 10:
        return f"{value:.1f}s"
    rest = int(value)
    parts: list[str] = []
    for seconds, unit in _DURATIONS:
        if rest >= seconds or (unit == "s" and not parts):
            parts.append(f"{rest // seconds}{unit}")
            rest %= seconds
    return " ".join(parts[:2])


def moment(text: object) -> str:
    """A time as people read it: to the second, in UTC."""
    return clean(text).replace("T", " ").partition(".")[0] + "Z"


def milli(value: object) -> str:
    """Milli-cores as cores; null is not set."""
    if value is None:
        return "-"
    return f"{value / 1000:g}" if isinstance(value, int | float) else UNKNOWN


def known(value: object) -> str:
    """Any value: unknown as ``?``, null as ``-``, switches as words."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return UNKNOWN if isinstance(value, Mapping) else clean(value)


def reasoned(value: object) -> str:
    """As ``known``, but an unknown value tells why."""
    why = missing_why(value)
    return known(value) if why is None else f"unknown: {clean(why)}"


def wanted(value: object, unit: str) -> str:
    """A knob's value with its unit; null is unlimited."""
    if isinstance(value, Mapping):
        return "-"
    if value is None:
        return "unlimited"
    if unit == "bytes":
        return f"{value} bytes ({size(value)})"
    return f"{clean(value)} {unit}" if unit in ("us", "count") else clean(value)


def terms(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """``name = value`` for each number of a calculation, in its order."""
    return [f"{clean(entry['name'])} = {_term(entry['value'])}" for entry in entries]


def _term(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else clean(value)


def problem_lines(problem: Mapping[str, Any]) -> list[str]:
    """One problem as lines: what and where, then limit and remedy where they are told."""
    lines = [f"{clean(problem['severity'])}: {clean(problem['where'])}: {clean(problem['what'])}"]
    lines += [
        f"  {name}: {clean(problem[name])}" for name in ("limit", "remedy") if problem.get(name)
    ]
    return lines
