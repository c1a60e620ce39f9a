"""Options that every command takes, before its name or after it."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import wraps
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koordlet.api.client import AnswerError, Client, UnreachableError
from koordlet.ctl.output import CtlError, ExitCode, Output, bad_input, emit_error
from koordlet.protocol.problem import Problem, RefusedError

if TYPE_CHECKING:
    from koordlet.config import Config


@dataclass(frozen=True, slots=True)
class Common:
    """The common options as given; None was not given."""

    run_dir: Path | None = None
    state_dir: Path | None = None
    cgroup_root: str | None = None
    sysfs_root: str | None = None
    proc_root: str | None = None
    config: Path | None = None
    output: Output | None = None

    @property
    def form(self) -> Output:
        """The form of output."""
        return self.output or Output.TABLE

    def over(self, other: Common) -> Common:
        """These options, and ``other`` where they were not given."""
        chosen = {
            one.name: getattr(other if getattr(self, one.name) is None else self, one.name)
            for one in fields(self)
        }
        return Common(**chosen)

    def load_config(self) -> Config:
        """koordlet's configuration with these options over it; raises RefusedError."""
        from koordlet.config import load_config

        return load_config(self._argv())

    def salvage_config(self) -> tuple[Config, tuple[Problem, ...]]:
        """The same without a file that is refused, and why it is; for what has to work anyway."""
        from koordlet.config import salvage_config

        return salvage_config(self._argv())

    def _argv(self) -> list[str]:
        argv: list[str] = []
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None and one.name != "output":
                argv += [f"--{one.name.replace('_', '-')}", str(value)]
        return argv

    def client(self) -> Client:
        """Asks the daemon of the run directory; a named one needs no configuration."""
        run_dir = self.run_dir or self.load_config().run_dir
        return Client(run_dir / "api.sock")


def declare(
    run_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="koordlet's run directory.")
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="koordlet's state directory.")
    ] = None,
    cgroup_root: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Path inside every hierarchy that is taken for its root."
        ),
    ] = None,
    sysfs_root: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where the host's sysfs is mounted.")
    ] = None,
    proc_root: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where the host's procfs is mounted.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="koordlet's configuration file.")
    ] = None,
    output: Annotated[
        Output | None,
        typer.Option(
            "--output", "-o", metavar="FORM", help="table (default), json or yaml; metrics: csv."
        ),
    ] = None,
) -> Common:
    """Carries the declarations; the common options as one value."""
    return Common(run_dir, state_dir, cgroup_root, sysfs_root, proc_root, config, output)


DOCUMENTS = frozenset({Output.TABLE, Output.JSON, Output.YAML})
"""The usual forms of output."""


def with_common(
    command: Callable[..., ExitCode], forms: frozenset[Output] = DOCUMENTS
) -> Callable[..., None]:
    """``command(common, ...)`` as a command line that takes the common options too.

    Turns its failures into messages and its result into the exit code. A form of output that is
    not in ``forms`` is refused before anything is done.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @wraps(command)
    def run(ctx: typer.Context, **values: Any) -> None:
        here = declare(**{one.name: values.pop(one.name) for one in _shared()})
        common = here.over(ctx.obj or Common())
        try:
            _check_form(common.form, forms)
            code = command(common, **values)
        except (CtlError, UnreachableError, RefusedError, AnswerError) as error:
            told = _told(error)
            code = told.code
            emit_error(told, common.form, node=os.uname().nodename, wall_s=time.time())
        raise typer.Exit(int(code))

    _sign(run, (*own, *_shared()))
    return run


def _check_form(form: Output, forms: frozenset[Output]) -> None:
    if form not in forms:
        limit = ", ".join(each.value for each in Output if each in forms)
        raise bad_input("--output", f"{form.value} is no form of this command", limit)


def before_command(ctx: typer.Context, **values: Any) -> None:
    """Keeps the options that stand before the command's name."""
    ctx.obj = declare(**values)


def _shared() -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(declare, eval_str=True).parameters.values())


def _sign(function: Callable[..., None], parameters: Iterable[inspect.Parameter]) -> None:
    """Give ``function`` the signature that its command line is made from."""
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    keyword = inspect.Parameter.KEYWORD_ONLY
    signed = [context, *(one.replace(kind=keyword) for one in parameters)]
    function.__dict__.pop("__wrapped__", None)
    function.__dict__["__signature__"] = inspect.Signature(signed)
    function.__annotations__ = {one.name: one.annotation for one in signed}


_sign(before_command, _shared())


def _told(error: Exception) -> CtlError:
    """The failure as the command tells it. An answer of 400 or 404 is about what was asked."""
    match error:
        case CtlError():
            return error
        case UnreachableError():
            return CtlError(ExitCode.NO_DAEMON, error.problem)
        case AnswerError() if error.status not in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND):
            return CtlError(ExitCode.FAILED, *error.problems)
        case AnswerError() | RefusedError():
            return CtlError(ExitCode.BAD_INPUT, *error.problems)
    raise error
