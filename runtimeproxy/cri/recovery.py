"""What the runtime itself says about its sandboxes and containers."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from google.protobuf.message import DecodeError, Message
from koordpb import cri_v1_pb2 as pb

from runtimeproxy.cri.records import Container, Sandbox
from runtimeproxy.relay.endpoint import Unreachable
from runtimeproxy.relay.unary import UnaryClient
from runtimeproxy.store import Store
from runtimeproxy.wire.status import Code, StatusError

_SERVICES = ("/runtime.v1.RuntimeService/", "/runtime.v1alpha2.RuntimeService/")
_LIMIT_S = 30.0
_AT_ONCE = 4
_CRIO_PARENT = "io.kubernetes.cri-o.CgroupParent"
Reply = TypeVar("Reply", bound=Message)
Faults = (StatusError, Unreachable, DecodeError)
"""Why the runtime could not be asked."""


@dataclass
class Reconciled:
    """What one reconciliation changed."""

    learned: int = 0
    gone: int = 0


class Runtime:
    """Asks the runtime, by v1 where it has that and by v1alpha2 where not."""

    def __init__(self, client: UnaryClient) -> None:
        self._client = client
        self._service = _SERVICES[0]
        self._log = structlog.get_logger().bind(part="recovery")

    @property
    def connected(self) -> bool:
        """Whether it is the same runtime process as at the last call."""
        return self._client.connected

    async def version(self, limit_s: float = 2.0) -> pb.VersionResponse:
        return await self._call("Version", pb.VersionRequest(), pb.VersionResponse, limit_s)

    async def reconcile(self, store: Store) -> Reconciled:
        """Make the store hold what the runtime has. Raises one of Faults."""
        known = set(store.sandboxes), set(store.containers)
        pods = await self._call(
            "ListPodSandbox", pb.ListPodSandboxRequest(), pb.ListPodSandboxResponse
        )
        listed = await self._call(
            "ListContainers", pb.ListContainersRequest(), pb.ListContainersResponse
        )
        done = Reconciled()
        # Only what was there before the lists were made can be missing in them.
        for sandbox_id in known[0] - {pod.id for pod in pods.items}:
            store.drop_sandbox(sandbox_id)
            done.gone += 1
        for container_id in known[1] - {one.id for one in listed.containers}:
            store.drop_container(container_id)
            done.gone += 1
        await self._learn(store, pods, listed, done)
        return done

    async def _learn(
        self,
        store: Store,
        pods: pb.ListPodSandboxResponse,
        listed: pb.ListContainersResponse,
        done: Reconciled,
    ) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def sandbox(id_: str) -> None:
            async with gate:
                found = await self.sandbox(id_)
            if found is not None and id_ not in store.sandboxes:
                store.put_sandbox(found)
                done.learned += 1

        async def container(id_: str, sandbox_id: str) -> None:
            async with gate:
                found = await self.container(id_, sandbox_id)
            if found is not None and id_ not in store.containers:
                store.put_container(found)
                done.learned += 1

        known = store.sandboxes.keys() | {pod.id for pod in pods.items}
        unknown = [pod.id for pod in pods.items if pod.id not in store.sandboxes]
        await asyncio.gather(*(sandbox(id_) for id_ in unknown))
        strays = [one.id for one in listed.containers if one.pod_sandbox_id not in known]
        if strays:
            self._log.warning("containers of no listed sandbox", count=len(strays), first=strays[0])
        await asyncio.gather(
            *(
                container(one.id, one.pod_sandbox_id)
                for one in listed.containers
                if one.id not in store.containers and one.pod_sandbox_id in known
            )
        )

    async def sandbox(self, sandbox_id: str, limit_s: float = _LIMIT_S) -> Sandbox | None:
        """None where the runtime has no such sandbox. Raises one of Faults."""
        request = pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        try:
            reply = await self._call(
                "PodSandboxStatus", request, pb.PodSandboxStatusResponse, limit_s
            )
        except StatusError as error:
            if error.code is Code.NOT_FOUND:
                return None
            raise
        return sandbox_of(reply)

    async def container(
        self, container_id: str, sandbox_id: str = "", limit_s: float = _LIMIT_S
    ) -> Container | None:
        """None where the runtime has no such container. Raises one of Faults."""
        request = pb.ContainerStatusRequest(container_id=container_id, verbose=True)
        try:
            reply = await self._call(
                "ContainerStatus", request, pb.ContainerStatusResponse, limit_s
            )
        except StatusError as error:
            if error.code is Code.NOT_FOUND:
                return None
            raise
        return container_of(reply, sandbox_id)

    async def _call(
        self, method: str, request: Message, reply: type[Reply], limit_s: float = _LIMIT_S
    ) -> Reply:
        message = request.SerializeToString()
        try:
            raw = await self._client.call(self._service + method, message, limit_s)
        except StatusError as error:
            if error.code is not Code.UNIMPLEMENTED or self._service == _SERVICES[1]:
                raise
            raw = await self._client.call(_SERVICES[1] + method, message, limit_s)
            self._service = _SERVICES[1]
        return reply.FromString(raw)


# -- verbose replies ------------------------------------------------------------------------------


def sandbox_of(reply: pb.PodSandboxStatusResponse) -> Sandbox:
    """A sandbox from its status; the cgroup parent from what containerd or CRI-O add to it."""
    status = reply.status
    info = _info(reply.info)
    config = pb.PodSandboxConfig(
        metadata=status.metadata, labels=status.labels, annotations=status.annotations
    )
    linux = _mapping(_mapping(info.get("config")).get("linux"))
    annotations = _mapping(_mapping(info.get("runtimeSpec")).get("annotations"))
    parent = linux.get("cgroup_parent") or annotations.get(_CRIO_PARENT)
    config.linux.cgroup_parent = parent if isinstance(parent, str) else ""
    for name in ("overhead", "resources"):
        if isinstance(linux.get(name), Mapping):
            getattr(config.linux, name).CopyFrom(_resources_of_config(linux[name]))
    return Sandbox(status.id, config, status.runtime_handler)


def container_of(reply: pb.ContainerStatusResponse, sandbox_id: str) -> Container:
    """A container from its status. Resources as they are now: status, else spec, else config."""
    status = reply.status
    info = _info(reply.info)
    asked = _mapping(info.get("config"))
    runtime_spec = _mapping(info.get("runtimeSpec"))
    config = pb.ContainerConfig(
        metadata=status.metadata,
        labels=status.labels,
        annotations=status.annotations,
        envs=_envs(asked.get("envs"), _mapping(runtime_spec.get("process"))),
    )
    spec = _mapping(_mapping(runtime_spec.get("linux")).get("resources"))
    created = _resources_of_config(_mapping(_mapping(asked.get("linux")).get("resources")))
    config.linux.resources.CopyFrom(overlaid_by_spec(created, spec))
    if status.resources.HasField("linux"):
        config.linux.resources.MergeFrom(status.resources.linux)
    owner = info.get("sandboxID")
    return Container(status.id, sandbox_id or (owner if isinstance(owner, str) else ""), config)


def _info(topics: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        return _mapping(json.loads(topics.get("info", "")))
    except (ValueError, RecursionError):
        return {}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _int(value: object) -> int:
    fits = isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63
    return int(value) if fits and isinstance(value, int) else 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _envs(value: object, process: Mapping[str, Any]) -> list[pb.KeyValue]:
    """Variables in their order. ``process`` of the OCI spec tells how their values are spelled."""
    entries = [_mapping(one) for one in value] if isinstance(value, list) else []
    given = process.get("env")
    lines = set(map(str, given)) if isinstance(given, list) else set()
    return [
        pb.KeyValue(key=key, value=_env_value(key, _text(entry.get("value")), lines))
        for entry in entries
        if (key := _text(entry.get("key")))
    ]


def _env_value(key: str, text: str, lines: set[str]) -> bytes:
    """JSON has a value as text, or in base64 where the runtime's definition of it is bytes."""
    plain = text.encode("utf-8", "surrogatepass")
    if f"{key}={text}" in lines:
        return plain
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return plain
    # Go writes what is no UTF-8 as U+FFFD.
    return decoded if f"{key}={decoded.decode(errors='replace')}" in lines else plain


def _resources_of_config(given: Mapping[str, Any]) -> pb.LinuxContainerResources:
    numbers = (
        "cpu_period",
        "cpu_quota",
        "cpu_shares",
        "memory_limit_in_bytes",
        "memory_swap_limit_in_bytes",
        "oom_score_adj",
    )
    unified = _mapping(given.get("unified"))
    result = pb.LinuxContainerResources(
        cpuset_cpus=_text(given.get("cpuset_cpus")),
        cpuset_mems=_text(given.get("cpuset_mems")),
        unified={key: value for key, value in unified.items() if isinstance(value, str)},
    )
    for name in numbers:
        setattr(result, name, _int(given.get(name)))
    return result


def overlaid_by_spec(
    created: pb.LinuxContainerResources, spec: Mapping[str, Any]
) -> pb.LinuxContainerResources:
    """What the container was created with, with the OCI spec's values where it has any."""
    cpu, memory = _mapping(spec.get("cpu")), _mapping(spec.get("memory"))
    result = pb.LinuxContainerResources()
    result.CopyFrom(created)
    values: dict[str, int | str] = {
        "cpu_period": _int(cpu.get("period")),
        "cpu_quota": _int(cpu.get("quota")),
        "cpu_shares": _int(cpu.get("shares")),
        "cpuset_cpus": _text(cpu.get("cpus")),
        "cpuset_mems": _text(cpu.get("mems")),
        "memory_limit_in_bytes": _int(memory.get("limit")),
        "memory_swap_limit_in_bytes": _int(memory.get("swap")),
    }
    for name, value in values.items():
        if value:
            setattr(result, name, value)
    return result
