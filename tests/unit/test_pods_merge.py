"""One pod list out of the runtime's and the kubelet's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koordlet.model.pods import ContainerRecord, ContainerState, PodRecord, Resources
from koordlet.model.readings import Missing
from koordlet.pods.merge import merge
from koordlet.pods.podlist import cgroup_uid
from koordlet.protocol import names
from koordlet.protocol.qos import KubeQos, ValueSource

CRI = PodRecord(
    uid="u1",
    api_uid="u1",
    namespace="ns",
    name="p",
    labels={"born": "with"},
    runtime_handler="runc",
    sandbox_ids=("s1",),
    containers=(
        ContainerRecord(
            id="c1",
            name="main",
            attempt=2,
            state=ContainerState.RUNNING,
            requests=Resources(cpu_milli=2),
            limits=Resources(1000),
            resources_source=ValueSource.CONTAINER_STATUS,
            spec_quota_us=100_000,
            spec_period_us=100_000,
        ),
    ),
    requests=Resources(cpu_milli=2),
    resources_source=ValueSource.CONTAINER_STATUS,
    cgroup_parent="/kubepods/podu1",
)
KUBELET = PodRecord(
    uid="u1",
    api_uid="api-u1",
    namespace="ns",
    name="p",
    labels={"born": "with", "added": "later"},
    annotations={"edited": "yes"},
    containers=(
        ContainerRecord(
            id="c0",
            name="main",
            attempt=1,
            state=ContainerState.EXITED,
            requests=Resources(500, 1 << 20),
            limits=Resources(1000, 1 << 20),
            resources_source=ValueSource.KUBELET,
        ),
        ContainerRecord("", "waiting", 0, ContainerState.CREATED),
    ),
    priority=9500,
    priority_source=ValueSource.KUBELET,
    kube_qos=KubeQos.GUARANTEED,
    requests=Resources(500, 1 << 20),
    limits=Resources(1000, 1 << 20),
    resources_source=ValueSource.KUBELET,
    owner="ReplicaSet/r",
    terminating=True,
)


def test_H13_spec_from_the_kubelet_and_state_from_the_runtime() -> None:
    (record,) = merge((CRI,), (KUBELET,))
    assert record.labels == KUBELET.labels
    assert record.annotations == {"edited": "yes"}
    assert (record.priority, record.priority_source) == (9500, ValueSource.KUBELET)
    assert record.kube_qos is KubeQos.GUARANTEED
    assert record.requests == KUBELET.requests
    assert record.resources_source is ValueSource.KUBELET
    assert record.owner == "ReplicaSet/r"
    assert record.terminating
    assert record.api_uid == "api-u1"
    assert record.sandbox_ids == ("s1",)
    assert record.cgroup_parent == "/kubepods/podu1"
    assert record.runtime_handler == "runc"
    (main,) = record.containers
    assert (main.id, main.attempt, main.state) == ("c1", 2, ContainerState.RUNNING)
    assert main.requests == Resources(500, 1 << 20)
    assert main.resources_source is ValueSource.KUBELET
    assert main.spec_quota_us == 100_000


def test_POD_01_static_pod_joins_by_its_hash() -> None:
    digest = "8f6a44fc62e8cb075753c843896568ca"
    uid = cgroup_uid("0a1b", {names.ANNOTATION_STATIC_POD_HASH: digest})
    merged = merge((replace(CRI, uid=digest),), (replace(KUBELET, uid=uid, api_uid="0a1b"),))
    assert [(record.uid, record.api_uid) for record in merged] == [(digest, "0a1b")]


def test_pod_only_in_the_kubelets_list_is_kept_with_what_was_created() -> None:
    (record,) = merge((), (KUBELET,))
    assert [container.id for container in record.containers] == ["c0"]
    assert record.sandbox_ids == ()


def test_pod_only_in_the_runtime_is_kept() -> None:
    assert merge((CRI,), ()) == (CRI,)


def test_kubelet_that_did_not_answer() -> None:
    assert merge((CRI,), Missing("no kubelet")) == (CRI,)


def test_container_that_the_kubelet_does_not_name_keeps_what_the_runtime_says() -> None:
    (record,) = merge((CRI,), (replace(KUBELET, containers=()),))
    assert record.containers == CRI.containers


def test_state_comes_from_the_runtime_either_way() -> None:
    (record,) = merge((replace(CRI, running=False),), (KUBELET,))
    assert not record.running


def test_runtime_class_where_the_runtime_tells_no_handler() -> None:
    (record,) = merge(
        (replace(CRI, runtime_handler=""),), (replace(KUBELET, runtime_handler="kata"),)
    )
    assert record.runtime_handler == "kata"


@pytest.mark.parametrize("swap", [False, True])
def test_order_does_not_matter(swap: bool) -> None:
    others = tuple(replace(CRI, uid=f"x{index}", name=f"n{index}") for index in range(3))
    listed = (CRI, *others)
    merged = merge(listed[::-1] if swap else listed, (KUBELET,))
    assert [record.name for record in merged] == ["n0", "n1", "n2", "p"]
