"""The host layer over this machine's real cgroups, below a root of one's own."""

from __future__ import annotations

import os
import sys

from koordlet.host.cgroup import Cgroups
from koordlet.host.mounts import Hierarchies, Roots, discover
from koordlet.host.tree import Tree
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from tests.support.cgroot import CgroupRoot
from tests.support.waiting import until

_HOLD_MEMORY = """
import sys, time
time.sleep(0.5)  # it is moved here meanwhile
held = bytearray(b"x" * int(sys.argv[1]))
time.sleep(600)
"""


class KernelHost:
    """As ``FakeHost``, on the kernel. ``ground`` is the CgroupRoot that it works below."""

    def __init__(self, ground: CgroupRoot, *, budget: int = 256) -> None:
        self.ground = ground
        self.roots = Roots(cgroup=ground.root)
        self.files = Tree(budget)
        found = discover(self.files, self.roots)
        assert isinstance(found, Hierarchies), found
        self.hierarchies = found
        self.files.confine(found.confinements())
        self._cgroups = Cgroups(self.files, found, os.sysconf("SC_PAGE_SIZE"))

    def cgroups(self) -> Cgroups:
        """The host layer over this host."""
        return self._cgroups

    def make(self, cg: str) -> CgroupPath:
        """Make a cgroup, its parents too, in every hierarchy, its cpuset filled as runc does."""
        return CgroupPath.parse(self.ground.mk(cg))

    def remove(self, cg: str) -> None:
        """Kill everything in a cgroup and remove it, children first, in every hierarchy."""
        self.ground.rm(cg)

    def set_tasks(self, cg: str, count: int) -> None:
        """Put ``count`` more tasks into ``cg`` in every hierarchy."""
        for _ in range(count):
            self.ground.spawn(cg)

    def set_memory(self, cg: str, usage_bytes: int) -> None:
        """Put a task that holds ``usage_bytes`` of anonymous memory into ``cg``."""
        command = (sys.executable, "-c", _HOLD_MEMORY, str(usage_bytes))
        self.ground.spawn(cg, *command)

        def holds() -> bool:
            memory = self._cgroups.memory(CgroupPath(cg))
            return not isinstance(memory, Missing) and memory.usage_bytes >= usage_bytes

        until(holds, 10, f"{usage_bytes} bytes used by {cg}")

    def foreign_write(self, cg: str, file: str, text: str) -> None:
        """Another program's write to the hierarchy that has ``file``."""
        controllers = [
            name for name in self.ground.mounts if (self.ground.dir(cg, name) / file).exists()
        ]
        self.ground.write(cg, file, text, controllers[0])

    def close(self) -> None:
        """Close the fds; the ground closes the rest."""
        self.files.close()
