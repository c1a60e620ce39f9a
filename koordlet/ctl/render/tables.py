"""Tables and lines: what every rendering is put together from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from koordlet.ctl.text import clean, problem_lines

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

STYLES: Mapping[str, str] = {
    "refused": "bold red",
    "struck": "red",
    "held": "yellow",
    "pending": "yellow",
    "failed": "bold red",
    "stale": "yellow",
    "error": "bold red",
    "warning": "yellow",
    "NO": "bold red",
}
"""Styles of words that somebody should see first; nothing else is coloured."""


def table(*columns: str, right: Iterable[str] = (), whole: Iterable[str] = ()) -> Table:
    """An open table; ``right`` names the columns of numbers. Long cells fold, nothing is cut, and
    numbers and the ``whole`` columns stay on one line.
    """
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    numbers = frozenset(right)
    unfolded = numbers | frozenset(whole)
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in numbers else "left",
            overflow="fold",
            no_wrap=column in unfolded,
        )
    return made


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and values, one a line; empty values are left out."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True, style="bold")
    made.add_column(overflow="fold")
    for name, value in rows:
        if value:
            made.add_row(name, value)
    return made


def word(text: str) -> RenderableType:
    """A word in the style that its meaning calls for."""
    from rich.text import Text

    return Text(text, style=STYLES.get(text, ""))


def heading(text: str) -> RenderableType:
    """A line above what belongs together."""
    from rich.text import Text

    return Text(clean(text), style="bold")


def show(console: Console, parts: Iterable[RenderableType | None]) -> None:
    """Print parts one below the other; None is left out."""
    for part in parts:
        if part is not None:
            console.print(part)


def section(title: str, body: RenderableType | None) -> Iterable[RenderableType]:
    """A heading and what is below it, after an empty line; nothing where there is no body."""
    return () if body is None else ("", heading(title), body)


def problems(entries: Sequence[Mapping[str, Any]]) -> RenderableType | None:
    """Problems as lines; None where there are none."""
    from rich.text import Text

    if not entries:
        return None
    made = Text()
    for entry in entries:
        first, *rest = problem_lines(entry)
        made.append(first + "\n", style=STYLES.get(str(entry["severity"]), ""))
        made.append("".join(line + "\n" for line in rest))
    made.right_crop(1)
    return made
