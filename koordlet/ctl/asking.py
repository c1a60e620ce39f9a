"""Questions: put to the daemon, or answered here where that is possible without one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koordlet.api.client import NOT_ALLOWED, Client, UnreachableError
from koordlet.api.views.common import envelope
from koordlet.api.views.doctor import doctor_data
from koordlet.api.views.plan import plan_data
from koordlet.api.views.slo import slo_check_data, slo_defaults_data
from koordlet.api.views.status import view_problems
from koordlet.ctl.options import Common
from koordlet.ctl.output import CtlError, ExitCode
from koordlet.protocol.document import MAX_DOCUMENT_BYTES
from koordlet.protocol.nodeslo_schema import LoadedSlo, load_nodeslo
from koordlet.protocol.problem import Problem, RefusedError, Severity
from koordlet.report import NodeView

if TYPE_CHECKING:
    from koordlet.config import Config


def doctor(common: Common) -> dict[str, Any]:
    """The daemon's doctor, else one look at this host, and at who else manages it."""
    return _ask_or_look(
        common,
        "capabilities",
        "doctor",
        lambda view: doctor_data(view, answered_by="one-shot"),
        _other_agents,
    )


def _other_agents(config: Config) -> tuple[Problem, ...]:
    """What would keep koordlet from starting (hazard H14)."""
    from koordlet.host.otheragent import find_other_agent

    found = find_other_agent(config.proc_root, str(config.run_dir))
    return () if found is None else (found,)


def plan(common: Common) -> dict[str, Any]:
    """The daemon's plan, else what one would be now."""
    return _ask_or_look(common, "plan", "plan", plan_data, lambda config: ())


def modes(client: Client) -> dict[str, Any]:
    """Modes and releases in force, from the status."""
    said = client.get("status")
    data = {"changed": "", **{name: said["data"][name] for name in ("strategies", "released")}}
    return {**said, "schema": "koordletctl.modes/v1", "data": data, "problems": []}


def slo_check(file: str) -> dict[str, Any]:
    """The verdict on a NodeSLO file; ``-`` is stdin."""
    where = "stdin" if file == "-" else file
    try:
        loaded: LoadedSlo | tuple[Problem, ...] = load_nodeslo(_read(file, where), where)
    except RefusedError as error:
        loaded = error.problems
    return _here("slo-check", slo_check_data(where, loaded))


def slo_defaults() -> dict[str, Any]:
    """The built-in NodeSLO."""
    return _here("slo-defaults", slo_defaults_data())


def _read(file: str, where: str) -> str:
    """The text, as far as the limit that the reader of documents enforces."""
    try:
        if file == "-":
            content = sys.stdin.buffer.read(MAX_DOCUMENT_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                content = opened.read(MAX_DOCUMENT_BYTES + 1)
        return content.decode("utf-8")
    except OSError as error:
        problem = Problem("file-unreadable", where, error.strerror or str(error))
        raise CtlError(ExitCode.BAD_INPUT, problem) from None
    except UnicodeDecodeError as error:
        what = f"no UTF-8 text: {error.reason} at byte {error.start}"
        raise RefusedError((Problem("file-no-text", where, what, "UTF-8"),)) from None


def _here(command: str, data: Any) -> dict[str, Any]:
    node = os.uname().nodename
    return dict(envelope(command, data, node=node, taken_wall_s=time.time()))


def _ask_or_look(
    common: Common,
    endpoint: str,
    command: str,
    shape: Callable[[NodeView], Any],
    further: Callable[[Config], tuple[Problem, ...]],
) -> dict[str, Any]:
    """Where a daemon may run that only refuses us, looking ourselves would mislead."""
    try:
        return common.client().get(endpoint)
    except UnreachableError as error:
        if error.problem.code == NOT_ALLOWED:
            raise
        why = replace(error.problem, severity=Severity.INFO)
    config = common.load_config()
    view = _look(config)
    problems = (why, *further(config), *view_problems(view))
    return dict(
        envelope(
            command,
            shape(view),
            node=view.node,
            taken_wall_s=view.taken_wall_s,
            problems=problems,
        )
    )


def _look(config: Config) -> NodeView:
    """One look at the host, writing nothing; imported late since it loads the whole daemon."""
    from koordlet.oneshot import look

    return look(config)
