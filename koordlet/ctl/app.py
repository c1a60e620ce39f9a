"""``koordletctl``: asks koordlet, and does without it what can be done without it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated

import typer

from koordlet.ctl import asking, undoing
from koordlet.ctl.adopting import adopt
from koordlet.ctl.given import duration_s, moment_text, real_path
from koordlet.ctl.measured import metrics, top
from koordlet.ctl.options import DOCUMENTS, Common, before_command, with_common
from koordlet.ctl.output import ExitCode, Output, bad_input, emit
from koordlet.host.otheragent import OTHER_AGENT

PROGRAM = "koordletctl"
COMPLETE_VAR = "_KOORDLETCTL_COMPLETE"
"""What the completion scripts ask in, by the convention of the library that answers."""
Command = Callable[..., ExitCode]

EXIT_CODES = """\
Exit codes: 0 done; 1 failed; 2 bad usage or input; 3 needs the daemon, and it does not answer;
4 done, but something is not as wanted (doctor: a capability that the NodeSLO in force needs is
missing, or another agent manages this node; slo check: warnings; rollback, release: a file left
because it holds a foreign value; adopt: something another agent left is still there)."""


class Shell(Enum):
    """Shells with completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def _mode_words(incomplete: str) -> list[str]:
    """Completion: strategies and modes."""
    from koordlet.model.actions import Mode
    from koordlet.qosmanager.names import BE_PRIORITY, CPU_SUPPRESS

    words = (BE_PRIORITY, CPU_SUPPRESS, *(one.value for one in Mode))
    return [word for word in words if word.startswith(incomplete)]


# -- commands: their docstrings are the help ------------------------------------------------------


def doctor(common: Common) -> ExitCode:
    """What works here, what does not. Needs no daemon.

    Why, and the remedy. Exit code 4 where a capability that the NodeSLO in force needs is missing,
    or where another agent manages this node.
    """
    from koordlet.ctl.render.others import draw_doctor

    said = asking.doctor(common)
    emit(said, common.form, draw_doctor)
    data = said["data"]
    lacking = data["missing_needed"] or "missing" in data["capabilities"]
    lacking = lacking or any(one["code"] == OTHER_AGENT for one in said["problems"])
    return ExitCode.NOT_AS_WANTED if lacking else ExitCode.OK


def status(
    common: Common,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it.")] = False,
) -> ExitCode:
    """The node at a glance.

    Use, budget, BE roots, strategies, holds, sources, hints and problems.
    """
    from koordlet.ctl.render.status import draw_status

    if watch:
        return _watch(common)
    emit(common.client().get("status"), common.form, draw_status)
    return ExitCode.OK


def pods(common: Common) -> ExitCode:
    """Pods and host applications.

    QoS, use, requests, limits and what is done to each. An asterisk after the QoS class is an
    unmarked pod, an exclamation mark a claim that was refused.
    """
    from koordlet.ctl.render.workloads import draw_pods

    emit(common.client().get("pods"), common.form, draw_pods)
    return ExitCode.OK


def plan(common: Common) -> ExitCode:
    """What is or would be written now, and why. Needs no daemon."""
    from koordlet.ctl.render.settings import draw_plan

    emit(asking.plan(common), common.form, draw_plan)
    return ExitCode.OK


def explain(
    common: Common,
    target: Annotated[
        str,
        typer.Argument(
            metavar="POD|FILE",
            help="namespace/name, pod UID or container id (or the start of one), host application,"
            " strategy, cgroup, or kernel file.",
        ),
    ],
) -> ExitCode:
    """The numbers behind a value.

    The present value, the original, who decided, since when and why.
    """
    from koordlet.ctl.render.settings import draw_explain

    emit(common.client().get("explain", target=real_path(target)), common.form, draw_explain)
    return ExitCode.OK


def audit(
    common: Common,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="From: 10m (ago), 14:30, 2026-01-31T14:30."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Before: the same forms.")
    ] = None,
    pod: Annotated[str | None, typer.Option(metavar="POD", help="namespace/name, or UID.")] = None,
    knob: Annotated[str | None, typer.Option(metavar="KNOB", help="E.g. cpu.quota.")] = None,
    owner: Annotated[str | None, typer.Option(metavar="NAME", help="A strategy.")] = None,
    file: Annotated[
        str | None, typer.Option(metavar="PATH", help="Kernel file, or cgroup.")
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="The newest so many: 1 to 10000.")
    ] = 100,
) -> ExitCode:
    """What was done to this host.

    By whom and why; the newest last.
    """
    from koordlet.ctl.render.others import draw_audit

    asked = {"pod": pod, "knob": knob, "owner": owner, "file": file and real_path(file)}
    asked |= {"since": moment_text(since, "--since"), "until": moment_text(until, "--until")}
    asked["limit"] = str(limit)
    params = {name: value for name, value in asked.items() if value is not None}
    emit(common.client().get("audit", **params), common.form, draw_audit)
    return ExitCode.OK


def mode(
    common: Common,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STRATEGY] [off|observe|enforce]",
            help="Without a strategy all of them; without a mode the modes are shown.",
            autocompletion=_mode_words,
        ),
    ] = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Only so long: 30m, 1h30m, 2d.")
    ] = None,
) -> ExitCode:
    """Show or set what strategies may do.

    off: nothing, and restore. observe: decide without writing. enforce: write.
    """
    from koordlet.ctl.render.others import draw_modes

    given = list(words or ())
    client = common.client()
    if not given:
        if for_ is not None:
            raise bad_input("--for", "needs a mode", "off, observe or enforce")
        emit(asking.modes(client), common.form, draw_modes)
        return ExitCode.OK
    if len(given) > 2:
        raise bad_input("mode", f"{len(given)} words", "[STRATEGY] off|observe|enforce")
    body: dict[str, object] = {"mode": given[-1], "strategy": given[0] if given[1:] else ""}
    if for_ is not None:
        body["for_s"] = duration_s(for_, "--for", "1s to 366d")
    emit(client.post("mode", body), common.form, draw_modes)
    return ExitCode.OK


SCOPE_HELP = "all, owner:STRATEGY, pod:NAMESPACE/NAME, pod:UID or file:PATH."


def release(
    common: Common,
    scope: Annotated[str, typer.Argument(metavar="[SCOPE]", help=SCOPE_HELP)] = "all",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing, only show.")] = False,
) -> ExitCode:
    """Restore, then only observe until resume.

    All, or one owner, pod or file. It survives a restart of the daemon.
    """
    from koordlet.ctl.render.others import draw_undo

    said = common.client().post("release", {"scope": real_path(scope), "dry_run": dry_run})
    emit(said, common.form, draw_undo)
    return undoing.exit_code(said)


def resume(
    common: Common,
    scope: Annotated[str, typer.Argument(metavar="[SCOPE]", help=SCOPE_HELP)] = "all",
) -> ExitCode:
    """Take a release back."""
    from koordlet.ctl.render.others import draw_modes

    emit(common.client().post("resume", {"scope": real_path(scope)}), common.form, draw_modes)
    return ExitCode.OK


def rollback(
    common: Common,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing, only show.")] = False,
    if_no_daemon: Annotated[
        bool, typer.Option("--if-no-daemon", help="Do nothing where a daemon runs.")
    ] = False,
) -> ExitCode:
    """Restore everything. Needs no daemon.

    By the daemon where one runs (as release does), else from the journal that it left.
    Exit code 4 where a file was left because it holds a foreign value.
    """
    from koordlet.ctl.render.others import draw_undo

    said = undoing.rollback(common, dry_run=dry_run, if_no_daemon=if_no_daemon)
    emit(said, common.form, draw_undo)
    return undoing.exit_code(said)


def slo_show(common: Common) -> ExitCode:
    """The NodeSLO in force, every default filled in."""
    from koordlet.ctl.render.others import draw_slo

    emit(common.client().get("slo"), common.form, draw_slo)
    return ExitCode.OK


def slo_check(
    common: Common,
    file: Annotated[str, typer.Argument(metavar="FILE", help="YAML or JSON; - is stdin.")],
) -> ExitCode:
    """Whether a file would be put in force. Needs no daemon.

    Exit code 0 clean, 4 with warnings, 2 refused.
    """
    from koordlet.ctl.render.others import draw_slo_check

    said = asking.slo_check(file)
    emit(said, common.form, draw_slo_check)
    codes = {"clean": ExitCode.OK, "warnings": ExitCode.NOT_AS_WANTED}
    return codes.get(said["data"]["verdict"], ExitCode.BAD_INPUT)


def slo_defaults(common: Common) -> ExitCode:
    """The built-in NodeSLO: every field, everything off. Needs no daemon."""
    from koordlet.ctl.render.others import draw_slo_defaults

    emit(asking.slo_defaults(), common.form, draw_slo_defaults)
    return ExitCode.OK


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="The shell.")],
) -> None:
    """Print a shell's completion script."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    print(get_completion_script(prog_name=PROGRAM, complete_var=COMPLETE_VAR, shell=shell.value))


COMMANDS: Mapping[str, Command] = {
    "doctor": doctor,
    "status": status,
    "top": top,
    "pods": pods,
    "metrics": metrics,
    "plan": plan,
    "explain": explain,
    "audit": audit,
    "mode": mode,
    "release": release,
    "resume": resume,
    "rollback": rollback,
    "adopt": adopt,
}
FORMS: Mapping[str, frozenset[Output]] = {
    "metrics": frozenset(Output),
    "top": frozenset({Output.TABLE}),
}
"""Forms of output of the commands that do not have just the usual ones."""
SLO_COMMANDS: Mapping[str, Command] = {
    "show": slo_show,
    "check": slo_check,
    "defaults": slo_defaults,
}


def build() -> typer.Typer:
    """The command line: every command by name, in the order of the help."""
    app = typer.Typer(
        help="Asks koordlet what it sees, does and why; undoes it.",
        epilog=EXIT_CODES,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(before_command)
    for name, command in COMMANDS.items():
        app.command(name)(with_common(command, FORMS.get(name, DOCUMENTS)))
    slo = typer.Typer(help="The NodeSLO: show, check a file, defaults.")
    for name, command in SLO_COMMANDS.items():
        slo.command(name)(with_common(command))
    app.add_typer(slo, name="slo")
    app.command("completion")(completion)
    return app


def main() -> None:
    """The console script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal's encoding lacks is spelled out, not a traceback.
        sys.stdout.reconfigure(errors="backslashreplace")
    if COMPLETE_VAR in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    build()(prog_name=PROGRAM)


def _watch(common: Common) -> ExitCode:
    from koordlet.ctl import screen

    if common.form is not Output.TABLE:
        raise bad_input("--watch", f"has no {common.form.value} form", "-o table")
    client = common.client()
    client.get("status")  # no daemon now is an error, one that leaves later is waited for
    with contextlib.suppress(KeyboardInterrupt):
        screen.run(client.socket_path, lambda: False)
    return ExitCode.OK


if __name__ == "__main__":
    main()
