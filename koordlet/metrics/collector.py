"""All collectors of the core, and the message that carries what they found to the front."""

from __future__ import annotations

from collections.abc import Container

from koordlet.host.cgroup import Cgroups
from koordlet.host.mounts import Roots
from koordlet.metrics.collectors.app import located_apps
from koordlet.metrics.collectors.named import NamedCollector
from koordlet.metrics.collectors.node import NodeCollector
from koordlet.metrics.collectors.pod import PodCollector
from koordlet.metrics.collectors.sink import Sink
from koordlet.metrics.collectors.tier import tiers
from koordlet.metrics.readings import Readings, Scope
from koordlet.model.pods import Workloads
from koordlet.model.readings import Missing
from koordlet.snapshot import CpuUse


class Collector:
    """Reads node, tiers, pods, containers and host applications by the cadence of hazard H29.

    ``online_cpus`` bounds what a CPU counter can gain in a second.
    """

    def __init__(self, cgroups: Cgroups, roots: Roots, *, online_cpus: int) -> None:
        self._sink = Sink()
        self._node = NodeCollector(cgroups, roots, self._sink, online_cpus=online_cpus)
        self._tiers = NamedCollector(cgroups, self._sink, online_cpus=online_cpus)
        self._pods = PodCollector(cgroups, self._sink, online_cpus=online_cpus)
        self._apps = NamedCollector(cgroups, self._sink, online_cpus=online_cpus)

    def collect(
        self,
        now_s: float,
        workloads: Workloads,
        cpu: CpuUse | Missing,
        active_pods: Container[str] = frozenset(),
    ) -> None:
        """Sample what is due. ``cpu`` is what the 5 Hz sampler says; ``active_pods`` are the uids
        of pods that a strategy acts on: their containers are read each second.
        """
        self._node.collect(now_s, workloads, cpu)
        self._tiers.collect(now_s, tiers(workloads.layout))
        self._pods.collect(now_s, workloads.known_pods(), active_pods)
        self._apps.collect(now_s, located_apps(workloads.apps))

    def readings(self, tick: int, scope: Scope = Scope.DELTA) -> Readings:
        """What is new since the last call, or everything for a front that has just connected."""
        return self._sink.whole(tick) if scope is Scope.WHOLE else self._sink.drain(tick)
