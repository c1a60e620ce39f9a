"""What the runtime says of itself, in containerd's and CRI-O's words; and the checkpoint."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from koordpb import cri_v1_pb2 as pb

from runtimeproxy.cri.records import Container, Sandbox, overlaid, with_resources
from runtimeproxy.cri.recovery import Runtime, container_of, sandbox_of
from runtimeproxy.store import Store
from runtimeproxy.wire.status import Code, StatusError


def verbose_pod(info: object) -> pb.PodSandboxStatusResponse:
    status = pb.PodSandboxStatus(
        id="s1",
        metadata=pb.PodSandboxMetadata(name="p", uid="u", namespace="n", attempt=2),
        labels={"l": "1"},
        annotations={"a": "1"},
        runtime_handler="kata",
    )
    return pb.PodSandboxStatusResponse(status=status, info={"info": json.dumps(info)})


def verbose_container(info: object, **resources: object) -> pb.ContainerStatusResponse:
    status = pb.ContainerStatus(id="c1", metadata=pb.ContainerMetadata(name="c", attempt=1))
    if resources:
        status.resources.linux.MergeFrom(pb.LinuxContainerResources(**resources))  # type: ignore[arg-type]
    return pb.ContainerStatusResponse(status=status, info={"info": json.dumps(info)})


def test_a_sandbox_in_containerds_words() -> None:
    linux = {
        "cgroup_parent": "/kubepods/burstable/podu",
        "overhead": {"cpu_quota": 100, "memory_limit_in_bytes": 7},
        "resources": {"cpu_shares": 512},
    }
    found = sandbox_of(verbose_pod({"config": {"linux": linux}, "pid": 1}))
    assert (found.id, found.runtime_handler) == ("s1", "kata")
    assert found.config.linux.cgroup_parent == "/kubepods/burstable/podu"
    assert found.config.linux.overhead.memory_limit_in_bytes == 7
    assert found.config.linux.resources.cpu_shares == 512
    assert found.config.metadata.attempt == 2 and found.config.labels == {"l": "1"}


def test_a_sandbox_in_crios_words() -> None:
    parent = "kubepods-burstable-podu.slice"
    annotations = {"io.kubernetes.cri-o.CgroupParent": parent}
    found = sandbox_of(verbose_pod({"runtimeSpec": {"annotations": annotations}}))
    assert found.config.linux.cgroup_parent == parent


def test_a_container_has_the_resources_of_now() -> None:
    created = {
        "envs": [{"key": "A", "value": "1"}, {"key": "A", "value": "2"}],
        "linux": {"resources": {"cpu_quota": 1000, "cpu_shares": 2, "unified": {"x.y": "1"}}},
    }
    spec = {"linux": {"resources": {"cpu": {"quota": 2000, "cpus": "1"}, "memory": {"limit": 9}}}}
    info = {"config": created, "runtimeSpec": spec, "sandboxID": "s1"}
    found = container_of(verbose_container(info), "")
    assert found.sandbox_id == "s1"
    assert [(one.key, one.value) for one in found.config.envs] == [("A", b"1"), ("A", b"2")]
    assert found.config.linux.resources == pb.LinuxContainerResources(
        cpu_quota=2000,
        cpu_shares=2,
        cpuset_cpus="1",
        memory_limit_in_bytes=9,
        unified={"x.y": "1"},
    )
    updated = container_of(verbose_container(info, cpu_quota=3000), "s2")
    assert updated.sandbox_id == "s2"
    assert updated.config.linux.resources.cpu_quota == 3000


def test_values_that_are_bytes_come_in_base64() -> None:
    raw = b"\xff\xfe"
    encoded = base64.b64encode(raw).decode()
    info = {
        "config": {"envs": [{"key": "RAW", "value": encoded}, {"key": "TEXT", "value": "abcd"}]},
        "runtimeSpec": {"process": {"env": ["RAW=\ufffd\ufffd", "TEXT=abcd"]}},
    }
    envs = container_of(verbose_container(info), "").config.envs
    assert [one.value for one in envs] == [raw, b"abcd"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    "config",
                    "linux",
                    "resources",
                    "envs",
                    "key",
                    "value",
                    "runtimeSpec",
                    "cpu",
                    "quota",
                )
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, st.text(max_size=20))
def test_strange_answers_are_taken_for_what_they_are_worth(info: object, text: str) -> None:
    sandbox_of(verbose_pod(info))
    container_of(verbose_container(info), "")
    broken = pb.PodSandboxStatusResponse(info={"info": text})
    assert sandbox_of(broken).config.linux.cgroup_parent == ""


# -- reconciliation --------------------------------------------------------------------------------


class FakeClient:
    """Answers by method name; an exception is raised."""

    connected = True

    def __init__(self, **answers: object) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def call(self, path: str, message: bytes, timeout_s: float) -> bytes:
        service, _, method = path[1:].partition("/")
        self.asked.append(path)
        if service not in self.answers.get("services", ("runtime.v1.RuntimeService",)):  # type: ignore[operator]
            raise StatusError(Code.UNIMPLEMENTED, f"unknown service {service}")
        answer = self.answers[method]
        if isinstance(answer, Exception):
            raise answer
        assert callable(answer)
        return bytes(answer(message).SerializeToString())


def world(pods: list[str], containers: dict[str, str], **more: object) -> FakeClient:
    def pod_status(message: bytes) -> object:
        reply = verbose_pod({"config": {"linux": {"cgroup_parent": "/x"}}})
        reply.status.id = pb.PodSandboxStatusRequest.FromString(message).pod_sandbox_id
        return reply

    def status(message: bytes) -> object:
        reply = verbose_container({})
        reply.status.id = pb.ContainerStatusRequest.FromString(message).container_id
        return reply

    listed = [pb.Container(id=id_, pod_sandbox_id=pod) for id_, pod in containers.items()]
    return FakeClient(
        ListPodSandbox=lambda _: pb.ListPodSandboxResponse(
            items=[pb.PodSandbox(id=id_) for id_ in pods]
        ),
        ListContainers=lambda _: pb.ListContainersResponse(containers=listed),
        PodSandboxStatus=pod_status,
        ContainerStatus=status,
        **more,
    )


def reconcile(client: FakeClient, store: Store) -> None:
    asyncio.run(Runtime(client).reconcile(store))  # type: ignore[arg-type]


def test_the_store_becomes_what_the_runtime_has(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    store.put_sandbox(Sandbox("old", pb.PodSandboxConfig(), ""))
    store.put_container(Container("c-old", "old", pb.ContainerConfig()))
    store.put_sandbox(Sandbox("kept", pb.PodSandboxConfig(hostname="mine"), ""))
    client = world(["kept", "new"], {"c-new": "new"})
    reconcile(client, store)
    assert set(store.sandboxes) == {"kept", "new"}
    assert store.containers["c-new"].sandbox_id == "new"
    assert store.sandboxes["kept"].config.hostname == "mine", "what is known is not asked again"
    assert store.sandboxes["new"].config.linux.cgroup_parent == "/x"


def test_CRI_03_a_container_of_no_listed_sandbox_is_skipped(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    reconcile(world([], {"stray": "x"}), store)
    assert not store.containers and not store.sandboxes


def test_CRI_04_a_runtime_that_does_not_answer_empties_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    store.put_sandbox(Sandbox("s", pb.PodSandboxConfig(), ""))
    client = world([], {})
    client.answers["ListPodSandbox"] = StatusError(Code.UNAVAILABLE, "starting")
    with pytest.raises(StatusError):
        reconcile(client, store)
    assert set(store.sandboxes) == {"s"}


def test_CRI_14_both_attempts_are_known_until_the_runtime_has_one_less(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    reconcile(world(["s"], {"attempt0": "s", "attempt1": "s"}), store)
    assert set(store.containers) == {"attempt0", "attempt1"}
    reconcile(world(["s"], {"attempt1": "s"}), store)
    assert set(store.containers) == {"attempt1"}


def test_a_container_made_while_the_lists_were_made_stays(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    client = world([], {})
    listing = client.answers["ListContainers"]

    def meanwhile(message: bytes) -> object:
        store.put_container(Container("young", "s", pb.ContainerConfig()))
        return listing(message)  # type: ignore[operator]

    client.answers["ListContainers"] = meanwhile
    reconcile(client, store)
    assert set(store.containers) == {"young"}


def test_a_runtime_of_v1alpha2_only_is_asked_by_that(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    reconcile(world(["s"], {}, services=("runtime.v1alpha2.RuntimeService",)), store)
    assert set(store.sandboxes) == {"s"}


# -- the checkpoint --------------------------------------------------------------------------------


def filled(path: Path) -> Store:
    store = Store(path)
    store.open()
    config = pb.PodSandboxConfig(hostname="h", annotations={"a": "1"})
    store.put_sandbox(Sandbox("s", config, "kata"))
    envs = [pb.KeyValue(key="A", value=b"\xff")]
    store.put_container(Container("c", "s", pb.ContainerConfig(envs=envs)))
    return store


def test_the_checkpoint_gives_back_what_was_put(tmp_path: Path) -> None:
    before = filled(tmp_path / "d" / "store.db")
    before.close()
    after = Store(tmp_path / "d" / "store.db")
    after.open()
    assert (after.sandboxes, after.containers) == (before.sandboxes, before.containers)
    after.drop_sandbox("s")
    after.close()
    again = Store(tmp_path / "d" / "store.db")
    again.open()
    assert not again.sandboxes and not again.containers
    again.close()


def test_nobody_else_reads_the_checkpoint(tmp_path: Path) -> None:
    filled(tmp_path / "d" / "store.db").close()
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "d" / "store.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", (b"no database at all" * 100, b"", b"SQLite format 3\0" * 40))
def test_a_damaged_checkpoint_is_begun_anew(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(damage)
    store = filled(path)
    assert not store.problem
    store.close()


def test_a_row_that_is_no_message_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    filled(path).close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE sandboxes SET config = x'ffff'")
    database.close()
    store = Store(path)
    store.open()
    assert not store.sandboxes and not store.problem
    store.close()


def test_a_disk_that_fails_costs_only_the_checkpoint(tmp_path: Path) -> None:
    store = filled(tmp_path / "store.db")
    with sqlite3.connect(tmp_path / "store.db") as other:
        other.execute("BEGIN EXCLUSIVE")
        store.put_sandbox(Sandbox("t", pb.PodSandboxConfig(), ""))
        assert set(store.sandboxes) == {"s", "t"}
        assert "locked" in store.problem
        other.rollback()
    other.close()
    store.put_sandbox(Sandbox("u", pb.PodSandboxConfig(), ""))
    assert not store.problem
    store.close()


# -- records ---------------------------------------------------------------------------------------


def test_an_update_is_laid_over_as_runtimes_do() -> None:
    stored = pb.LinuxContainerResources(cpu_quota=100, cpuset_cpus="0", unified={"a.b": "1"})
    update = pb.LinuxContainerResources(cpu_quota=-1, unified={"c.d": "2"})
    result = overlaid(stored, update)
    assert (result.cpu_quota, result.cpuset_cpus) == (-1, "0")
    assert result.unified == {"a.b": "1", "c.d": "2"}
    container = Container("c", "s", pb.ContainerConfig())
    changed = with_resources(container, update)
    assert changed.config.linux.resources.cpu_quota == -1
    assert not container.config.HasField("linux"), "the old record is as it was"
