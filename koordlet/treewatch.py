"""Which cgroup directories changed: by inotify where there is one, else by listing them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koordlet.host.cgroup import Cgroups
from koordlet.host.watch import Change, Watch, WatchUnavailable
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.model.sharing import share_paths
from koordlet.protocol.problem import Problem

CONTROLLER = "cpu"  # runtimes create a container's directory in every hierarchy alike
MAX_DIRS = 20_000  # a tree above this is a runaway; the rest stays unscanned


class TreeWatch:
    """Follows a set of directories of the ``cpu`` hierarchy; one inotify descriptor in all.

    Directories for which this host has no watch are listed and compared by ``drain``.
    """

    def __init__(
        self, cgroups: Cgroups, watch: Watch | None, problem: Problem | None = None
    ) -> None:
        """``problem`` says why there is no ``watch``."""
        self._cgroups = cgroups
        self._watch = watch
        self._watched: dict[CgroupPath, str] = {}
        self._by_directory: dict[str, CgroupPath] = {}
        self._listed: dict[CgroupPath, tuple[CgroupPath, ...]] = {}
        self.problem = problem

    @property
    def fd(self) -> int | None:
        """Readable when a watched directory changed; None where there is no inotify."""
        return None if self._watch is None else self._watch.fd

    @property
    def is_blind(self) -> bool:
        """True while changes of some followed directory are found by ``drain`` alone."""
        return bool(self._listed)

    def follow(self, wanted: Iterable[CgroupPath]) -> bool:
        """Follow exactly ``wanted``; a directory that is not there is tried again in the next call.

        True where some are watched from now on: of what was made in them before comes no event.
        """
        target = set(wanted)
        for path in self._watched.keys() - target:
            self._unwatch(path)
        self._listed = {path: names for path, names in self._listed.items() if path in target}
        if self._watch is not None:
            self.problem = None
        fresh = sorted(target - self._watched.keys(), key=lambda path: (path.depth, path))
        watched = [path for path in fresh if self._add(path)]
        if self._watch is None or self.problem is not None:
            for path in target - self._watched.keys() - self._listed.keys():
                self._list(path)
        return bool(watched)

    def _add(self, path: CgroupPath) -> bool:
        directory = self._cgroups.dir_of(path, CONTROLLER)
        if self._watch is None or self.problem is not None or isinstance(directory, Missing):
            return False
        try:
            if not self._watch.add(directory):
                return False
        except WatchUnavailable as error:
            self.problem = error.problem  # those watched so far stay watched
            return False
        self._watched[path], self._by_directory[directory] = directory, path
        self._listed.pop(path, None)
        return True

    def _unwatch(self, path: CgroupPath) -> None:
        directory = self._watched.pop(path)
        del self._by_directory[directory]
        if self._watch is not None:
            self._watch.remove(directory)

    def _list(self, path: CgroupPath) -> None:
        children = self._cgroups.children(path, CONTROLLER)
        if not isinstance(children, Missing):
            self._listed[path] = children

    def drain(self) -> bool:
        """True when a followed directory gained or lost a child since the last call."""
        events = () if self._watch is None else self._watch.read()
        for event in events:
            if event.change is Change.OVERFLOW:
                for path in list(self._watched):
                    self._unwatch(path)
            elif event.change is Change.REMOVED:
                # One made anew at the same place has to be watched anew.
                gone = self._by_directory.get(f"{event.directory}/{event.name}")
                if gone is not None:
                    self._unwatch(gone)
        return self._listings_changed() or bool(events)

    def _listings_changed(self) -> bool:
        before = self._listed
        self._listed = {}
        for path in before:
            self._list(path)
        return self._listed != before

    def close(self) -> None:
        """Give the inotify instance back."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None


Children = Mapping[CgroupPath, tuple[CgroupPath, ...]]
"""The direct children of each directory of a tree."""


def scan(cgroups: Cgroups, roots: Iterable[CgroupPath], before: Children | None = None) -> Children:
    """The direct children of every directory at or below ``roots``; gone ones are left out, and
    all above MAX_DIRS. What is as ``before`` is the same object: thousands of paths that are
    replaced by their equals at each scan scatter whatever lies between them in memory.
    """
    known = {} if before is None else before
    tree: dict[CgroupPath, tuple[CgroupPath, ...]] = {}
    waiting = list(roots)
    while waiting and len(tree) < MAX_DIRS:
        path = waiting.pop()
        children = cgroups.children(path, CONTROLLER)
        if isinstance(children, Missing):
            continue
        tree[path] = children = share_paths(children, known.get(path, ()))
        waiting.extend(children)
    return tree
