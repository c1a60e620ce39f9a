"""Pods and containers as a container runtime tells them over CRI v1.

A list costs two calls. Labels, annotations and names of a sandbox or container never change in
CRI, so what is known of one is kept by its id, and only new ones are asked for more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from koordlet.model.adoption import RuntimeSpec
from koordlet.model.pods import PodRecord
from koordlet.model.readings import Missing
from koordlet.pods.crirecords import RuntimeView
from koordlet.pods.runtimespec import parse_runtime_spec
from koordlet.pods.source import SourceError
from koordlet.protocol.problem import Problem

if TYPE_CHECKING:
    import grpc
    from koordpb import cri_v1_pb2 as pb

DEFAULT_TIMEOUT_S = 5.0
RECEIVE_LIMIT_BYTES = 16 << 20
"""What the kubelet's own client takes."""

REFRESHED_PER_LIST = 8
"""Known containers asked again with each list, in turn: a resize changes the runtime's spec."""

_SERVICE = "/runtime.v1.RuntimeService/"


@dataclass(frozen=True, slots=True)
class RuntimeVersion:
    """Who answers, e.g. ``containerd 1.6.20``, and the CRI version that it speaks."""

    name: str
    version: str
    api_version: str


def socket_path(endpoint: str) -> str:
    """The path in ``unix:///run/x.sock`` or ``/run/x.sock``; SourceError for anything else."""
    path = endpoint.removeprefix("unix://") if endpoint.startswith("unix://") else endpoint
    if not path.startswith("/") or "\0" in path:
        raise SourceError(
            Problem(
                code="cri-endpoint",
                where=endpoint,
                what="is not a unix socket with an absolute path",
                limit="CRI is spoken over unix sockets only",
                remedy="write e.g. unix:///run/containerd/containerd.sock",
            )
        )
    return path


class CriClient:
    """One runtime endpoint. Every call has a deadline and raises SourceError when it fails.

    For one listing thread; ``update_resources`` and ``runtime_spec`` may come from others.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        receive_limit_bytes: int = RECEIVE_LIMIT_BYTES,
    ) -> None:
        import grpc  # here, since only a process that talks to a runtime pays its 20 MiB
        from koordpb import cri_v1_pb2 as pb

        self._pb = pb
        self._grpc = grpc
        self._endpoint = f"unix://{socket_path(endpoint)}"
        self._timeout_s = timeout_s
        self._receive_limit_bytes = receive_limit_bytes
        self._channel = grpc.insecure_channel(
            self._endpoint,
            options=(
                ("grpc.default_authority", "localhost"),
                ("grpc.enable_http_proxy", 0),
                ("grpc.max_receive_message_length", receive_limit_bytes),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 2000),
            ),
        )
        self._calls: dict[str, Callable[..., Any]] = {}
        self._view = RuntimeView()
        self._changed: set[str] = set()

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What the last list held that could not be used, and why."""
        return self._view.warnings

    def close(self) -> None:
        self._channel.close()

    def version(self) -> RuntimeVersion:
        """Name and version of the runtime."""
        reply = self._call("Version", self._pb.VersionRequest(version="v1"), "VersionResponse")
        return RuntimeVersion(reply.runtime_name, reply.runtime_version, reply.runtime_api_version)

    def list_records(self) -> tuple[PodRecord, ...]:
        """All pods, sorted by namespace, name and uid; unchanged ones are the same objects.

        Of each container name and each pod the newest attempt counts. Exited containers and pods
        with no ready sandbox (``running=False``) are in it as long as the runtime keeps them.
        """
        while self._changed:
            self._view.forget(self._changed.pop())
        # Containers first: a sandbox made between the two calls is then listed whole next time.
        containers = self._call(
            "ListContainers", self._pb.ListContainersRequest(), "ListContainersResponse"
        )
        sandboxes = self._call(
            "ListPodSandbox", self._pb.ListPodSandboxRequest(), "ListPodSandboxResponse"
        )
        self._view.begin()
        self._learn_sandboxes(sandboxes.items)
        self._learn_containers(containers.containers)
        return self._view.finish()

    def _learn_sandboxes(self, items: Iterable[pb.PodSandbox]) -> None:
        for item in items:
            if self._view.see_sandbox(item.id, item.state):
                continue
            if item.state != self._pb.SANDBOX_READY:
                self._view.learn_sandbox(item, {})
                continue
            request = self._pb.PodSandboxStatusRequest(pod_sandbox_id=item.id, verbose=True)
            try:
                reply = self._call("PodSandboxStatus", request, "PodSandboxStatusResponse")
            except SourceError as error:
                if self._still_there(error.problem):
                    self._view.learn_sandbox(item, {})
            else:
                self._view.learn_sandbox(item, reply.info)

    def _learn_containers(self, items: Iterable[pb.Container]) -> None:
        stale = set(self._view.longest_unasked(REFRESHED_PER_LIST))
        for item in items:
            if self._view.see_container(item.id, item.state) and item.id not in stale:
                continue
            if item.state == self._pb.CONTAINER_EXITED:
                self._view.keep_container(item)
                continue
            request = self._pb.ContainerStatusRequest(container_id=item.id, verbose=True)
            try:
                reply = self._call("ContainerStatus", request, "ContainerStatusResponse")
            except SourceError as error:
                if self._still_there(error.problem):
                    self._view.keep_container(item)
            else:
                self._view.learn_container(item, reply)

    def _still_there(self, problem: Problem) -> bool:
        """After a failed status: False where the thing left since it was listed.

        A status that one runtime cannot tell is a warning; a runtime that does not answer at all
        fails the whole list.
        """
        if problem.code in ("cri-unreachable", "cri-timeout"):
            raise SourceError(problem)
        if problem.code == "cri-not-found":
            return False
        self._view.warn(problem)
        return True

    def runtime_spec(self, container_id: str) -> RuntimeSpec | Missing:
        """The resources in the spec that the runtime keeps now; any thread may ask."""
        request = self._pb.ContainerStatusRequest(container_id=container_id, verbose=True)
        try:
            reply = self._call("ContainerStatus", request, "ContainerStatusResponse")
        except SourceError as error:
            return Missing(str(error.problem))
        return parse_runtime_spec(reply.info)

    def update_resources(
        self,
        container_id: str,
        *,
        cpu_quota_us: int | None = None,
        cpuset_cpus: str | None = None,
    ) -> None:
        """Change the runtime's stored spec; None leaves a field as it is, quota -1 is unlimited.

        The runtime then writes *all* fields of its spec to the container's files, so any of our
        file writes there is undone by this call (hazard H8). SourceError ``cri-not-found`` where
        the container is gone.
        """
        linux = self._pb.LinuxContainerResources(
            cpu_quota=cpu_quota_us or 0, cpuset_cpus=cpuset_cpus or ""
        )
        request = self._pb.UpdateContainerResourcesRequest(container_id=container_id, linux=linux)
        self._call("UpdateContainerResources", request, "UpdateContainerResourcesResponse")
        self._changed.add(container_id)

    def _call(self, method: str, request: Any, reply: str) -> Any:
        call = self._calls.get(method)
        if call is None:
            call = self._channel.unary_unary(
                _SERVICE + method,
                request_serializer=type(request).SerializeToString,
                response_deserializer=getattr(self._pb, reply).FromString,
            )
            self._calls[method] = call
        try:
            return call(request, timeout=self._timeout_s)
        except self._grpc.RpcError as error:
            raise SourceError(self._explain(method, error)) from error

    def _explain(self, method: str, error: grpc.RpcError) -> Problem:
        code = error.code()
        kind, limit, remedy = self._hints().get(code.name, ("cri-error", "", ""))
        return Problem(
            code=kind,
            where=self._endpoint,
            what=f"{method}: {code.name}: {error.details()}",
            limit=limit,
            remedy=remedy,
        )

    def _hints(self) -> dict[str, tuple[str, str, str]]:
        """By gRPC status: our code, the limit that was crossed, the remedy."""
        return {
            "NOT_FOUND": ("cri-not-found", "", ""),
            "UNAVAILABLE": (
                "cri-unreachable",
                "",
                "start the container runtime, or correct the endpoint",
            ),
            "DEADLINE_EXCEEDED": (
                "cri-timeout",
                f"an answer within {self._timeout_s:g} s",
                "look at the runtime's log; it may be stuck or overloaded",
            ),
            "UNIMPLEMENTED": (
                "cri-unimplemented",
                "CRI v1, containerd 1.6 or CRI-O 1.20 and newer",
                "update the runtime, or take cri out of disabled_plugins in its config.toml",
            ),
            "RESOURCE_EXHAUSTED": (
                "cri-too-large",
                f"answers of {self._receive_limit_bytes} bytes",
                "remove exited containers and dead sandboxes, or raise the limit",
            ),
            "PERMISSION_DENIED": ("cri-denied", "", "run koordlet as root"),
        }
