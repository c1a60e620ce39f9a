"""Undo from the journal with everything that it takes: the host below the journal's own root, the
container runtime, and the kubelet's CPU manager state. Used where no core is there to do it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from koordlet.clock import SystemClock
from koordlet.config import Config
from koordlet.endpoints import find_runtime
from koordlet.host.cpumanager import read_cpu_manager_state
from koordlet.host.machine import Machine, open_machine
from koordlet.model.actions import Target
from koordlet.model.knobs import Knob, Value
from koordlet.model.readings import Missing
from koordlet.model.topology import CpuManagerPolicy
from koordlet.pods.cri import CriClient
from koordlet.pods.source import SourceError
from koordlet.pods.specchange import change_spec
from koordlet.resexecutor.judge import CpusetOriginal
from koordlet.resexecutor.rollback import (
    DoneBy,
    RollbackHost,
    RollbackOptions,
    RollbackReport,
    SpecRestore,
    managed_root_of,
    rollback,
    runtime_of,
)
from koordlet.resexecutor.unitlink import unit_thread

RELOAD_S = 25.0  # of systemd; whoever asks for an undo wants to find it done


@dataclass(frozen=True, slots=True)
class Undone:
    """What a rollback did, and the kernel file of each outcome."""

    report: RollbackReport
    paths: Mapping[Target, str]


def undo(config: Config, options: RollbackOptions, *, cgroup_root: str | None = None) -> Undone:
    """Give back what the journal of ``config.run_dir`` holds.

    ``cgroup_root`` outranks the root that the journal names. Raises RefusedError where the host
    has no cgroups.
    """
    machine = _machine(config, cgroup_root)
    if isinstance(machine, Missing):
        return Undone(RollbackReport(DoneBy.NOBODY, note=machine.why), {})
    runtime = _runtime(config, machine.boot_id)
    try:
        report = rollback(
            config.run_dir,
            RollbackHost(
                machine.cgroups,
                machine.boot_id,
                machine.managed_root,
                machine.root_identity,
                unit_thread(machine, RELOAD_S),
            ),
            SystemClock(),
            options=options,
            spec_restore=_spec_restore(runtime),
            cpuset_original=_cpuset_original(config, machine, runtime),
        )
        paths = {outcome.key: machine.cgroups.path_of(*outcome.key) for outcome in report.outcomes}
    finally:
        machine.files.close()
    known = {key: path for key, path in paths.items() if not isinstance(path, Missing)}
    return Undone(report, known)


def _machine(config: Config, cgroup_root: str | None) -> Machine | Missing:
    """The host below the root that the journal was written for, unless an option names another.

    Missing where that root is gone, and with it everything that was changed.
    """
    whole = open_machine(replace(config.roots, cgroup="/"), keeps_fds=False)
    if cgroup_root is not None:
        return _below(whole, cgroup_root)
    journaled = managed_root_of(config.run_dir, whole.boot_id)
    if isinstance(journaled, Missing):
        return whole
    if not f"{journaled}/".startswith(f"{whole.managed_root}/"):
        return Missing(f"{journaled}: the journal's root is not on this host; nothing to undo")
    return _below(whole, journaled.removeprefix(whole.managed_root) or "/")


def _below(whole: Machine, cgroup_root: str) -> Machine | Missing:
    if cgroup_root == "/":
        return whole
    whole.files.close()
    directory = f"{whole.managed_root.rstrip('/')}{cgroup_root}"
    if not Path(directory).is_dir():
        return Missing(f"{directory}: gone, and all that was in it; nothing to undo")
    return open_machine(replace(whole.roots, cgroup=cgroup_root), keeps_fds=False)


def _runtime(config: Config, boot_id: str) -> Callable[[], CriClient | None]:
    """The client of the daemon's runtime, made when it is first needed: it costs a fifth of a
    second. The journal knows the endpoint, whatever options the daemon was started with.
    """

    @cache
    def client() -> CriClient | None:
        journaled = runtime_of(config.run_dir, boot_id)
        endpoint = find_runtime(config) if isinstance(journaled, Missing) else journaled
        return None if endpoint is None else CriClient(endpoint)

    return client


def _spec_restore(runtime: Callable[[], CriClient | None]) -> SpecRestore:
    def restore(container_id: str, knob: Knob, value: Value) -> str:
        return change_spec(runtime(), container_id, knob, value)

    return restore


def _cpuset_original(
    config: Config, machine: Machine, runtime: Callable[[], CriClient | None]
) -> CpusetOriginal | None:
    """What the kubelet's static policy gives a container now (hazard H9); None without it."""
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
