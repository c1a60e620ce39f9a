"""Rollback: by the daemon where one runs, else here, from the journal it left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koordlet.api.client import UnreachableError
from koordlet.api.views.common import envelope
from koordlet.api.views.undo import undo_data
from koordlet.ctl.options import Common
from koordlet.ctl.output import ExitCode
from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem

if TYPE_CHECKING:
    from koordlet.config import Config
    from koordlet.host.machine import Machine
    from koordlet.model.knobs import Knob, Value
    from koordlet.pods.cri import CriClient
    from koordlet.resexecutor.judge import CpusetOriginal
    from koordlet.resexecutor.rollback import RollbackHost, SpecRestore

_NOT_ALLOWED = "daemon-not-allowed"
WRITER_BUSY = "writer-busy"


def rollback(common: Common, *, dry_run: bool, if_no_daemon: bool) -> dict[str, Any]:
    """The envelope of a rollback, the same whoever did it."""
    try:
        client = common.client()
        if if_no_daemon:
            return _left_to_daemon(client.get("status"))
        return client.post("release", {"dry_run": dry_run})
    except UnreachableError as error:
        if error.problem.code == _NOT_ALLOWED:
            raise
    return from_journal(common, dry_run=dry_run, if_no_daemon=if_no_daemon)


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


def from_journal(common: Common, *, dry_run: bool, if_no_daemon: bool) -> dict[str, Any]:
    """Restore what the journal of the run directory holds."""
    from koordlet.clock import SystemClock
    from koordlet.resexecutor.rollback import RollbackOptions
    from koordlet.resexecutor.rollback import rollback as roll_back

    config = common.load_config()
    machine = _machine(common, config)
    if isinstance(machine, Missing):
        said = undo_data((), {}, done_by="nobody", dry_run=dry_run, note=machine.why)
        return _enveloped(config, said, time.time(), ())
    runtime = _runtime(config, machine.boot_id)
    report = roll_back(
        config.run_dir,
        _host(machine),
        SystemClock(),
        options=RollbackOptions(dry_run=dry_run, if_no_daemon=if_no_daemon),
        spec_restore=_spec_restore(runtime),
        cpuset_original=_cpuset_original(config, machine, runtime),
    )
    paths = {outcome.key: machine.cgroups.path_of(*outcome.key) for outcome in report.outcomes}
    said = undo_data(
        report.outcomes,
        {key: path for key, path in paths.items() if not isinstance(path, Missing)},
        done_by=report.done_by.value,
        dry_run=dry_run,
        note=report.note,
    )
    machine.files.close()
    return _enveloped(config, said, time.time(), report.problems)


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


def _machine(common: Common, config: Config) -> Machine | Missing:
    """The host below the root that the journal was written for, unless an option names another.

    Missing where that root is gone, and with it everything that was changed.
    """
    from koordlet.host.machine import open_machine
    from koordlet.host.mounts import Roots
    from koordlet.resexecutor.rollback import managed_root_of

    roots = Roots("/", config.sysfs_root, config.proc_root)
    whole = open_machine(roots, keeps_fds=False)
    if common.cgroup_root is not None:
        return _below(whole, config.cgroup_root)
    journaled = managed_root_of(config.run_dir, whole.boot_id)
    if isinstance(journaled, Missing):
        return whole
    if not f"{journaled}/".startswith(f"{whole.managed_root}/"):
        return Missing(f"{journaled}: the journal's root is not on this host; nothing to undo")
    return _below(whole, journaled.removeprefix(whole.managed_root) or "/")


def _below(whole: Machine, cgroup_root: str) -> Machine | Missing:
    from koordlet.host.machine import open_machine

    if cgroup_root == "/":
        return whole
    whole.files.close()
    directory = f"{whole.managed_root.rstrip('/')}{cgroup_root}"
    if not Path(directory).is_dir():
        return Missing(f"{directory}: gone, and all that was in it; nothing to undo")
    return open_machine(replace(whole.roots, cgroup=cgroup_root), keeps_fds=False)


def _host(machine: Machine) -> RollbackHost:
    from koordlet.resexecutor.rollback import RollbackHost

    return RollbackHost(
        machine.cgroups, machine.boot_id, machine.managed_root, machine.root_identity
    )


def _runtime(config: Config, boot_id: str) -> Callable[[], CriClient | None]:
    """The client of the daemon's runtime, made when it is first needed: it costs a fifth of a
    second. The journal knows the endpoint, whatever options the daemon was started with.
    """

    @cache
    def client() -> CriClient | None:
        from koordlet.endpoints import find_runtime
        from koordlet.pods.cri import CriClient
        from koordlet.resexecutor.rollback import runtime_of

        journaled = runtime_of(config.run_dir, boot_id)
        endpoint = find_runtime(config) if isinstance(journaled, Missing) else journaled
        return None if endpoint is None else CriClient(endpoint)

    return client


def _spec_restore(runtime: Callable[[], CriClient | None]) -> SpecRestore:
    def restore(container_id: str, knob: Knob, value: Value) -> str:
        from koordlet.pods.specchange import change_spec

        return change_spec(runtime(), container_id, knob, value)

    return restore


def _cpuset_original(
    config: Config, machine: Machine, runtime: Callable[[], CriClient | None]
) -> CpusetOriginal | None:
    """What the kubelet's static policy gives a container now (hazard H9); None without it."""
    from koordlet.host.cpumanager import read_cpu_manager_state
    from koordlet.model.topology import CpuManagerPolicy
    from koordlet.pods.source import SourceError

    state = read_cpu_manager_state(machine.files, str(config.kubelet_state_file))
    if isinstance(state, Missing) or state.policy is not CpuManagerPolicy.STATIC:
        return None
    client = runtime()
    try:
        records = () if client is None else client.list_records()
    except SourceError:
        records = ()
    owners = {
        container.id: (record.api_uid, container.name)
        for record in records
        for container in record.containers
    }

    def original(container_id: str) -> frozenset[int] | None:
        owner = owners.get(container_id)
        return None if owner is None else state.exclusive.get(owner, state.default_cpus)

    return original
