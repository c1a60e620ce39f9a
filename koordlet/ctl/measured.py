"""Commands about what was and is measured: their docstrings are the help."""

from __future__ import annotations

import contextlib
import sys
import time
from enum import Enum
from functools import partial
from typing import Annotated

import typer

from koordlet.ctl.given import duration_s, moment_text
from koordlet.ctl.options import Common
from koordlet.ctl.output import ExitCode, bad_input, emit
from koordlet.history.fields import ALL_SERIES, FAMILIES
from koordlet.metrics.readings import Level

SINCE_S = 3600.0
MOST_INTERVAL_S = 3600.0


def _series_words(incomplete: str) -> list[str]:
    """Completion: series and families of them."""
    return [word for word in (*FAMILIES, *ALL_SERIES) if word.startswith(incomplete)]


def metrics(
    common: Common,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SERIES|TARGET]...",
            help="Series (docs/metrics.md has them), or families: all, cpu, memory, throttling,"
            " pressure, io. And what they are of: namespace/name or UID of a pod,"
            " namespace/pod/container, or the name of a tier, host application, disk or interface.",
            autocompletion=_series_words,
        ),
    ] = None,
    node: Annotated[bool, typer.Option("--node", help="Of the node, as if nothing is named.")] = (
        False
    ),
    tier: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a tier: kubepods, burstable, besteffort.")
    ] = None,
    level: Annotated[
        Level | None,
        typer.Option(
            metavar="LEVEL",
            help="Of everything of a level, or of a target's: node, disk, interface, tier, pod,"
            " container, host_application.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="From: 1h (ago, the default), 14:30, 2026-01-31T14:30."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Before: the same forms; now by default.")
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Between two points: 1m, 10m, 1h; by default up to 60."),
    ] = None,
    percentiles: Annotated[
        str, typer.Option(metavar="LIST", help="Which percentiles.")
    ] = "50,95,99",
) -> ExitCode:
    """How it went: ranges of what was measured, minute by minute.

    Least, mean, percentiles and most of each series, and its course; -o csv has every point. Read
    from the history that the daemon left where none runs.
    """
    from koordlet.ctl.ranges import history
    from koordlet.ctl.render.ranges import bars_for, csv_rows, draw_ranges

    params = _subject(list(words or ()), is_node=node, tier=tier, level=level)
    params["since"] = moment_text(since, "--since") or repr(time.time() - SINCE_S)
    params["percentiles"] = percentiles
    if until is not None:
        params["until"] = moment_text(until, "--until") or ""
    if step is not None:
        params["step_s"] = f"{duration_s(step, '--step', 'a multiple of 1m'):.0f}"
    said = history(common, params)
    draw = partial(draw_ranges, bars=bars_for(sys.stdout.encoding))
    emit(said, common.form, draw, csv_rows)
    return ExitCode.OK


def _subject(
    words: list[str], *, is_node: bool, tier: str | None, level: Level | None
) -> dict[str, str]:
    """Series, target and level as parameters of the API."""
    series = [word for word in words if word in FAMILIES or word in ALL_SERIES]
    targets = [word for word in words if word not in series]
    if tier is not None:
        targets.append(tier)
    if len(targets) > 1:
        raise bad_input("metrics", f"{len(targets)} targets: {', '.join(targets)}", "one")
    levels = [Level.NODE] if is_node else []
    levels += [] if tier is None else [Level.TIER]
    levels += [] if level is None else [level]
    if len(levels) > 1 or (is_node and targets):
        raise bad_input("metrics", "--node, --tier and --level exclude one another", "one of them")
    params = {"series": ",".join(series), "target": "".join(targets)}
    params = {name: text for name, text in params.items() if text}
    return params | ({"level": levels[0].value} if levels else {})


class Sort(Enum):
    """What workloads are ordered by."""

    CPU = "cpu"
    MEMORY = "memory"
    THROTTLED = "throttled"
    NAME = "name"


def top(
    common: Common,
    sort: Annotated[
        Sort, typer.Option(metavar="BY", help="cpu (default), memory, throttled or name.")
    ] = Sort.CPU,
    qos: Annotated[
        str | None, typer.Option(metavar="LIST", help="Only these QoS classes, e.g. LS,BE.")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="So many workloads; by default what fits."),
    ] = None,
    interval: Annotated[
        str, typer.Option(metavar="TIME", help="Between two looks, at least 1s.")
    ] = "2s",
    once: Annotated[bool, typer.Option("--once", help="One look, then end.")] = False,
) -> ExitCode:
    """What uses the node now, what is done to it and why.

    Node, tiers, pods and host applications, those that use most first. On a terminal it keeps
    itself up to date until q or Ctrl-C, and waits for a daemon that has gone.
    """
    from koordlet.ctl.render.top import TopOptions
    from koordlet.ctl.top import run

    wanted = frozenset(word.strip().upper() for word in (qos or "").split(",") if word.strip())
    options = TopOptions(sort.value, wanted, rows)
    every_s = duration_s(interval, "--interval", "1s to 1h")
    if every_s > MOST_INTERVAL_S:
        raise bad_input("--interval", f"{interval} is too long", "1s to 1h")
    client = common.client()
    client.get("status")  # no daemon now is an error, one that leaves later is waited for
    with contextlib.suppress(KeyboardInterrupt):
        run(client, options, every_s=every_s, once=once)
    return ExitCode.OK
