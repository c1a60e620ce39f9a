"""docs/cli.md, rendered from the command line, the exit codes and the API's own tables."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator
from typing import Any

import typer

from koordlet.api.routes import ORDERS, QUESTIONS
from koordlet.api.views.audit import audit_data
from koordlet.api.views.common import envelope
from koordlet.ctl import options
from koordlet.ctl.app import COMMANDS, PROGRAM, SLO_COMMANDS, build
from koordlet.ctl.output import ExitCode
from tests.support import genschema, views

INTRODUCTION = """\
# koordletctl

Generated from the program; change it there and run `make docs`.

Asks koordlet what it sees, does and why, gives it orders, and undoes what it did. It talks to
`api.sock` in koordlet's run directory, which is root's alone. `doctor`, `plan`, `slo check`,
`slo defaults`, `rollback`, `adopt --dry-run` and, by what a daemon left, `metrics` also work where
none runs.
"""

EXIT_MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "failed",
    ExitCode.BAD_INPUT: "bad usage or input; `slo check`: the file would be refused",
    ExitCode.NO_DAEMON: "needs the daemon, and it does not answer",
    ExitCode.NOT_AS_WANTED: "done, but something is not as wanted. `doctor`: a capability that the"
    " NodeSLO in force needs is missing, or another agent manages this node. `slo check`:"
    " warnings. `rollback`, `release`: a file was left because it holds a foreign value. `adopt`:"
    " something that another agent left is still there",
}

OUTPUT = """\
`-o json` prints one object, and `-o yaml` the same one:

```json
{example}
```

Names carry their units. Numbers are numbers, unlimited is `null`, and what is not known is
`{{"missing": "why"}}`, never zero. `problems` tells what is not as it should be: a stable `code`,
and what, where, which limit and which remedy as sentences. A command that fails prints the object
`koordletctl.error/v1` with `data` null. Fields are only ever added. The schemas:

{schemas}
"""

API = """\
The same answers come over HTTP from `api.sock`, e.g.
`curl --unix-socket /run/koordlet/api.sock http://koordlet/v1/status`. Peers other than root and
koordlet's own uid are not served.

`GET /v1/metrics` without parameters gives the newest readings, with any a range of the history:
times in seconds since the epoch, `series` and `percentiles` as lists parted by commas.

| request | parameters or fields |
|---|---|
"""

COMPLETION = """\
`koordletctl completion bash > /etc/bash_completion.d/koordletctl`, and likewise for zsh and fish.
"""


def render() -> str:
    """The whole page."""
    parts = [
        INTRODUCTION,
        *_section("Common options", _option_rows(_common_names(), typer.main.get_command(build()))),
        *_commands(),
        *_section("Output", [_output()]),
        *_section("Exit codes", _exit_codes()),
        *_section("Shell completion", [COMPLETION]),
        *_section("API", [API + "\n".join(_api_rows()) + "\n"]),
    ]
    return "\n".join(parts)


def _section(title: str, body: Iterable[str]) -> Iterator[str]:
    yield f"## {title}\n"
    yield from body


def _commands() -> Iterator[str]:
    group: Any = typer.main.get_command(build())
    yield "## Commands\n"
    for name in COMMANDS:
        yield from _command(f"{PROGRAM} {name}", group.commands[name])
    for name in SLO_COMMANDS:
        yield from _command(f"{PROGRAM} slo {name}", group.commands["slo"].commands[name])
    yield from _command(f"{PROGRAM} completion", group.commands["completion"])


def _command(title: str, command: Any) -> Iterator[str]:
    """Heading with the arguments, help, and the options that not every command has."""
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    words = " ".join([title, *(param.metavar for param in arguments)])
    yield f"### `{words}`\n"
    yield inspect.cleandoc(command.help) + "\n"
    for param in arguments:
        if param.help:
            yield f"`{param.metavar}`: {param.help}\n"
    yield from _option_rows(None, command)


def _common_names() -> frozenset[str]:
    return frozenset(inspect.signature(options.declare).parameters)


def _option_rows(names: frozenset[str] | None, command: Any) -> Iterator[str]:
    """A table of options: those of ``names``, or all but the common ones."""
    common = _common_names()
    shown = [
        param
        for param in command.params
        if param.param_type_name == "option"
        and param.name != "help"
        and (param.name in names if names is not None else param.name not in common)
    ]
    if shown:
        rows = [f"| {_option_name(param)} | {param.help} |" for param in shown]
        yield "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n"


def _option_name(param: Any) -> str:
    names = ", ".join(f"`{name}`" for name in param.opts)
    return names if param.is_flag else f"{names} `{param.metavar}`"


def _output() -> str:
    view = views.node_view()
    data = audit_data([views.audit_event()], limit=100)
    said = envelope("audit", data, node=view.node, taken_wall_s=view.taken_wall_s)
    names = sorted(genschema.COMMANDS)
    links = [f"[{name}](schema/koordletctl.{name}.v1.json)" for name in names]
    return OUTPUT.format(example=json.dumps(said, indent=2), schemas=", ".join(links))


def _exit_codes() -> Iterator[str]:
    rows = [f"| {code.value} | {meaning} |" for code, meaning in EXIT_MEANINGS.items()]
    yield "\n".join(["| code | meaning |", "|---|---|", *rows]) + "\n"


def _api_rows() -> Iterator[str]:
    for path, (allowed, _) in QUESTIONS.items():
        yield f"| `GET /v1/{path}` | {_listed(sorted(allowed))} |"
    for path, (fields, _) in ORDERS.items():
        yield f"| `POST /v1/{path}` | {_listed(fields)} |"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"
