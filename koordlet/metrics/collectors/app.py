"""Declared host applications."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from koordlet.metrics.readings import EntityKey, Level
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import HostApp
from koordlet.model.readings import Missing


def located_apps(apps: Sequence[HostApp]) -> Iterator[tuple[EntityKey, CgroupPath]]:
    """What to measure: the applications whose cgroup is there."""
    for app in apps:
        if not isinstance(app.cgroup, Missing):
            key = EntityKey(
                Level.APP, name=app.name, qos=app.qos, priority_class=app.priority_class
            )
            yield key, app.cgroup
