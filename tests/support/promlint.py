"""The rules of ``promtool check metrics``, for machines without promtool."""

from __future__ import annotations

import re
from collections.abc import Iterator

_ABBREVIATIONS = (
    *("s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"),
)
_BASE = (
    *("amperes", "bytes", "celsius", "grams", "joules", "kelvin", "meters"),
    "seconds",
    "volts",
)
_PREFIXES = (
    *("pico", "nano", "micro", "milli", "centi", "deci", "deca", "hecto", "kilo", "kibi", "mega"),
    *("mibi", "giga", "gibi", "tera", "tebi", "peta", "pebi"),
)
_OTHER_UNITS = ("minutes", "hours", "days", "weeks", "feet", "percent", "bits")
_TYPES = ("gauge", "counter", "histogram", "summary")


def lint(name: str, kind: str, help: str, label_names: tuple[str, ...] = ()) -> Iterator[str]:
    """What promtool would say about one metric."""
    parts = name.split("_")
    if not help:
        yield f"{name}: no help text"
    if kind == "counter" and not name.endswith("_total"):
        yield f'{name}: counter metrics should have "_total" suffix'
    if kind != "counter" and name.endswith("_total"):
        yield f'{name}: non-counter metrics should not have "_total" suffix'
    if kind != "histogram" and re.search(r"_(bucket|count|sum)$", name):
        yield f"{name}: reserved suffix of histograms"
    for unit in parts:
        scaled = any(unit == prefix + base for prefix in _PREFIXES for base in _BASE)
        if scaled or unit in _OTHER_UNITS:
            yield f"{name}: use base units, not {unit}"
    if set(parts) & set(_TYPES):
        yield f"{name}: metric name should not include its type"
    if set(parts) & set(_ABBREVIATIONS):
        yield f"{name}: metric name should not contain abbreviated units"
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
        yield f"{name}: snake_case without colons"
    for label in label_names:
        if label in ("le", "quantile") or not re.fullmatch(r"[a-z_][a-z0-9_]*", label):
            yield f"{name}: label {label} is reserved or not snake_case"
