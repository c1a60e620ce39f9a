"""Pods from a CRI server, here a fake one that can say no."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf import message_factory
from koordpb import cri_v1_pb2 as pb

from koordlet.model.pods import ContainerState, PodRecord, Resources
from koordlet.pods.cri import REFRESHED_PER_LIST, CriClient, socket_path
from koordlet.pods.crirecords import RuntimeView
from koordlet.pods.source import SourceError
from koordlet.protocol import names
from koordlet.protocol.problem import Severity
from koordlet.protocol.qos import ValueSource
from tests.support.fakecri import FakeCri, FakePod

CAPTURED = Path(__file__).parents[1] / "fixtures/captured/kubelet-1.36-cri-calls.jsonl"


@pytest.fixture
def cri(tmp_path: Path) -> Iterator[FakeCri]:
    with FakeCri(str(tmp_path / "cri.sock")) as server:
        yield server


@pytest.fixture
def client(cri: FakeCri) -> Iterator[CriClient]:
    client = CriClient(cri.endpoint, timeout_s=5)
    yield client
    client.close()


def only(records: tuple[PodRecord, ...]) -> PodRecord:
    (record,) = records
    return record


def test_empty_runtime(client: CriClient) -> None:
    assert client.list_records() == ()
    assert client.version().name == "fakecri"


def test_pod_with_its_containers(cri: FakeCri, client: CriClient) -> None:
    pod = cri.add_pod(
        "web",
        uid="3089d7a8-a983-4649-9088-39efe764e4b4",
        namespace="shop",
        labels={names.LABEL_QOS: "LS"},
        annotations={"a": "b"},
        cgroup_parent="/kubepods/burstable/pod3089d7a8-a983-4649-9088-39efe764e4b4",
        runtime_handler="runc",
    )
    first = cri.add_container(pod, "main", quota_us=50_000, shares=307, memory_bytes=1 << 20)
    cri.add_container(pod, "side", state=pb.CONTAINER_CREATED)
    record = only(client.list_records())
    assert (record.uid, record.namespace, record.name) == (pod.uid, "shop", "web")
    assert record.labels[names.LABEL_QOS] == "LS"
    assert record.annotations == {"a": "b"}
    assert record.sandbox_ids == (pod.id,)
    assert record.cgroup_parent == pod.cgroup_parent
    assert record.runtime_handler == "runc"
    assert record.running
    assert record.kube_qos is None
    assert record.priority is None
    main, side = record.containers
    assert (main.id, main.name, main.state) == (first.id, "main", ContainerState.RUNNING)
    assert main.requests == Resources(cpu_milli=300)  # 307 shares are what 300m became
    assert main.limits == Resources(500, 1 << 20)
    assert main.resources_source is ValueSource.CONTAINER_STATUS
    assert (main.spec_quota_us, main.spec_period_us) == (50_000, 100_000)
    assert side.state is ContainerState.CREATED
    assert side.requests == Resources()
    assert side.spec_quota_us is None
    assert record.requests == Resources(cpu_milli=300)
    assert record.limits == Resources()
    assert record.resources_source is ValueSource.CONTAINER_STATUS


def test_pod_with_zero_containers_is_listed(cri: FakeCri, client: CriClient) -> None:
    cri.add_pod("lonely")
    record = only(client.list_records())
    assert record.containers == ()
    assert record.requests == Resources()


def test_CRI_03_container_of_an_unknown_sandbox_is_skipped_with_a_warning(
    cri: FakeCri, client: CriClient
) -> None:
    pod = cri.add_pod("gone")
    stray = cri.add_container(pod, "x")
    cri.remove_pod(pod)
    cri.strays.append(stray)
    assert client.list_records() == ()
    (warning,) = client.warnings
    assert warning.code == "cri-unknown-sandbox"
    assert warning.severity is Severity.WARNING
    assert stray.id in warning.where
    cri.strays.clear()
    client.list_records()
    assert client.warnings == ()


def test_newest_attempt_of_a_container_wins(cri: FakeCri, client: CriClient) -> None:
    pod = cri.add_pod("crashing")
    cri.add_container(pod, "main", attempt=0, state=pb.CONTAINER_EXITED)
    second = cri.add_container(pod, "main", attempt=1)
    record = only(client.list_records())
    assert [(each.id, each.attempt) for each in record.containers] == [(second.id, 1)]
    second.state = pb.CONTAINER_EXITED
    record = only(client.list_records())
    assert record.containers[0].state is ContainerState.EXITED
    assert record.running  # its sandbox is


def test_newest_sandbox_tells_the_pod(cri: FakeCri, client: CriClient) -> None:
    old = cri.add_pod("p", attempt=0, labels={"v": "1"})
    cri.add_container(old, "main", state=pb.CONTAINER_EXITED)
    old.state = pb.SANDBOX_NOTREADY
    assert not only(client.list_records()).running
    new = cri.add_pod("p", attempt=1, labels={"v": "2"})
    main = cri.add_container(new, "main")
    record = only(client.list_records())
    assert record.sandbox_ids == (old.id, new.id)
    assert record.labels["v"] == "2"
    assert record.running
    assert [each.id for each in record.containers] == [main.id]
    new.state = pb.SANDBOX_NOTREADY
    assert not only(client.list_records()).running


def test_exited_containers_count_in_no_sum(cri: FakeCri, client: CriClient) -> None:
    pod = cri.add_pod("p")
    cri.add_container(pod, "init", shares=1024, state=pb.CONTAINER_EXITED)
    cri.add_container(pod, "main", shares=512, quota_us=50_000)
    record = only(client.list_records())
    assert record.requests.cpu_milli == 500
    assert record.limits.cpu_milli == 500
    assert cri.calls["ContainerStatus"] == 1


def test_sandbox_without_a_uid_is_kept_apart(cri: FakeCri, client: CriClient) -> None:
    for name in ("a", "b"):
        pod = cri.add_pod(name)
        pod.uid, pod.labels = "", {}
    assert len({record.uid for record in client.list_records()}) == 2


def test_extended_resource_spec_outranks_the_container_status(
    cri: FakeCri, client: CriClient
) -> None:
    batch = {"requests": {"kubernetes.io/batch-cpu": "2000"}}
    annotation = json.dumps({"containers": {"main": batch}})
    pod = cri.add_pod("be", annotations={names.ANNOTATION_EXTENDED_RESOURCE_SPEC: annotation})
    cri.add_container(pod, "main", shares=2)
    record = only(client.list_records())
    assert record.requests.cpu_milli == 2000
    assert record.resources_source is ValueSource.EXTENDED_RESOURCE_SPEC


def test_CQ_21_wrong_unit_is_warned_about_with_every_list(cri: FakeCri, client: CriClient) -> None:
    annotation = '{"containers": {"main": {"limits": {"kubernetes.io/batch-cpu": "200m"}}}}'
    pod = cri.add_pod("be", annotations={names.ANNOTATION_EXTENDED_RESOURCE_SPEC: annotation})
    cri.add_container(pod, "main")
    for _ in range(2):
        client.list_records()
        assert [warning.code for warning in client.warnings] == ["batch-cpu-unit"]


def test_unchanged_pods_are_the_same_objects(cri: FakeCri, client: CriClient) -> None:
    for index in range(3):
        cri.add_container(cri.add_pod(f"p{index}"), "main")
    before = client.list_records()
    assert client.list_records() is before
    cri.add_container(next(iter(cri.pods.values())), "second")
    after = client.list_records()
    assert after != before
    assert [old is new for old, new in zip(before, after, strict=True)] == [False, True, True]


def test_statuses_are_asked_once_and_then_in_turn(cri: FakeCri, client: CriClient) -> None:
    count = 3 * REFRESHED_PER_LIST
    for index in range(count):
        cri.add_container(cri.add_pod(f"p{index}"), "main")
    client.list_records()
    assert cri.calls["PodSandboxStatus"] == count
    assert cri.calls["ContainerStatus"] == count
    for _ in range(3):
        client.list_records()
    assert cri.calls["PodSandboxStatus"] == count
    asked = [request.container_id for m, request in cri.requests if m == "ContainerStatus"]
    assert len(asked) == 2 * count
    assert len(set(asked[count:])) == count


def test_H08_resize_by_somebody_else_is_seen_in_turn(cri: FakeCri, client: CriClient) -> None:
    container = cri.add_container(cri.add_pod("p"), "main", quota_us=50_000)
    client.list_records()
    container.spec.cpu_quota = 80_000
    assert only(client.list_records()).containers[0].spec_quota_us == 80_000


def test_OPS_03_what_the_runtime_no_longer_lists_is_forgotten(
    cri: FakeCri, client: CriClient
) -> None:
    for index in range(50):
        pod = cri.add_pod(f"p{index}")
        cri.add_container(pod, "main")
        client.list_records()
        cri.remove_pod(pod)
    client.list_records()
    view = client._view
    assert not view._sandboxes
    assert not view._containers
    assert not view._pods


def test_H08_update_changes_the_spec_and_it_is_asked_again(cri: FakeCri, client: CriClient) -> None:
    pods = [cri.add_pod(f"p{index}") for index in range(4)]
    containers = [cri.add_container(pod, "main", quota_us=100_000) for pod in pods]
    client.list_records()
    client.update_resources(containers[3].id, cpu_quota_us=-1)
    assert containers[3].spec.cpu_quota == -1
    assert containers[3].spec.cpu_shares == 2  # what was not named stays
    quotas = {
        record.containers[0].id: record.containers[0].spec_quota_us
        for record in client.list_records()
    }
    assert quotas[containers[3].id] is None
    assert quotas[containers[2].id] == 100_000
    client.update_resources(containers[2].id, cpuset_cpus="0-1")
    assert containers[2].spec.cpuset_cpus == "0-1"
    assert containers[2].spec.cpu_quota == 100_000


def test_update_of_a_gone_container(client: CriClient) -> None:
    with pytest.raises(SourceError) as caught:
        client.update_resources("f" * 64, cpu_quota_us=-1)
    assert caught.value.problem.code == "cri-not-found"


def test_runtime_that_tells_neither_info_nor_resources(tmp_path: Path) -> None:
    socket = str(tmp_path / "old.sock")
    with FakeCri(socket, verbose_info=False, tells_resources=False) as cri:
        cri.add_container(cri.add_pod("p", cgroup_parent="/x"), "main", quota_us=50_000)
        client = CriClient(cri.endpoint)
        record = only(client.list_records())
        client.close()
    assert record.cgroup_parent == ""
    assert record.containers[0].resources_source is ValueSource.UNKNOWN
    assert record.containers[0].spec_quota_us is None
    assert record.resources_source is ValueSource.UNKNOWN


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, "cri-unreachable"),
        (grpc.StatusCode.UNIMPLEMENTED, "cri-unimplemented"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "cri-too-large"),
        (grpc.StatusCode.PERMISSION_DENIED, "cri-denied"),
        (grpc.StatusCode.INTERNAL, "cri-error"),
    ],
)
@pytest.mark.parametrize("method", ["ListPodSandbox", "ListContainers"])
def test_failed_list_is_explained(
    cri: FakeCri, client: CriClient, code: grpc.StatusCode, kind: str, method: str
) -> None:
    cri.refuse(method, code, "because")
    with pytest.raises(SourceError) as caught:
        client.list_records()
    problem = caught.value.problem
    assert problem.code == kind
    assert problem.where == cri.endpoint
    assert problem.what == f"{method}: {code.name}: because"
    assert problem.remedy or kind == "cri-error"


def test_deadline_on_every_call(cri: FakeCri) -> None:
    client = CriClient(cri.endpoint, timeout_s=0.05)
    cri.delay("ListContainers", 0.3)
    with pytest.raises(SourceError) as caught:
        client.list_records()
    client.close()
    assert caught.value.problem.code == "cri-timeout"
    assert "0.05 s" in caught.value.problem.limit


def test_no_runtime_then_one(tmp_path: Path) -> None:
    path = str(tmp_path / "late.sock")
    client = CriClient(path, timeout_s=2)
    with pytest.raises(SourceError) as caught:
        client.list_records()
    assert caught.value.problem.code == "cri-unreachable"
    with FakeCri(path) as cri:
        cri.add_pod("p")
        deadline = time.monotonic() + 10
        records: tuple[PodRecord, ...] = ()
        while not records and time.monotonic() < deadline:
            try:
                records = client.list_records()
            except SourceError:
                continue
    client.close()
    assert len(records) == 1


def test_sandbox_that_leaves_between_list_and_status(cri: FakeCri, client: CriClient) -> None:
    cri.add_pod("leaving")
    cri.refuse("PodSandboxStatus", grpc.StatusCode.NOT_FOUND)
    assert client.list_records() == ()


def test_container_that_leaves_between_list_and_status(cri: FakeCri, client: CriClient) -> None:
    cri.add_container(cri.add_pod("p"), "leaving")
    cri.refuse("ContainerStatus", grpc.StatusCode.NOT_FOUND)
    assert only(client.list_records()).containers == ()


def test_one_broken_status_does_not_hide_the_rest(cri: FakeCri, client: CriClient) -> None:
    cri.add_container(cri.add_pod("p", cgroup_parent="/x"), "main", quota_us=50_000)
    for method in ("PodSandboxStatus", "ContainerStatus"):
        cri.refuse(method, grpc.StatusCode.UNKNOWN, "broken")
    record = only(client.list_records())
    assert record.containers[0].resources_source is ValueSource.UNKNOWN
    assert {warning.code for warning in client.warnings} == {"cri-error"}
    cri.allow("ContainerStatus")
    assert only(client.list_records()).containers[0].spec_quota_us == 50_000


def test_known_resources_outlive_a_broken_status(cri: FakeCri, client: CriClient) -> None:
    cri.add_container(cri.add_pod("p"), "main", quota_us=50_000)
    client.list_records()
    cri.refuse("ContainerStatus", grpc.StatusCode.UNKNOWN, "broken")
    for _ in range(3):
        assert only(client.list_records()).containers[0].spec_quota_us == 50_000


def test_answer_above_the_receive_limit_is_explained(cri: FakeCri) -> None:
    cri.add_pod("big", labels={"x": "y" * 10_000})
    client = CriClient(cri.endpoint, receive_limit_bytes=5_000)
    with pytest.raises(SourceError) as caught:
        client.list_records()
    client.close()
    assert caught.value.problem.code == "cri-too-large"
    assert "5000 bytes" in caught.value.problem.limit


def test_proxy_variables_do_not_matter(cri: FakeCri, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    client = CriClient(cri.endpoint)
    assert client.version().name == "fakecri"
    client.close()


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:1", "run/x.sock", "", "npipe://x"])
def test_other_endpoints_than_unix_sockets_are_refused(endpoint: str) -> None:
    with pytest.raises(SourceError) as caught:
        socket_path(endpoint)
    assert caught.value.problem.code == "cri-endpoint"


def test_both_spellings_of_a_socket() -> None:
    assert socket_path("unix:///run/x.sock") == socket_path("/run/x.sock") == "/run/x.sock"


def _pods(cri: FakeCri, count: int, containers: int) -> list[FakePod]:
    pods = [cri.add_pod(f"pod-{index}", labels={names.LABEL_QOS: "LS"}) for index in range(count)]
    for pod in pods:
        for index in range(containers):
            cri.add_container(pod, f"c{index}", shares=512, quota_us=50_000)
    return pods


def test_a_list_of_330_containers_costs_little(cri: FakeCri, client: CriClient) -> None:
    _pods(cri, 110, 3)
    sandboxes = cri._do_ListPodSandbox(pb.ListPodSandboxRequest()).SerializeToString()
    containers = cri._do_ListContainers(pb.ListContainersRequest()).SerializeToString()
    client.list_records()
    view = client._view

    def digest() -> float:
        started = time.thread_time()
        view.begin()
        for sandbox in pb.ListPodSandboxResponse.FromString(sandboxes).items:
            assert view.see_sandbox(sandbox.id, sandbox.state)
        for container in pb.ListContainersResponse.FromString(containers).containers:
            assert view.see_container(container.id, container.state)
        assert len(view.finish()) == 110
        return time.thread_time() - started

    assert min(digest() for _ in range(5)) < 0.010


def _captured() -> list[dict[str, str]]:
    return [json.loads(line) for line in CAPTURED.read_text().splitlines()]


def test_recorded_calls_of_a_kubelet_survive_byte_for_byte() -> None:
    service = pb.DESCRIPTOR.services_by_name["RuntimeService"]
    checked = 0
    for call in _captured():
        name, _, method = call["method"].lstrip("/").partition("/")
        if name != service.full_name or method not in service.methods_by_name:
            continue
        described = service.methods_by_name[method]
        for side, kind in (("request", described.input_type), ("response", described.output_type)):
            raw = base64.b64decode(call.get(side) or "")
            message = message_factory.GetMessageClass(kind).FromString(raw)
            assert _canonical(message) == _canonical(
                message_factory.GetMessageClass(kind).FromString(message.SerializeToString())
            )
            assert len(message.SerializeToString()) == len(raw), (method, side)
            checked += 1
    assert checked > 80


def _canonical(message: object) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))  # type: ignore[attr-defined]


def _replies(method: str) -> list[tuple[bytes, bytes]]:
    return [
        (base64.b64decode(call["request"] or ""), base64.b64decode(call["response"] or ""))
        for call in _captured()
        if call["method"].endswith(f"/{method}") and call["code"] == "OK"
    ]


def test_recorded_kubelet_world_becomes_pods() -> None:
    """The recording's lists are empty, so they are put together from its other calls."""
    view = RuntimeView()
    view.begin()
    for request, response in _replies("RunPodSandbox"):
        config = pb.RunPodSandboxRequest.FromString(request).config
        item = pb.PodSandbox(
            id=pb.RunPodSandboxResponse.FromString(response).pod_sandbox_id,
            metadata=config.metadata,
            labels=config.labels,
            annotations=config.annotations,
        )
        document = {"config": {"linux": {"cgroup_parent": config.linux.cgroup_parent}}}
        view.learn_sandbox(item, {"info": json.dumps(document)})
    statuses = {
        reply.status.id: reply
        for _, response in _replies("ContainerStatus")
        for reply in [pb.ContainerStatusResponse.FromString(response)]
    }
    for request, response in _replies("CreateContainer"):
        created = pb.CreateContainerRequest.FromString(request)
        container_id = pb.CreateContainerResponse.FromString(response).container_id
        if container_id not in statuses:
            continue
        status = statuses[container_id].status
        item_of = pb.Container(
            id=container_id,
            pod_sandbox_id=created.pod_sandbox_id,
            metadata=created.config.metadata,
            state=status.state,
        )
        view.learn_container(item_of, statuses[container_id])
    records = {record.name: record for record in view.finish()}
    assert set(records) == {"ls-web-n1", "lsr-db-n1", "be-n1"}
    for record in records.values():
        assert record.annotations[names.ANNOTATION_STATIC_POD_HASH] == record.uid
        assert record.cgroup_parent.endswith(f"/pod{record.uid}")
    database = {each.name: each for each in records["lsr-db-n1"].containers}["db"]
    assert database.limits.cpu_milli == 1000
    assert database.spec_quota_us == 100_000
    batch = {each.name: each for each in records["be-n1"].containers}["c"]
    assert batch.requests == batch.limits == Resources()


def test_CRI_14_a_running_attempt_counts_before_a_later_one_that_has_ended(
    cri: FakeCri, client: CriClient
) -> None:
    """Attempts begin at 0 again where the kubelet lost its own record of the pod."""
    pod = cri.add_pod("web")
    cri.add_container(pod, "main", attempt=3, state=pb.CONTAINER_EXITED)
    running = cri.add_container(pod, "main", attempt=0)
    assert [each.id for each in only(client.list_records()).containers] == [running.id]


def test_CRI_17_a_state_that_nobody_knows_yet_is_unknown(cri: FakeCri, client: CriClient) -> None:
    pod = cri.add_pod("web")
    container = cri.add_container(pod, "main")
    client.list_records()
    container.state = 9  # type: ignore[assignment]
    (told,) = only(client.list_records()).containers
    assert told.state is ContainerState.UNKNOWN
