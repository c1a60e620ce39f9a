"""The real files: how fast they are read, and what happens to kept fds of removed cgroups."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator

import pytest

from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from tests.support.cgroot import cgroup_root
from tests.support.kernelhost import KernelHost

pytestmark = pytest.mark.kernel

PODS = 125
PER_POD_V1 = (
    ("cpu", "cpu.stat"),
    ("cpu", "cpu.shares"),
    ("cpu", "cpu.cfs_quota_us"),
    ("cpu", "cpu.cfs_period_us"),
    ("cpu", "cpu.idle"),
    ("cpuacct", "cpuacct.usage"),
    ("cpuset", "cpuset.cpus"),
    ("cpuset", "cpuset.mems"),
    ("memory", "memory.usage_in_bytes"),
    ("memory", "memory.limit_in_bytes"),
    ("pids", "pids.current"),
    ("blkio", "blkio.throttle.io_serviced"),
)
PER_POD_V2 = (
    ("cpu", "cpu.stat"),
    ("cpu", "cpu.weight"),
    ("cpu", "cpu.max"),
    ("cpu", "cpu.max.burst"),
    ("cpu", "cpu.idle"),
    ("cpuset", "cpuset.cpus"),
    ("cpuset", "cpuset.mems"),
    ("cpuset", "cpuset.cpus.effective"),
    ("memory", "memory.current"),
    ("memory", "memory.max"),
    ("pids", "pids.current"),
    ("io", "io.stat"),
)
TICK_LIMIT_S = 0.010


@pytest.fixture
def host() -> Iterator[KernelHost]:
    with cgroup_root() as ground:
        made = KernelHost(ground, budget=2_000)
        yield made
        made.close()


def test_1500_kept_files_are_read_within_10_ms(host: KernelHost) -> None:
    cgroups = host.cgroups()
    files = PER_POD_V1 if host.ground.version == 1 else PER_POD_V2
    pods = [host.make(f"pod{number}") for number in range(PODS)]
    paths = [f"{cgroups.dir_of(pod, name)}/{file}" for pod in pods for name, file in files]
    assert len(paths) == 1_500
    for path in paths:
        assert isinstance(host.files.read(path), bytes), path
    took_s = []
    for _ in range(20):  # the best of them: other work runs on these CPUs
        start_s = time.perf_counter()
        for path in paths:
            host.files.read(path)
        took_s.append(time.perf_counter() - start_s)
    assert min(took_s) < TICK_LIMIT_S
    assert host.files.kept == 1_500


def test_a_kept_fd_of_a_removed_cgroup_is_closed_and_the_new_one_read(host: KernelHost) -> None:
    cgroups, pod = host.cgroups(), host.make("pod")
    cgroups.write(pod, Knob.CPU_SHARES, cgroups.encode(Knob.CPU_SHARES, 2))
    assert host.ground.weight("pod") == host.ground.weight_of(2)
    assert cgroups.read(pod, Knob.CPU_SHARES) == 2
    before = len(os.listdir("/proc/self/fd"))
    host.remove("pod")
    host.make("pod")
    assert cgroups.read_raw(pod, Knob.CPU_SHARES) == f"{host.ground.default_weight}\n".encode()
    assert len(os.listdir("/proc/self/fd")) == before
    host.remove("pod")
    gone = cgroups.read(pod, Knob.CPU_SHARES)
    assert isinstance(gone, Missing)
    assert gone.errno == errno.ENOENT
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_cgroup_that_left_is_forgotten_in_every_hierarchy(host: KernelHost) -> None:
    cgroups, pod = host.cgroups(), host.make("pod")
    host.make("pod/app")
    before = host.files.kept
    for cg in (pod, CgroupPath("pod/app")):
        cgroups.cpu_stat(cg)
        cgroups.memory(cg)
        cgroups.io(cg)
        cgroups.pids(cg)
    assert host.files.kept > before
    cgroups.forget(pod)
    assert host.files.kept == before


def test_long_listing_files_are_read_whole(host: KernelHost) -> None:
    pod = host.make("pod")
    host.set_tasks("pod", 3)
    directory = host.cgroups().dir_of(pod, "cpu")
    text = host.files.read(f"{directory}/cgroup.procs")
    assert isinstance(text, bytes)
    assert len(text.split()) == 3
