"""Real processes in real cgroups: the sampler and the collector see the cores that they use.

What a process really used is read from its own schedstat, since other work runs on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.metrics.collector import Collector
from koordlet.metrics.hot import HotSampler
from koordlet.metrics.readings import Level, ReadingsTable
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import Workloads, be_roots
from koordlet.model.readings import Missing
from koordlet.protocol.qos import Qos
from koordlet.snapshot import CpuUse
from tests.support.cgroot import CgroupRoot, cgroup_root
from tests.support.kernelhost import KernelHost
from tests.support.metricsrig import LAYOUT, host_app, pod

pytestmark = pytest.mark.kernel

PERIOD_US = 100_000
SPIN = ("sh", "-c", "while :; do :; done")
TOLERANCE_CORES = 0.03  # counters of a running task are up to a clock tick old
HELD_BYTES = 8 << 20


@pytest.fixture
def ground() -> Iterator[CgroupRoot]:
    with cgroup_root() as made:
        yield made


@pytest.fixture
def host(ground: CgroupRoot) -> Iterator[KernelHost]:
    made = KernelHost(ground)
    yield made
    made.close()


class Spinner:
    """A process that wants one core, in a cgroup whose quota gives it ``cores``."""

    def __init__(self, ground: CgroupRoot, cg: str, cores: float) -> None:
        ground.mk(cg, quota_us=round(cores * PERIOD_US))
        self._schedstat = Path(f"/proc/{ground.spawn(cg, *SPIN).pid}/schedstat")
        self._seen: list[tuple[float, int]] = []

    def note(self) -> None:
        """Remember what it has used until now."""
        self._seen.append((time.monotonic(), int(self._schedstat.read_text().split()[0])))

    def cores(self, steps: int) -> float:
        """What it used over the last ``steps`` notes."""
        (before_s, before_ns), (after_s, after_ns) = self._seen[-1 - steps], self._seen[-1]
        return (after_ns - before_ns) / (after_s - before_s) / 1e9


def near(cores: float) -> object:
    return pytest.approx(cores, abs=TOLERANCE_CORES)


def test_sampler_and_collector_see_what_processes_use(ground: CgroupRoot, host: KernelHost) -> None:
    spinners = {
        "main": Spinner(ground, "kubepods/burstable/podls/main", 0.20),
        "worker": Spinner(ground, "kubepods/besteffort/podbe/worker", 0.30),
        "redis": Spinner(ground, "redis", 0.10),
    }
    host.set_memory("kubepods/burstable/podls/main", HELD_BYTES)
    batch = pod("be", ("worker",), qos=Qos.BE)
    workloads = Workloads((pod("ls"), batch), 0.0, (host_app("redis"),), LAYOUT)
    hot = HotSampler(host.cgroups(), online_cpus=64)
    hot.set_roots(LAYOUT, be_roots(workloads), workloads.apps)
    collector = Collector(host.cgroups(), host.roots, online_cpus=64)
    table = ReadingsTable()
    use: CpuUse | Missing = Missing("no sample yet")
    for step in range(16):
        time.sleep(0.2)
        now_s = time.monotonic()
        hot.sample(now_s)
        for spinner in spinners.values():
            spinner.note()
        if step % 5 == 0:
            use = hot.cpu_use(0.95, now_s)
            collector.collect(now_s, workloads, use, frozenset({"uid-ls", "uid-be"}))
            table.apply(collector.readings(step))
    real = {name: spinner.cores(5) for name, spinner in spinners.items()}
    assert isinstance(use, CpuUse)
    assert use.nonbe_pods_cores == near(real["main"])
    assert use.be_roots_cores[LAYOUT.besteffort] == near(real["worker"])
    assert use.nonbe_apps_cores == near(real["redis"])
    parts = (use.nonbe_workload_cores, use.system_cores, *use.be_roots_cores.values())
    assert use.node_cores == pytest.approx(sum(parts), abs=TOLERANCE_CORES)
    used = {
        key.container or key.pod or key.name: values["used_cpu_cores"]
        for level in (Level.CONTAINER, Level.POD, Level.APP)
        for key, values in table.at(level)
    }
    assert used == {
        "main": near(real["main"]),
        "ls": near(real["main"]),
        "worker": near(real["worker"]),
        "be": near(real["worker"]),
        "redis": near(real["redis"]),
    }
    (main,) = (each for key, each in table.at(Level.CONTAINER) if key.container == "main")
    assert main["memory_usage_bytes"] >= main["memory_anon_bytes"] >= HELD_BYTES
    (node,) = (values for _, values in table.at(Level.NODE))
    assert node["used_cpu_cores"] > 0
    assert node["memory_usage_bytes"] > node["memory_anon_bytes"] > 0


def test_a_throttled_root_tells_its_demand(ground: CgroupRoot, host: KernelHost) -> None:
    spinner = Spinner(ground, "kubepods/besteffort", 0.05)
    tier = CgroupPath("kubepods/besteffort")
    workloads = Workloads((pod("be", (), qos=Qos.BE),), 0.0, (), LAYOUT)
    hot = HotSampler(host.cgroups(), online_cpus=64)
    hot.set_roots(LAYOUT, be_roots(workloads), ())
    for _ in range(12):
        hot.sample(time.monotonic())
        spinner.note()
        time.sleep(0.2)
    demand = hot.demand(time.monotonic())[tier]
    assert demand.used_cores == near(spinner.cores(11))
    assert demand.throttled_ratio > 0.5


def test_PP_15_a_cgroup_made_anew_gives_nothing_absurd(
    ground: CgroupRoot, host: KernelHost
) -> None:
    Spinner(ground, "redis", 0.50)
    workloads = Workloads(Missing("none"), 0.0, (host_app("redis"),), Missing("no kubelet"))
    hot = HotSampler(host.cgroups(), online_cpus=64)
    hot.set_roots(workloads.layout, (), workloads.apps)
    seen: list[CpuUse] = []
    for step in range(14):
        if step == 7:
            ground.rm("redis")
            Spinner(ground, "redis", 0.50)
        now_s = time.monotonic()
        hot.sample(now_s)
        surge = hot.surge(now_s)
        if isinstance(surge, CpuUse):
            seen.append(surge)
        time.sleep(0.2)
    assert len(seen) >= 10
    for use in seen:
        assert 0.0 <= use.nonbe_apps_cores <= 0.75
        assert use.system_cores >= 0.0
