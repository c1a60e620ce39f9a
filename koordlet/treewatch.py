"""Which cgroup directories changed: inotify where there is one, else "look again"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koordlet.host.cgroup import Cgroups
from koordlet.host.watch import Watch, WatchUnavailable
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem

CONTROLLER = "cpu"  # runtimes create a container's directory in every hierarchy alike
MAX_DIRS = 20_000  # a tree above this is a runaway; the rest stays unscanned and is reported


class TreeWatch:
    """Follows a set of directories of the ``cpu`` hierarchy; one inotify descriptor in all."""

    def __init__(
        self, cgroups: Cgroups, watch: Watch | None, problem: Problem | None = None
    ) -> None:
        """``problem`` says why there is no ``watch``."""
        self._cgroups = cgroups
        self._watch = watch
        self._followed: set[CgroupPath] = set()
        self.problem = problem

    @property
    def fd(self) -> int | None:
        """The descriptor to poll, or None while this host has to be polled."""
        return None if self._watch is None else self._watch.fd

    def follow(self, wanted: Iterable[CgroupPath]) -> None:
        """Watch exactly ``wanted``; a directory that is already gone is skipped."""
        if self._watch is None:
            return
        target = set(wanted)
        for path in self._followed - target:
            self._watch.remove(self._directory(path))
        for path in target - self._followed:
            self._add(path)
        self._followed = target

    def _add(self, path: CgroupPath) -> None:
        directory = self._directory(path)
        if self._watch is None or not directory:
            return
        try:
            self._watch.add(directory)
        except WatchUnavailable as error:
            self.problem = error.problem
            self._watch.close()
            self._watch = None

    def _directory(self, path: CgroupPath) -> str:
        directory = self._cgroups.dir_of(path, CONTROLLER)
        return "" if isinstance(directory, Missing) else directory

    def drain(self) -> bool:
        """True when a followed directory gained or lost a child since the last call."""
        return self._watch is not None and bool(self._watch.read())


def scan(
    cgroups: Cgroups, roots: Iterable[CgroupPath]
) -> Mapping[CgroupPath, tuple[CgroupPath, ...]]:
    """The direct children of every directory at or below ``roots``; gone ones are left out."""
    tree: dict[CgroupPath, tuple[CgroupPath, ...]] = {}
    waiting = list(roots)
    while waiting and len(tree) < MAX_DIRS:
        path = waiting.pop()
        children = cgroups.children(path, CONTROLLER)
        if isinstance(children, Missing):
            continue
        tree[path] = children
        waiting.extend(children)
    return tree
