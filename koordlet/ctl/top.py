"""The live list of what uses the node: asks the daemon again and again, and draws."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from koordlet.api.client import AnswerError, Client, UnreachableError
from koordlet.ctl import screen
from koordlet.ctl.keys import Keys
from koordlet.ctl.output import console, draw_plain
from koordlet.ctl.render.tables import show
from koordlet.ctl.render.top import Look, TopOptions, top_parts
from koordlet.ctl.text import clean

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

QUIT_KEYS = frozenset("qQ\x04")


def run(client: Client, options: TopOptions, *, every_s: float, once: bool) -> None:
    """Show it until a key or Ctrl-C; ``once``: one look. Without a terminal as plain text."""
    if once:
        _print(client, options)
    elif sys.stdout.isatty():
        with Keys() as keys:
            screen.live(
                lambda where: _parts(client, options, where),
                lambda: bool(QUIT_KEYS.intersection(keys.pressed())),
                every_s=every_s,
            )
    else:
        _repeat(lambda: _print(client, options), every_s)


def _repeat(print_once: Callable[[], None], every_s: float) -> None:
    while True:
        print_once()
        print(flush=True)
        time.sleep(every_s)


def _print(client: Client, options: TopOptions) -> None:
    """All rows, since what is printed once can be scrolled, or goes to a file."""

    def draw(seen: Look | str, where: Console) -> None:
        show(where, top_parts(seen, options, where.width))

    if sys.stdout.isatty():
        draw(look(client), console(sys.stdout))
    else:
        draw_plain(look(client), draw)


def _parts(client: Client, options: TopOptions, where: Console) -> list[RenderableType]:
    return top_parts(look(client), options, where.width, lines=where.height)


def look(client: Client) -> Look | str:
    """What the daemon says now, or why it says nothing."""
    try:
        return Look(client.get("status"), client.get("pods"), client.get("plan"))
    except (UnreachableError, AnswerError) as error:
        return f"koordlet on {clean(client.socket_path)}: {clean(error)}"
