"""Turns sources and the cgroup tree into the frozen Snapshot of a tick. Reads, never writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from koordlet.host.cgroup import Cgroups
from koordlet.ipc import (
    AppsUpdate,
    KubeletUpdate,
    PodsChange,
    PodsStillTrue,
    PodsUpdate,
    SloUpdate,
)
from koordlet.model.actions import Owned, Target
from koordlet.model.knobs import Value
from koordlet.model.paths import ROOT, CgroupPath
from koordlet.model.pods import BeRoot, HostApp, KubeLayout, Workloads, be_roots
from koordlet.model.readings import Missing
from koordlet.pods.applocate import locate_apps
from koordlet.pods.hostapp import HostAppRecord, declared_cgroup
from koordlet.pods.layout import find_layout
from koordlet.pods.locate import LocateCache, locate_pods
from koordlet.protocol.problem import Problem
from koordlet.treewatch import Children, TreeWatch, scan

QUIET_S = 5
RESCAN_S = 30.0  # a missed event costs at most this
BLIND_RESCAN_S = 10.0  # where some directories are not watched
_SERVICES = CgroupPath("system.slice")

Word = PodsUpdate | PodsChange | PodsStillTrue | AppsUpdate | SloUpdate | KubeletUpdate
"""What a source may say."""


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
    be_tree: Children
    problems: tuple[Problem, ...]


class Observer:
    """Keeps workloads located; looks again when a source spoke, a directory changed, or in time."""

    def __init__(self, cgroups: Cgroups, tree_watch: TreeWatch) -> None:
        self._cgroups = cgroups
        self._tree_watch = tree_watch
        self._cache = LocateCache()
        self._dirty = True
        self._quiet: dict[Target, Value | Missing] = {}
        self._quiet_second = 0
        self._scanned_at_s = float("-inf")
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

    def hear(self, word: Word, now_s: float) -> bool:
        """Take what a source says; True where everything has to be looked up again for it."""
        inputs = self.inputs
        match word:
            case PodsUpdate():
                inputs.pods, inputs.pods_at_s = word, now_s
            case PodsChange():
                if inputs.pods is None or isinstance(inputs.pods.records, Missing):
                    return False  # the whole list is still to come
                records = word.applied_to(inputs.pods.records)
                inputs.pods, inputs.pods_at_s = PodsUpdate(records, word.age_s), now_s
            case PodsStillTrue():
                if inputs.pods is not None:
                    inputs.pods = PodsUpdate(inputs.pods.records, word.age_s)
                    inputs.pods_at_s = now_s
                return False
            case AppsUpdate():
                inputs.apps = word
            case SloUpdate():
                inputs.slo = word
            case KubeletUpdate():
                inputs.kubelet = word
        self._dirty = True
        return True

    @property
    def is_blind(self) -> bool:
        """True while some directories have to be compared by ``tree_changed``, not only ``fd``."""
        return self._tree_watch.is_blind

    def tree_changed(self) -> bool:
        """True when a followed directory changed; the next refresh then looks at everything."""
        changed = self._tree_watch.drain()
        self._dirty = self._dirty or changed
        return changed

    def refresh(self, now_s: float) -> None:
        """Look everything up where a source spoke, a directory changed, or it is time to."""
        rescan_s = BLIND_RESCAN_S if self.is_blind else RESCAN_S
        if not self._dirty and now_s - self._scanned_at_s < rescan_s:
            return
        self._scanned_at_s = now_s
        before, self.seen = self.seen.be_tree, self._look(now_s)
        for path in before.keys() - self.seen.be_tree.keys():
            self._cgroups.forget(path)  # it has left, and its files' descriptors go (OPS-03)
        # What was made in a directory just before it was watched is found by another look.
        self._dirty = self._tree_watch.follow(_followed(self.seen, self.inputs.apps))

    def close(self) -> None:
        """Watch nothing any more."""
        self._tree_watch.close()

    def _look(self, now_s: float) -> Seen:
        layout = self._layout()
        workloads, problems = self._workloads(now_s, layout)
        roots = be_roots(workloads)
        tree = scan(self._cgroups, (root.path for root in roots), self.seen.be_tree)
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
        before = self.seen.workloads.pods
        if pods == before:
            pods = before  # the same object, for whoever compares by identity
        age_s = inputs.pods.age_s + now_s - inputs.pods_at_s
        return Workloads(pods, age_s, apps, layout), problems

    def values(
        self, needed: Iterable[Target], owned: Mapping[Target, Owned], now_s: float
    ) -> Mapping[Target, Value | Missing]:
        """What the kernel files of these targets say: now for BE roots and for what we hold, at
        most QUIET_S ago for the rest, a part of which is read anew each second (hazard H29).
        """
        read, quiet, due = self._cgroups.read, self._quiet, self._due_slots(now_s)
        self._quiet = {}
        roots = {root.path for root in self.seen.be_roots}
        found = {target: read(*target) for target in owned}
        for target in needed:
            if target in found:
                continue
            if target[0] in roots:
                found[target] = read(*target)
                continue
            is_known = target in quiet and hash(target) % QUIET_S not in due
            value = quiet[target] if is_known else read(*target)
            found[target] = self._quiet[target] = value
        return found

    def _due_slots(self, now_s: float) -> frozenset[int]:
        """Which of the QUIET_S parts are to be read anew: one for each second since the last."""
        second, last = int(now_s), self._quiet_second
        self._quiet_second = second
        return frozenset(each % QUIET_S for each in range(max(last, second - QUIET_S), second))

    def values_are_doubtful(self) -> None:
        """The kernel refused a write: read every value anew before the next decision."""
        self._quiet = {}


def _awaited(record: HostAppRecord, layout: KubeLayout | Missing) -> CgroupPath | Missing:
    """Where an application's cgroup is to come: a service starts in system.slice, unless its owner
    says otherwise; elsewhere a unit is found by the next rescan.
    """
    if record.systemd_unit:
        return _SERVICES.child(record.systemd_unit)
    return declared_cgroup(record, layout)


def _followed(seen: Seen, apps: AppsUpdate | None) -> set[CgroupPath]:
    """Directories whose children matter: where tiers, pods, containers and apps appear, those of
    applications that are not there (yet, or no more) included.
    """
    dirs = {ROOT, *seen.be_tree}
    layout = seen.workloads.layout
    for record in () if apps is None else apps.records:
        path = _awaited(record, layout)
        while isinstance(path, CgroupPath) and path != ROOT:
            path = path.parent
            dirs.add(path)
    if not isinstance(layout, Missing):
        dirs |= {layout.kubepods, layout.burstable, layout.besteffort}
    for pod in seen.workloads.known_pods():
        if not isinstance(pod.cgroup, Missing):
            dirs.add(pod.cgroup)
    for app in seen.workloads.apps:
        if not isinstance(app.cgroup, Missing):
            dirs |= {app.cgroup, app.cgroup.parent}
    return dirs
