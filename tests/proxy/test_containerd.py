"""Pods of a real containerd and runc, made through the proxy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from koordpb import cri_v1_pb2 as pb

from runtimeproxy.store import Store
from tests.support.containerd import Containerd
from tests.support.criclient import RuntimeClient
from tests.support.hookserver import HookServer, echo, write_server
from tests.support.oci import IMAGE
from tests.support.proxyd import Proxy
from tests.support.rawruntime import pod_config
from tests.support.waiting import until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def containerd() -> Iterator[Containerd]:
    with Containerd() as runtime:
        yield runtime


@pytest.fixture
def proxy(module_path: Path, containerd: Containerd) -> Iterator[Proxy]:
    name = f"p{time.monotonic_ns()}"
    with Proxy(module_path / name, socket_of(containerd), activated=True) as running:
        yield running
    containerd.client.remove_all()


@pytest.fixture
def client(proxy: Proxy) -> Iterator[RuntimeClient]:
    with RuntimeClient(proxy.endpoint) as connected:
        yield connected


def socket_of(containerd: Containerd) -> Path:
    return Path(containerd.endpoint.removeprefix("unix://"))


def life(client: RuntimeClient, parent: str, name: str) -> list[str]:
    """The life of one pod, and what each step of it gave."""
    told = []
    pod = client.run_pod(name, cgroup_parent=parent, labels={"app": name})
    container = client.run_container(pod, "main", quota_us=50_000, memory_bytes=64 << 20)
    told.append(_shape(client.call("ListContainers", pb.ListContainersRequest())))
    status = pb.ContainerStatusRequest(container_id=container, verbose=True)
    told.append(_shape(client.call("ContainerStatus", status)))
    update = pb.UpdateContainerResourcesRequest(
        container_id=container, linux=pb.LinuxContainerResources(cpu_shares=99)
    )
    told.append(str(client.call("UpdateContainerResources", update)))
    client.stop_container(container)
    told.append(_shape(client.call("ContainerStatus", status)))
    client.remove_container(container)
    told.append(_error(client, "ContainerStatus", status))
    client.remove_pod(pod.id)
    gone = pb.PodSandboxStatusRequest(pod_sandbox_id=pod.id)
    told.append(_error(client, "PodSandboxStatus", gone))
    return told


def _shape(reply: Any) -> str:
    """Without ids and times, which no two pods share."""
    if isinstance(reply, pb.ListContainersResponse):
        return str([(one.metadata.name, one.state, one.image_ref) for one in reply.containers])
    status = reply.status
    return str((status.metadata.name, status.state, status.exit_code, sorted(reply.info)))


def _error(client: RuntimeClient, method: str, request: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        client.call(method, request)
    words = str(caught.value.details()).split()
    return f"{caught.value.code()} {[word for word in words if len(word) < 40]}"


def test_the_life_of_a_pod_is_the_same_with_and_without_the_proxy(
    containerd: Containerd, proxy: Proxy, client: RuntimeClient
) -> None:
    parent = containerd.parent("kubepods/burstable")
    direct = life(containerd.client, parent, "direct")
    assert life(client, parent, "direct") == direct
    with HookServer(proxy.directory / "h.sock") as hooks:
        write_server(proxy.hooks_dir, "h", hooks.socket, "Fail")
        assert life(client, parent, "direct") == direct
        hooks.wait_for("PostStopPodSandbox")
    status = proxy.get("status")
    assert (status["sandboxes"], status["containers"], status["problems"]) == (0, 0, [])


def test_a_be_pod_has_its_final_values_when_its_first_instruction_runs(
    containerd: Containerd, proxy: Proxy, client: RuntimeClient
) -> None:
    def answer(request: Any) -> Any:
        reply = echo(request)
        if request.pod_labels["koordinator.sh/qosClass"] == "BE":
            reply.container_resources.cpu_shares = 77
            reply.container_resources.cpu_quota = 33_000
            reply.container_resources.cpu_period = 100_000
            reply.container_resources.memory_limit_in_bytes = 48 << 20
            reply.container_envs["GIVEN"] = "yes"
        return reply

    seen = (
        "cat /sys/fs/cgroup/cpu*/cpu.shares /sys/fs/cgroup/cpu*/cpu.cfs_quota_us"
        " /sys/fs/cgroup/memory/memory.limit_in_bytes | sort -u; echo $GIVEN"
    )
    with HookServer(proxy.directory / "h.sock", PreCreateContainer=answer) as hooks:
        write_server(proxy.hooks_dir, "h", hooks.socket, "Fail")
        uid = "0a1b2c3d-0000-4000-8000-00000000beef"
        pod = pod_config(
            "be",
            uid=uid,
            cgroup_parent=containerd.parent("kubepods/besteffort").format(uid=uid),
            labels={"koordinator.sh/qosClass": "BE"},
            log_directory=str(proxy.directory),
        )
        told = first_words(client, pod, seen)
    assert set(told.split()) == {"77", "33000", str(48 << 20), "yes"}


def first_words(client: RuntimeClient, pod: pb.PodSandboxConfig, script: str) -> str:
    """What the first and only process of a new pod's container says."""
    node = pb.NamespaceOption(network=pb.NODE, pid=pb.CONTAINER, ipc=pb.POD)
    pod.linux.security_context.namespace_options.CopyFrom(node)
    sandbox = client.call("RunPodSandbox", pb.RunPodSandboxRequest(config=pod))
    config = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name="first"),
        image=pb.ImageSpec(image=IMAGE),
        command=("sh", "-c", script),
        log_path="first.log",
        linux=pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(cpu_shares=2)),
    )
    config.linux.security_context.namespace_options.CopyFrom(node)
    request = pb.CreateContainerRequest(
        pod_sandbox_id=sandbox.pod_sandbox_id, config=config, sandbox_config=pod
    )
    container = client.call("CreateContainer", request).container_id
    client.call("StartContainer", pb.StartContainerRequest(container_id=container))
    status = pb.ContainerStatusRequest(container_id=container)
    until(lambda: client.call("ContainerStatus", status).status.state == pb.CONTAINER_EXITED, 10.0)
    lines = (Path(pod.log_directory) / "first.log").read_text().splitlines()
    return "\n".join(line.split(" ", 3)[3] for line in lines)


def test_after_a_restart_of_both_the_proxy_knows_what_runs(
    containerd: Containerd, proxy: Proxy, client: RuntimeClient
) -> None:
    pod = client.run_pod("p", cgroup_parent=containerd.parent("kubepods/burstable"))
    kept = client.run_container(pod, "kept", quota_us=40_000, cpuset_cpus="0")
    gone = client.run_container(pod, "gone")
    update = pb.UpdateContainerResourcesRequest(
        container_id=kept, linux=pb.LinuxContainerResources(cpu_quota=60_000)
    )
    client.call("UpdateContainerResources", update)
    proxy.stop()
    assert checkpoint(proxy).containers[kept].config.linux.resources.cpu_quota == 60_000
    containerd.client.stop_container(gone)
    containerd.client.remove_container(gone)
    for file in (proxy.directory / "state").iterdir():
        file.unlink()
    containerd.restart()
    proxy.start()
    until(lambda: proxy.get("status")["containers"] == 1, 10.0)
    after = checkpoint(proxy)
    assert set(after.sandboxes) == {pod.id} and set(after.containers) == {kept}
    assert after.sandboxes[pod.id].config.linux.cgroup_parent == pod.config.linux.cgroup_parent
    resources = after.containers[kept].config.linux.resources
    assert (resources.cpu_quota, resources.cpuset_cpus) == (60_000, "0")


def checkpoint(proxy: Proxy) -> Store:
    """What the proxy has on disk."""
    store = Store(proxy.directory / "state" / "store.db")
    store.open()
    store.close()
    return store


def test_an_unknown_container_is_looked_up_for_its_hooks(
    containerd: Containerd, proxy: Proxy, client: RuntimeClient
) -> None:
    """One that somebody made past the proxy, just now."""
    direct = containerd.client
    pod = direct.run_pod("p", cgroup_parent=containerd.parent("kubepods/burstable"))
    container = direct.run_container(pod, "c", quota_us=40_000, start=False)
    with HookServer(proxy.directory / "h.sock") as hooks:
        write_server(proxy.hooks_dir, "h", hooks.socket, "Fail")
        client.call("StartContainer", pb.StartContainerRequest(container_id=container))
        asked = hooks.wait_for("PreStartContainer")
    assert asked.pod_meta.uid == pod.uid
    assert asked.container_resources.cpu_quota == 40_000
    assert asked.pod_cgroup_parent == pod.config.linux.cgroup_parent


def test_the_runtime_restarts_under_the_proxy(
    containerd: Containerd, proxy: Proxy, client: RuntimeClient
) -> None:
    pod = client.run_pod("p", cgroup_parent=containerd.parent("kubepods/burstable"))
    containerd.kill()
    with pytest.raises(grpc.RpcError) as caught:
        client.call("Version", pb.VersionRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    containerd.restart()
    assert client.call("Version", pb.VersionRequest()).runtime_name == "containerd"
    until(lambda: not proxy.get("status")["problems"], 10.0)
    assert set(checkpoint(proxy).sandboxes) == {pod.id}
