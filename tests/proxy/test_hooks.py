"""Hook servers: what they change, what they must not, and what a call becomes where they fail."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from koordpb import cri_v1_pb2 as pb
from koordpb import hooks_v1alpha1_pb2 as hooks_pb

from tests.support.hookserver import HookServer, echo, write_server
from tests.support.proxyd import Proxy
from tests.support.rawruntime import SERVICE, RawClient, RawRuntime, pod_config
from tests.support.waiting import until

RUN, CREATE = SERVICE + "RunPodSandbox", SERVICE + "CreateContainer"
START, STOP = SERVICE + "StartContainer", SERVICE + "StopContainer"
UPDATE = SERVICE + "UpdateContainerResources"
RESIZE = SERVICE + "UpdatePodSandboxResources"
STOP_POD, REMOVE_POD = SERVICE + "StopPodSandbox", SERVICE + "RemovePodSandbox"
REMOVE = SERVICE + "RemoveContainer"
# A field that no definition of today has: number 2000, text "future".
UNKNOWN = b"\x82\x7d\x06future"


@pytest.fixture(scope="module")
def module_runtime(module_path: Path) -> Iterator[RawRuntime]:
    """One that makes sandboxes and containers, and does not care what they are."""
    numbers = itertools.count(1)

    def run(request: bytes, context: grpc.ServicerContext) -> bytes:
        reply = pb.RunPodSandboxResponse(pod_sandbox_id=f"pod{next(numbers)}")
        return reply.SerializeToString()

    def create(request: bytes, context: grpc.ServicerContext) -> bytes:
        reply = pb.CreateContainerResponse(container_id=f"c{next(numbers)}")
        return reply.SerializeToString()

    unary = dict.fromkeys(
        (START, STOP, UPDATE, RESIZE, STOP_POD, REMOVE_POD, REMOVE), lambda request, context: b""
    )
    with RawRuntime(module_path / "runtime.sock", {RUN: run, CREATE: create, **unary}) as serving:
        yield serving


@pytest.fixture
def hooks(short_path: Path, proxy: Proxy) -> Iterator[HookServer]:
    with HookServer(short_path / "hook.sock") as server:
        write_server(proxy.hooks_dir, "one", server.socket)
        yield server


def run_pod(client: RawClient, config: pb.PodSandboxConfig | None = None) -> str:
    request = pb.RunPodSandboxRequest(config=config or pod_config())
    return pb.RunPodSandboxResponse.FromString(
        client.call(RUN, request.SerializeToString())
    ).pod_sandbox_id


def create(
    client: RawClient,
    pod_id: str = "",
    sandbox: pb.PodSandboxConfig | None = None,
    **config: Any,
) -> str:
    request = pb.CreateContainerRequest(
        pod_sandbox_id=pod_id or run_pod(client),
        config=pb.ContainerConfig(metadata=pb.ContainerMetadata(name="c"), **config),
        sandbox_config=sandbox or pod_config(),
    )
    reply = client.call(CREATE, request.SerializeToString())
    return pb.CreateContainerResponse.FromString(reply).container_id


def created(runtime: RawRuntime) -> pb.CreateContainerRequest:
    """The last container as the runtime got it."""
    return pb.CreateContainerRequest.FromString(runtime.calls(CREATE)[-1].request)


# -- what does not change -------------------------------------------------------------------------


def test_CRI_17_what_no_hook_changes_goes_on_byte_for_byte(
    runtime: RawRuntime, client: RawClient, hooks: HookServer
) -> None:
    linux = pb.LinuxContainerResources(cpuset_mems="0", unified={"memory.high": "1"})
    config = pb.ContainerConfig(linux=pb.LinuxContainerConfig(resources=linux))
    # Fields out of order and unknown ones: nobody who parses and writes again gives this back.
    request = UNKNOWN + pb.CreateContainerRequest(config=config).SerializeToString() + b"\x0a\x01p"
    client.call(CREATE, request)
    assert hooks.stages_asked() == ["PreCreateContainer"]
    assert runtime.calls(CREATE)[0].request == request


def test_CRI_06_an_empty_answer_changes_nothing(
    runtime: RawRuntime, client: RawClient, hooks: HookServer
) -> None:
    hooks.raw = b""
    request = pb.RunPodSandboxRequest(config=pod_config(labels={"a": "b"})).SerializeToString()
    client.call(RUN, request)
    assert runtime.calls(RUN)[0].request == request


def test_only_what_a_hook_changes_is_changed(
    runtime: RawRuntime, client: RawClient, hooks: HookServer
) -> None:
    def answer(request: Any) -> Any:
        reply = echo(request)
        reply.container_resources.cpu_shares = 2048
        reply.container_resources.cpu_quota = 0  # "leave alone"
        reply.container_resources.unified["cpu.weight"] = "50"
        reply.container_envs["B"] = "new"
        reply.container_envs["ADDED"] = "1"
        reply.container_annotations["note"] = "seen"
        return reply

    hooks.answers["PreCreateContainer"] = answer
    envs = [
        pb.KeyValue(key="B", value=b"old"),
        pb.KeyValue(key="RAW", value=b"\xff\xfe"),
        pb.KeyValue(key="A", value=b"1"),
        pb.KeyValue(key="B", value=b"older"),
        pb.KeyValue(key="A", value=b"2"),
    ]
    resources = pb.LinuxContainerResources(cpu_quota=50_000, cpu_shares=512, cpuset_mems="0")
    resources.MergeFromString(UNKNOWN)
    create(client, envs=envs, linux=pb.LinuxContainerConfig(resources=resources))
    asked = hooks.asked[-1][1]
    assert dict(asked.container_envs) == {"B": "older", "A": "2"}
    got = created(runtime).config
    assert [(one.key, one.value) for one in got.envs] == [
        ("B", b"old"),
        ("RAW", b"\xff\xfe"),
        ("A", b"1"),
        ("B", b"new"),
        ("A", b"2"),
        ("ADDED", b"1"),
    ]
    assert got.annotations == {"note": "seen"}
    wanted = pb.LinuxContainerResources(
        cpu_quota=50_000, cpu_shares=2048, cpuset_mems="0", unified={"cpu.weight": "50"}
    )
    wanted.MergeFromString(UNKNOWN)
    assert got.linux.resources == wanted


def test_a_pod_gets_annotations_and_a_place_in_its_tier(
    runtime: RawRuntime, client: RawClient, hooks: HookServer
) -> None:
    parent = pod_config().linux.cgroup_parent

    def answer(request: Any) -> Any:
        reply = echo(request)
        reply.annotations["added"] = "1"
        reply.cgroup_parent = f"{parent}/inner"
        return reply

    hooks.answers["PreRunPodSandbox"] = answer
    run_pod(client)
    got = pb.RunPodSandboxRequest.FromString(runtime.calls(RUN)[0].request).config
    assert got.annotations == {"added": "1"}
    assert got.linux.cgroup_parent == f"{parent}/inner"


def test_CRI_16_a_container_is_asked_about_with_its_pod(
    runtime: RawRuntime, client: RawClient, hooks: HookServer
) -> None:
    def answer(request: Any) -> Any:
        reply = echo(request)
        reply.annotations["by-hook"] = "1"
        return reply

    hooks.answers["PreRunPodSandbox"] = answer
    config = pod_config(labels={"app": "web"}, annotations={"a": "1"})
    create(client, run_pod(client, config))
    asked = hooks.asked[-1][1]
    assert dict(asked.pod_labels) == {"app": "web"}
    assert dict(asked.pod_annotations) == {"a": "1", "by-hook": "1"}
    assert asked.pod_meta.uid == config.metadata.uid
    assert asked.pod_cgroup_parent == config.linux.cgroup_parent


def test_a_container_of_an_unknown_pod_is_asked_about_with_what_kubelet_says(
    runtime: RawRuntime, client: RawClient, hooks: HookServer
) -> None:
    create(client, "never-seen", pod_config(labels={"app": "web"}))
    assert dict(hooks.asked[-1][1].pod_labels) == {"app": "web"}
    assert runtime.calls(CREATE)


def test_v1alpha2_is_hooked_too(runtime: RawRuntime, client: RawClient, hooks: HookServer) -> None:
    old = "/runtime.v1alpha2.RuntimeService/RunPodSandbox"
    runtime.unary[old] = runtime.unary[RUN]
    client.call(old, pb.RunPodSandboxRequest(config=pod_config()).SerializeToString())
    assert hooks.stages_asked() == ["PreRunPodSandbox"]


# -- updates --------------------------------------------------------------------------------------


def test_an_update_shows_all_and_carries_only_what_was_asked_and_changed(
    runtime: RawRuntime, client: RawClient, hooks: HookServer
) -> None:
    created_with = pb.LinuxContainerResources(cpu_shares=512, memory_limit_in_bytes=1 << 30)
    container = create(client, linux=pb.LinuxContainerConfig(resources=created_with))

    def answer(request: Any) -> Any:
        reply = echo(request)
        reply.container_resources.cpu_quota = 70_000
        return reply

    hooks.answers["PreUpdateContainerResources"] = answer
    update = pb.UpdateContainerResourcesRequest(
        container_id=container, linux=pb.LinuxContainerResources(cpuset_cpus="1")
    )
    client.call(UPDATE, update.SerializeToString())
    shown = hooks.asked[-1][1].container_resources
    assert (shown.cpu_shares, shown.memory_limit_in_bytes, shown.cpuset_cpus) == (512, 1 << 30, "1")
    got = pb.UpdateContainerResourcesRequest.FromString(runtime.calls(UPDATE)[0].request).linux
    assert got == pb.LinuxContainerResources(cpuset_cpus="1", cpu_quota=70_000)
    client.call(
        UPDATE, pb.UpdateContainerResourcesRequest(container_id=container).SerializeToString()
    )
    assert hooks.asked[-1][1].container_resources.cpuset_cpus == "1", "the update is remembered"


def test_a_refused_update_is_not_remembered(
    runtime: RawRuntime, client: RawClient, hooks: HookServer
) -> None:
    container = create(client)
    accept = runtime.unary[UPDATE]

    def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.INTERNAL, "no")
        return b""

    runtime.unary[UPDATE] = refuse
    update = pb.UpdateContainerResourcesRequest(
        container_id=container, linux=pb.LinuxContainerResources(cpu_shares=77)
    )
    with pytest.raises(grpc.RpcError):
        client.call(UPDATE, update.SerializeToString())
    runtime.unary[UPDATE] = accept
    update.linux.Clear()
    client.call(UPDATE, update.SerializeToString())
    assert hooks.asked[-1][1].container_resources.cpu_shares == 0


def test_an_in_place_resize_of_the_pod_is_remembered(
    runtime: RawRuntime, client: RawClient, hooks: HookServer
) -> None:
    pod_id = run_pod(client)
    resize = pb.UpdatePodSandboxResourcesRequest(
        pod_sandbox_id=pod_id, resources=pb.LinuxContainerResources(cpu_quota=123_000)
    )
    client.call(RESIZE, resize.SerializeToString())
    create(client, pod_id)
    assert hooks.asked[-1][1].pod_resources.cpu_quota == 123_000


# -- H27 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parent",
    (
        "/",
        "relative/pod",
        "/kubepods/besteffort/podX",
        "/kubepods/burstable/../besteffort/x",
        "/kubepods/burstable/pod99999999-0000-4000-8000-000000000009",
        "/system.slice",
        "/kubepods/burstable",
        "/kubepods/burstable//x",
        "/kubepods/burstable/a\nb",
        "x.slice",
    ),
)
def test_H27_no_hook_server_places_a_pod_elsewhere(
    runtime: RawRuntime, client: RawClient, hooks: HookServer, parent: str
) -> None:
    hooks.answers["PreRunPodSandbox"] = lambda request: hooks_pb.PodSandboxHookResponse(
        cgroup_parent=parent
    )
    run_pod(client)
    got = pb.RunPodSandboxRequest.FromString(runtime.calls(RUN)[0].request).config
    assert got.linux.cgroup_parent == pod_config().linux.cgroup_parent


def test_H27_some_things_no_hook_server_sets(
    runtime: RawRuntime, client: RawClient, hooks: HookServer, proxy: Proxy
) -> None:
    hooks.answers["PreCreateContainer"] = lambda request: hooks_pb.ContainerResourceHookResponse(
        container_envs={"LD_PRELOAD": "/x.so", "PATH": "/evil", "A=B": "x", "GOOD": "1"},
        container_annotations={"io.kubernetes.container.hash": "0", "cdi.k8s.io/x": "gpu"},
        container_resources=hooks_pb.LinuxContainerResources(
            cpu_shares=1,
            cpu_quota=10,
            memory_limit_in_bytes=4096,
            oom_score_adj=-1000,
            cpuset_cpus="banana",
            unified={"../escape": "1", "cgroup.procs": "1", "cpu.weight": ""},
        ),
    )
    hooks.answers["PreRunPodSandbox"] = lambda request: hooks_pb.PodSandboxHookResponse(
        labels={"io.kubernetes.pod.uid": "other"}
    )
    create(client)
    got = created(runtime).config
    assert [(one.key, one.value) for one in got.envs] == [("GOOD", b"1")]
    assert not got.annotations
    assert not got.linux.resources.ListFields()
    assert not pb.RunPodSandboxRequest.FromString(runtime.calls(RUN)[0].request).config.labels
    assert proxy.get("hooks")["servers"][0]["refused"] == 14
    assert "LD_PRELOAD" in proxy.log()


def test_H27_a_refused_change_fails_the_call_under_fail(
    runtime: RawRuntime, client: RawClient, hooks: HookServer, proxy: Proxy
) -> None:
    write_server(proxy.hooks_dir, "one", hooks.socket, "Fail")
    hooks.answers["PreRunPodSandbox"] = lambda request: hooks_pb.PodSandboxHookResponse(
        cgroup_parent="/"
    )
    with pytest.raises(grpc.RpcError) as caught:
        run_pod(client)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "one" in caught.value.details() and not runtime.calls(RUN)


def test_H27_a_file_that_others_may_write_is_not_believed(
    runtime: RawRuntime, client: RawClient, hooks: HookServer, proxy: Proxy
) -> None:
    path = proxy.hooks_dir / "one.json"
    path.chmod(0o666)
    run_pod(client)
    assert not hooks.asked
    assert "0666" in proxy.get("hooks")["problems"][0]["what"]
    path.chmod(0o644)
    run_pod(client)
    assert hooks.asked


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_H27_a_socket_that_somebody_else_serves_is_not_asked(
    runtime: RawRuntime, client: RawClient, proxy: Proxy, short_path: Path
) -> None:
    short_path.chmod(0o777)
    other = short_path / "other.sock"
    child = os.fork()
    if child == 0:
        import socket

        os.setuid(65534)
        serving = socket.socket(socket.AF_UNIX)
        serving.bind(str(other))
        serving.listen()
        time.sleep(30)
        os._exit(0)
    try:
        until(other.exists, 5.0)
        time.sleep(0.05)
        write_server(proxy.hooks_dir, "one", other, "Fail")
        with pytest.raises(grpc.RpcError) as caught:
            run_pod(client)
        assert "uid 65534" in caught.value.details()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


# -- policies and faults --------------------------------------------------------------------------


def test_CRI_06_a_server_that_is_away_is_ignored_under_ignore(
    runtime: RawRuntime, client: RawClient, proxy: Proxy, short_path: Path
) -> None:
    write_server(proxy.hooks_dir, "gone", short_path / "gone.sock")
    request = pb.RunPodSandboxRequest(config=pod_config()).SerializeToString()
    began_s = time.monotonic()
    for _ in range(5):
        client.call(RUN, request)
    assert time.monotonic() - began_s < 1.0
    assert [call.request for call in runtime.calls(RUN)] == [request] * 5


def test_CRI_06_a_server_that_is_away_fails_the_call_under_fail(
    runtime: RawRuntime, client: RawClient, proxy: Proxy, short_path: Path
) -> None:
    write_server(proxy.hooks_dir, "gone", short_path / "gone.sock", "Fail")
    with pytest.raises(grpc.RpcError) as caught:
        run_pod(client)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    for word in ("gone", "PreRunPodSandbox", "policy Fail", "remedy"):
        assert word in caught.value.details()
    assert not runtime.calls(RUN)


def test_CRI_15_a_pod_refused_again_and_again_leaves_nothing_behind(
    runtime: RawRuntime, client: RawClient, hooks: HookServer, proxy: Proxy
) -> None:
    write_server(proxy.hooks_dir, "one", hooks.socket, "Fail")
    hooks.refuse = (grpc.StatusCode.PERMISSION_DENIED, "not here")
    known = proxy.get("status")["sandboxes"]
    for _ in range(94):
        with pytest.raises(grpc.RpcError) as caught:
            run_pod(client)
        assert caught.value.code() in (
            grpc.StatusCode.PERMISSION_DENIED,
            grpc.StatusCode.UNAVAILABLE,  # left alone for a moment
        )
    assert not runtime.calls(RUN)
    status = proxy.get("status")
    assert (status["sandboxes"], status["calls_in_flight"]) == (known, 0)


def test_a_server_that_hangs_costs_its_deadline_and_then_less(
    runtime: RawRuntime, client: RawClient, hooks: HookServer
) -> None:
    hooks.delay_s = 1.0
    took_s = []
    for _ in range(5):
        began_s = time.monotonic()
        run_pod(client)
        took_s.append(time.monotonic() - began_s)
    assert 0.4 < took_s[0] < 0.95
    assert took_s[4] < 0.2, "after three failures it is left alone for a moment"
    assert len(runtime.calls(RUN)) == 5
    hooks.delay_s = 0.0
    until(lambda: run_pod(client) and hooks.asked[-1] is not None and _answers(hooks), 5.0)


def _answers(hooks: HookServer) -> bool:
    return len(hooks.asked) > 3


def test_one_slow_answer_costs_the_others_nothing(
    runtime: RawRuntime, client: RawClient, hooks: HookServer, proxy: Proxy
) -> None:
    def answer(request: Any) -> Any:
        time.sleep(1.0 if request.pod_meta.name == "slow" else 0.3)
        reply = echo(request)
        reply.annotations["seen"] = "1"
        return reply

    hooks.answers["PreRunPodSandbox"] = answer
    calls = []
    for name in ("slow", "quick"):
        request = pb.RunPodSandboxRequest(config=pod_config(name)).SerializeToString()
        calls.append(client.future(RUN, request))
        time.sleep(0.35)  # the slow one's deadline passes while the quick one is asked
    for call in calls:
        call.result(timeout=5)
    got = [pb.RunPodSandboxRequest.FromString(one.request).config for one in runtime.calls(RUN)]
    seen = {config.metadata.name: dict(config.annotations) for config in got}
    assert seen == {"slow": {}, "quick": {"seen": "1"}}


def test_a_new_server_is_asked_at_once(
    runtime: RawRuntime, client: RawClient, proxy: Proxy, short_path: Path
) -> None:
    socket = short_path / "hook.sock"
    write_server(proxy.hooks_dir, "one", socket)
    with HookServer(socket) as first:
        first.refuse = (grpc.StatusCode.INTERNAL, "broken")
        for _ in range(5):
            run_pod(client)
        assert len(first.asked) == 3
    with HookServer(socket) as second:
        run_pod(client)
        assert len(second.asked) == 1


def test_a_short_deadline_is_kept_for_the_runtime(
    runtime: RawRuntime, client: RawClient, hooks: HookServer
) -> None:
    hooks.delay_s = 5.0
    request = pb.RunPodSandboxRequest(config=pod_config()).SerializeToString()
    client.call(RUN, request, timeout=0.8)
    left_s = runtime.calls(RUN)[0].left_s
    assert left_s is not None and 0.3 < left_s < 0.65


def test_an_answer_that_is_no_message_counts_as_a_failure(
    runtime: RawRuntime, client: RawClient, hooks: HookServer, proxy: Proxy
) -> None:
    hooks.raw = b"\xff\xff\xff\xff"
    run_pod(client)
    assert len(runtime.calls(RUN)) == 1
    write_server(proxy.hooks_dir, "one", hooks.socket, "Fail")
    with pytest.raises(grpc.RpcError) as caught:
        run_pod(client)
    assert "no message" in caught.value.details()


def test_several_servers_are_asked_in_the_order_of_their_names(
    runtime: RawRuntime, client: RawClient, proxy: Proxy, short_path: Path
) -> None:
    def adds(key: str) -> Any:
        def answer(request: Any) -> Any:
            reply = echo(request)
            reply.annotations[key] = ",".join(sorted(request.annotations))
            return reply

        return answer

    with (
        HookServer(short_path / "b.sock", PreRunPodSandbox=adds("second")) as second,
        HookServer(short_path / "a.sock", PreRunPodSandbox=adds("first")) as first,
    ):
        write_server(proxy.hooks_dir, "20-b", second.socket)
        write_server(proxy.hooks_dir, "10-a", first.socket)
        run_pod(client)
    got = pb.RunPodSandboxRequest.FromString(runtime.calls(RUN)[0].request).config
    assert got.annotations == {"first": "", "second": "first"}


def test_post_hooks_are_told_only_of_what_happened(
    runtime: RawRuntime, client: RawClient, hooks: HookServer
) -> None:
    container = create(client)
    accept = runtime.unary[START]

    def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.INTERNAL, "no")
        return b""

    start = pb.StartContainerRequest(container_id=container).SerializeToString()
    runtime.unary[START] = refuse
    with pytest.raises(grpc.RpcError):
        client.call(START, start)
    runtime.unary[START] = accept
    client.call(START, start)
    hooks.wait_for("PostStartContainer")
    assert hooks.stages_asked().count("PostStartContainer") == 1
    stop = pb.StopContainerRequest(container_id=container).SerializeToString()
    client.call(STOP, stop)
    client.call(STOP, stop)  # kubelet tries again: the record is still there
    until(lambda: hooks.stages_asked().count("PostStopContainer") == 2, 5.0)
    assert hooks.wait_for("PostStopContainer").container_meta.id == container


# -- the skip label -------------------------------------------------------------------------------


def test_the_hook_servers_own_pod_starts_without_it(
    runtime: RawRuntime, client: RawClient, proxy: Proxy, short_path: Path
) -> None:
    write_server(proxy.hooks_dir, "self", short_path / "not-yet.sock", "Fail")
    label = {"runtimeproxy.koordinator.sh/skip-hookserver": "true"}
    config = pod_config(labels=label)
    pod_id = run_pod(client, config)
    container = create(client, pod_id, config)
    client.call(START, pb.StartContainerRequest(container_id=container).SerializeToString())
    with pytest.raises(grpc.RpcError):
        run_pod(client)


# -- the directory --------------------------------------------------------------------------------


def test_changes_of_files_are_seen_at_the_next_call(
    runtime: RawRuntime, client: RawClient, hooks: HookServer, proxy: Proxy
) -> None:
    path = proxy.hooks_dir / "one.json"
    text = path.read_text()
    run_pod(client)
    path.write_text(text[:20])  # half written: what it said before counts
    run_pod(client)
    assert len(hooks.asked) == 2
    assert proxy.get("hooks")["problems"]
    path.write_text(text)
    os.utime(path, (1, 1))  # older than what was read last
    run_pod(client)
    assert len(hooks.asked) == 3
    path.unlink()
    run_pod(client)
    assert len(hooks.asked) == 3
    assert proxy.get("hooks") == {"servers": [], "problems": []}


# -- broken requests ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", (RUN, CREATE, START, UPDATE, STOP, STOP_POD, REMOVE, REMOVE_POD))
def test_a_request_that_is_no_message_is_the_runtimes_to_judge(
    runtime: RawRuntime, client: RawClient, hooks: HookServer, path: str
) -> None:
    runtime.unary[path] = lambda request, context: request
    whole = pb.CreateContainerRequest(config=pb.ContainerConfig(log_path="x" * 40))
    for broken in (b"\xff" * 9, whole.SerializeToString()[:-5], b""):
        assert client.call(path, broken) == broken
    assert client.call(path, b"\xff") == b"\xff", "and the proxy is still there"


def test_under_fail_nothing_goes_unseen(
    runtime: RawRuntime, client: RawClient, hooks: HookServer, proxy: Proxy
) -> None:
    write_server(proxy.hooks_dir, "one", hooks.socket, "Fail")
    with pytest.raises(grpc.RpcError) as caught:
        client.call(RUN, b"\xff" * 9)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not runtime.calls(RUN)


def test_a_client_that_gives_up_during_hooks_never_reaches_the_runtime(
    runtime: RawRuntime, client: RawClient, hooks: HookServer, proxy: Proxy
) -> None:
    entered = threading.Event()

    def slow(request: Any) -> Any:
        entered.set()
        time.sleep(0.3)
        return echo(request)

    hooks.answers["PreRunPodSandbox"] = slow
    call = client.future(RUN, pb.RunPodSandboxRequest(config=pod_config()).SerializeToString())
    assert entered.wait(5)
    call.cancel()
    until(lambda: proxy.get("status")["calls_in_flight"] == 0, 5.0)
    time.sleep(0.4)
    assert not runtime.calls(RUN)
