"""What is known of a runtime's sandboxes and containers, kept by id and put together into pods."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from koordlet.model.pods import ContainerRecord, ContainerState, PodRecord, Resources
from koordlet.pods.requests import NOTHING, ResourceReader, Wants, pod_wants
from koordlet.protocol import names
from koordlet.protocol.problem import Problem, Severity
from koordlet.protocol.qos import ValueSource

if TYPE_CHECKING:
    from koordpb import cri_v1_pb2 as pb

_READY = 0  # SANDBOX_READY
_STATES = (
    ContainerState.CREATED,
    ContainerState.RUNNING,
    ContainerState.EXITED,
    ContainerState.UNKNOWN,
)
_EXITED = 2
_LABEL_UID = "io.kubernetes.pod.uid"
_NO_REQUEST_SHARES = 2


@dataclass(slots=True)
class _Sandbox:
    """One sandbox; everything but ``ready`` is fixed for its life."""

    id: str
    uid: str
    api_uid: str
    namespace: str
    name: str
    age: tuple[int, int]  # attempt, created_at: greater is newer
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    runtime_handler: str
    cgroup_parent: str
    extended: Mapping[str, Wants]
    problems: tuple[Problem, ...]
    ready: bool


@dataclass(slots=True)
class _Held:
    """One container and which sandbox it belongs to; ``asked`` once its status was read."""

    record: ContainerRecord
    sandbox_id: str
    age: tuple[int, int]
    asked: bool


@dataclass(slots=True)
class _Parts:
    """All that the runtime lists of one pod, oldest first."""

    sandboxes: list[_Sandbox] = field(default_factory=list)
    containers: list[_Held] = field(default_factory=list)


class RuntimeView:
    """The runtime's world between two lists; what a list no longer names is forgotten.

    Use: ``begin``, then ``see_*`` for each listed id and ``learn_*`` where that said False, then
    ``finish``.
    """

    def __init__(self) -> None:
        self._sandboxes: dict[str, _Sandbox] = {}
        self._containers: dict[str, _Held] = {}
        self._pods: dict[str, tuple[tuple[Any, ...], PodRecord]] = {}
        self._seen_sandboxes: set[str] = set()
        self._seen_containers: list[str] = []
        self._warnings: list[Problem] = []
        self._last: tuple[PodRecord, ...] = ()
        self.warnings: tuple[Problem, ...] = ()

    def begin(self) -> None:
        """A new list starts."""
        self._seen_sandboxes, self._seen_containers, self._warnings = set(), [], []

    def warn(self, problem: Problem) -> None:
        """Something in this list could not be used."""
        self._warnings.append(replace(problem, severity=Severity.WARNING))

    def forget(self, container_id: str) -> None:
        """Ask for the status of this container again: its spec was changed."""
        held = self._containers.get(container_id)
        if held is not None:
            held.asked = False

    def longest_unasked(self, count: int) -> list[str]:
        """The running containers whose status is the oldest known."""
        running = (
            key
            for key, held in self._containers.items()
            if held.record.state is not ContainerState.EXITED
        )
        return list(itertools.islice(running, count))

    def see_sandbox(self, sandbox_id: str, state: int) -> bool:
        """Note a listed sandbox; False where it is new and has to be learnt."""
        known = self._sandboxes.get(sandbox_id)
        if known is None:
            return False
        self._seen_sandboxes.add(sandbox_id)
        known.ready = state == _READY
        return True

    def see_container(self, container_id: str, state: int) -> bool:
        """Note a listed container; False where its status has to be asked for."""
        held = self._containers.get(container_id)
        if held is None:
            return False
        self._seen_containers.append(container_id)
        if held.record.state is not _state(state):
            held.record = replace(held.record, state=_state(state))
        return held.asked or state == _EXITED

    def learn_sandbox(self, item: pb.PodSandbox, info: Mapping[str, str]) -> None:
        """Keep a sandbox with its verbose ``info``."""
        labels, annotations = dict(item.labels), dict(item.annotations)
        reader = ResourceReader()
        extended: dict[str, Wants] = {}
        text = annotations.get(names.ANNOTATION_EXTENDED_RESOURCE_SPEC)
        if text:
            where = f"pod {item.metadata.namespace}/{item.metadata.name}"
            extended = reader.extended_spec(text, where)
        # A sandbox made by hand may have no uid; its own id then keeps it apart.
        uid = item.metadata.uid or labels.get(_LABEL_UID) or item.id
        self._sandboxes[item.id] = _Sandbox(
            id=item.id,
            uid=uid,
            api_uid=labels.get(_LABEL_UID) or uid,
            namespace=item.metadata.namespace,
            name=item.metadata.name,
            age=(item.metadata.attempt, item.created_at),
            labels=labels,
            annotations=annotations,
            runtime_handler=item.runtime_handler,
            cgroup_parent=_cgroup_parent(info),
            extended=extended,
            problems=tuple(reader.problems),
            ready=item.state == _READY,
        )
        self._seen_sandboxes.add(item.id)

    def learn_container(self, item: pb.Container, status: pb.ContainerStatusResponse) -> None:
        """Keep a container with the resources that its status tells."""
        quota_us, period_us = _spec_quota(status)
        linux = status.status.resources.linux
        wants = _wants_of(linux)
        record = ContainerRecord(
            id=item.id,
            name=item.metadata.name,
            attempt=item.metadata.attempt,
            state=_state(item.state),
            requests=wants.requests,
            limits=wants.limits,
            resources_source=(
                ValueSource.CONTAINER_STATUS
                if status.status.HasField("resources")
                else ValueSource.UNKNOWN
            ),
            spec_quota_us=quota_us,
            spec_period_us=period_us,
        )
        known = self._containers.pop(item.id, None)  # put back last: the longest asked is first
        if known is None:
            self._seen_containers.append(item.id)
        elif known.record == record:
            record = known.record
        self._containers[item.id] = _held(item, record, asked=True)

    def keep_container(self, item: pb.Container) -> None:
        """Keep a container without a status: what was known of it, or that nothing is."""
        if item.id in self._containers:
            return
        record = ContainerRecord(
            id=item.id,
            name=item.metadata.name,
            attempt=item.metadata.attempt,
            state=_state(item.state),
        )
        self._seen_containers.append(item.id)
        self._containers[item.id] = _held(item, record, asked=False)

    def finish(self) -> tuple[PodRecord, ...]:
        """Forget what was not listed; the pods, sorted by namespace, name and uid."""
        self._sandboxes = {
            key: value for key, value in self._sandboxes.items() if key in self._seen_sandboxes
        }
        listed = set(self._seen_containers)
        self._containers = {key: value for key, value in self._containers.items() if key in listed}
        parts = self._group()
        self._pods = {uid: self._assemble(uid, pod) for uid, pod in parts.items()}
        records = tuple(
            sorted(
                (record for _, record in self._pods.values()),
                key=lambda record: (record.namespace, record.name, record.uid),
            )
        )
        self.warnings = tuple(self._warnings)
        if records != self._last:
            self._last = records
        return self._last

    def _group(self) -> dict[str, _Parts]:
        parts: dict[str, _Parts] = {}
        for sandbox in sorted(
            self._sandboxes.values(), key=lambda sandbox: (sandbox.ready, sandbox.age)
        ):
            parts.setdefault(sandbox.uid, _Parts()).sandboxes.append(sandbox)
        for container_id in self._seen_containers:
            held = self._containers[container_id]
            sandbox_of = self._sandboxes.get(held.sandbox_id)
            if sandbox_of is None:
                self.warn(_orphan(held))
            else:
                parts[sandbox_of.uid].containers.append(held)
        return parts

    def _assemble(self, uid: str, parts: _Parts) -> tuple[tuple[Any, ...], PodRecord]:
        newest = _newest_by_name(parts.containers)
        key = (
            tuple((sandbox.id, sandbox.ready) for sandbox in parts.sandboxes),
            tuple(held.record for held in newest),
        )
        self._warnings.extend(parts.sandboxes[-1].problems)
        known = self._pods.get(uid)
        if known is not None and known[0] == key:
            return known
        return key, _pod_record(parts.sandboxes, [held.record for held in newest])


def _state(number: int) -> ContainerState:
    """Enums of proto3 are open: a newer runtime may tell a state that we do not know."""
    return _STATES[number] if 0 <= number < len(_STATES) else ContainerState.UNKNOWN


def _held(item: pb.Container, record: ContainerRecord, *, asked: bool) -> _Held:
    age = (item.metadata.attempt, item.created_at)
    return _Held(record=record, sandbox_id=item.pod_sandbox_id, age=age, asked=asked)


def _newest_by_name(containers: Iterable[_Held]) -> list[_Held]:
    """One that has not ended goes before all that have: attempts count from 0 again where the
    kubelet lost its own record of the pod.
    """
    newest: dict[str, _Held] = {}
    for held in containers:
        other = newest.get(held.record.name)
        if other is None or _rank(held) > _rank(other):
            newest[held.record.name] = held
    return sorted(newest.values(), key=lambda held: held.record.name)


def _rank(held: _Held) -> tuple[bool, tuple[int, int]]:
    return held.record.state is not ContainerState.EXITED, held.age


def _pod_record(sandboxes: list[_Sandbox], containers: list[ContainerRecord]) -> PodRecord:
    current = sandboxes[-1]
    records = tuple(_with_extended(record, current.extended) for record in containers)
    # Init containers look like any other over CRI; once they have run, they count no more.
    counted = [record for record in records if record.state is not ContainerState.EXITED]
    wants = pod_wants(Wants(record.requests, record.limits) for record in counted)
    sources = {record.resources_source for record in counted}
    return PodRecord(
        uid=current.uid,
        api_uid=current.api_uid,
        namespace=current.namespace,
        name=current.name,
        labels=current.labels,
        annotations=current.annotations,
        runtime_handler=current.runtime_handler,
        sandbox_ids=tuple(sandbox.id for sandbox in sandboxes),
        containers=records,
        requests=wants.requests,
        limits=wants.limits,
        resources_source=_best_source(sources),
        cgroup_parent=current.cgroup_parent,
        running=any(sandbox.ready for sandbox in sandboxes),
    )


def _best_source(sources: set[ValueSource]) -> ValueSource:
    for source in (ValueSource.EXTENDED_RESOURCE_SPEC, ValueSource.CONTAINER_STATUS):
        if source in sources:
            return source
    return ValueSource.UNKNOWN


def _with_extended(record: ContainerRecord, extended: Mapping[str, Wants]) -> ContainerRecord:
    wants = extended.get(record.name)
    if wants is None:
        return record
    return replace(
        record,
        requests=wants.requests,
        limits=wants.limits,
        resources_source=ValueSource.EXTENDED_RESOURCE_SPEC,
    )


def _orphan(held: _Held) -> Problem:
    return Problem(
        code="cri-unknown-sandbox",
        where=f"container {held.record.id} ({held.record.name})",
        what=f"skipped: its sandbox {held.sandbox_id!r} is not in the runtime's list",
        remedy="remove it by hand if this stays: crictl rm",
        severity=Severity.WARNING,
    )


def _wants_of(linux: pb.LinuxContainerResources) -> Wants:
    """Requests and limits behind a container's cgroup values.

    The kubelet turns a request into shares as milli * 1024 / 1000, rounded down; 2 shares are
    its minimum and mean no request. Memory requests never reach a runtime (hazard H13).
    """
    cpu_request = None
    if linux.cpu_shares > _NO_REQUEST_SHARES:
        cpu_request = math.ceil(linux.cpu_shares * 1000 / 1024)
    cpu_limit = None
    if linux.cpu_quota > 0 and linux.cpu_period > 0:
        cpu_limit = math.ceil(linux.cpu_quota * 1000 / linux.cpu_period)
    memory_limit = linux.memory_limit_in_bytes if linux.memory_limit_in_bytes > 0 else None
    return Wants(
        requests=Resources(cpu_milli=cpu_request) if cpu_request else NOTHING,
        limits=Resources(cpu_milli=cpu_limit, memory_bytes=memory_limit),
    )


def _spec_quota(status: pb.ContainerStatusResponse) -> tuple[int | None, int | None]:
    """Quota and period of the runtime's spec, from the verbose info or the status itself."""
    cpu = _dig(_info(status.info), "runtimeSpec", "linux", "resources", "cpu")
    quota, period = _dig(cpu, "quota"), _dig(cpu, "period")
    if not isinstance(quota, int):
        quota = status.status.resources.linux.cpu_quota
    if not isinstance(period, int):
        period = status.status.resources.linux.cpu_period
    return (quota if quota > 0 else None, period if period > 0 else None)


def _cgroup_parent(info: Mapping[str, str]) -> str:
    parent = _dig(_info(info), "config", "linux", "cgroup_parent")
    return parent if isinstance(parent, str) else ""


def _info(info: Mapping[str, str]) -> Any:
    """The JSON that containerd and CRI-O put under ``info``; other runtimes tell nothing."""
    try:
        return json.loads(info.get("info", "{}"))
    except (ValueError, RecursionError):
        return {}


def _dig(value: Any, *keys: str) -> Any:
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value
