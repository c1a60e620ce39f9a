"""What CriClient relies on, on the fake runtime and on a real containerd.

A disagreement is a bug in the fake.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from koordpb import cri_v1_pb2 as pb

from koordlet.model.pods import ContainerState
from koordlet.pods.cri import CriClient
from koordlet.pods.source import SourceError
from tests.support.containerd import Containerd
from tests.support.criclient import TestPod
from tests.support.fakecri import FakeContainer, FakeCri, FakePod

TIER = "kubepods/besteffort"


class Runtime(Protocol):
    """The hand that moves a runtime, whichever it is. Pods and containers are named by id."""

    endpoint: str

    def add_pod(self, name: str, labels: dict[str, str], attempt: int = 0) -> str: ...

    def add_container(self, pod: str, name: str, quota_us: int, attempt: int = 0) -> str: ...

    def end_container(self, container_id: str) -> None: ...

    def stop_pod(self, pod: str) -> None: ...

    def remove_pod(self, pod: str) -> None: ...


class Fake:
    """The fake runtime, moved by its own methods."""

    def __init__(self, cri: FakeCri) -> None:
        self.endpoint = cri.endpoint
        self._cri = cri

    def _container(self, container_id: str) -> FakeContainer:
        return self._cri._container(container_id)

    def _pod(self, pod: str) -> FakePod:
        return self._cri.pods[pod]

    def add_pod(self, name: str, labels: dict[str, str], attempt: int = 0) -> str:
        uid = f"uid-{name}"
        parent = f"/{TIER}/pod{uid}"
        return self._cri.add_pod(
            name, uid=uid, labels=labels, cgroup_parent=parent, attempt=attempt
        ).id

    def add_container(self, pod: str, name: str, quota_us: int, attempt: int = 0) -> str:
        made = self._cri.add_container(self._pod(pod), name, quota_us=quota_us, attempt=attempt)
        return made.id

    def end_container(self, container_id: str) -> None:
        self._container(container_id).state = pb.CONTAINER_EXITED

    def stop_pod(self, pod: str) -> None:
        self._pod(pod).state = pb.SANDBOX_NOTREADY
        for container in self._pod(pod).containers.values():
            container.state = pb.CONTAINER_EXITED

    def remove_pod(self, pod: str) -> None:
        self._cri.remove_pod(self._pod(pod))


class Real:
    """A private containerd, moved over CRI."""

    def __init__(self, containerd: Containerd) -> None:
        self.endpoint = containerd.endpoint
        self._containerd = containerd
        self._pods: dict[str, pb.PodSandboxConfig] = {}

    def add_pod(self, name: str, labels: dict[str, str], attempt: int = 0) -> str:
        pod = self._containerd.client.run_pod(
            name,
            uid=f"uid-{name}",
            cgroup_parent=self._containerd.parent(TIER),
            labels=labels,
            attempt=attempt,
        )
        self._pods[pod.id] = pod.config
        return pod.id

    def add_container(self, pod: str, name: str, quota_us: int, attempt: int = 0) -> str:
        config = self._pods[pod]
        return self._containerd.client.run_container(
            TestPod(pod, config.metadata.uid, config), name, quota_us=quota_us, attempt=attempt
        )

    def end_container(self, container_id: str) -> None:
        self._containerd.client.stop_container(container_id)

    def stop_pod(self, pod: str) -> None:
        self._containerd.client.stop_pod(pod)

    def remove_pod(self, pod: str) -> None:
        self._containerd.client.remove_pod(pod)


@pytest.fixture(scope="module")
def shared_containerd() -> Iterator[Containerd]:
    with Containerd() as containerd:
        yield containerd


@pytest.fixture(params=["fake", pytest.param("containerd", marks=pytest.mark.e2e)])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    if request.param == "fake":
        with FakeCri(str(tmp_path / "cri.sock")) as cri:
            yield Fake(cri)
        return
    containerd: Containerd = request.getfixturevalue("shared_containerd")
    yield Real(containerd)
    containerd.client.remove_all()


@pytest.fixture
def client(runtime: Runtime) -> Iterator[CriClient]:
    made = CriClient(runtime.endpoint)
    yield made
    made.close()


def test_version_names_the_runtime(client: CriClient) -> None:
    version = client.version()
    assert version.api_version == "v1"
    assert version.name
    assert version.version


def test_empty_runtime(client: CriClient) -> None:
    assert client.list_records() == ()
    assert client.warnings == ()


def test_pod_and_container(runtime: Runtime, client: CriClient) -> None:
    pod = runtime.add_pod("p", {"x": "y"})
    container = runtime.add_container(pod, "main", 50_000)
    (record,) = client.list_records()
    assert (record.uid, record.namespace, record.name) == ("uid-p", "default", "p")
    assert record.labels["x"] == "y"
    assert record.labels["io.kubernetes.pod.uid"] == "uid-p"
    assert record.sandbox_ids == (pod,)
    assert record.cgroup_parent.endswith(f"/{TIER}/poduid-p")
    assert record.running
    (seen,) = record.containers
    assert (seen.id, seen.name, seen.attempt) == (container, "main", 0)
    assert seen.state is ContainerState.RUNNING
    assert (seen.spec_quota_us, seen.spec_period_us) == (50_000, 100_000)
    assert seen.limits.cpu_milli == 500
    assert client.list_records() == (record,)


def test_container_without_a_limit(runtime: Runtime, client: CriClient) -> None:
    runtime.add_container(runtime.add_pod("p", {}), "main", 0)
    (record,) = client.list_records()
    assert record.containers[0].spec_quota_us is None
    assert record.containers[0].limits.cpu_milli is None


def test_next_attempt(runtime: Runtime, client: CriClient) -> None:
    pod = runtime.add_pod("p", {})
    first = runtime.add_container(pod, "main", 50_000)
    runtime.end_container(first)
    (record,) = client.list_records()
    assert record.containers[0].state is ContainerState.EXITED
    second = runtime.add_container(pod, "main", 80_000, attempt=1)
    (record,) = client.list_records()
    assert [(each.id, each.spec_quota_us) for each in record.containers] == [(second, 80_000)]


def test_stop_and_remove(runtime: Runtime, client: CriClient) -> None:
    pod = runtime.add_pod("p", {})
    runtime.add_container(pod, "main", 0)
    runtime.stop_pod(pod)
    (record,) = client.list_records()
    assert not record.running
    runtime.remove_pod(pod)
    assert client.list_records() == ()


def test_new_sandbox_of_the_same_pod(runtime: Runtime, client: CriClient) -> None:
    old = runtime.add_pod("p", {})
    runtime.stop_pod(old)
    new = runtime.add_pod("p", {}, attempt=1)
    (record,) = client.list_records()
    assert record.sandbox_ids == (old, new)
    assert record.running


@pytest.mark.parametrize(("quota_us", "seen_us"), [(-1, None), (30_000, 30_000)])
def test_update_of_the_quota(
    runtime: Runtime, client: CriClient, quota_us: int, seen_us: int | None
) -> None:
    container = runtime.add_container(runtime.add_pod("p", {}), "main", 50_000)
    client.list_records()
    client.update_resources(container, cpu_quota_us=quota_us)
    (record,) = client.list_records()
    assert record.containers[0].spec_quota_us == seen_us


def test_update_of_the_cpuset_leaves_the_quota(runtime: Runtime, client: CriClient) -> None:
    container = runtime.add_container(runtime.add_pod("p", {}), "main", 50_000)
    client.update_resources(container, cpuset_cpus="0")
    (record,) = client.list_records()
    assert record.containers[0].spec_quota_us == 50_000


def test_unknown_container(client: CriClient) -> None:
    with pytest.raises(SourceError) as caught:
        client.update_resources("f" * 64, cpu_quota_us=-1)
    assert caught.value.problem.code == "cri-not-found"
