"""A fake host with pods, a collector over it, and the table that a front would have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koordlet.metrics.collector import Collector
from koordlet.metrics.readings import EntityKey, Level, Readings, ReadingsTable, Scope
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import (
    AppBackend,
    CgroupDriver,
    Container,
    ContainerRecord,
    ContainerState,
    HostApp,
    KubeLayout,
    Pod,
    PodRecord,
    Workloads,
)
from koordlet.model.readings import Missing
from koordlet.protocol.qos import KubeQos, PriorityClass, Qos, QosSource, ValueSource
from koordlet.snapshot import CpuUse
from tests.support.fakehost import FakeHost, fake_host

LAYOUT = KubeLayout(
    CgroupDriver.CGROUPFS,
    CgroupPath("kubepods"),
    CgroupPath("kubepods/burstable"),
    CgroupPath("kubepods/besteffort"),
)
MEMORY_STAT = "\n".join(
    f"{prefix}{name} {size << 20}"
    for prefix in ("", "total_")
    for name, size in (
        ("inactive_anon", 10),
        ("active_anon", 20),
        ("inactive_file", 40),
        ("active_file", 30),
        ("unevictable", 5),
    )
)


def container(pod: str, name: str, *, id: str = "", attempt: int = 0) -> Container:
    """A running container of ``pod`` (a cgroup path); its id is its name unless told."""
    record = ContainerRecord(id or name, name, attempt, ContainerState.RUNNING)
    return Container(record, CgroupPath(f"{pod}/{id or name}"))


def pod(
    name: str,
    containers: Iterable[str | Container] = ("main",),
    *,
    qos: Qos = Qos.LS,
    cgroup: CgroupPath | Missing | None = None,
) -> Pod:
    """A pod in the tier of its class; names of containers are turned into containers."""
    tier = LAYOUT.besteffort if qos is Qos.BE else LAYOUT.burstable
    path = tier.child(f"pod{name}")
    found = tuple(container(path, each) if isinstance(each, str) else each for each in containers)
    return Pod(
        record=PodRecord(f"uid-{name}", f"uid-{name}", "shop", name),
        cgroup=path if cgroup is None else cgroup,
        kube_qos=KubeQos.BEST_EFFORT if qos is Qos.BE else KubeQos.BURSTABLE,
        qos=qos,
        qos_source=QosSource.LABEL,
        marked=True,
        refused="",
        priority=None,
        priority_class=PriorityClass.BATCH if qos is Qos.BE else PriorityClass.PROD,
        priority_source=ValueSource.DERIVED,
        containers=found,
    )


def host_app(name: str, *, qos: Qos = Qos.LS) -> HostApp:
    """A host application in a cgroup of its own name."""
    return HostApp(name, qos, None, PriorityClass.PROD, CgroupPath(name), AppBackend.FILE)


class MetricsRig:
    """Moves the host's counters and a clock, collects, and keeps the front's table."""

    def __init__(self, layout: str = "v1", *, memory_bytes: int = 8 << 30) -> None:
        self.host: FakeHost = fake_host(layout, memory_bytes=memory_bytes)
        for tier in (LAYOUT.burstable, LAYOUT.besteffort):
            self.make(tier)
        self.collector = Collector(self.host.cgroups(), self.host.roots, online_cpus=4)
        self.table = ReadingsTable()
        self.now_s = 1_000.0
        self.tick = 0
        self.pods: tuple[Pod, ...] = ()
        self.apps: tuple[HostApp, ...] = ()
        self.layout: KubeLayout | Missing = LAYOUT
        self.cpu: CpuUse | Missing = Missing("no sampler")
        self.active: frozenset[str] = frozenset()

    def make(self, cg: str) -> None:
        """Make a cgroup that has memory in it."""
        self.host.make(cg)
        stat = MEMORY_STAT if "memory" in self.host.hierarchies.v1 else MEMORY_STAT[:V2_LENGTH]
        self.host.set_text(cg, "memory.stat", stat)
        self.host.set_memory(cg, 110 << 20)

    def add(self, *pods: Pod) -> None:
        """Let pods run: their cgroups appear, then the source tells them."""
        for each in pods:
            if isinstance(each.cgroup, CgroupPath):
                self.make(each.cgroup)
            for one in each.containers:
                if isinstance(one.cgroup, CgroupPath):
                    self.make(one.cgroup)
        self.pods = (*self.pods, *pods)

    def run(self, steps: int = 1, *, step_s: float = 1.0, **cores: float) -> Readings:
        """Collect ``steps`` more times; the containers named use so many cores meanwhile."""
        used = {self.cgroup_of(name): amount for name, amount in cores.items()}
        return self.run_at(used, steps, step_s=step_s)

    def run_at(
        self, used: Mapping[CgroupPath, float], steps: int = 1, *, step_s: float = 1.0
    ) -> Readings:
        """As ``run``, by cgroup."""
        readings = Readings(0)
        for _ in range(steps):
            for cgroup, amount in used.items():
                self.host.use_cpu(cgroup, round(amount * step_s * 1e9))
            self.now_s += step_s
            readings = self.collect()
        return readings

    def collect(self) -> Readings:
        """One tick at the present time."""
        workloads = Workloads(self.pods, 0.0, self.apps, self.layout)
        self.collector.collect(self.now_s, workloads, self.cpu, self.active)
        self.tick += 1
        readings = self.collector.readings(self.tick, Scope.DELTA)
        self.table.apply(readings)
        return readings

    def cgroup_of(self, container_name: str) -> CgroupPath:
        """The cgroup of a container by its name, which no two pods share here."""
        for each in self.pods:
            for one in each.containers:
                if one.name == container_name and isinstance(one.cgroup, CgroupPath):
                    return one.cgroup
        raise KeyError(container_name)

    def values(self, level: Level, **match: str) -> dict[str, float]:
        """The values of the one entity of ``level`` whose key has these parts."""
        found = [
            values
            for key, values in self.table.at(level)
            if all(getattr(key, name) == value for name, value in match.items())
        ]
        assert len(found) == 1, (level, match, len(found))
        return found[0]

    def keys(self, level: Level) -> list[EntityKey]:
        """The keys of ``level``."""
        return [key for key, _ in self.table.at(level)]


V2_LENGTH = MEMORY_STAT.index("\ntotal_")
