"""Taking a node over from another agent: its command, whose docstring is the help."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koordlet.api.client import NOT_ALLOWED, Client, UnreachableError
from koordlet.api.views.common import envelope
from koordlet.ctl.given import real_path
from koordlet.ctl.options import Common
from koordlet.ctl.output import CtlError, ExitCode, Output, bad_input, emit
from koordlet.protocol.problem import Problem, Severity

if TYPE_CHECKING:
    from koordlet.config import Config

LOOK_TIMEOUT_S = 60.0
"""A look reads every file of a full node, and asks its runtime for each container."""


def adopt(
    common: Common,
    scope: Annotated[
        str,
        typer.Argument(metavar="[SCOPE]", help="all, pod:NAMESPACE/NAME, pod:UID or file:PATH."),
    ] = "all",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list. Needs no daemon.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Even while another agent is at work.")
    ] = False,
) -> ExitCode:
    """Take over what another agent left in this node's cgroups.

    Lists every file that does not hold what it would without Koordinator's agent, or without a
    koordlet whose journal is lost, and what it would hold: by the kubelet's own formula, the
    runtime's spec, the CPU manager's state, or the kernel's default. What is accepted becomes the
    original: it comes back at a release, a rollback or a stop, and at once where no strategy asks
    for anything there. What cannot be known is listed with what is lacking, and left alone.
    Exit code 4 where something is left to be adopted, or to be done by hand.
    """
    from koordlet.ctl.render.adopt import draw_adopt

    if dry_run and yes:
        raise bad_input("--yes", "contradicts --dry-run", "one of the two")
    said = _listed(common, real_path(scope), yes=yes)
    if dry_run or not said["data"]["proposed"]:
        emit(said, common.form, draw_adopt)
        return exit_code(said)
    if not yes and not _agreed(common, said):
        return exit_code(said)
    client = _patient(common)
    said = client.post("adopt", {"list": said["data"]["list"], "force": force})
    emit(said, common.form, draw_adopt)
    return exit_code(said)


def exit_code(said: dict[str, Any]) -> ExitCode:
    """What a list, or what came of it, ends the command with."""
    data = said["data"]
    if data["refused"] or any(problem["severity"] == "error" for problem in said["problems"]):
        return ExitCode.FAILED
    left = data["proposed"] + data["unknown"] + data["changed"] + len(data["unmanaged"])
    return ExitCode.NOT_AS_WANTED if left else ExitCode.OK


def _agreed(common: Common, said: dict[str, Any]) -> bool:
    """Show the list, and ask where somebody is there to answer."""
    from koordlet.ctl.render.adopt import draw_adopt

    if common.form is not Output.TABLE or not _somebody_is_there():
        hint = Problem(
            "adopt-not-agreed",
            "koordletctl adopt",
            "nothing was taken over: this is only the list",
            remedy="koordletctl adopt --yes",
            severity=Severity.INFO,
        )
        emit({**said, "problems": [*said["problems"], _told(hint)]}, common.form, draw_adopt)
        return False
    emit(said, common.form, draw_adopt)
    return typer.confirm(f"Make these {said['data']['proposed']} values the originals?")


def _somebody_is_there() -> bool:
    return sys.stdin.isatty()


def _listed(common: Common, scope: str, *, yes: bool) -> dict[str, Any]:
    """The daemon's list, else one look at this host."""
    try:
        return _patient(common).post("adopt", {"scope": scope, "dry_run": True})
    except UnreachableError as error:
        if error.problem.code == NOT_ALLOWED:
            raise
        if yes:
            remedy = "start koordlet: only it takes over; --dry-run lists without it"
            raise CtlError(ExitCode.NO_DAEMON, replace(error.problem, remedy=remedy)) from None
        why = replace(error.problem, severity=Severity.INFO)
    return _looked(common.load_config(), scope, why)


def _looked(config: Config, scope: str, why: Problem) -> dict[str, Any]:
    """Imported late: it loads the whole daemon."""
    from koordlet.api.adopting import listed
    from koordlet.oneshot import survey

    view, desk = survey(config)
    data, problems = listed(view, desk, scope)
    return dict(
        envelope(
            "adopt",
            data,
            node=view.node,
            taken_wall_s=view.taken_wall_s,
            problems=(why, *problems),
        )
    )


def _patient(common: Common) -> Client:
    return Client(common.client().socket_path, timeout_s=LOOK_TIMEOUT_S)


def _told(problem: Problem) -> dict[str, Any]:
    from koordlet.api.views.common import problems_data

    return dict(problems_data((problem,))[0])
