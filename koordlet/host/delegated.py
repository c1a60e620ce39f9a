"""The cgroup that systemd gave to this service as its own (``Delegate=yes``): the one place where
settings may be tried (hazard H25).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from koordlet.host.cgroup import Cgroups
from koordlet.host.mounts import Roots
from koordlet.host.procfs import own_cgroups
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing

ROOM = "daemon"
"""The child of our cgroup that our processes move to."""

_MARK = "user.delegate"  # set by systemd >= 251; its older trusted.delegate takes CAP_SYS_ADMIN
_CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")
_ROUNDS = 8  # of moving, while a process forks

GetXattr = Callable[[str, str], bytes]


def delegated_cgroup(
    cgroups: Cgroups, roots: Roots, get_xattr: GetXattr = os.getxattr
) -> CgroupPath | Missing:
    """The cgroup of the service that this process is, below the managed root.

    Only a service is meant, and only its own cgroup: a container's scope is delegated to the
    runtime, which puts further processes into it, and ``user@1000.service`` to a user's manager.
    """
    unified = cgroups.hierarchies.unified
    own = own_cgroups(cgroups.files, roots)
    if unified is None or isinstance(own, Missing):
        return Missing("systemd marks what it delegates in a cgroup v2 hierarchy, there is none")
    directory = unified.mount + own.get("unified", "/").rstrip("/").removesuffix(f"/{ROOM}")
    is_service = directory.endswith(".service") and directory.startswith(unified.managed + "/")
    if not is_service or not _is_marked(directory, get_xattr):
        return Missing("koordlet is no service with a cgroup of its own (Delegate=yes)")
    return CgroupPath.parse(directory.removeprefix(unified.managed))


def _is_marked(directory: str, get_xattr: GetXattr) -> bool:
    try:
        return get_xattr(directory, _MARK) == b"1"
    except OSError:
        return False


def make_room(cgroups: Cgroups, own: CgroupPath) -> None:
    """Make ``own`` fit for children with controllers: cgroup v2 hands those down only from a
    cgroup without processes, so all of them move to ``own/daemon``. Raises OSError.
    """
    directory = cgroups.dir_of(own, "unified")
    if isinstance(directory, Missing):
        return
    files, room = cgroups.files, f"{directory}/{ROOM}"
    if not files.exists(room):
        files.make_dir(room)
    for _ in range(_ROUNDS):
        pids = _words(cgroups, f"{directory}/cgroup.procs")
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                files.write(f"{room}/cgroup.procs", pid)
    offered = _words(cgroups, f"{directory}/cgroup.controllers")
    handed_down = _words(cgroups, f"{directory}/cgroup.subtree_control")
    wanted = [f"+{name}" for name in _CONTROLLERS if name in offered and name not in handed_down]
    if wanted:
        files.write(f"{directory}/cgroup.subtree_control", " ".join(wanted))


def _words(cgroups: Cgroups, path: str) -> list[str]:
    text = cgroups.files.read(path)
    return [] if isinstance(text, Missing) else text.decode(errors="replace").split()
