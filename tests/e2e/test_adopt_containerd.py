"""H14 with a real containerd: its spec tells what a container is to have, and is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from koordpb import cri_v1_pb2 as pb

from koordlet.model.adoption import RuntimeSpec
from koordlet.pods.cri import CriClient
from tests.e2e.managed import BE_TIER, SPIN, Managed, ctl_json
from tests.support.containerd import Containerd
from tests.support.koordletd import Koordlet
from tests.support.waiting import until

pytestmark = pytest.mark.e2e


@pytest.fixture
def managed(containerd: Containerd, tmp_path: Path) -> Iterator[Managed]:
    made = Managed(containerd, tmp_path)
    made.cgroups.set_shares(BE_TIER, 2)
    yield made
    made.close()


@pytest.fixture
def koordlet(managed: Managed, tmp_path: Path) -> Koordlet:
    """With the built-in NodeSLO: everything off."""
    return Koordlet(
        tmp_path / "koordlet",
        managed.cgroups.root,
        cri_endpoint=managed.runtime.endpoint,
        node_slo=tmp_path / "absent.yaml",
    )


def spec_of(managed: Managed, container_id: str) -> RuntimeSpec:
    client = CriClient(managed.runtime.endpoint)
    try:
        found = client.runtime_spec(container_id)
    finally:
        client.close()
    assert isinstance(found, RuntimeSpec), found
    return found


def update(managed: Managed, container_id: str, **linux: int) -> None:
    """As an agent's hook: through the runtime."""
    request = pb.UpdateContainerResourcesRequest(
        container_id=container_id, linux=pb.LinuxContainerResources(**linux)
    )
    managed.client.call("UpdateContainerResources", request)


def test_H08_a_quota_that_an_agent_gave_through_the_runtime_is_taken_back_through_it(
    managed: Managed, koordlet: Koordlet
) -> None:
    pod = managed.pod("batch", "BE")
    container = managed.client.run_container(pod, "main", SPIN)
    cgroup = managed.cgroup_of(pod, "BE", container)
    assert spec_of(managed, container).quota_us is None
    update(managed, container, cpu_quota=50_000, cpu_period=100_000)
    managed.cgroups.set_quota_us(BE_TIER, 80_000)
    assert spec_of(managed, container).quota_us == 50_000
    with koordlet:
        until(lambda: not koordlet.status()["waiting_for"], 20)
        listed = ctl_json(koordlet, "adopt", "--dry-run")["data"]["files"]
        quotas = {each["cgroup"]: each for each in listed if each["knob"] == "cpu.quota"}
        assert {path: each["channel"] for path, each in quotas.items()} == {
            BE_TIER: "file",
            cgroup: "spec",
        }
        done = ctl_json(koordlet, "adopt", "--yes")["data"]
        assert done["refused"] == 0
        until(lambda: managed.quota(cgroup) == -1 and managed.quota() == -1, 20)
        until(lambda: koordlet.status()["owned_files"] == 0, 20)
    assert spec_of(managed, container).quota_us is None
    update(managed, container, cpu_shares=2)  # writes the whole spec again
    assert managed.quota(cgroup) == -1


def test_H14_a_spec_tells_what_a_container_of_no_kubelet_is_to_have(
    managed: Managed, koordlet: Koordlet
) -> None:
    pod = managed.pod("web", "LS")
    container = managed.client.run_container(pod, "main", SPIN, quota_us=120_000, shares=512)
    cgroup = managed.cgroup_of(pod, "LS", container)
    managed.cgroups.set_quota_us(cgroup, 150_000)  # scaled by an agent, in the file
    with koordlet:
        until(lambda: not koordlet.status()["waiting_for"], 20)
        ctl_json(koordlet, "adopt", "--yes")
        until(lambda: managed.quota(cgroup) == 120_000, 20)
    assert managed.cgroups.weight(cgroup) == managed.cgroups.weight_of(512)
