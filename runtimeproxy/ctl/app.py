"""``check``, ``status``, ``hooks`` and ``calls``."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from koordlet.protocol.problem import Problem, RefusedError

PROGRAM = "koord-runtimeproxy"
_TIMEOUT_S = 5.0
_WATCH_S = 1.0
EXIT_CODES = """\
Exit codes: 0 done; 1 failed; 2 bad usage or input; 3 the daemon does not answer; 4 done, but
something is not as wanted."""
app = typer.Typer(
    name=PROGRAM,
    help=f"A CRI proxy between kubelet and runtime. {EXIT_CODES}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Form(Enum):
    """How an answer is printed."""

    TEXT = "text"
    JSON = "json"


class ExitCode:
    FAILED = 1
    BAD_INPUT = 2
    UNREACHABLE = 3
    NOT_AS_WANTED = 4


Output = Annotated[Form, typer.Option("--output", "-o", help="text or json.")]
RunDir = Annotated[Path, typer.Option("--run-dir", help="The daemon's run directory.")]
DEFAULT_RUN_DIR = Path("/run/koord-runtimeproxy")


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    add_help_option=False,
)
def run(context: typer.Context) -> None:
    """The daemon, in the foreground; `run --help` lists its options."""
    raise AssertionError("answered before this program is built")


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def check(context: typer.Context, output: Output = Form.TEXT) -> None:
    """Configuration, sockets, hook servers, and what kubelet is pointed at.

    Takes the options of `run`. Tells what to change where to point kubelet at the proxy, and back.
    Exit code 4 where something would not work.
    """
    from runtimeproxy.config import load_config
    from runtimeproxy.ctl.check import check as look

    try:
        config = load_config(context.args)
    except RefusedError as refusal:
        _complain(refusal.problems)
        raise typer.Exit(ExitCode.BAD_INPUT) from None
    checked = look(config)
    problems = [_problem(problem) for problem in checked.problems]
    _emit("check", checked.data, problems, output, _draw_check)
    if problems:
        raise typer.Exit(ExitCode.NOT_AS_WANTED)


@app.command()
def status(output: Output = Form.TEXT, run_dir: RunDir = DEFAULT_RUN_DIR) -> None:
    """The proxy at a glance."""
    _ask("status", output, run_dir, _draw_fields)


@app.command()
def hooks(output: Output = Form.TEXT, run_dir: RunDir = DEFAULT_RUN_DIR) -> None:
    """Hook servers in their order, and what became of the questions to them."""
    _ask("hooks", output, run_dir, _draw_hooks)


@app.command()
def calls(
    output: Output = Form.TEXT,
    run_dir: RunDir = DEFAULT_RUN_DIR,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it.")] = False,
) -> None:
    """Calls by method: count, time, how many were intercepted, errors."""
    while True:
        if watch:
            print("\033[H\033[2J", end="")
        _ask("calls", output, run_dir, _draw_calls)
        if not watch:
            return
        time.sleep(_WATCH_S)


def main(words: Sequence[str]) -> None:
    try:
        app(list(words))
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(ExitCode.FAILED)


# -- asking ---------------------------------------------------------------------------------------


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(str(self._path))


def _ask(name: str, output: Form, run_dir: Path, draw: Callable[[dict[str, Any]], None]) -> None:
    path = run_dir / "api.sock"
    connection = _Connection(path)
    try:
        connection.request("GET", f"/v1/{name}")
        data = json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        remedy = "start koord-runtimeproxy, be root, or name its directory with --run-dir"
        _complain((Problem("daemon-away", str(path), str(error), remedy=remedy),))
        raise typer.Exit(ExitCode.UNREACHABLE) from None
    finally:
        connection.close()
    _emit(name, data, data.pop("problems"), output, draw)


def _emit(
    name: str,
    data: dict[str, Any],
    problems: list[dict[str, str]],
    output: Form,
    draw: Callable[[dict[str, Any]], None],
) -> None:
    if output is Form.JSON:
        said = {
            "schema": f"{PROGRAM}.{name}/v1",
            "node": os.uname().nodename,
            "taken_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "data": data,
            "problems": problems,
        }
        print(json.dumps(said))
        return
    draw(data)
    for problem in problems:
        remedy = f"; remedy: {problem['remedy']}" if problem["remedy"] else ""
        print(f"! {problem['where']}: {problem['what']}{remedy}")


def _problem(problem: Problem) -> dict[str, str]:
    return {
        "code": problem.code,
        "where": problem.where,
        "what": problem.what,
        "limit": problem.limit,
        "remedy": problem.remedy,
    }


def _complain(problems: Sequence[Problem]) -> None:
    for problem in problems:
        print(f"{PROGRAM}: {problem}", file=sys.stderr)


# -- drawing --------------------------------------------------------------------------------------


def _draw_fields(data: dict[str, Any]) -> None:
    for key, value in data.items():
        print(f"{key.replace('_', ' '):20s} {'-' if value is None else value}")


def _draw_check(data: dict[str, Any]) -> None:
    kubelet = data["kubelet"]
    print(f"{'runtime':20s} {data['runtime'] or 'does not answer'}")
    print(f"{'proxy':20s} {data['proxy'] or 'does not answer'}")
    print(f"{'hook servers':20s} {', '.join(data['hook_servers']) or 'none'}")
    way = "through the proxy" if kubelet["through_proxy"] else "past the proxy"
    print(f"{'kubelet':20s} {kubelet['endpoint']} ({way})")
    for setting in kubelet["settings"]:
        print(f"{'':20s} {setting['where']}: {setting['value']}")
    key = "back_to_the_runtime" if kubelet["through_proxy"] else "to_the_proxy"
    print(f"\n{key.replace('_', ' ')}:")
    for step in data[key]:
        print(f"  * {step}")


def _draw_hooks(data: dict[str, Any]) -> None:
    head = ("server", "policy", "asked", "failed", "skipped", "changes", "refused", "last ms")
    rows = [
        (
            one["name"],
            one["policy"],
            one["asked"],
            one["failed"],
            one["skipped"],
            one["changes"],
            one["refused"],
            one["last_ms"],
        )
        for one in data["servers"]
    ]
    _draw_table(head, rows)
    for one in data["servers"]:
        if one["resting"]:
            print(f"{one['name']} is left alone for a moment: {one['last_error']}")


def _draw_calls(data: dict[str, Any]) -> None:
    head = ("method", "count", "in flight", "hooked", "errors", "p50 ms", "p99 ms")
    rows = [
        (
            one["method"],
            one["count"],
            one["in_flight"],
            one["hooked"],
            one["errors"],
            one["p50_ms"],
            one["p99_ms"],
        )
        for one in data["methods"]
    ]
    _draw_table(head, rows)


def _draw_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    texts = [[("-" if cell is None else str(cell)) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[index]) for row in texts) for index in range(len(head))]
    for row in texts:
        first, *others = (
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join((first, *others)))
