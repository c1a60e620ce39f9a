"""A gRPC server that answers any method with bytes, as a test tells it; stands for a runtime."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from koordpb import cri_v1_pb2 as pb

UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
SERVICE = "/runtime.v1.RuntimeService/"
Unary = Callable[[bytes, grpc.ServicerContext], bytes]
Stream = Callable[[bytes, grpc.ServicerContext], Iterator[bytes]]


@dataclass(frozen=True)
class Seen:
    """One call as the runtime got it. ``left_s``: its deadline, None without one."""

    path: str
    request: bytes
    metadata: tuple[tuple[str, str | bytes], ...]
    left_s: float | None


def empty(request: bytes, context: grpc.ServicerContext) -> bytes:
    return b""


@dataclass
class RawRuntime:
    """Serves on ``socket`` while the context lasts. Methods that are not named are UNIMPLEMENTED.

    ``unary`` and ``streams`` are by full path. Lists are answered, so that a proxy is content.
    """

    socket: Path
    unary: dict[str, Unary] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    workers: int = 16
    options: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for name in ("ListPodSandbox", "ListContainers"):
            self.unary.setdefault(SERVICE + name, empty)
        self._heard = threading.Condition()
        self._server: grpc.Server | None = None

    def __enter__(self) -> RawRuntime:
        self._server = grpc.server(
            ThreadPoolExecutor(self.workers), options=(*UNLIMITED, *self.options)
        )
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        self._server.add_insecure_port(f"unix://{self.socket}")
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.stop(grace=None).wait()
        self.socket.unlink(missing_ok=True)

    def calls(self, path: str) -> list[Seen]:
        return [one for one in self.seen if one.path == path]

    def wait_for(self, path: str, limit_s: float = 5.0) -> Seen:
        """The first call of ``path``, which may still be on its way."""
        with self._heard:
            assert self._heard.wait_for(lambda: self.calls(path), limit_s), f"no call of {path}"
        return self.calls(path)[0]

    def note(self, seen: Seen) -> None:
        with self._heard:
            self.seen.append(seen)
            self._heard.notify_all()


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def __init__(self, runtime: RawRuntime) -> None:
        self._runtime = runtime

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        path, runtime = details.method, self._runtime

        def note(request: bytes, context: grpc.ServicerContext) -> None:
            left_s = context.time_remaining()
            limit_s = None if left_s is None or left_s > 1e9 else left_s
            metadata = tuple((key, value) for key, value in context.invocation_metadata())
            runtime.note(Seen(path, request, metadata, limit_s))

        def unary(request: bytes, context: grpc.ServicerContext) -> bytes:
            note(request, context)
            return runtime.unary[path](request, context)

        def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            note(request, context)
            yield from runtime.streams[path](request, context)

        if path in runtime.unary:
            return grpc.unary_unary_rpc_method_handler(unary)
        if path in runtime.streams:
            return grpc.unary_stream_rpc_method_handler(stream)
        return None


def _as_is(message: bytes) -> bytes:
    return message


class RawClient:
    """Calls any method with bytes, as kubelet's client would."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(
            f"unix://{socket}",
            options=(
                *UNLIMITED,
                ("grpc.default_authority", "localhost"),
                ("grpc.enable_http_proxy", 0),
                ("grpc.use_local_subchannel_pool", 1),
            ),
        )

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def call(self, path: str, request: bytes = b"", **options: Any) -> bytes:
        """A unary call; ``timeout`` and ``metadata`` as in grpc. Raises grpc.RpcError."""
        return bytes(self._unary(path)(request, **{"timeout": 20, **options}))

    def future(self, path: str, request: bytes = b"", **options: Any) -> Any:
        return self._unary(path).future(request, **{"timeout": 20, **options})

    def stream(self, path: str, request: bytes = b"", **options: Any) -> Any:
        return self._channel.unary_stream(path, _as_is, _as_is)(request, **options)

    def _unary(self, path: str) -> Any:
        return self._channel.unary_unary(path, _as_is, _as_is)


def pod_config(name: str = "p", **more: Any) -> pb.PodSandboxConfig:
    """A small pod of kubelet's, burstable, in the default namespace."""
    uid = more.pop("uid", "0a1b2c3d-0000-4000-8000-000000000001")
    return pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name=name, uid=uid, namespace="default", attempt=0),
        linux=pb.LinuxPodSandboxConfig(
            cgroup_parent=more.pop("cgroup_parent", f"/kubepods/burstable/pod{uid}")
        ),
        **more,
    )
