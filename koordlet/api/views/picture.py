"""A NodeView with its settings and readings indexed once, for views that walk all workloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from koordlet.api.views.settings import Setting, gather
from koordlet.api.views.usage import Usages
from koordlet.model.actions import Target
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import BeRoot, HostApp, Pod
from koordlet.model.readings import Missing
from koordlet.report import CoreStatus, NodeView


@dataclass(frozen=True, slots=True)
class Picture:
    """``settings`` by target, parents first; ``below`` their targets by every cgroup above them,
    their own included.
    """

    view: NodeView
    settings: Mapping[Target, Setting]
    below: Mapping[str, tuple[Target, ...]]
    usages: Usages

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The known pods."""
        workloads = self.view.workloads
        return () if isinstance(workloads, Missing) else workloads.known_pods()

    @property
    def apps(self) -> tuple[HostApp, ...]:
        """The declared host applications."""
        workloads = self.view.workloads
        return () if isinstance(workloads, Missing) else workloads.apps

    @property
    def be_roots(self) -> tuple[BeRoot, ...]:
        """The BE roots; none while the core has said nothing."""
        core = self.view.core
        return core.be_roots if isinstance(core, CoreStatus) else ()

    def at_or_below(self, cgroup: CgroupPath | Missing) -> dict[Target, Setting]:
        """Settings of a cgroup and of everything in it."""
        if isinstance(cgroup, Missing):
            return {}
        return {key: self.settings[key] for key in self.below.get(cgroup, ())}

    def above(self, cgroup: CgroupPath | Missing) -> dict[Target, Setting]:
        """Settings of the directories around a cgroup, the outermost first."""
        if isinstance(cgroup, Missing):
            return {}
        return {key: part for key, part in self.settings.items() if cgroup.is_below(key[0])}


def picture(view: NodeView) -> Picture:
    """The view with its indices."""
    settings = gather(view)
    below: dict[str, list[Target]] = {}
    for key in settings:
        for cgroup in _lineage(key[0]):
            below.setdefault(cgroup, []).append(key)
    indexed = {cgroup: tuple(keys) for cgroup, keys in below.items()}
    return Picture(view, settings, indexed, Usages(view.readings))


def _lineage(cgroup: CgroupPath) -> list[CgroupPath]:
    lineage = [cgroup]
    while lineage[-1]:
        lineage.append(lineage[-1].parent)
    return lineage
