"""Real pods of a real containerd and runc, as koordlet sees them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import ContainerState, KubeLayout, Pod, PodRecord, Resources
from koordlet.model.readings import Missing
from koordlet.pods.cri import CriClient
from koordlet.pods.layout import find_layout
from koordlet.pods.locate import LocateCache, locate_pods
from koordlet.pods.source import SourceError
from koordlet.protocol import names
from koordlet.protocol.qos import KubeQos, Qos, QosSource, ValueSource
from tests.support.containerd import Containerd
from tests.support.kernelhost import KernelHost

pytestmark = pytest.mark.e2e

BURSTABLE, BEST_EFFORT = "kubepods/burstable", "kubepods/besteffort"


@pytest.fixture
def host(containerd: Containerd) -> Iterator[KernelHost]:
    kernel = KernelHost(containerd.cgroups)
    for tier in (BURSTABLE, BEST_EFFORT):
        kernel.make(tier)
    yield kernel
    kernel.close()


@pytest.fixture
def client(containerd: Containerd) -> Iterator[CriClient]:
    made = CriClient(containerd.endpoint)
    yield made
    made.close()


def layout_of(host: KernelHost) -> KubeLayout:
    layout = find_layout(host.cgroups())
    assert isinstance(layout, KubeLayout)
    return layout


def locate(host: KernelHost, records: tuple[PodRecord, ...]) -> dict[str, Pod]:
    pods = locate_pods(host.cgroups(), layout_of(host), records, LocateCache())
    return {pod.record.name: pod for pod in pods}


def only_cgroup(pod: Pod) -> CgroupPath:
    (container,) = pod.containers
    assert isinstance(container.cgroup, CgroupPath)
    return container.cgroup


def test_pods_with_their_labels_and_cgroups(
    containerd: Containerd, host: KernelHost, client: CriClient
) -> None:
    runtime = containerd.client
    web = runtime.run_pod(
        "web",
        namespace="shop",
        cgroup_parent=containerd.parent(BURSTABLE),
        labels={names.LABEL_QOS: "LS"},
        annotations={"a": "b"},
    )
    runtime.run_container(web, "main", quota_us=50_000, shares=307, memory_bytes=64 << 20)
    batch = runtime.run_pod(
        "batch",
        cgroup_parent=containerd.parent(BEST_EFFORT),
        labels={names.LABEL_QOS: "BE"},
    )
    runtime.run_container(batch, "main")
    pods = locate(host, client.list_records())
    assert set(pods) == {"web", "batch"}
    seen = pods["web"]
    assert seen.cgroup == f"{BURSTABLE}/pod{web.uid}"
    assert (seen.kube_qos, seen.qos) == (KubeQos.BURSTABLE, Qos.LS)
    assert (seen.marked, seen.qos_source) == (True, QosSource.LABEL)
    assert seen.record.annotations == {"a": "b"}
    assert seen.record.requests == Resources(cpu_milli=300)
    assert seen.record.limits == Resources(500, 64 << 20)
    assert seen.record.resources_source is ValueSource.CONTAINER_STATUS
    assert seen.containers[0].record.spec_quota_us == 50_000
    assert seen.record.cgroup_parent == f"{containerd.cgroups.root}/{seen.cgroup}"
    assert seen.sandboxes == (f"{seen.cgroup}/{web.id}",)
    cgroups = host.cgroups()
    assert cgroups.read(only_cgroup(seen), Knob.CPU_QUOTA) == 50_000
    assert cgroups.read(only_cgroup(seen), Knob.CPU_SHARES) == 307
    assert (pods["batch"].kube_qos, pods["batch"].qos) == (KubeQos.BEST_EFFORT, Qos.BE)
    assert pods["batch"].record.requests == Resources()


def test_pod_with_only_a_sandbox(
    containerd: Containerd, host: KernelHost, client: CriClient
) -> None:
    pod = containerd.client.run_pod("lonely", cgroup_parent=containerd.parent(BEST_EFFORT))
    (seen,) = locate(host, client.list_records()).values()
    assert seen.containers == ()
    assert seen.sandboxes == (f"{BEST_EFFORT}/pod{pod.uid}/{pod.id}",)


def test_H08_update_writes_the_whole_spec_over_our_files(
    containerd: Containerd, host: KernelHost, client: CriClient
) -> None:
    runtime = containerd.client
    pod = runtime.run_pod("p", cgroup_parent=containerd.parent(BEST_EFFORT))
    container_id = runtime.run_container(
        pod, "main", quota_us=100_000, shares=512, memory_bytes=256 << 20
    )
    cgroup = only_cgroup(locate(host, client.list_records())["p"])
    cgroups = host.cgroups()
    cgroups.write(cgroup, Knob.CPU_QUOTA, "150000")
    cgroups.write(cgroup, Knob.CPU_SHARES, "2")
    client.update_resources(container_id, cpuset_cpus="0")
    assert cgroups.read(cgroup, Knob.CPU_QUOTA) == 100_000
    assert cgroups.read(cgroup, Knob.CPU_SHARES) == 512
    assert cgroups.read(cgroup, Knob.CPUSET_CPUS) == frozenset({0})


def test_H08_quota_of_the_spec_is_lifted_and_given_back(
    containerd: Containerd, host: KernelHost, client: CriClient
) -> None:
    runtime = containerd.client
    pod = runtime.run_pod("p", cgroup_parent=containerd.parent(BEST_EFFORT))
    container_id = runtime.run_container(pod, "main", quota_us=100_000)
    (before,) = client.list_records()
    cgroup = only_cgroup(locate(host, (before,))["p"])
    client.update_resources(container_id, cpu_quota_us=-1)
    assert host.cgroups().read(cgroup, Knob.CPU_QUOTA) is None
    assert client.list_records()[0].containers[0].spec_quota_us is None
    client.update_resources(container_id, cpu_quota_us=100_000)
    assert host.cgroups().read(cgroup, Knob.CPU_QUOTA) == 100_000
    assert client.list_records() == (before,)


def test_container_that_restarts(
    containerd: Containerd, host: KernelHost, client: CriClient
) -> None:
    runtime = containerd.client
    pod = runtime.run_pod("p", cgroup_parent=containerd.parent(BEST_EFFORT))
    first = runtime.run_container(pod, "main", ["true"])
    runtime.stop_container(first)
    seen = locate(host, client.list_records())["p"]
    assert seen.containers[0].record.state is ContainerState.EXITED
    assert isinstance(seen.containers[0].cgroup, Missing)
    second = runtime.run_container(pod, "main", attempt=1)
    seen = locate(host, client.list_records())["p"]
    assert [(each.id, each.record.attempt) for each in seen.containers] == [(second, 1)]
    assert only_cgroup(seen).name == second
    runtime.remove_container(first)
    assert locate(host, client.list_records())["p"] == seen


def test_container_that_is_created_but_not_started(
    containerd: Containerd, host: KernelHost, client: CriClient
) -> None:
    runtime = containerd.client
    pod = runtime.run_pod("p", cgroup_parent=containerd.parent(BEST_EFFORT))
    runtime.run_container(pod, "main", quota_us=50_000, start=False)
    seen = locate(host, client.list_records())["p"]
    assert seen.containers[0].record.state is ContainerState.CREATED
    assert seen.containers[0].record.spec_quota_us == 50_000


def test_pod_that_stops_and_leaves(
    containerd: Containerd, host: KernelHost, client: CriClient
) -> None:
    runtime = containerd.client
    pod = runtime.run_pod("p", cgroup_parent=containerd.parent(BEST_EFFORT))
    container_id = runtime.run_container(pod, "main")
    assert client.list_records()[0].running
    runtime.stop_pod(pod.id)
    (stopped,) = client.list_records()
    assert not stopped.running
    assert stopped.containers[0].state is ContainerState.EXITED
    runtime.remove_pod(pod.id)
    assert client.list_records() == ()
    with pytest.raises(SourceError) as caught:
        client.update_resources(container_id, cpu_quota_us=-1)
    assert caught.value.problem.code == "cri-not-found"


def test_runtime_that_restarts(containerd: Containerd, client: CriClient) -> None:
    runtime = containerd.client
    pod = runtime.run_pod("p", cgroup_parent=containerd.parent(BEST_EFFORT))
    runtime.run_container(pod, "main")
    before = client.list_records()
    containerd.restart()
    for _ in range(100):
        try:
            after = client.list_records()
        except SourceError as error:
            assert error.problem.code == "cri-unreachable"
        else:
            break
    assert after == before


def test_private_containerd_leaves_nothing_although_it_was_killed() -> None:
    before = set(Path("/run").glob("containerd/*/*"))
    with pytest.raises(ZeroDivisionError), Containerd() as runtime:
        pod = runtime.client.run_pod("p", cgroup_parent=runtime.parent(BEST_EFFORT))
        runtime.client.run_container(pod, "main")
        root, directory = runtime.cgroups.root, runtime.endpoint.removeprefix("unix://")
        runtime.kill()
        raise ZeroDivisionError
    assert set(Path("/run").glob("containerd/*/*")) <= before
    assert not Path(directory).parent.exists()
    assert not any(Path("/sys/fs/cgroup").glob(f"*{root}"))
    assert str(Path(directory).parent) not in Path("/proc/self/mountinfo").read_text()
