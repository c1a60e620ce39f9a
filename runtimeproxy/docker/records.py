"""Docker's containers as CRI's records: what kubelet and cri-dockerd put into names and labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordpb import cri_v1_pb2 as pb

from runtimeproxy.cri.records import Container, Sandbox

TYPE_LABEL = "io.kubernetes.docker.type"
SANDBOX_LABEL = "io.kubernetes.sandbox.id"
ANNOTATION = "annotation."
_NAME_PARTS = (6, 7)  # the seventh is added where a name was taken
_NUMBERS = {
    "CpuPeriod": "cpu_period",
    "CpuQuota": "cpu_quota",
    "CpuShares": "cpu_shares",
    "Memory": "memory_limit_in_bytes",
    "MemorySwap": "memory_swap_limit_in_bytes",
    "OomScoreAdj": "oom_score_adj",
}
_TEXTS = {"CpusetCpus": "cpuset_cpus", "CpusetMems": "cpuset_mems"}
_INT64 = range(-(1 << 63), 1 << 63)


def kind(document: Mapping[str, Any]) -> str:
    """``podsandbox``, ``container``, or empty for what is not kubelet's."""
    found = _strings(document.get("Labels")).get(TYPE_LABEL, "")
    return found if found in ("podsandbox", "container") else ""


def pod_request(name: str, document: Mapping[str, Any]) -> pb.RunPodSandboxRequest | None:
    """The CRI request that a create of a sandbox stands for; None where the name says no pod."""
    parts = _name(name)
    if parts is None:
        return None
    labels, annotations = split_labels(document)
    config = pb.PodSandboxConfig(
        metadata=_pod_metadata(parts), labels=labels, annotations=annotations
    )
    config.linux.cgroup_parent = _text(_host_config(document).get("CgroupParent"))
    return pb.RunPodSandboxRequest(config=config)


def container_request(name: str, document: Mapping[str, Any]) -> pb.CreateContainerRequest | None:
    """The CRI request that a create of a container stands for."""
    parts = _name(name)
    if parts is None:
        return None
    labels, annotations = split_labels(document)
    host = _host_config(document)
    config = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name=parts[1], attempt=_attempt(parts[5])),
        labels=labels,
        annotations=annotations,
        envs=envs(document.get("Env")),
    )
    config.linux.resources.CopyFrom(resources(host))
    sandbox = pb.PodSandboxConfig(metadata=_pod_metadata(parts))
    sandbox.linux.cgroup_parent = _text(host.get("CgroupParent"))
    sandbox_id = _strings(document.get("Labels")).get(SANDBOX_LABEL, "")
    return pb.CreateContainerRequest(
        pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox
    )


def inspected(document: Mapping[str, Any]) -> Sandbox | Container | None:
    """The record of a container that dockerd tells of; None for what is not kubelet's."""
    id_, name = _text(document.get("Id")), _text(document.get("Name")).lstrip("/")
    config = _mapping(document.get("Config"))
    asked = {**config, "HostConfig": document.get("HostConfig")}
    if kind(asked) == "podsandbox":
        pod = pod_request(name, asked)
        return None if pod is None else Sandbox(id_, pod.config, "")
    if kind(asked) == "container":
        found = container_request(name, asked)
        return None if found is None else Container(id_, found.pod_sandbox_id, found.config)
    return None


def split_labels(document: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Labels, and annotations, which Docker does not have: they are labels with a prefix."""
    given = _strings(document.get("Labels"))
    labels = {key: value for key, value in given.items() if not key.startswith(ANNOTATION)}
    annotations = {
        key.removeprefix(ANNOTATION): value
        for key, value in given.items()
        if key.startswith(ANNOTATION)
    }
    return labels, annotations


def envs(given: object) -> list[pb.KeyValue]:
    lines = [each for each in given if isinstance(each, str)] if isinstance(given, list) else []
    pairs = (line.partition("=") for line in lines)
    return [
        pb.KeyValue(key=key, value=value.encode("utf-8", "surrogatepass"))
        for key, equals, value in pairs
        if equals
    ]


def resources(given: Mapping[str, Any]) -> pb.LinuxContainerResources:
    """Of a HostConfig, or of the body of an update."""
    found = pb.LinuxContainerResources()
    for key, name in _NUMBERS.items():
        value = given.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value in _INT64:
            setattr(found, name, value)
    for key, name in _TEXTS.items():
        setattr(found, name, _text(given.get(key)))
    return found


# -- and back -------------------------------------------------------------------------------------


def put_pod(document: dict[str, Any], config: pb.PodSandboxConfig) -> None:
    """What was changed in the CRI request goes into the document."""
    _put_annotations(document, config.annotations)
    if config.linux.cgroup_parent:
        _own_host_config(document)["CgroupParent"] = config.linux.cgroup_parent


def put_container(document: dict[str, Any], request: pb.CreateContainerRequest) -> None:
    config = request.config
    _put_annotations(document, config.annotations)
    host = _own_host_config(document)
    put_resources(host, config.linux.resources)
    if request.sandbox_config.linux.cgroup_parent:
        host["CgroupParent"] = request.sandbox_config.linux.cgroup_parent
    _put_envs(document, config)


def put_resources(target: dict[str, Any], changed: pb.LinuxContainerResources) -> None:
    for key, name in (*_NUMBERS.items(), *_TEXTS.items()):
        value = getattr(changed, name)
        if value:
            target[key] = value


def _put_annotations(document: dict[str, Any], annotations: Mapping[str, str]) -> None:
    labels = dict(_mapping(document.get("Labels")))
    labels.update({f"{ANNOTATION}{key}": value for key, value in annotations.items()})
    if labels:
        document["Labels"] = labels


def _put_envs(document: dict[str, Any], config: pb.ContainerConfig) -> None:
    """Lines without a value (Docker unsets such a variable) stay where they are."""
    given = document.get("Env")
    lines = list(given) if isinstance(given, list) else []
    wanted = [f"{one.key}={one.value.decode('utf-8', 'surrogatepass')}" for one in config.envs]
    places = [n for n, line in enumerate(lines) if isinstance(line, str) and "=" in line]
    for place, line in zip(places, wanted, strict=False):
        lines[place] = line
    lines += wanted[len(places) :]
    if lines:
        document["Env"] = lines


def _own_host_config(document: dict[str, Any]) -> dict[str, Any]:
    host = dict(_mapping(document.get("HostConfig")))
    document["HostConfig"] = host
    return host


def _host_config(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(document.get("HostConfig"))


def _name(name: str) -> list[str] | None:
    parts = name.split("_")
    return parts if len(parts) in _NAME_PARTS and parts[0] == "k8s" else None


def _pod_metadata(parts: list[str]) -> pb.PodSandboxMetadata:
    return pb.PodSandboxMetadata(
        name=parts[2], namespace=parts[3], uid=parts[4], attempt=_attempt(parts[5])
    )


def _attempt(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _strings(value: object) -> dict[str, str]:
    return {key: text for key, text in _mapping(value).items() if isinstance(text, str)}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
