"""A container runtime's CRI server with no containers behind it.

It answers the calls that koordlet makes, remembers them, and can say no: errors and delays by
method. Like a real runtime, UpdateContainerResources lays the request over the stored spec and
then applies the *whole* spec, here through ``on_update``.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc
from google.protobuf import message_factory
from koordpb import cri_v1_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["RuntimeService"]
PERIOD_US = 100_000


@dataclass
class FakeContainer:
    """A container: its spec is what the runtime stored, not what any file says."""

    id: str
    name: str
    sandbox_id: str
    attempt: int = 0
    state: pb.ContainerState = pb.CONTAINER_RUNNING
    created_at: int = 1
    labels: dict[str, str] = field(default_factory=dict)
    spec: pb.LinuxContainerResources = field(default_factory=pb.LinuxContainerResources)


@dataclass
class FakePod:
    """A pod sandbox and its containers by name."""

    id: str
    uid: str
    namespace: str
    name: str
    attempt: int = 0
    state: pb.PodSandboxState = pb.SANDBOX_READY
    created_at: int = 1
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    runtime_handler: str = ""
    cgroup_parent: str = ""
    containers: dict[str, FakeContainer] = field(default_factory=dict)


class RefusalError(Exception):
    """A call that the fake refuses, with a gRPC status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


def hex_id(*parts: object) -> str:
    """A 64 digit id as runtimes give them, the same for the same parts."""
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


class FakeCri:
    """The server, on a unix socket, while the context lasts.

    ``on_update(container, spec)`` stands for runc: it gets the whole spec after each update and
    may raise RefusalError. ``verbose_info`` False makes a runtime that tells none.
    """

    def __init__(
        self,
        socket_path: str,
        *,
        on_update: Callable[[FakeContainer, pb.LinuxContainerResources], None] | None = None,
        verbose_info: bool = True,
        tells_resources: bool = True,
    ) -> None:
        self.endpoint = f"unix://{socket_path}"
        self.pods: dict[str, FakePod] = {}  # by sandbox id
        self.strays: list[FakeContainer] = []  # containers of no listed sandbox
        self.calls: Counter[str] = Counter()
        self.requests: list[tuple[str, Any]] = []
        self._on_update = on_update
        self._verbose_info = verbose_info
        self._tells_resources = tells_resources
        self._refusals: dict[str, RefusalError] = {}
        self._delays_s: dict[str, float] = {}
        self._clock = 1
        self._lock = threading.RLock()
        self._server: grpc.Server | None = None

    # -- the world ---------------------------------------------------------------------------

    def add_pod(
        self,
        name: str,
        *,
        uid: str = "",
        namespace: str = "default",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        cgroup_parent: str = "",
        attempt: int = 0,
        runtime_handler: str = "",
    ) -> FakePod:
        """A new sandbox; the uid is made from the name where none is given."""
        with self._lock:
            digest = hex_id("uid", namespace, name)
            uid = uid or "-".join(
                (digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32])
            )
            pod = FakePod(
                id=hex_id("sandbox", namespace, name, attempt),
                uid=uid,
                namespace=namespace,
                name=name,
                attempt=attempt,
                created_at=self._tick(),
                labels={"io.kubernetes.pod.uid": uid, **(labels or {})},
                annotations=dict(annotations or {}),
                runtime_handler=runtime_handler,
                cgroup_parent=cgroup_parent,
            )
            self.pods[pod.id] = pod
            return pod

    def add_container(
        self,
        pod: FakePod,
        name: str,
        *,
        attempt: int = 0,
        quota_us: int = 0,
        shares: int = 2,
        memory_bytes: int = 0,
        state: pb.ContainerState = pb.CONTAINER_RUNNING,
    ) -> FakeContainer:
        """A new container of ``pod``; a quota of 0 is none."""
        with self._lock:
            container = FakeContainer(
                id=hex_id("container", pod.id, name, attempt),
                name=name,
                sandbox_id=pod.id,
                attempt=attempt,
                state=state,
                created_at=self._tick(),
                labels={"io.kubernetes.pod.uid": pod.uid, "io.kubernetes.container.name": name},
                spec=pb.LinuxContainerResources(
                    cpu_period=PERIOD_US,
                    cpu_quota=quota_us,
                    cpu_shares=shares,
                    memory_limit_in_bytes=memory_bytes,
                ),
            )
            pod.containers[f"{name}/{attempt}"] = container
            return container

    def remove_pod(self, pod: FakePod) -> None:
        with self._lock:
            del self.pods[pod.id]

    def remove_container(self, pod: FakePod, container_id: str) -> None:
        with self._lock:
            for key, container in list(pod.containers.items()):
                if container.id == container_id:
                    del pod.containers[key]

    def refuse(self, method: str, code: grpc.StatusCode, details: str = "refused") -> None:
        """From now on, ``method`` ends in this status."""
        self._refusals[method] = RefusalError(code, details)

    def delay(self, method: str, seconds: float) -> None:
        """From now on, ``method`` answers after ``seconds``."""
        self._delays_s[method] = seconds

    def allow(self, method: str) -> None:
        """Take refusal and delay of ``method`` back."""
        self._refusals.pop(method, None)
        self._delays_s.pop(method, None)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    # -- the server --------------------------------------------------------------------------

    def __enter__(self) -> FakeCri:
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=4),
            options=(("grpc.max_send_message_length", -1),),
        )
        handlers = {
            method.name: grpc.unary_unary_rpc_method_handler(
                self._handler(method.name),
                request_deserializer=message_factory.GetMessageClass(method.input_type).FromString,
                response_serializer=message_factory.GetMessageClass(
                    method.output_type
                ).SerializeToString,
            )
            for method in _SERVICE.methods
            if hasattr(self, f"_do_{method.name}")
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers),)
        )
        self._server.add_insecure_port(self.endpoint)
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

    def _handler(self, method: str) -> Callable[[Any, grpc.ServicerContext], Any]:
        answer = getattr(self, f"_do_{method}")

        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            self.calls[method] += 1
            self.requests.append((method, request))
            time.sleep(self._delays_s.get(method, 0.0))
            try:
                if method in self._refusals:
                    raise self._refusals[method]
                with self._lock:
                    return answer(request)
            except RefusalError as refusal:
                context.abort(refusal.code, refusal.details)

        return handle

    # -- the answers -------------------------------------------------------------------------

    def _do_Version(self, request: pb.VersionRequest) -> pb.VersionResponse:
        return pb.VersionResponse(
            version="0.1.0",
            runtime_name="fakecri",
            runtime_version="1.0",
            runtime_api_version="v1",
        )

    def _do_ListPodSandbox(self, request: pb.ListPodSandboxRequest) -> pb.ListPodSandboxResponse:
        return pb.ListPodSandboxResponse(
            items=[
                pb.PodSandbox(
                    id=pod.id,
                    metadata=_metadata(pod),
                    state=pod.state,
                    created_at=pod.created_at,
                    labels=pod.labels,
                    annotations=pod.annotations,
                    runtime_handler=pod.runtime_handler,
                )
                for pod in self.pods.values()
            ]
        )

    def _do_PodSandboxStatus(
        self, request: pb.PodSandboxStatusRequest
    ) -> pb.PodSandboxStatusResponse:
        pod = self.pods.get(request.pod_sandbox_id)
        if pod is None:
            raise RefusalError(grpc.StatusCode.NOT_FOUND, f"sandbox {request.pod_sandbox_id}")
        status = pb.PodSandboxStatus(
            id=pod.id,
            metadata=_metadata(pod),
            state=pod.state,
            created_at=pod.created_at,
            labels=pod.labels,
            annotations=pod.annotations,
            runtime_handler=pod.runtime_handler,
        )
        document = {"config": {"linux": {"cgroup_parent": pod.cgroup_parent}}}
        return pb.PodSandboxStatusResponse(
            status=status, info=self._info(document, verbose=request.verbose)
        )

    def _do_ListContainers(self, request: pb.ListContainersRequest) -> pb.ListContainersResponse:
        return pb.ListContainersResponse(
            containers=[
                pb.Container(
                    id=container.id,
                    pod_sandbox_id=container.sandbox_id,
                    metadata=pb.ContainerMetadata(name=container.name, attempt=container.attempt),
                    state=container.state,
                    created_at=container.created_at,
                    labels=container.labels,
                )
                for container in self._all_containers()
            ]
        )

    def _do_ContainerStatus(self, request: pb.ContainerStatusRequest) -> pb.ContainerStatusResponse:
        container = self._container(request.container_id)
        status = pb.ContainerStatus(
            id=container.id,
            metadata=pb.ContainerMetadata(name=container.name, attempt=container.attempt),
            state=container.state,
            created_at=container.created_at,
            labels=container.labels,
        )
        if self._tells_resources:
            status.resources.linux.CopyFrom(container.spec)
        cpu = {"shares": container.spec.cpu_shares, "period": container.spec.cpu_period}
        if container.spec.cpu_quota:
            cpu["quota"] = container.spec.cpu_quota
        document = {"runtimeSpec": {"linux": {"resources": {"cpu": cpu}}}}
        return pb.ContainerStatusResponse(
            status=status, info=self._info(document, verbose=request.verbose)
        )

    def _do_UpdateContainerResources(
        self, request: pb.UpdateContainerResourcesRequest
    ) -> pb.UpdateContainerResourcesResponse:
        container = self._container(request.container_id)
        wanted = pb.LinuxContainerResources()
        wanted.CopyFrom(container.spec)
        wanted.MergeFrom(request.linux)  # proto3: fields at their default are not laid over
        if self._on_update is not None:
            self._on_update(container, wanted)
        container.spec.CopyFrom(wanted)
        return pb.UpdateContainerResourcesResponse()

    def _info(self, document: dict[str, Any], *, verbose: bool) -> dict[str, str]:
        return {"info": json.dumps(document)} if verbose and self._verbose_info else {}

    def _all_containers(self) -> list[FakeContainer]:
        own = [each for pod in self.pods.values() for each in pod.containers.values()]
        return own + self.strays

    def _container(self, container_id: str) -> FakeContainer:
        for container in self._all_containers():
            if container.id == container_id:
                return container
        raise RefusalError(grpc.StatusCode.NOT_FOUND, f"container {container_id}")


def _metadata(pod: FakePod) -> pb.PodSandboxMetadata:
    return pb.PodSandboxMetadata(
        name=pod.name, uid=pod.uid, namespace=pod.namespace, attempt=pod.attempt
    )
