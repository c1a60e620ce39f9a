"""Our own cgroup under systemd: found by its mark, and made fit to try settings in (hazard H25)."""

from __future__ import annotations

import errno
import os
from typing import Any, cast

import pytest

from koordlet.host.cgroup import Cgroups
from koordlet.host.delegated import delegated_cgroup, make_room
from koordlet.host.mounts import Hierarchies, Hierarchy, Roots
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing

MOUNT = "/sys/fs/cgroup"
OWN = "koord.slice/koordlet.service"
DIRECTORY = f"{MOUNT}/{OWN}"


class Kernel:
    """Two v2 cgroups with the rule that counts here: no controllers below one with processes."""

    def __init__(self, own: str = f"/{OWN}", pids: tuple[str, ...] = ("10", "11", "12")) -> None:
        self.own = own
        self.pids = {DIRECTORY: list(pids)}
        self.controllers = "cpuset cpu io memory hugetlb pids"
        self.handed_down: list[str] = []
        self.dead = "11"

    def cgroups(self, managed: str = MOUNT) -> Cgroups:
        unified = Hierarchy(MOUNT, 2, frozenset(self.controllers.split()), managed)
        return Cgroups(cast(Any, self), Hierarchies(unified=unified))

    def read(self, path: str) -> bytes | Missing:
        directory, _, name = path.rpartition("/")
        texts = {
            "cgroup": f"0::{self.own}\n",
            "cgroup.procs": "\n".join(self.pids.get(directory, ())),
            "cgroup.controllers": self.controllers,
            "cgroup.subtree_control": " ".join(self.handed_down),
        }
        return texts[name].encode()

    def exists(self, path: str) -> bool:
        return path in self.pids

    def make_dir(self, path: str) -> None:
        self.pids[path] = []

    def write(self, path: str, text: str) -> None:
        directory, _, name = path.rpartition("/")
        if name == "cgroup.procs":
            self.pids[DIRECTORY].remove(text)
            if text == self.dead:
                raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), path)
            self.pids[directory].append(text)
        else:
            if self.pids[directory]:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
            self.handed_down += [word.removeprefix("+") for word in text.split()]


def marked(*directories: str) -> Any:
    def get_xattr(path: str, name: str) -> bytes:
        if path in directories and name == "user.delegate":
            return b"1"
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), path)

    return get_xattr


# -- whose cgroup ---------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [f"/{OWN}", f"/{OWN}/daemon"])
def test_H25_the_marked_cgroup_of_our_service_is_ours(own: str) -> None:
    found = delegated_cgroup(Kernel(own).cgroups(), Roots(), marked(DIRECTORY))
    assert found == CgroupPath(OWN)


@pytest.mark.parametrize(
    "own",
    [
        f"/{OWN}",  # a service without Delegate=yes
        "/user.slice/user-0.slice/session-1.scope",
        "/user.slice/user-1000.slice/user@1000.service/app.slice/shell.scope",
        "/system.slice/docker-0123.scope",
        "/kubepods.slice/kubepods-pod1.slice/cri-containerd-0123.scope",
        "/",
    ],
)
def test_H25_what_was_given_to_somebody_else_is_not_ours(own: str) -> None:
    user = f"{MOUNT}/user.slice/user-1000.slice/user@1000.service"
    scopes = [f"{MOUNT}{own}"] if own.endswith(".scope") else []
    found = delegated_cgroup(Kernel(own).cgroups(), Roots(), marked(user, *scopes))
    assert isinstance(found, Missing)


def test_H25_a_cgroup_outside_of_the_managed_root_is_left_alone() -> None:
    cgroups = Kernel().cgroups(managed=f"{MOUNT}/koordtest-1")
    assert isinstance(delegated_cgroup(cgroups, Roots(), marked(DIRECTORY)), Missing)


# -- room -----------------------------------------------------------------------------------------


def test_processes_move_before_controllers_are_handed_down() -> None:
    kernel = Kernel()
    make_room(kernel.cgroups(), CgroupPath(OWN))
    assert kernel.pids == {DIRECTORY: [], f"{DIRECTORY}/daemon": ["10", "12"]}
    assert kernel.handed_down == ["cpu", "cpuset", "io", "memory", "pids"]


def test_a_second_time_there_is_nothing_to_do() -> None:
    kernel = Kernel()
    make_room(kernel.cgroups(), CgroupPath(OWN))
    before = list(kernel.handed_down)
    make_room(kernel.cgroups(), CgroupPath(OWN))
    assert kernel.handed_down == before


def test_on_a_hybrid_host_there_is_nothing_to_hand_down() -> None:
    kernel = Kernel()
    kernel.controllers = ""
    make_room(kernel.cgroups(), CgroupPath(OWN))
    assert kernel.handed_down == []
