"""What a command prints, in which form, and which exit code it ends with."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, IntEnum
from typing import IO, TYPE_CHECKING, Any

from koordlet.api.views.common import envelope, problems_data
from koordlet.ctl.text import problem_lines
from koordlet.protocol.problem import Problem

if TYPE_CHECKING:
    from rich.console import Console

PIPE_COLUMNS = 400
"""No terminal, no width to keep: lines are left whole for whatever reads them."""


class Output(Enum):
    """Forms of output."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    FAILED = 1
    BAD_INPUT = 2
    NO_DAEMON = 3
    NOT_AS_WANTED = 4


class CtlError(Exception):
    """A command that cannot do what was asked; ends it with ``code`` and tells the problems."""

    def __init__(self, code: ExitCode, *problems: Problem) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.code = code
        self.problems = problems


def bad_input(where: str, what: str, limit: str) -> CtlError:
    """Something written by hand that cannot be used."""
    remedy = "koordletctl COMMAND --help"
    return CtlError(ExitCode.BAD_INPUT, Problem("bad-input", where, what, limit, remedy))


Draw = Callable[[Any, "Console"], None]
"""Draws ``data`` of an envelope for people."""


Rows = Callable[[Any], Iterable[Sequence[object]]]
"""The rows of ``data`` for a spreadsheet, a head first."""


def emit(said: dict[str, Any], output: Output, draw: Draw, rows: Rows | None = None) -> None:
    """Print an envelope: one object, or ``draw`` or ``rows`` and then its problems on stderr."""
    if output in (Output.JSON, Output.YAML):
        _print_document(said, output)
        return
    if output is Output.CSV and rows is not None:
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows(said["data"]))
    elif sys.stdout.isatty():
        draw(said["data"], console(sys.stdout))
    else:
        draw_plain(said["data"], draw)
    sys.stdout.flush()
    _print_problems(said["problems"])


def emit_error(error: CtlError, output: Output, *, node: str, wall_s: float) -> None:
    """Tell a failure: on stderr for people, and as an object where one was asked for."""
    if output in (Output.JSON, Output.YAML):
        problems = error.problems
        said = envelope("error", None, node=node, taken_wall_s=wall_s, problems=problems)
        _print_document(dict(said), output)
    _print_problems([dict(entry) for entry in problems_data(error.problems)])


def console(stream: IO[str], *, width: int | None = None) -> Console:
    """A console that takes every text as it is: no markup, no emoji codes, no guessed colours."""
    from rich.console import Console

    columns = width if stream.isatty() else width or PIPE_COLUMNS
    return Console(
        file=stream, width=columns, markup=False, emoji=False, highlight=False, soft_wrap=False
    )


def draw_plain(data: Any, draw: Draw) -> None:
    """Print for what is no terminal: without the blanks that tables pad their last column with."""
    drawn = io.StringIO()
    draw(data, console(drawn))
    for line in drawn.getvalue().splitlines():
        print(line.rstrip())


def _print_document(said: dict[str, Any], output: Output) -> None:
    """ASCII only: escapes are then the decoder's business, not the terminal's."""
    if output is Output.JSON:
        text = json.dumps(said, indent=2) + "\n"
    else:
        import yaml

        text = yaml.safe_dump(said, sort_keys=False, default_flow_style=False)
    sys.stdout.write(text)
    sys.stdout.flush()


def _print_problems(problems: Iterable[dict[str, Any]]) -> None:
    for problem in problems:
        for line in problem_lines(problem):
            print(line, file=sys.stderr)
