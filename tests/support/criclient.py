"""Makes and removes pods over CRI, as a kubelet would; for tests."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
from google.protobuf import message_factory
from koordpb import cri_v1_pb2 as pb

from tests.support.oci import IMAGE

PERIOD_US = 100_000
TIMEOUT_S = 60.0
_SERVICE = pb.DESCRIPTOR.services_by_name["RuntimeService"]
_HOST_NETWORK = pb.NamespaceOption(network=pb.NODE, pid=pb.CONTAINER, ipc=pb.POD)


@dataclass(frozen=True)
class TestPod:
    """A running sandbox and the configuration that its containers need."""

    __test__ = False

    id: str
    uid: str
    config: pb.PodSandboxConfig


class RuntimeClient:
    """One runtime endpoint, ``unix:///...``; gRPC errors are passed on as they are."""

    def __init__(self, endpoint: str, *, image: str = IMAGE) -> None:
        self._channel = grpc.insecure_channel(
            endpoint,
            options=(("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0)),
        )
        self._image = image

    def __enter__(self) -> RuntimeClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def call(self, method: str, request: Any) -> Any:
        """Any unary call of the service by its name."""
        reply = message_factory.GetMessageClass(_SERVICE.methods_by_name[method].output_type)
        call = self._channel.unary_unary(
            f"/{_SERVICE.full_name}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        return call(request, timeout=TIMEOUT_S)

    def run_pod(
        self,
        name: str,
        *,
        cgroup_parent: str,
        uid: str = "",
        namespace: str = "default",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        attempt: int = 0,
    ) -> TestPod:
        """A sandbox in the host's network. ``cgroup_parent`` is the pod's own cgroup, absolute, or
        its slice; ``{uid}`` in it is replaced by the pod's uid, ``{slice_uid}`` by that as systemd
        spells it.
        """
        uid = uid or str(uuid.uuid4())
        config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(
                name=name, uid=uid, namespace=namespace, attempt=attempt
            ),
            labels={
                "io.kubernetes.pod.name": name,
                "io.kubernetes.pod.namespace": namespace,
                "io.kubernetes.pod.uid": uid,
                **(labels or {}),
            },
            annotations=annotations or {},
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=cgroup_parent.format(uid=uid, slice_uid=uid.replace("-", "_")),
                security_context=pb.LinuxSandboxSecurityContext(namespace_options=_HOST_NETWORK),
            ),
        )
        reply = self.call("RunPodSandbox", pb.RunPodSandboxRequest(config=config))
        return TestPod(reply.pod_sandbox_id, uid, config)

    def run_container(
        self,
        pod: TestPod,
        name: str,
        command: Sequence[str] = ("sleep", "3600"),
        *,
        quota_us: int = 0,
        shares: int = 2,
        memory_bytes: int = 0,
        cpuset_cpus: str = "",
        attempt: int = 0,
        start: bool = True,
    ) -> str:
        """Create a container and start it unless told otherwise; its id. 0 and "" set nothing."""
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=name, attempt=attempt),
            image=pb.ImageSpec(image=self._image),
            command=command,
            labels={"io.kubernetes.container.name": name, "io.kubernetes.pod.uid": pod.uid},
            linux=pb.LinuxContainerConfig(
                resources=pb.LinuxContainerResources(
                    cpu_period=PERIOD_US,
                    cpu_quota=quota_us,
                    cpu_shares=shares,
                    memory_limit_in_bytes=memory_bytes,
                    cpuset_cpus=cpuset_cpus,
                ),
                security_context=pb.LinuxContainerSecurityContext(namespace_options=_HOST_NETWORK),
            ),
        )
        request = pb.CreateContainerRequest(
            pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config
        )
        container_id = str(self.call("CreateContainer", request).container_id)
        if start:
            self.call("StartContainer", pb.StartContainerRequest(container_id=container_id))
        return container_id

    def stop_container(self, container_id: str) -> None:
        """Kill it at once."""
        self.call("StopContainer", pb.StopContainerRequest(container_id=container_id, timeout=0))

    def remove_container(self, container_id: str) -> None:
        self.call("RemoveContainer", pb.RemoveContainerRequest(container_id=container_id))

    def stop_pod(self, pod_id: str) -> None:
        self.call("StopPodSandbox", pb.StopPodSandboxRequest(pod_sandbox_id=pod_id))

    def remove_pod(self, pod_id: str) -> None:
        """Stop the sandbox with all its containers, and remove it."""
        self.stop_pod(pod_id)
        self.call("RemovePodSandbox", pb.RemovePodSandboxRequest(pod_sandbox_id=pod_id))

    def remove_all(self) -> None:
        """Every pod that the runtime has."""
        for sandbox in self.call("ListPodSandbox", pb.ListPodSandboxRequest()).items:
            self.remove_pod(sandbox.id)
