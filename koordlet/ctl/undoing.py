"""Rollback: by the daemon where one runs, else here, from the journal it left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from koordlet.api.client import NOT_ALLOWED, Client, UnreachableError
from koordlet.api.views.common import envelope
from koordlet.api.views.undo import undo_data
from koordlet.ctl.options import Common
from koordlet.ctl.output import ExitCode
from koordlet.protocol.problem import Problem
from koordlet.resexecutor.lock import WRITER_BUSY

if TYPE_CHECKING:
    from koordlet.config import Config


def rollback(common: Common, *, dry_run: bool, if_no_daemon: bool) -> dict[str, Any]:
    """The envelope of a rollback, the same whoever did it."""
    config, faults = common.salvage_config()
    try:
        client = Client(config.run_dir / "api.sock")
        if if_no_daemon:
            return _left_to_daemon(client.get("status"))
        return client.post("release", {"dry_run": dry_run})
    except UnreachableError as error:
        if error.problem.code == NOT_ALLOWED:
            raise
    cgroup_root = None if common.cgroup_root is None else config.cgroup_root
    return _from_journal(config, faults, cgroup_root, dry_run=dry_run, if_no_daemon=if_no_daemon)


def exit_code(said: dict[str, Any]) -> ExitCode:
    """What the outcome of an undo ends a command with."""
    data, problems = said["data"], said["problems"]
    if any(problem["code"] == WRITER_BUSY for problem in problems):
        return ExitCode.NO_DAEMON
    if data["failed"] or any(problem["severity"] == "error" for problem in problems):
        return ExitCode.FAILED
    # A daemon goes on asking the runtime for what is pending; after a rollback nobody does.
    unasked = data["pending"] if data["done_by"] != "daemon" else 0
    return ExitCode.NOT_AS_WANTED if data["left"] or unasked else ExitCode.OK


def _from_journal(
    config: Config,
    faults: tuple[Problem, ...],
    cgroup_root: str | None,
    *,
    dry_run: bool,
    if_no_daemon: bool,
) -> dict[str, Any]:
    """Restore what the journal of the run directory holds."""
    from koordlet.journalundo import undo
    from koordlet.resexecutor.rollback import RollbackOptions

    options = RollbackOptions(dry_run=dry_run, if_no_daemon=if_no_daemon)
    undone = undo(config, options, cgroup_root=cgroup_root)
    report = undone.report
    said = undo_data(
        report.outcomes,
        undone.paths,
        done_by=report.done_by.value,
        dry_run=dry_run,
        note=report.note,
    )
    return _enveloped(config, said, time.time(), (*faults, *report.problems))


def _left_to_daemon(status: dict[str, Any]) -> dict[str, Any]:
    """A daemon answers, so its values are its own business."""
    note = "koordlet runs: left to it"
    data = undo_data((), {}, done_by="nobody", note=note)
    return {**status, "schema": "koordletctl.rollback/v1", "data": data, "problems": []}


def _enveloped(
    config: Config, data: Any, wall_s: float, problems: tuple[Problem, ...]
) -> dict[str, Any]:
    said = envelope("rollback", data, node=config.node_name, taken_wall_s=wall_s, problems=problems)
    return dict(said)
