"""What is done around each call of CRI that starts, changes or ends a pod or a container."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import structlog
from google.protobuf.message import DecodeError, Message
from koordpb import cri_v1_pb2 as pb

from runtimeproxy.cri.questions import (
    ContainerQuestion,
    CreateQuestion,
    PodQuestion,
    UpdateQuestion,
)
from runtimeproxy.cri.records import (
    Container,
    Sandbox,
    kept_of_container,
    kept_of_pod,
    with_pod_resources,
    with_resources,
)
from runtimeproxy.cri.recovery import Faults, Runtime
from runtimeproxy.hooks.hooks import Hooks
from runtimeproxy.hooks.stages import Policy, Stage
from runtimeproxy.relay.call import Interception
from runtimeproxy.store import Store
from runtimeproxy.wire.status import Code, StatusError

_PREFIXES = (b"/runtime.v1.RuntimeService/", b"/runtime.v1alpha2.RuntimeService/")
_FETCH_S = 2.0
Parsed = TypeVar("Parsed", bound=Message)


class SkipLabel:
    """Pods with this label, or annotation, start without hooks: a hook server's own, say."""

    def __init__(self, key: str, value: str, namespaces: frozenset[str]) -> None:
        """``namespaces`` limits where the label counts; none means everywhere."""
        self._key, self._value, self._namespaces = key, value, namespaces

    def marks(self, pod: pb.PodSandboxConfig) -> bool:
        if self._namespaces and pod.metadata.namespace not in self._namespaces:
            return False
        return self._value in (pod.labels.get(self._key), pod.annotations.get(self._key))


class Knowledge:
    """What interceptions work with."""

    def __init__(self, store: Store, hooks: Hooks, runtime: Runtime, skip: SkipLabel) -> None:
        self.store = store
        self.hooks = hooks
        self.runtime = runtime
        self.skip = skip
        self.log = structlog.get_logger().bind(part="cri")

    async def sandbox(self, sandbox_id: str) -> Sandbox | None:
        """From the store, else from the runtime; None where neither knows it.

        Raises UnknownError where the runtime cannot be asked.
        """
        known = self.store.sandboxes.get(sandbox_id)
        if known is None:
            try:
                known = await self.runtime.sandbox(sandbox_id, _FETCH_S)
            except Faults as error:
                raise _not_asked("sandbox", sandbox_id, error) from error
            if known is not None:
                self.store.put_sandbox(known)
        return known

    async def container(self, container_id: str) -> tuple[Sandbox | None, Container | None]:
        """The container and its sandbox, likewise."""
        known = self.store.containers.get(container_id)
        if known is None:
            try:
                known = await self.runtime.container(container_id, limit_s=_FETCH_S)
            except Faults as error:
                raise _not_asked("container", container_id, error) from error
            if known is None:
                return None, None
            self.store.put_container(known)
        return await self.sandbox(known.sandbox_id), known


class UnknownError(StatusError):
    """A pod or container that is not known, and the runtime could not be asked about it."""


def _not_asked(kind: str, id_: str, error: Exception) -> UnknownError:
    return UnknownError(
        Code.UNAVAILABLE,
        f"runtimeproxy: {kind} {id_[:80]} is not known, and the runtime does not tell: {error}",
    )


class _Base:
    """One call. ``before`` and ``after`` are what the relay calls; subclasses fill the rest in."""

    stages: tuple[Stage, ...] = ()

    def __init__(self, knowledge: Knowledge) -> None:
        self._known = knowledge
        self._ready = False

    async def before(self, request: bytes, remaining_s: float | None) -> bytes:
        try:
            changed = await self._before(request, remaining_s)
        except DecodeError as error:
            # The runtime is the judge of what kubelet sends; but under Fail nothing goes unseen.
            if self._must_not_fail():
                raise StatusError(
                    Code.INVALID_ARGUMENT, f"runtimeproxy: the request is no message: {error}"
                ) from error
            return request
        except UnknownError:
            if self._must_not_fail():
                raise
            return request
        self._ready = True
        return request if changed is None else changed

    def after(self, code: Code, reply: bytes | None) -> None:
        if not self._ready:
            return
        try:
            self._after(code, reply or b"")
        except DecodeError as error:
            self._known.log.warning("reply not understood", why=str(error))

    async def _before(self, request: bytes, remaining_s: float | None) -> bytes | None:
        raise NotImplementedError

    def _after(self, code: Code, reply: bytes) -> None:
        raise NotImplementedError

    def _asked(self, stage: Stage) -> bool:
        return bool(self._known.hooks.servers(stage))

    def _must_not_fail(self) -> bool:
        servers = self._known.hooks.servers
        before = (stage for stage in self.stages if stage.is_before)
        return any(server.policy is Policy.FAIL for stage in before for server in servers(stage))


class RunPodSandbox(_Base):
    stages = (Stage.PRE_RUN_POD_SANDBOX,)

    async def _before(self, request: bytes, remaining_s: float | None) -> bytes | None:
        asked = self._request = pb.RunPodSandboxRequest.FromString(request)
        stage = Stage.PRE_RUN_POD_SANDBOX
        servers = self._known.hooks.servers(stage)
        if not servers or self._known.skip.marks(asked.config):
            return None
        question = PodQuestion(asked.config, asked.runtime_handler)
        await self._known.hooks.ask(stage, question, remaining_s, servers)
        return asked.SerializeToString() if question.changed else None

    def _after(self, code: Code, reply: bytes) -> None:
        if code is Code.OK:
            sandbox_id = pb.RunPodSandboxResponse.FromString(reply).pod_sandbox_id
            config = kept_of_pod(self._request.config)
            self._known.store.put_sandbox(
                Sandbox(sandbox_id, config, self._request.runtime_handler)
            )


class CreateContainer(_Base):
    stages = (Stage.PRE_CREATE_CONTAINER,)

    async def _before(self, request: bytes, remaining_s: float | None) -> bytes | None:
        asked = self._request = pb.CreateContainerRequest.FromString(request)
        sandbox = self._sandbox(asked)
        stage = Stage.PRE_CREATE_CONTAINER
        servers = self._known.hooks.servers(stage)
        if not servers or self._known.skip.marks(sandbox.config):
            return None
        question = CreateQuestion(sandbox, asked)
        await self._known.hooks.ask(stage, question, remaining_s, servers)
        return asked.SerializeToString() if question.changed else None

    def _sandbox(self, asked: pb.CreateContainerRequest) -> Sandbox:
        """As it was made; where it is not known, kubelet says it again in this request."""
        known = self._known.store.sandboxes.get(asked.pod_sandbox_id)
        return known or Sandbox(asked.pod_sandbox_id, kept_of_pod(asked.sandbox_config), "")

    def _after(self, code: Code, reply: bytes) -> None:
        if code is not Code.OK:
            return
        container_id = pb.CreateContainerResponse.FromString(reply).container_id
        config = kept_of_container(self._request.config)
        self._known.store.put_container(
            Container(container_id, self._request.pod_sandbox_id, config)
        )


class StartContainer(_Base):
    stages = (Stage.PRE_START_CONTAINER, Stage.POST_START_CONTAINER)

    async def _before(self, request: bytes, remaining_s: float | None) -> bytes | None:
        asked = pb.StartContainerRequest.FromString(request)
        self._question: ContainerQuestion | None = None
        if not any(map(self._asked, self.stages)):
            return None
        sandbox, container = await self._known.container(asked.container_id)
        if container is None or (sandbox and self._known.skip.marks(sandbox.config)):
            return None
        self._question = ContainerQuestion(sandbox, container)
        await self._known.hooks.ask(Stage.PRE_START_CONTAINER, self._question, remaining_s)
        return None

    def _after(self, code: Code, reply: bytes) -> None:
        if code is Code.OK and self._question is not None:
            self._known.hooks.tell_later(Stage.POST_START_CONTAINER, self._question)


class UpdateContainerResources(_Base):
    stages = (Stage.PRE_UPDATE_CONTAINER_RESOURCES,)

    async def _before(self, request: bytes, remaining_s: float | None) -> bytes | None:
        asked = self._request = pb.UpdateContainerResourcesRequest.FromString(request)
        stage = Stage.PRE_UPDATE_CONTAINER_RESOURCES
        servers = self._known.hooks.servers(stage)
        if not servers:
            return None
        sandbox, container = await self._known.container(asked.container_id)
        if container is None or (sandbox and self._known.skip.marks(sandbox.config)):
            return None
        question = UpdateQuestion(sandbox, container, asked)
        await self._known.hooks.ask(stage, question, remaining_s, servers)
        return asked.SerializeToString() if question.changed else None

    def _after(self, code: Code, reply: bytes) -> None:
        store = self._known.store
        container = store.containers.get(self._request.container_id)
        if code is Code.OK and container is not None:
            store.put_container(with_resources(container, self._request.linux))


class UpdatePodSandboxResources(_Base):
    """In-place resize; the hook protocol has no stage for it."""

    async def _before(self, request: bytes, remaining_s: float | None) -> bytes | None:
        self._request = pb.UpdatePodSandboxResourcesRequest.FromString(request)
        return None

    def _after(self, code: Code, reply: bytes) -> None:
        asked, store = self._request, self._known.store
        sandbox = store.sandboxes.get(asked.pod_sandbox_id)
        if code is Code.OK and sandbox is not None:
            store.put_sandbox(with_pod_resources(sandbox, asked.overhead, asked.resources))


class StopContainer(_Base):
    stages = (Stage.POST_STOP_CONTAINER,)

    async def _before(self, request: bytes, remaining_s: float | None) -> bytes | None:
        asked = pb.StopContainerRequest.FromString(request)
        self._question: ContainerQuestion | None = None
        store = self._known.store
        container = store.containers.get(asked.container_id)
        if container is not None and self._asked(Stage.POST_STOP_CONTAINER):
            sandbox = store.sandboxes.get(container.sandbox_id)
            if sandbox is None or not self._known.skip.marks(sandbox.config):
                self._question = ContainerQuestion(sandbox, container)
        return None

    def _after(self, code: Code, reply: bytes) -> None:
        if code is Code.OK and self._question is not None:
            self._known.hooks.tell_later(Stage.POST_STOP_CONTAINER, self._question)


class StopPodSandbox(_Base):
    stages = (Stage.POST_STOP_POD_SANDBOX,)

    async def _before(self, request: bytes, remaining_s: float | None) -> bytes | None:
        asked = pb.StopPodSandboxRequest.FromString(request)
        self._question: PodQuestion | None = None
        sandbox = self._known.store.sandboxes.get(asked.pod_sandbox_id)
        if sandbox is not None and not self._known.skip.marks(sandbox.config):
            self._question = PodQuestion(kept_of_pod(sandbox.config), sandbox.runtime_handler)
        return None

    def _after(self, code: Code, reply: bytes) -> None:
        if code is Code.OK and self._question is not None:
            self._known.hooks.tell_later(Stage.POST_STOP_POD_SANDBOX, self._question)


class RemoveContainer(_Base):
    async def _before(self, request: bytes, remaining_s: float | None) -> bytes | None:
        self._id = pb.RemoveContainerRequest.FromString(request).container_id
        return None

    def _after(self, code: Code, reply: bytes) -> None:
        if code in (Code.OK, Code.NOT_FOUND):
            self._known.store.drop_container(self._id)


class RemovePodSandbox(_Base):
    async def _before(self, request: bytes, remaining_s: float | None) -> bytes | None:
        self._id = pb.RemovePodSandboxRequest.FromString(request).pod_sandbox_id
        return None

    def _after(self, code: Code, reply: bytes) -> None:
        if code in (Code.OK, Code.NOT_FOUND):
            self._known.store.drop_sandbox(self._id)


_CLASSES = (
    RunPodSandbox,
    CreateContainer,
    StartContainer,
    UpdateContainerResources,
    UpdatePodSandboxResources,
    StopContainer,
    StopPodSandbox,
    RemoveContainer,
    RemovePodSandbox,
)


def interceptor(knowledge: Knowledge) -> Callable[[bytes], Interception | None]:
    """What is to be done around a call of this path; None for all that just goes through."""
    by_path: Mapping[bytes, type[_Base]] = {
        prefix + each.__name__.encode(): each for prefix in _PREFIXES for each in _CLASSES
    }

    def intercept(path: bytes) -> Interception | None:
        found = by_path.get(path)
        return None if found is None else found(knowledge)

    return intercept
