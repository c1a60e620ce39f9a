"""The host as one process sees it: files, roots and cgroups, opened together."""

from __future__ import annotations

import os
from dataclasses import dataclass

from koordlet.host.cgroup import Cgroups
from koordlet.host.mounts import Roots, discover
from koordlet.host.procfs import boot_id
from koordlet.host.tree import Tree, fd_budget, raise_fd_limit
from koordlet.host.unitowner import no_systemd
from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem, RefusedError


@dataclass(frozen=True, slots=True)
class Machine:
    """One thread's own view; ``root_identity`` names the managed root for the writer's lock."""

    files: Tree
    roots: Roots
    cgroups: Cgroups
    boot_id: str
    managed_root: str
    root_identity: tuple[int, int]
    possible_cpus: int


def open_machine(roots: Roots, *, keeps_fds: bool) -> Machine:
    """Find the cgroup hierarchies below ``roots``; ``keeps_fds`` for a process that reads the
    same files all the time. Raises RefusedError where there is nothing to manage.
    """
    files = Tree(fd_budget(raise_fd_limit()) if keeps_fds else 0)
    hierarchies = discover(files, roots)
    if isinstance(hierarchies, Missing):
        raise _refused(roots.proc, hierarchies.why, "mount cgroup v2 (or v1) on this host")
    primary = hierarchies.of("cpu") or hierarchies.unified
    if primary is None:
        raise _refused(
            roots.proc, "no hierarchy offers the cpu controller", "mount it, or boot with cgroup v2"
        )
    identity = files.identity(primary.managed)
    if isinstance(identity, Missing):
        raise _refused(primary.managed, f"the managed cgroup root: {identity.why}", "make it first")
    boot = boot_id(files, roots)
    if isinstance(boot, Missing):
        raise _refused(roots.proc, boot.why, "mount procfs there")
    files.confine(hierarchies.confinements(), keep_below=(roots.proc, roots.sysfs))
    return Machine(
        files=files,
        roots=roots,
        cgroups=Cgroups(
            files,
            hierarchies,
            os.sysconf("SC_PAGE_SIZE"),
            no_systemd=no_systemd(files, roots),
        ),
        boot_id=boot,
        managed_root=primary.managed,
        root_identity=identity,
        possible_cpus=os.sysconf("SC_NPROCESSORS_CONF"),
    )


def _refused(where: str, what: str, remedy: str) -> RefusedError:
    return RefusedError((Problem("no-cgroups", where, what, remedy=remedy),))
