"""The kubelet's tiers: all pods, the burstable and the BestEffort ones."""

from __future__ import annotations

from collections.abc import Iterator

from koordlet.metrics.readings import EntityKey, Level
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import KubeLayout
from koordlet.model.readings import Missing


def tiers(layout: KubeLayout | Missing) -> Iterator[tuple[EntityKey, CgroupPath]]:
    """What to measure of the kubelet's directories; nothing on a host without them."""
    if isinstance(layout, Missing):
        return
    yield EntityKey(Level.TIER, name="kubepods"), layout.kubepods
    yield EntityKey(Level.TIER, name="burstable"), layout.burstable
    yield EntityKey(Level.TIER, name="besteffort"), layout.besteffort
