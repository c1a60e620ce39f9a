"""What a hook server is asked about a CRI request, and how its changes go into that request."""

from __future__ import annotations

from koordpb import cri_v1_pb2 as pb
from koordpb import hooks_v1alpha1_pb2 as hooks_pb

from runtimeproxy.cri.records import Container, Sandbox, overlaid
from runtimeproxy.hooks.answers import Area, Change, Judged, judge_container, judge_pod


class PodQuestion:
    """About a sandbox: one that kubelet asks for (``config`` is then changed), or a known one."""

    def __init__(self, config: pb.PodSandboxConfig, runtime_handler: str) -> None:
        self.changed = False
        self._config = config
        self._kubelet_parent = config.linux.cgroup_parent
        linux = config.linux
        self._asked = hooks_pb.PodSandboxHookRequest(
            pod_meta=_pod_meta(config.metadata),
            runtime_handler=runtime_handler,
            labels=config.labels,
            annotations=config.annotations,
            cgroup_parent=linux.cgroup_parent,
        )
        if linux.HasField("overhead"):
            self._asked.overhead.CopyFrom(_to_hook(linux.overhead))
        if linux.HasField("resources"):
            self._asked.resources.CopyFrom(_to_hook(linux.resources))

    def message(self) -> bytes:
        return self._asked.SerializeToString()

    def judge(self, answer: bytes) -> Judged:
        """Raises DecodeError."""
        reply = hooks_pb.PodSandboxHookResponse.FromString(answer)
        return judge_pod(self._asked, reply, self._kubelet_parent)

    def apply(self, change: Change) -> None:
        """Into the request, and into what the next server is asked."""
        self.changed = True
        text = str(change.value)
        if change.area is Area.ANNOTATIONS:
            self._config.annotations[change.key] = text
            self._asked.annotations[change.key] = text
        elif change.area is Area.CGROUP_PARENT:
            self._config.linux.cgroup_parent = text
            self._asked.cgroup_parent = text


class ContainerQuestion:
    """About a container of ``sandbox``. Subclasses know which request the changes go into."""

    def __init__(self, sandbox: Sandbox | None, container: Container) -> None:
        self.changed = False
        config = container.config
        pod = sandbox.config if sandbox is not None else pb.PodSandboxConfig()
        self._asked = hooks_pb.ContainerResourceHookRequest(
            pod_meta=_pod_meta(pod.metadata),
            container_meta=hooks_pb.ContainerMetadata(
                name=config.metadata.name, attempt=config.metadata.attempt, id=container.id
            ),
            container_annotations=config.annotations,
            container_resources=_to_hook(config.linux.resources),
            pod_resources=_to_hook(pod.linux.resources),
            pod_annotations=pod.annotations,
            pod_labels=pod.labels,
            pod_cgroup_parent=pod.linux.cgroup_parent,
            container_envs=_as_text(config),
        )

    def message(self) -> bytes:
        return self._asked.SerializeToString()

    def judge(self, answer: bytes) -> Judged:
        """Raises DecodeError."""
        reply = hooks_pb.ContainerResourceHookResponse.FromString(answer)
        return judge_container(self._asked, reply)

    def apply(self, change: Change) -> None:
        """What the next server is asked holds the change; there is no request to put it into."""
        text = str(change.value)
        match change.area:
            case Area.ANNOTATIONS:
                self._asked.container_annotations[change.key] = text
            case Area.ENVS:
                self._asked.container_envs[change.key] = text
            case Area.UNIFIED:
                self._asked.container_resources.unified[change.key] = text
            case Area.RESOURCES:
                setattr(self._asked.container_resources, change.key, change.value)
            case Area.CGROUP_PARENT:
                self._asked.pod_cgroup_parent = text
            case Area.LABELS:
                return


class CreateQuestion(ContainerQuestion):
    """About a container that kubelet asks for; ``request`` is changed."""

    def __init__(self, sandbox: Sandbox | None, request: pb.CreateContainerRequest) -> None:
        super().__init__(sandbox, Container("", request.pod_sandbox_id, request.config))
        self._request = request

    def apply(self, change: Change) -> None:
        super().apply(change)
        self.changed = True
        config = self._request.config
        text = str(change.value)
        match change.area:
            case Area.ANNOTATIONS:
                config.annotations[change.key] = text
            case Area.ENVS:
                _set_env(config, change.key, text)
            case Area.UNIFIED:
                config.linux.resources.unified[change.key] = text
            case Area.RESOURCES:
                setattr(config.linux.resources, change.key, change.value)
            case Area.CGROUP_PARENT:
                self._request.sandbox_config.linux.cgroup_parent = text
            case Area.LABELS:
                return


class UpdateQuestion(ContainerQuestion):
    """About an update: servers see all that will hold, the request gets only what they change."""

    def __init__(
        self,
        sandbox: Sandbox | None,
        container: Container,
        request: pb.UpdateContainerResourcesRequest,
    ) -> None:
        config = pb.ContainerConfig()
        config.CopyFrom(container.config)
        config.annotations.update(request.annotations)
        config.linux.resources.CopyFrom(overlaid(config.linux.resources, request.linux))
        super().__init__(sandbox, Container(container.id, container.sandbox_id, config))
        self._request = request

    def apply(self, change: Change) -> None:
        super().apply(change)
        match change.area:
            case Area.ANNOTATIONS:
                self._request.annotations[change.key] = str(change.value)
            case Area.UNIFIED:
                self._request.linux.unified[change.key] = str(change.value)
            case Area.RESOURCES:
                setattr(self._request.linux, change.key, change.value)
            case _:  # a running container has its envs and its place
                return
        self.changed = True


def _pod_meta(metadata: pb.PodSandboxMetadata) -> hooks_pb.PodSandboxMetadata:
    return hooks_pb.PodSandboxMetadata(
        name=metadata.name,
        uid=metadata.uid,
        namespace=metadata.namespace,
        attempt=metadata.attempt,
    )


def _to_hook(resources: pb.LinuxContainerResources) -> hooks_pb.LinuxContainerResources:
    """The hook protocol has CRI's fields under CRI's numbers."""
    return hooks_pb.LinuxContainerResources.FromString(resources.SerializeToString())


def _as_text(config: pb.ContainerConfig) -> dict[str, str]:
    """Variables as the hook protocol can carry them: the last of a name, and only UTF-8."""
    values: dict[str, str] = {}
    for one in config.envs:
        try:
            values[one.key] = one.value.decode()
        except UnicodeDecodeError:
            values.pop(one.key, None)
    return values


def _set_env(config: pb.ContainerConfig, name: str, value: str) -> None:
    """In its place: of several with one name the last is the one that counts."""
    for one in reversed(config.envs):
        if one.key == name:
            one.value = value.encode()
            return
    config.envs.append(pb.KeyValue(key=name, value=value.encode()))
