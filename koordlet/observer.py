"""Turns sources and the cgroup tree into the frozen Snapshot of a tick. Reads, never writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from koordlet.host.cgroup import Cgroups
from koordlet.ipc import AppsUpdate, KubeletUpdate, PodsUpdate, SloUpdate
from koordlet.model.actions import Owned, Target
from koordlet.model.knobs import Value
from koordlet.model.paths import ROOT, CgroupPath
from koordlet.model.pods import BeRoot, HostApp, KubeLayout, Workloads, be_roots
from koordlet.model.readings import Missing
from koordlet.pods.applocate import locate_apps
from koordlet.pods.layout import find_layout
from koordlet.pods.locate import LocateCache, locate_pods
from koordlet.protocol.problem import Problem
from koordlet.treewatch import TreeWatch, scan

RESCAN_S = 10.0  # a missed or unavailable inotify event costs at most this
POLL_RESCAN_S = 1.0  # where there is no inotify


@dataclass(slots=True)
class Inputs:
    """The newest word of each source; None until it has spoken once."""

    pods: PodsUpdate | None = None
    pods_at_s: float = 0.0
    apps: AppsUpdate | None = None
    slo: SloUpdate | None = None
    kubelet: KubeletUpdate | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """Workloads and the tree below their BE roots, as last looked up."""

    workloads: Workloads
    be_roots: tuple[BeRoot, ...]
    be_tree: Mapping[CgroupPath, tuple[CgroupPath, ...]]
    problems: tuple[Problem, ...]


class Observer:
    """Keeps workloads located; looks again when a source spoke, a directory changed, or in time."""

    def __init__(self, cgroups: Cgroups, tree_watch: TreeWatch) -> None:
        self._cgroups = cgroups
        self._tree_watch = tree_watch
        self._cache = LocateCache()
        self._dirty = True
        self._scanned_at_s = float("-inf")
        self._layout_hint = ""
        self.inputs = Inputs()
        self.seen = Seen(
            Workloads(Missing("no source has answered yet"), 0.0, (), Missing("")), (), {}, ()
        )

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with declared applications, located pods, and the watch."""
        watch = self._tree_watch.problem
        located = (*self.seen.problems, *self._cache.problems)
        return located if watch is None else (*located, watch)

    @property
    def watch_fd(self) -> int | None:
        """Readable when a followed directory changed; None where this host has to be polled."""
        return self._tree_watch.fd

    def mark_dirty(self) -> None:
        """A source spoke: look everything up again at the next refresh."""
        self._dirty = True

    def tree_changed(self) -> bool:
        """Take the inotify events; True (and dirty) when a followed directory changed."""
        changed = self._tree_watch.drain()
        self._dirty = self._dirty or changed
        return changed

    def refresh(self, now_s: float) -> bool:
        """Look up what is due; True when workloads or the tree may have changed."""
        interval = RESCAN_S if self._tree_watch.fd is not None else POLL_RESCAN_S
        if not self._dirty and now_s - self._scanned_at_s < interval:
            return False
        self._dirty = False
        self._scanned_at_s = now_s
        previous = self.seen
        self.seen = self._look(now_s)
        self._tree_watch.follow(_followed(self.seen))
        return self.seen != previous

    def _look(self, now_s: float) -> Seen:
        layout = self._layout()
        workloads, problems = self._workloads(now_s, layout)
        roots = be_roots(workloads)
        tree = scan(self._cgroups, (root.path for root in roots))
        return Seen(workloads, roots, tree, problems)

    def _layout(self) -> KubeLayout | Missing:
        kubelet = self.inputs.kubelet
        if kubelet is None:
            return find_layout(self._cgroups)
        return find_layout(self._cgroups, kubelet.cgroup_root, kubelet.cgroup_driver)

    def _workloads(
        self, now_s: float, layout: KubeLayout | Missing
    ) -> tuple[Workloads, tuple[Problem, ...]]:
        inputs = self.inputs
        apps: tuple[HostApp, ...] = ()
        problems: tuple[Problem, ...] = ()
        if inputs.apps is not None:
            apps, problems = locate_apps(self._cgroups, layout, inputs.apps.records)
        if inputs.pods is None:
            return Workloads(Missing("no source has answered yet"), 0.0, apps, layout), problems
        if isinstance(inputs.pods.records, Missing):
            return Workloads(inputs.pods.records, 0.0, apps, layout), problems
        pods = locate_pods(self._cgroups, layout, inputs.pods.records, self._cache)
        age_s = inputs.pods.age_s + now_s - inputs.pods_at_s
        return Workloads(pods, age_s, apps, layout), problems

    def values(
        self, needed: Iterable[Target], owned: Mapping[Target, Owned]
    ) -> Mapping[Target, Value | Missing]:
        """What the kernel files of these targets say now."""
        read = self._cgroups.read
        return {target: read(*target) for target in (*needed, *owned)}


def _followed(seen: Seen) -> set[CgroupPath]:
    """Directories whose children matter: where tiers, pods, containers and apps appear."""
    dirs = {ROOT, *seen.be_tree}
    layout = seen.workloads.layout
    if not isinstance(layout, Missing):
        dirs |= {layout.kubepods, layout.burstable, layout.besteffort}
    for pod in seen.workloads.known_pods():
        if not isinstance(pod.cgroup, Missing):
            dirs.add(pod.cgroup)
    for app in seen.workloads.apps:
        if not isinstance(app.cgroup, Missing):
            dirs |= {app.cgroup, app.cgroup.parent}
    return dirs
