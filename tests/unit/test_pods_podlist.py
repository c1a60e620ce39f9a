"""The kubelet's pod list in JSON."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from koordlet.model.pods import Asked, ContainerState, PodRecord, Resources
from koordlet.pods.podlist import PodListError, cgroup_uid, parse_pod_list
from koordlet.protocol import names
from koordlet.protocol.problem import Severity
from koordlet.protocol.qos import KubeQos, ValueSource

CAPTURED = Path(__file__).parents[1] / "fixtures/captured/kubelet-pods-v1-cgroupfs.json"
POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "3089d7a8-a983-4649-9088-39efe764e4b4"},
    "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
    "status": {"phase": "Running", "qosClass": "Burstable"},
}


def pod(**changes: Any) -> dict[str, Any]:
    """POD with ``metadata=``, ``spec=`` and ``status=`` laid over its parts."""
    made = copy.deepcopy(POD)
    for part, values in changes.items():
        made[part].update(values)
    return made


def parse(*pods: Any) -> tuple[PodRecord, ...]:
    return parse_pod_list(json.dumps({"items": pods}).encode()).records


def parse_one(made: dict[str, Any]) -> PodRecord:
    (record,) = parse(made)
    return record


def test_captured_list() -> None:
    listed = parse_pod_list(CAPTURED.read_bytes())
    assert listed.problems == ()
    records = {record.name.removesuffix("-n1"): record for record in listed.records}
    web = records["ls-web"]
    assert web.labels[names.LABEL_QOS] == "LS"
    assert web.kube_qos is KubeQos.BURSTABLE
    assert (web.priority, web.priority_source) == (9500, ValueSource.KUBELET)
    assert web.requests == Resources(300, 64 << 20)
    assert web.limits == Resources()  # its sidecar has no limits
    assert web.resources_source is ValueSource.KUBELET
    containers = {each.name: each for each in web.containers}
    assert containers["warm"].state is ContainerState.EXITED
    assert containers["web"].state is ContainerState.RUNNING
    assert len(containers["web"].id) == 64
    assert containers["web"].limits == Resources(1000, 128 << 20)
    assert containers["sidecar"].requests == Resources()
    database = records["lsr-db"]
    assert database.kube_qos is KubeQos.GUARANTEED
    assert database.requests == database.limits
    assert any(record.kube_qos is KubeQos.BEST_EFFORT for record in listed.records)
    assert any(not record.running for record in listed.records)
    for record in listed.records:
        assert record.uid == record.annotations[names.ANNOTATION_STATIC_POD_HASH]


def test_captured_pod_with_an_absent_image_has_a_container_without_id() -> None:
    listed = parse_pod_list(CAPTURED.read_bytes()).records
    waiting = [
        each
        for record in listed
        for each in record.containers
        if each.state is ContainerState.CREATED
    ]
    assert waiting
    assert all(each.id == "" for each in waiting)


def test_POD_01_static_pod_has_its_hash_as_cgroup_uid() -> None:
    digest = "8f6a44fc62e8cb075753c843896568ca"
    annotations = {names.ANNOTATION_STATIC_POD_HASH: digest}
    record = parse_one(pod(metadata={"uid": "0a1b", "annotations": annotations}))
    assert record.uid == digest
    assert record.api_uid == "0a1b"


def test_H26_pod_of_the_api_cannot_borrow_the_hash_of_another() -> None:
    annotations = {
        names.ANNOTATION_STATIC_POD_HASH: "8f6a44fc62e8cb075753c843896568ca",
        names.ANNOTATION_CONFIG_SOURCE: "api",
    }
    assert cgroup_uid("0a1b", annotations) == "0a1b"


def test_owner_terminating_and_runtime_class() -> None:
    owners = [{"kind": "Thing", "name": "x"}, {"kind": "ReplicaSet", "name": "r", "controller": 1}]
    record = parse_one(
        pod(
            metadata={"ownerReferences": owners, "deletionTimestamp": "2026-01-01T00:00:00Z"},
            spec={"runtimeClassName": "kata"},
        )
    )
    assert record.owner == "ReplicaSet/r"
    assert record.terminating
    assert record.runtime_handler == "kata"


@pytest.mark.parametrize(
    ("phase", "running"),
    [("Pending", True), ("Running", True), ("Succeeded", False), ("Failed", False)],
)
def test_finished_pods_do_not_run(phase: str, running: bool) -> None:
    assert parse_one(pod(status={"phase": phase})).running is running


def test_init_containers_count_by_the_maximum_rule() -> None:
    inits = [{"name": "warm", "resources": {"requests": {"cpu": "1500m"}}}]
    record = parse_one(pod(spec={"initContainers": inits}))
    assert record.requests.cpu_milli == 1500
    inits[0]["restartPolicy"] = "Always"
    assert parse_one(pod(spec={"initContainers": inits})).requests.cpu_milli == 2500


def test_overhead_and_pod_level_resources() -> None:
    assert parse_one(pod(spec={"overhead": {"cpu": "250m"}})).requests.cpu_milli == 1250
    stated = {"limits": {"cpu": "3"}, "requests": {"memory": "1Gi"}}
    record = parse_one(pod(spec={"resources": stated}))
    assert record.limits.cpu_milli == 3000
    assert record.requests == Resources(1000, 1 << 30)


def test_extended_resources_in_the_spec_and_in_the_annotation() -> None:
    batch = {"requests": {"kubernetes.io/batch-cpu": "500"}}
    in_spec = {"containers": [{"name": "main", "resources": batch}]}
    assert parse_one(pod(spec=in_spec)).requests.cpu_milli == 500
    annotation = json.dumps({"containers": {"main": batch}})
    record = parse_one(
        pod(
            metadata={"annotations": {names.ANNOTATION_EXTENDED_RESOURCE_SPEC: annotation}},
            spec={"containers": [{"name": "main"}]},
        )
    )
    assert record.requests.cpu_milli == 500


def test_CQ_21_wrong_unit_is_warned_about_and_the_pod_kept() -> None:
    limits = {"limits": {"kubernetes.io/batch-cpu": "200m"}}
    made = pod(spec={"containers": [{"name": "main", "resources": limits}]})
    listed = parse_pod_list(json.dumps({"items": [made]}).encode())
    assert listed.records[0].limits.cpu_milli == 1
    (problem,) = listed.problems
    assert problem.code == "batch-cpu-unit"
    assert "ns/p container main limits" in problem.where


def test_CFG_10_fractional_memory() -> None:
    resources = {"requests": {"memory": "0.1Gi"}}
    made = pod(spec={"containers": [{"name": "main", "resources": resources}]})
    assert parse_one(made).requests.memory_bytes == 107_374_183


def test_pod_with_zero_containers_is_listed() -> None:
    record = parse_one(pod(spec={"containers": []}))
    assert record.containers == ()
    assert record.requests == record.limits == Resources()


def test_ephemeral_containers_are_containers_too() -> None:
    record = parse_one(
        pod(
            spec={"ephemeralContainers": [{"name": "debug"}]},
            status={
                "ephemeralContainerStatuses": [
                    {"name": "debug", "containerID": "containerd://abc", "state": {"running": {}}}
                ]
            },
        )
    )
    debug = {each.name: each for each in record.containers}["debug"]
    assert (debug.id, debug.state) == ("abc", ContainerState.RUNNING)


def test_waiting_container_has_no_id_whatever_ran_before() -> None:
    status = {
        "name": "main",
        "containerID": "containerd://old",
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    }
    (container,) = parse_one(pod(status={"containerStatuses": [status]})).containers
    assert (container.id, container.attempt) == ("", 3)


@pytest.mark.parametrize(
    "odd",
    [
        None,
        1,
        {},
        {"metadata": {"name": "x"}},
        {"metadata": {"name": "x", "uid": "u"}},
        {"metadata": {"name": "x", "uid": "u", "labels": [1]}, "spec": {}},
        {"metadata": {"name": "x", "uid": "u"}, "spec": {"priority": "high"}},
        {"metadata": {"name": "x", "uid": "u"}, "spec": {"containers": [{}]}},
        {"metadata": {"name": "x", "uid": "u"}, "spec": {"containers": "none"}},
    ],
)
def test_one_odd_pod_hides_no_other(odd: Any) -> None:
    listed = parse_pod_list(json.dumps({"items": [odd, POD]}).encode())
    assert [record.name for record in listed.records] == ["p"]
    (problem,) = listed.problems
    assert problem.where == "items[0]"
    assert problem.severity is Severity.WARNING


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"1", b'{"items": 3}', b"\xff", b"[" * 9999]
)
def test_no_pod_list(body: bytes) -> None:
    with pytest.raises(PodListError):
        parse_pod_list(body)


@pytest.mark.parametrize("body", [b'{"items": null}', b'{"items": []}', b"{}"])
def test_empty_list(body: bytes) -> None:
    assert parse_pod_list(body).records == ()


def test_unknown_qos_class_is_not_told() -> None:
    assert parse_one(pod(status={"qosClass": "Odd"})).kube_qos is None


@pytest.mark.parametrize(
    "odd",
    [
        pod(metadata={"uid": None}),
        pod(metadata={"uid": ""}),
        pod(metadata={"uid": "a\0b"}),
        pod(metadata={"name": "\ud800"}),
        pod(metadata={"namespace": 5}),
        pod(spec={"priority": float("inf")}),
        pod(status={"containerStatuses": [{"name": "main", "restartCount": float("inf")}]}),
    ],
)
def test_CRI_03_an_odd_pod_is_left_out_and_hides_no_other(odd: dict[str, Any]) -> None:
    good = pod(metadata={"uid": "good"})
    listed = parse_pod_list(json.dumps({"items": [odd, good]}).encode())
    assert [record.uid for record in listed.records] == ["good"]
    assert [problem.code for problem in listed.problems] == ["kubelet-odd-pod"]


def test_H26_an_annotation_that_nests_without_end_is_no_annotation() -> None:
    deep = {names.ANNOTATION_EXTENDED_RESOURCE_SPEC: "[" * 100_000}
    listed = parse_pod_list(json.dumps({"items": [pod(metadata={"annotations": deep})]}).encode())
    assert len(listed.records) == 1
    assert [problem.code for problem in listed.problems] == ["annotation"]


def test_POD_13_a_runtime_class_is_always_text() -> None:
    assert parse_one(pod(spec={"runtimeClassName": 5})).runtime_handler == "5"


def test_CFG_10_cores_beyond_an_int64_of_milli_cores_are_not_readable() -> None:
    block = [{"name": "main", "resources": {"requests": {"cpu": "1E", "memory": "1E"}}}]
    assert parse_one(pod(spec={"containers": block})).requests == Resources(None, 10**18)


# -- what the kubelet itself counts (H14) ---------------------------------------------------------

BATCH = {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "1Gi"}


def test_H14_native_amounts_are_what_the_kubelet_makes_cgroup_values_of() -> None:
    record = parse_one(pod())
    assert record.native == Asked(Resources(1000), Resources())
    assert record.containers[0].native == record.native


def test_H14_extended_resources_are_nothing_to_the_kubelet() -> None:
    """A batch pod with a sidecar that asks for real CPU is Burstable, by the sidecar alone."""
    sidecar = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m"}}
    containers = [
        {"name": "main", "resources": {"requests": BATCH, "limits": BATCH}},
        {"name": "proxy", "resources": sidecar},
    ]
    record = parse_one(pod(spec={"containers": containers}))
    assert record.requests == Resources(2100, (1 << 30) + (64 << 20))
    assert record.native == Asked(Resources(100, 64 << 20), Resources())
    natives = {each.name: each.native for each in record.containers}
    assert natives["main"] == Asked()
    assert natives["proxy"] == Asked(Resources(100, 64 << 20), Resources(200))


def test_H14_an_extended_spec_in_an_annotation_is_nothing_to_the_kubelet_either() -> None:
    spec = json.dumps({"containers": {"main": {"requests": BATCH}}})
    annotations = {names.ANNOTATION_EXTENDED_RESOURCE_SPEC: spec}
    record = parse_one(
        pod(metadata={"annotations": annotations}, spec={"containers": [{"name": "main"}]})
    )
    assert record.requests == Resources(2000, 1 << 30)
    assert record.native == Asked()


@pytest.mark.parametrize(
    "status",
    [
        {"resize": "InProgress"},
        {"conditions": [{"type": "PodResizePending", "status": "True"}]},
        {"conditions": [{"type": "PodResizeInProgress", "status": "True"}]},
    ],
)
def test_H07_while_a_pod_is_resized_nobody_knows_what_it_was_given(status: dict[str, Any]) -> None:
    record = parse_one(pod(status=status))
    assert record.native is None
    assert record.containers[0].native is None
    assert record.requests == Resources(1000)


def test_H14_overhead_and_init_containers_count_as_for_the_kubelet() -> None:
    spec = {
        "containers": [{"name": "main", "resources": {"limits": {"cpu": "1"}}}],
        "initContainers": [{"name": "warm", "resources": {"requests": {"cpu": "3"}}}],
        "overhead": {"cpu": "250m"},
    }
    record = parse_one(pod(spec=spec))
    assert record.native == Asked(record.requests, record.limits)
    assert record.requests == Resources(3250)
