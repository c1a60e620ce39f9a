"""The kubelet's pod list, a v1 PodList in JSON, as pod records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from koordlet.model.pods import Asked, ContainerRecord, ContainerState, PodRecord, Resources
from koordlet.pods.requests import InitWants, ResourceReader, Wants, has_extended, pod_wants
from koordlet.protocol import names
from koordlet.protocol.problem import Problem, Severity
from koordlet.protocol.qos import KubeQos, ValueSource

_ODD = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading a pod of another shape raises; OverflowError: 1e999 is a number in JSON."""

_FINISHED = frozenset({"Succeeded", "Failed"})
_RESIZING = frozenset({"PodResizePending", "PodResizeInProgress"})


class PodListError(ValueError):
    """An answer that is no pod list at all."""


@dataclass(frozen=True, slots=True)
class PodList:
    """The pods that could be read, and what was wrong with the others."""

    records: tuple[PodRecord, ...]
    problems: tuple[Problem, ...]


def parse_pod_list(body: bytes) -> PodList:
    """Read a whole answer; one odd pod is left out with a warning and hides no other.

    Raises PodListError where the answer is no pod list.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise PodListError(f"no JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("items", []), list | None):
        raise PodListError("JSON, but no pod list: it has no 'items' list")
    records: dict[str, PodRecord] = {}
    problems: list[Problem] = []
    for position, item in enumerate(document.get("items") or ()):
        try:
            record = _pod_record(item, problems)
        except _ODD as error:
            problems.append(_odd_pod(position, error))
        else:
            records[record.uid] = record
    ordered = sorted(records.values(), key=lambda each: (each.namespace, each.name, each.uid))
    return PodList(tuple(ordered), tuple(problems))


def _odd_pod(position: int, error: Exception) -> Problem:
    return Problem(
        code="kubelet-odd-pod",
        where=f"items[{position}]",
        what=f"left out: not the shape of a pod: {error!r}",
        severity=Severity.WARNING,
    )


def _pod_record(item: Any, problems: list[Problem]) -> PodRecord:
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    annotations = _texts(metadata.get("annotations"))
    reader = ResourceReader()
    api_uid, name = _word(metadata["uid"]), _word(metadata["name"])
    namespace = _word(metadata.get("namespace") or "default")
    full_name = f"{namespace}/{name}"
    specs = _container_wants(spec, annotations, reader, f"pod {full_name}")
    wants = _whole_pod(spec, specs, reader, f"pod {full_name}")
    problems.extend(reader.problems)
    natives = _native_wants(item, specs, wants, annotations)
    priority = spec.get("priority")
    return PodRecord(
        uid=cgroup_uid(api_uid, annotations),
        api_uid=api_uid,
        namespace=namespace,
        name=name,
        labels=_texts(metadata.get("labels")),
        annotations=annotations,
        runtime_handler=_text(spec.get("runtimeClassName")),
        containers=_containers(spec, status, specs, natives),
        priority=int(priority) if priority is not None else None,
        priority_source=ValueSource.UNKNOWN if priority is None else ValueSource.KUBELET,
        kube_qos=_kube_qos(status.get("qosClass")),
        requests=wants.requests,
        limits=wants.limits,
        resources_source=ValueSource.KUBELET,
        owner=_owner(metadata),
        terminating=bool(metadata.get("deletionTimestamp")),
        running=status.get("phase") not in _FINISHED,
        native=natives.get(""),
    )


def cgroup_uid(api_uid: str, annotations: Mapping[str, str]) -> str:
    """The uid in a pod's cgroup path: a static pod's config hash, else the API's (case POD-01).

    The kubelet itself sets config.source, so a pod from the API cannot borrow another's hash.
    """
    if annotations.get(names.ANNOTATION_CONFIG_SOURCE) == "api":
        return api_uid
    return annotations.get(names.ANNOTATION_STATIC_POD_HASH) or api_uid


def _container_wants(
    spec: Mapping[str, Any], annotations: Mapping[str, str], reader: ResourceReader, where: str
) -> dict[str, Wants]:
    """What each container wants, init containers included.

    A container that asks for nothing itself is filled from the extended-resource-spec.
    """
    extended: dict[str, Wants] = {}
    text = annotations.get(names.ANNOTATION_EXTENDED_RESOURCE_SPEC)
    if text:
        extended = reader.extended_spec(text, where)
    found: dict[str, Wants] = {}
    for block in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        name = _word(block["name"])
        wants = reader.wants(block.get("resources"), f"{where} container {name}")
        found[name] = wants if wants != Wants() else extended.get(name, wants)
    return found


def _native_wants(
    item: Mapping[str, Any],
    specs: Mapping[str, Wants],
    whole: Wants,
    annotations: Mapping[str, str],
) -> dict[str, Asked]:
    """What the kubelet itself counts: by container, and the whole pod under ``""``.

    Nothing while a resize is under way: what the pod was given then is not what it asks for.
    """
    spec, status = item["spec"], item.get("status") or {}
    conditions = status.get("conditions") or ()
    if status.get("resize") or any(each.get("type") in _RESIZING for each in conditions):
        return {}
    blocks = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    if names.ANNOTATION_EXTENDED_RESOURCE_SPEC in annotations or any(
        has_extended(block.get("resources")) for block in blocks
    ):
        reader = ResourceReader(native_only=True)
        specs = {_word(each["name"]): reader.wants(each.get("resources"), "") for each in blocks}
        whole = _whole_pod(spec, specs, reader, "")
    asked = {name: Asked(wants.requests, wants.limits) for name, wants in specs.items()}
    return {**asked, "": Asked(whole.requests, whole.limits)}


def _whole_pod(
    spec: Mapping[str, Any], specs: Mapping[str, Wants], reader: ResourceReader, where: str
) -> Wants:
    """The pod's sums; resources stated for the pod as a whole come before them."""
    inits = [
        InitWants(specs[_word(block["name"])], restartable=block.get("restartPolicy") == "Always")
        for block in spec.get("initContainers") or ()
    ]
    main = [specs[_word(block["name"])] for block in spec.get("containers") or ()]
    overhead = reader.resources(spec.get("overhead"), f"{where} overhead")
    sums = pod_wants(main, inits, overhead)
    stated = reader.wants(spec.get("resources"), where)
    if stated == Wants():
        return sums
    whole = pod_wants([stated], (), overhead)
    return Wants(
        requests=_filled(whole.requests, sums.requests),
        limits=_filled(whole.limits, sums.limits),
    )


def _filled(first: Resources, second: Resources) -> Resources:
    return Resources(
        cpu_milli=second.cpu_milli if first.cpu_milli is None else first.cpu_milli,
        memory_bytes=second.memory_bytes if first.memory_bytes is None else first.memory_bytes,
    )


def _containers(
    spec: Mapping[str, Any],
    status: Mapping[str, Any],
    specs: Mapping[str, Wants],
    natives: Mapping[str, Asked],
) -> tuple[ContainerRecord, ...]:
    """Containers by name; one that was not created yet has an empty id."""
    states = {
        _word(block["name"]): block
        for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
        for block in status.get(kind) or ()
    }
    ephemeral = (_word(block["name"]) for block in spec.get("ephemeralContainers") or ())
    found = [
        _container(name, states.get(name) or {}, specs.get(name, Wants()), natives.get(name))
        for name in (*specs, *ephemeral)
    ]
    return tuple(sorted(found, key=lambda record: record.name))


def _container(
    name: str, status: Mapping[str, Any], wants: Wants, native: Asked | None
) -> ContainerRecord:
    state = status.get("state") or {}
    if "running" in state:
        now = ContainerState.RUNNING
    elif "terminated" in state:
        now = ContainerState.EXITED
    else:
        now = ContainerState.CREATED
    container_id = status.get("containerID") or ""
    if now is ContainerState.CREATED:
        container_id = ""  # waiting: the id, if any, is the one that ended before
    return ContainerRecord(
        id=_text(container_id).rpartition("://")[2],
        name=name,
        attempt=int(status.get("restartCount") or 0),
        state=now,
        requests=wants.requests,
        limits=wants.limits,
        resources_source=ValueSource.KUBELET,
        native=native,
    )


def _kube_qos(text: Any) -> KubeQos | None:
    try:
        return KubeQos(text)
    except ValueError:
        return None


def _owner(metadata: Mapping[str, Any]) -> str:
    """``Kind/name`` of the controlling owner, else of the first one, else ``""``."""
    owners: Iterable[Any] = metadata.get("ownerReferences") or ()
    ranked = sorted(owners, key=lambda owner: not owner.get("controller"))
    return f"{ranked[0].get('kind')}/{ranked[0].get('name')}" if ranked else ""


def _texts(mapping: Any) -> dict[str, str]:
    if mapping is None:
        return {}
    return {_text(key): _text(value) for key, value in mapping.items()}


def _word(value: Any) -> str:
    """A name or uid. Raises ValueError for anything else: a path or a row is made of it."""
    if not isinstance(value, str) or not value.isprintable() or not value:
        raise ValueError(f"{value!r:.80} is no name")
    return value


def _text(value: Any) -> str:
    """``value`` as text that any file or page takes: half of a surrogate pair is none."""
    return "" if value is None else str(value).encode(errors="replace").decode()
