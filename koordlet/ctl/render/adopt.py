"""What another agent left, for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from koordlet.ctl.render.tables import section, show, table, word
from koordlet.ctl.text import clean, missing_why

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Data = Mapping[str, Any]


def draw_adopt(data: Data, console: Console) -> None:
    """Every leftover in one table, then what is not koordlet's to undo, then the sum."""
    show(console, _parts(data))


def _parts(data: Data) -> Iterable[RenderableType]:
    if data["files"]:
        yield files_table(data["files"])
    yield from section("Found, not managed here", strays_table(data["unmanaged"]))
    yield from ("", summary(data))


def files_table(files: list[Data]) -> RenderableType:
    """One row a file: what it holds, what it would hold, who says so."""
    made = table("file", "found", "original", "belongs to", "verdict", "why")
    for entry in files:
        made.add_row(
            clean(entry["file"]),
            _text(entry["found"]),
            _original(entry),
            clean(entry["belongs_to"]),
            word(_verdict(entry)),
            _why(entry),
        )
    return made


def strays_table(strays: list[Data]) -> RenderableType | None:
    """What a person may undo; None where there is nothing."""
    if not strays:
        return None
    made = table("what", "where", "found", "remedy")
    for entry in strays:
        cells = (entry["area"], entry["where"], entry["found"], entry["remedy"])
        made.add_row(*(clean(cell) for cell in cells))
    return made


def summary(data: Data) -> str:
    """The whole in one line."""
    if not data["compared"]:
        return "nothing could be compared"
    if not data["files"] and not data["unmanaged"]:
        return f"{data['compared']} files compared: nothing was left behind"
    names = ("proposed", "adopted", "already", "unknown", "changed", "refused")
    counts = [f"{data[name]} {name}" for name in names if data[name]]
    if data["unmanaged"]:
        counts.append(f"{len(data['unmanaged'])} not managed here")
    note = f"; {clean(data['note'])}" if data["note"] else ""
    return f"{data['compared']} files compared: {', '.join(counts)}{note}"


def _text(text: str) -> str:
    return clean(text) if text else "(empty)"


def _original(entry: Data) -> str:
    return "?" if missing_why(entry["original"]) is not None else _text(entry["original"])


def _verdict(entry: Data) -> str:
    return f"{entry['verdict']}, {entry['outcome']}" if entry["outcome"] else entry["verdict"]


def _why(entry: Data) -> str:
    """Where the original comes from, or what is lacking, and what else is to be known."""
    held = "koordlet took it for the original" if entry["held"] else ""
    told = (entry["why"] or entry["source"], held, entry["note"])
    return clean("; ".join(text for text in told if text))
