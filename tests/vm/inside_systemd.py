"""Runs inside the systemd guest: pods of the systemd driver under koordlet.

Not collected by its name: it takes the whole machine's cgroups.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.managed import SPIN, SPIN_TWICE, Managed, ctl_json
from tests.support.systemdcontainerd import SystemdContainerd
from tests.support.waiting import until

SOON_S = 40.0
RESTRICTED_CORES = 0.6
LIMIT_US = 50_000


@pytest.fixture(scope="module")
def runtime() -> Iterator[SystemdContainerd]:
    with SystemdContainerd() as made:
        yield made


@pytest.fixture
def managed(runtime: SystemdContainerd, tmp_path: Path) -> Iterator[Managed]:
    made = Managed(runtime, tmp_path)
    yield made
    made.close()
    runtime.client.remove_all()


def daemon_reload() -> None:
    subprocess.run(["systemctl", "daemon-reload"], check=True)


def busy_node(managed: Managed) -> tuple[str, str]:
    """A BE pod that wants two cores, an LS pod that uses one; cgroups of BE pod and container."""
    batch = managed.pod("batch", "BE")
    container = managed.client.run_container(batch, "main", SPIN_TWICE, quota_us=150_000)
    service = managed.pod("service", "LS")
    managed.client.run_container(service, "main", SPIN, shares=1024)
    return managed.cgroup_of(batch, "BE"), managed.cgroup_of(batch, "BE", container)


def test_a_direct_write_to_a_scope_is_lost_at_daemon_reload(managed: Managed) -> None:
    """The fact that the next test rests on."""
    pod = managed.pod("limited", "BE")
    container = managed.client.run_container(pod, "main", quota_us=LIMIT_US)
    scope = managed.cgroup_of(pod, "BE", container)
    assert managed.quota(scope) == LIMIT_US
    managed.cgroups.set_quota_us(scope, LIMIT_US + 27_000)
    daemon_reload()
    until(lambda: managed.quota(scope) == LIMIT_US, SOON_S, "systemd's own value")


def test_H06_what_daemon_reload_resets_is_put_back(managed: Managed) -> None:
    pod, scope = busy_node(managed)
    before_cores = managed.used_cores(managed.be_tier)
    weight = managed.cgroups.weight(managed.be_tier)

    def in_force() -> bool:
        lowest = managed.cgroups.weight(managed.be_tier) == managed.cgroups.weight_of(2)
        idle = managed.cgroups.read(pod, "cpu.idle") == "1"
        return lowest and idle and managed.limited_below(RESTRICTED_CORES)

    with managed.daemon() as daemon:
        until(in_force, SOON_S, "a low BE quota, an idle BE pod")
        (batch,) = (p for p in ctl_json(daemon, "pods")["data"]["pods"] if p["name"] == "batch")
        print(batch)
        assert scope in str(batch)
        assert managed.used_cores(managed.be_tier) < RESTRICTED_CORES < before_cores
        daemon_reload()
        print(
            managed.quota(),
            managed.cgroups.read(pod, "cpu.idle"),
            managed.cgroups.weight(managed.be_tier),
        )
        until(in_force, SOON_S, "all of it again")
        print(daemon.ctl("audit").stdout[-3000:])
    assert (managed.quota(), managed.cgroups.weight(managed.be_tier)) == (-1, weight)
    assert managed.cgroups.read(pod, "cpu.idle") == "0"
