"""A client cannot tell the proxy from the runtime: same bytes, same status, same everything."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.proxyd import Proxy
from tests.support.rawruntime import SERVICE, RawClient, RawRuntime
from tests.support.waiting import until

EVENTS = SERVICE + "GetContainerEvents"
ANY = "/some.Future/Method"


def echo(request: bytes, context: grpc.ServicerContext) -> bytes:
    return request


def test_CRI_01_any_method_of_any_service_goes_through(
    runtime: RawRuntime, client: RawClient
) -> None:
    paths = (
        "/runtime.v1.RuntimeService/Version",
        "/runtime.v1.RuntimeService/CheckpointPod",
        "/runtime.v1.ImageService/ListImages",
        "/runtime.v1alpha2.RuntimeService/Version",
        ANY,
    )
    runtime.unary.update(dict.fromkeys(paths, echo))
    for path in paths:
        assert client.call(path, path.encode()) == path.encode()
        assert runtime.calls(path)[0].request == path.encode()


def test_CRI_01_what_the_runtime_lacks_is_unimplemented(client: RawClient) -> None:
    for path in (SERVICE + "RuntimeConfig", ANY, SERVICE + "RunPodSandbox"):
        with pytest.raises(grpc.RpcError) as caught:
            client.call(path)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    for _ in range(20):  # where others answered INTERNAL every other time
        with pytest.raises(grpc.RpcError) as caught:
            list(client.stream(SERVICE + "StreamContainers"))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_metadata_and_deadline_arrive(runtime: RawRuntime, client: RawClient) -> None:
    runtime.unary[ANY] = echo
    sent = (("traceparent", "00-1"), ("many", "1"), ("many", "2"), ("x-bin", b"\x00\xff"))
    client.call(ANY, b"", metadata=sent, timeout=7.0)
    seen = runtime.calls(ANY)[0]
    assert [pair for pair in seen.metadata if pair[0] in ("traceparent", "many", "x-bin")] == list(
        sent
    )
    assert seen.left_s is not None and 5.5 < seen.left_s <= 7.1
    client.call(ANY, b"", timeout=None)
    assert runtime.calls(ANY)[1].left_s is None


def test_status_message_details_and_trailers_arrive(runtime: RawRuntime, client: RawClient) -> None:
    details = b"\x08\x05\x12\x03gon"
    trailers = (("grpc-status-details-bin", details), ("left", "1"), ("left", "2"))

    def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.send_initial_metadata((("early", "yes"),))
        context.set_trailing_metadata(trailers)
        context.abort(grpc.StatusCode.NOT_FOUND, "köntainer 100% \n gone")
        raise AssertionError

    runtime.unary[ANY] = refuse
    for path in (ANY, SERVICE + "StopContainer"):
        runtime.unary[path] = refuse
        call = client.future(path, b"")
        assert call.exception().code() is grpc.StatusCode.NOT_FOUND
        assert call.exception().details() == "köntainer 100% \n gone"
        assert call.exception().trailing_metadata() == trailers
        assert ("early", "yes") in call.initial_metadata()


def test_a_cancelled_call_is_cancelled_in_the_runtime(
    runtime: RawRuntime, client: RawClient
) -> None:
    cancelled = threading.Event()

    def wait(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(cancelled.set)
        cancelled.wait(10)
        return b""

    runtime.unary[ANY] = wait
    call = client.future(ANY)
    runtime.wait_for(ANY)
    call.cancel()
    assert cancelled.wait(5)


def test_a_deadline_that_passes_ends_the_call(runtime: RawRuntime, client: RawClient) -> None:
    release = threading.Event()
    runtime.unary[ANY] = lambda request, context: bytes(release.wait(10))
    with pytest.raises(grpc.RpcError) as caught:
        client.call(ANY, timeout=0.3)
    release.set()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_client_that_goes_takes_its_calls_with_it(runtime: RawRuntime, proxy: Proxy) -> None:
    cancelled = threading.Event()

    def wait(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(cancelled.set)
        cancelled.wait(10)
        return b""

    runtime.unary[ANY] = wait
    with RawClient(proxy.socket) as client:
        running = client.future(ANY)
        runtime.wait_for(ANY)
    assert running.done() and cancelled.wait(5)
    until(lambda: proxy.get("status")["calls_in_flight"] == 0, 5.0)


def test_CRI_12_streams_are_relayed_as_they_come(runtime: RawRuntime, client: RawClient) -> None:
    proceed = threading.Event()

    def events(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"one"
        assert proceed.wait(5)
        yield b"two"
        context.abort(grpc.StatusCode.UNAVAILABLE, "runtime stops")

    for path in (EVENTS, SERVICE + "StreamPodSandboxes"):
        proceed.clear()
        runtime.streams[path] = events
        stream = client.stream(path, b"ask")
        assert next(stream) == b"one", "the first before the second is even made"
        proceed.set()
        assert next(stream) == b"two"
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.UNAVAILABLE,
            "runtime stops",
        )


def test_CRI_12_a_stream_that_ends_at_once_ends_well(
    runtime: RawRuntime, client: RawClient
) -> None:
    runtime.streams[EVENTS] = lambda request, context: iter(())
    for _ in range(20):
        assert list(client.stream(EVENTS)) == []


def test_CRI_17_bytes_arrive_as_they_are(runtime: RawRuntime, client: RawClient) -> None:
    runtime.unary[ANY] = echo
    rng = random.Random(17)
    for size in (0, 1, 4, 5, 16_383, 16_384, 16_385, 70_000, 1_000_003):
        message = rng.randbytes(size)
        assert client.call(ANY, message) == message
        assert runtime.seen[-1].request == message


def test_a_reply_of_just_under_16_mib_arrives_and_one_above_is_refused(
    runtime: RawRuntime, client: RawClient, proxy: Proxy
) -> None:
    limit = 16 << 20
    runtime.unary[ANY] = lambda request, context: bytes(int(request))
    assert len(client.call(ANY, str(limit).encode())) == limit
    with pytest.raises(grpc.RpcError) as caught:
        client.call(ANY, str(limit + 1).encode())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(limit) in caught.value.details()
    runtime.unary[ANY] = echo
    with pytest.raises(grpc.RpcError) as caught:
        client.call(ANY, bytes(limit + 1))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert client.call(ANY, b"still there") == b"still there"


def test_the_limit_of_messages_is_configurable(short_path: Path, runtime: RawRuntime) -> None:
    size = 40 << 20
    runtime.unary[ANY] = lambda request, context: bytes(int(request))
    with (
        Proxy(short_path / "q", runtime.socket, max_message_bytes=size) as proxy,
        RawClient(proxy.socket) as client,
    ):
        assert len(client.call(ANY, str(size).encode())) == size
        with pytest.raises(grpc.RpcError) as caught:
            client.call(ANY, str(size + 1).encode())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_slow_reader_holds_back_its_own_stream_only(
    runtime: RawRuntime, client: RawClient, proxy: Proxy
) -> None:
    made = [0]

    def flood(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        while context.is_active():
            made[0] += 1
            yield bytes(1 << 20)

    runtime.streams[EVENTS] = flood
    runtime.unary[ANY] = echo
    stream = client.stream(EVENTS)
    next(stream)
    time.sleep(0.5)
    assert made[0] < 60, "what nobody reads is not made without end"
    assert client.call(ANY, b"quick") == b"quick"
    stream.cancel()


def test_headers_that_need_several_frames(runtime: RawRuntime, client: RawClient) -> None:
    runtime.unary[ANY] = echo
    long = tuple((f"k{number}", "v" * 900) for number in range(8))
    client.call(ANY, b"", metadata=long)
    assert set(long) <= set(runtime.calls(ANY)[0].metadata)


def test_older_kubelets_name_the_socket_as_authority(proxy: Proxy, runtime: RawRuntime) -> None:
    runtime.unary[ANY] = echo
    for authority in ("/run/containerd/containerd.sock", "localhost", "%2Frun%2Fx.sock"):
        options = (("grpc.default_authority", authority), ("grpc.use_local_subchannel_pool", 1))
        with grpc.insecure_channel(proxy.endpoint, options=options) as channel:
            assert channel.unary_unary(ANY)(b"x", timeout=5) == b"x"


def test_images_may_have_a_runtime_of_their_own(short_path: Path, runtime: RawRuntime) -> None:
    path = "/runtime.v1.ImageService/ListImages"
    runtime.unary[ANY] = echo
    with (
        RawRuntime(short_path / "images.sock", {path: echo}) as images,
        Proxy(short_path / "q", runtime.socket, image_endpoint=images.socket) as proxy,
        RawClient(proxy.socket) as client,
    ):
        assert client.call(path, b"i") == b"i"
        assert client.call(ANY, b"r") == b"r"
        assert images.calls(path) and not runtime.calls(path)


def test_a_runtime_that_takes_few_calls_on_a_connection_gets_more_connections(
    short_path: Path,
) -> None:
    together = threading.Barrier(3)

    def meet(request: bytes, context: grpc.ServicerContext) -> bytes:
        together.wait(10)
        return b"met"

    few = (("grpc.max_concurrent_streams", 1),)
    with (
        RawRuntime(
            short_path / "r.sock", {ANY: meet, SERVICE + "Version": echo}, options=few
        ) as rt,
        Proxy(short_path / "q", rt.socket) as proxy,
        RawClient(proxy.socket) as client,
    ):
        client.call(SERVICE + "Version")  # from then on it is known how few
        calls = []
        for number in range(3):
            calls.append(client.future(ANY))
            until(lambda number=number: len(rt.calls(ANY)) == number + 1, 5.0)
        assert [call.result(timeout=10) for call in calls] == [b"met"] * 3


def test_without_a_runtime_calls_fail_at_once_and_work_when_it_is_back(short_path: Path) -> None:
    socket = short_path / "runtime.sock"
    with (
        Proxy(short_path / "p", socket, activated=True) as proxy,
        RawClient(proxy.socket) as client,
    ):
        began_s = time.monotonic()
        for path in (ANY, SERVICE + "RunPodSandbox", SERVICE + "Version"):
            with pytest.raises(grpc.RpcError) as caught:
                client.call(path)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert str(socket) in caught.value.details()
        assert time.monotonic() - began_s < 1.0
        assert proxy.get("status")["problems"]
        for _ in range(2):
            with RawRuntime(socket, {ANY: echo}) as runtime:
                began_s = time.monotonic()
                until(lambda: _works(client), 5.0)
                assert time.monotonic() - began_s < 2.0
                assert runtime.calls(ANY)
                until(lambda: not proxy.get("status")["problems"], 5.0)


def _works(client: RawClient) -> bool:
    try:
        return client.call(ANY, b"x") == b"x"
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        return False


def test_a_runtime_that_dies_during_a_call_makes_it_unavailable(
    short_path: Path, runtime: RawRuntime, client: RawClient
) -> None:
    stopping = threading.Event()

    def wait(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(stopping.set)
        stopping.wait(10)
        return b""

    runtime.unary[ANY] = wait
    call = client.future(ANY)
    runtime.wait_for(ANY)
    runtime.__exit__(None, None, None)
    try:
        code = call.exception(timeout=5).code()
    finally:
        runtime.__enter__()
    # A runtime that ends in order cancels its calls; one that falls over tells nobody.
    assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
