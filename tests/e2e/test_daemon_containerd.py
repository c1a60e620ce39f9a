"""koordlet as it is shipped, over the pods of a real containerd and runc."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from koordpb import cri_v1_pb2 as pb

from tests.benchmarks import photo
from tests.e2e.managed import BE_TIER, SPIN, SPIN_TWICE, Managed, await_decision, ctl_json
from tests.support.containerd import Containerd
from tests.support.koordletd import Koordlet
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

TICK_S = 1.0
SOON_S = 10.0
RESTRICTED_CORES = 0.6  # of two cores, 65 % of which may be used, one by the LS spinner


@pytest.fixture
def managed(containerd: Containerd, tmp_path: Path) -> Iterator[Managed]:
    made = Managed(containerd, tmp_path)
    yield made
    made.close()


def seen(managed: Managed) -> photo.Photo:
    """Every setting of every cgroup below the root."""
    return photo.take(managed.cgroups, ())


def busy_node(managed: Managed, *, limit_us: int = 0) -> tuple[str, str]:
    """A BE pod that wants two cores, an LS pod that uses one; cgroups of BE pod and container."""
    batch = managed.pod("batch", "BE")
    container = managed.client.run_container(batch, "main", SPIN_TWICE, quota_us=limit_us)
    service = managed.pod("service", "LS")
    managed.client.run_container(service, "main", SPIN, shares=1024)
    return managed.cgroup_of(batch, "BE"), managed.cgroup_of(batch, "BE", container)


def test_suppression_is_in_the_kernel_file_and_in_the_throughput(managed: Managed) -> None:
    busy_node(managed)
    before_cores = managed.used_cores(BE_TIER)
    with managed.daemon() as daemon:
        until(lambda: managed.limited_below(RESTRICTED_CORES), SOON_S, "a low BE quota")
        assert managed.cgroups.weight(BE_TIER) == managed.cgroups.weight_of(2)
        assert managed.used_cores(BE_TIER) < RESTRICTED_CORES < before_cores
        explained = ctl_json(daemon, "explain", BE_TIER)["data"]["subjects"][0]["settings"]
        assert {setting["owner"] for setting in explained} == {"be_priority", "cpu_suppress"}


def test_CQ_01_a_foreign_reset_is_put_back_within_a_tick_and_without_a_ramp(
    managed: Managed,
) -> None:
    busy_node(managed)
    with managed.daemon():
        until(lambda: managed.limited_below(RESTRICTED_CORES), SOON_S, "a low BE quota")
        managed.cgroups.set_quota_us(BE_TIER, -1)
        took_s = until(lambda: managed.limited_below(RESTRICTED_CORES), SOON_S, "put back")
    assert took_s < 2 * TICK_S
    assert managed.quota() == -1


def test_H04_a_container_with_a_limit_lives_under_a_lowered_tier(managed: Managed) -> None:
    """Its quota is lifted in the runtime's spec, so the runtime's next update still works."""
    if managed.cgroups.version == 2:
        pytest.skip("about cgroup v1: v2 takes a child's quota above its parent's")
    limit_us = 150_000
    _, container = busy_node(managed, limit_us=limit_us)
    container_id = container.rpartition("/")[2]
    before_cores = managed.used_cores(BE_TIER)
    with managed.daemon():
        until(lambda: managed.limited_below(RESTRICTED_CORES), SOON_S, "a low BE quota")
        assert managed.quota(container) == -1
        assert managed.used_cores(BE_TIER) < RESTRICTED_CORES < before_cores
        _update(managed, container_id, cpuset_cpus="0")
        assert managed.quota(container) == -1
        assert managed.limited_below(RESTRICTED_CORES)
        _update(managed, container_id, cpuset_cpus=managed.cpus("kubepods"))
    assert (managed.quota(), managed.quota(container)) == (-1, limit_us)
    status = managed.client.call(
        "ContainerStatus", pb.ContainerStatusRequest(container_id=container_id)
    )
    assert status.status.resources.linux.cpu_quota == limit_us


def _update(managed: Managed, container_id: str, *, cpuset_cpus: str) -> None:
    """An update as the kubelet makes it; raises where the runtime refuses."""
    request = pb.UpdateContainerResourcesRequest(
        container_id=container_id, linux=pb.LinuxContainerResources(cpuset_cpus=cpuset_cpus)
    )
    managed.client.call("UpdateContainerResources", request)


def test_H01_what_the_kubelet_writes_is_accepted_while_idle_is_in_force(managed: Managed) -> None:
    pod, container = busy_node(managed)
    with managed.daemon():
        until(lambda: managed.cgroups.read(pod, "cpu.idle") == "1", SOON_S, "an idle pod")
        assert managed.cgroups.read(BE_TIER, "cpu.idle") == "0"
        managed.cgroups.set_shares(BE_TIER, 2)
        _update(managed, container.rpartition("/")[2], cpuset_cpus="0")
        _update(managed, container.rpartition("/")[2], cpuset_cpus=managed.cpus("kubepods"))


def test_containers_that_restart_vanish_and_come_back_in_the_middle_of_ticks(
    managed: Managed,
) -> None:
    busy_node(managed)
    pod = managed.pod("flapping", "BE")
    with managed.daemon("cpuset") as daemon:
        await_decision(daemon)
        core_pid = daemon.status()["core"]["pid"]
        for attempt in range(12):
            container = managed.client.run_container(pod, "main", SPIN, attempt=attempt)
            managed.client.stop_container(container)
            managed.client.remove_container(container)
        last = managed.client.run_container(pod, "main", SPIN, attempt=99)
        cgroup = managed.cgroup_of(pod, "BE", last)
        until(lambda: _containers(daemon, "flapping") == [last], SOON_S, "the last one is known")
        until(lambda: managed.cpus(cgroup) == managed.cpus(), SOON_S, "the last one is governed")
        assert daemon.status()["core"]["pid"] == core_pid
        assert "Traceback" not in daemon.log_path.read_text()


def _containers(daemon: Koordlet, pod: str) -> list[str]:
    """Container ids of one pod, as koordlet knows them."""
    shown = daemon.client.get("pods")["data"]["pods"]
    (found,) = (each for each in shown if each["name"] == pod)
    return [each["id"] for each in found["containers"]]


def test_H05_a_clean_stop_restores_all_and_widens_what_was_born_narrow(managed: Managed) -> None:
    busy_node(managed)
    wide, before = managed.cpus("kubepods"), seen(managed)
    daemon = managed.daemon("cpuset").start()
    until(lambda: managed.cpus() not in ("", wide), SOON_S, "a narrow BE tier")
    young = managed.pod("young", "BE")
    container = managed.client.run_container(young, "main")
    cgroup = managed.cgroup_of(young, "BE", container)
    assert managed.cpus(cgroup) != wide
    assert daemon.stop(signal.SIGINT) == 0, daemon.log_tail()
    after = seen(managed)
    changed = [name for name in photo.differences(before, after) if young.uid not in name]
    assert changed == []
    assert managed.cpus(cgroup) == managed.cpus(managed.cgroup_of(young, "BE")) == wide


@pytest.mark.parametrize("policy", ["cfsQuota", "cpuset"])
def test_H16_rollback_after_a_kill_restores_all(managed: Managed, policy: str) -> None:
    busy_node(managed, limit_us=150_000)
    before = seen(managed)
    daemon = managed.daemon(policy).start()
    until(lambda: photo.differences(before, seen(managed)), SOON_S, "something in force")
    await_decision(daemon)
    daemon.kill()
    assert photo.differences(before, seen(managed)), "a crash must leave values in force"
    done = daemon.ctl("rollback")
    assert done.returncode == 0, done.stdout + done.stderr
    assert photo.differences(before, seen(managed)) == []
    assert daemon.ctl("rollback").returncode == 0, "a second rollback has nothing to do"


def test_H16_the_next_daemon_takes_the_journal_over(managed: Managed) -> None:
    busy_node(managed)
    before = seen(managed)
    first = managed.daemon().start()
    until(lambda: managed.limited_below(RESTRICTED_CORES), SOON_S, "a low BE quota")
    first.kill()
    assert first.ctl("rollback", "--if-no-daemon", "--dry-run").returncode == 0
    second = managed.daemon(directory=first.directory).start()
    assert "taken over" in second.status()["core"]["takeover"]
    assert managed.limited_below(RESTRICTED_CORES)
    assert second.ctl("rollback", "--if-no-daemon").returncode == 0
    assert managed.limited_below(RESTRICTED_CORES), "there is a daemon, so nothing is undone"
    assert second.stop() == 0, second.log_tail()
    assert photo.differences(before, seen(managed)) == []


def test_a_second_instance_refuses_to_start(managed: Managed) -> None:
    with managed.daemon() as first:
        second = managed.daemon().start(wait=False)
        until(lambda: second.exit_code() is not None, SOON_S, "the second one ends")
        assert second.exit_code() == 1
        assert f"manages {managed.cgroups.dir('')}" in second.log_tail()
        assert first.exit_code() is None


def test_release_gives_all_back_and_resume_takes_it_again(managed: Managed) -> None:
    busy_node(managed)
    before = seen(managed)
    with managed.daemon() as daemon:
        until(lambda: managed.limited_below(RESTRICTED_CORES), SOON_S, "a low BE quota")
        assert daemon.ctl("release").returncode == 0
        assert photo.differences(before, seen(managed)) == []
        assert daemon.status()["released"] == ["all"]
        assert daemon.ctl("resume").returncode == 0
        until(lambda: managed.limited_below(RESTRICTED_CORES), SOON_S, "a low BE quota again")


def test_nothing_marked_nothing_written(managed: Managed) -> None:
    client, parent = managed.client, managed.runtime.parent(BE_TIER)
    client.run_container(client.run_pod("unmarked", cgroup_parent=parent), "main", SPIN_TWICE)
    before = seen(managed)
    with managed.daemon() as daemon:
        await_decision(daemon)
        assert photo.differences(before, seen(managed)) == []


def test_H25_a_dry_run_writes_nothing_outside_its_own_files(managed: Managed) -> None:
    if shutil.which("strace") is None:
        pytest.skip("needs strace; remedy: make test installs it")
    busy_node(managed)
    before = seen(managed)
    trace = managed.daemon().directory.with_name("trace")
    strace = ("strace", "-f", "-qq", "-e", "trace=%file", "-o", str(trace))
    with managed.daemon(wrapper=strace, dry_run=True) as daemon:
        await_decision(daemon)
        plan = ctl_json(daemon, "plan")["data"]
        assert plan["dry_run"] is True
        assert any(s["knob"] == "cpu.quota" for s in plan["settings"])
        own = (str(daemon.directory), "/run/koordlet-locks", "/dev/")
    assert photo.differences(before, seen(managed)) == []
    written = [path for path in _opened_for_writing(trace) if not path.startswith(own)]
    assert written == []


_WRITING = re.compile(
    r'\b(?:openat2?|open)\([^"]*"([^"]*)", (?:\{flags=)?[^)}\n]*\bO_(?:WRONLY|RDWR|CREAT)'
    r'|\b(?:mkdir|rmdir|unlink|rename|truncate|chmod|chown|mount|umount2?)(?:at2?)?\([^"]*"([^"]*)"'
)


def _opened_for_writing(trace: Path) -> list[str]:
    """Paths that anything was opened at for writing, made, removed or changed; failures too."""
    text = trace.read_text(errors="replace")
    found = (match[1] or match[2] for match in _WRITING.finditer(text))
    return sorted({path for path in found if os.path.isabs(path)})


def test_the_writes_of_a_daemon_are_seen_by_the_same_account(managed: Managed) -> None:
    """The account of the test above can see a write, so its silence means something."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace; remedy: make test installs it")
    busy_node(managed)
    trace = managed.daemon().directory.with_name("trace")
    strace = ("strace", "-f", "-qq", "-e", "trace=%file", "-o", str(trace))
    with managed.daemon(wrapper=strace):
        until(lambda: managed.quota() > 0, 3 * SOON_S, "a BE quota")
    assert "O_WRONLY" in trace.read_text(errors="replace")
