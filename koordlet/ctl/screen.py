"""The live summary: what koordlet sees and does, on one screen that keeps itself up to date."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koordlet.api.client import AnswerError, Client, UnreachableError
from koordlet.ctl.output import console
from koordlet.ctl.render.others import audit_body
from koordlet.ctl.render.status import head_parts, tail_parts
from koordlet.ctl.render.tables import problems, section
from koordlet.ctl.text import clean, cores, missing_why, size

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    Parts = Callable[[Console], Iterable[RenderableType]]

Data = Mapping[str, Any]
SCREEN_EVERY_S = 1.0
LINE_EVERY_S = 10.0
# So long after the start no answer is no news: the daemon opens its socket and looks around.
START_S = 5.0
STOP_LOOK_S = 0.1
WRITES_SHOWN = 5


def run(api_socket: Path, stop: Callable[[], bool]) -> None:
    """Show the daemon of ``api_socket`` until ``stop`` says so.

    On a terminal one screen, renewed every second; else one line every ten seconds. A daemon that
    does not answer is waited for.
    """
    client = Client(api_socket, timeout_s=5.0)
    if sys.stdout.isatty():
        live(
            lambda console: screen_parts(client, columns=console.width),
            stop,
            every_s=SCREEN_EVERY_S,
        )
    else:
        _lines(client, stop)


def live(parts: Parts, stop: Callable[[], bool], *, every_s: float) -> None:
    """Keep ``parts`` of the terminal's size on it until ``stop`` says so."""
    from rich.console import Group
    from rich.live import Live

    with Live(
        console=console(sys.stdout), auto_refresh=False, vertical_overflow="ellipsis"
    ) as screen:
        while not stop():
            screen.update(Group(*parts(screen.console)), refresh=True)
            if _stopped_within(every_s, stop):
                return


def _lines(client: Client, stop: Callable[[], bool]) -> None:
    started_s = time.monotonic()
    while not stop():
        text, known = line(client)
        if not known and time.monotonic() - started_s < START_S:
            if _stopped_within(STOP_LOOK_S, stop):
                return
            continue
        try:
            print(text, flush=True)
        except OSError:  # Nobody reads it any more: koordlet itself goes on.
            return
        if _stopped_within(LINE_EVERY_S, stop):
            return


def _stopped_within(seconds: float, stop: Callable[[], bool]) -> bool:
    """Sleep, but notice a stop soon. What it says once need not be said again: a key is one."""
    deadline_s = time.monotonic() + seconds
    while not stop():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(STOP_LOOK_S)
    return True


def screen_parts(client: Client, *, columns: int) -> Iterable[RenderableType]:
    """The screen from top to bottom; on a small terminal the end is cut off."""
    try:
        said = client.get("status")
        events = client.get("audit", limit=str(WRITES_SHOWN))["data"]["events"]
    except (UnreachableError, AnswerError) as error:
        yield f"koordlet on {clean(client.socket_path)}: {clean(error)}"
        return
    yield f"koordlet on {clean(said['node'])}, {clean(said['taken_at'])}"
    yield ""
    yield from head_parts(said["data"])
    yield from section("Problems", problems(said["problems"]))
    yield from section(
        "Last writes, newest first", audit_body(events[::-1], columns) if events else None
    )
    yield from tail_parts(said["data"])


def line(client: Client) -> tuple[str, bool]:
    """The summary in one line, and whether anything is known of the host yet."""
    try:
        said = client.get("status")
    except (UnreachableError, AnswerError) as error:
        return f"koordlet: {clean(error)}", False
    parts = [f"{clean(said['taken_at'])} {status_line(said['data'], len(said['problems']))}"]
    parts += [
        f"{clean(problem['severity'])}: {clean(problem['where'])}: {clean(problem['what'])}"
        for problem in said["problems"]
        if problem["severity"] != "info"
    ]
    return ", ".join(parts), missing_why(said["data"]["node"]) is None


def status_line(data: Data, problem_count: int) -> str:
    """Use, budget and what is in force."""
    use, node = data["usage"], data["node"]
    capacity = "?" if missing_why(node) is not None else f"{node['capacity_cores']:g}"
    parts = [
        f"cpu {cores(use['used_cpu_cores'])}/{capacity}",
        f"be {cores(use['be_cores'])}",
        f"budget {_budget_cores(data)}",
        f"memory {size(use['used_memory_bytes'])}",
        f"roots {len(data['be_roots'])}",
        f"files {data['owned_files']}",
        f"held {len(data['held'])}",
        f"problems {problem_count}",
    ]
    parts += [f"waiting for {clean(what)}" for what in data["waiting_for"]]
    parts += [f"{clean(hint['what'])}: {clean(hint['remedy'])}" for hint in data["hints"]]
    return ", ".join(parts)


def _budget_cores(data: Data) -> str:
    found = {term["name"]: term["value"] for term in data["budget"]}
    return cores(found.get("budget_cores"))
