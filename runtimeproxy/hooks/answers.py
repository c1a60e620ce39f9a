"""What a hook server's answer changes, and what of it must not be (hazard H27). Pure.

A server answers with what it was asked, changed. So a value that is equal to the asked one, and a
value at its default, leave the field alone; nothing is ever removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from koordpb import hooks_v1alpha1_pb2 as pb

from koordlet.protocol.cpuset import CpuSetError, parse_cpuset


class Area(Enum):
    """What part of a request a change is for."""

    RESOURCES = "resources"
    UNIFIED = "unified"
    ANNOTATIONS = "annotations"
    ENVS = "envs"
    LABELS = "labels"
    CGROUP_PARENT = "cgroup_parent"


@dataclass(frozen=True, slots=True)
class Change:
    """One value that a hook server wants. ``key`` is a field of resources, or a map's key."""

    area: Area
    key: str
    value: int | str

    def __str__(self) -> str:
        where = self.area.value if not self.key else f"{self.area.value}[{self.key[:80]}]"
        if self.area is Area.ENVS:  # values of variables are secrets as often as not
            return where
        return f"{where} = {str(self.value)[:200]!r}"


@dataclass(frozen=True, slots=True)
class Judged:
    """An answer taken apart: what may be put in force, and what not, with the reason."""

    accepted: tuple[Change, ...]
    refused: tuple[tuple[Change, str], ...]


_NUMBERS: dict[str, tuple[int, int, str]] = {
    "cpu_period": (1_000, 1_000_000, "1000 to 1000000 us"),
    "cpu_quota": (1_000, 1 << 62, "-1, or at least 1000 us"),
    "cpu_shares": (2, 262_144, "2 to 262144"),
    "memory_limit_in_bytes": (4 << 20, 1 << 62, "at least 4 MiB"),
    "memory_swap_limit_in_bytes": (4 << 20, 1 << 62, "-1, or at least 4 MiB"),
    "oom_score_adj": (-999, 1_000, "-999 to 1000"),
}
_MAY_BE_UNLIMITED = frozenset({"cpu_quota", "memory_swap_limit_in_bytes"})
_UNIFIED_KEY = re.compile(r"[a-z]+(\.[a-z0-9_]+){1,4}")
_UNIFIED_OF_THE_RUNTIME = frozenset({"cgroup", "devices"})
_UNIFIED_VALUE = re.compile(r"[\x20-\x7e\n]{1,4096}")
_ENV_NAME = re.compile(r"[^=\0]{1,512}")
# What kubelet and runtimes keep in annotations for themselves, or read devices out of.
_FOREIGN_ANNOTATIONS = ("io.kubernetes.", "cdi.k8s.io/", "devices.nri.io", "io.containerd.")
_MAX_VALUE_CHARS = 262_144
_PART = re.compile(r"[A-Za-z0-9:_.@-]+")
_TIERS = ("besteffort", "burstable")  # of kubelet, in the directory of guaranteed pods
_POD_DIRECTORY = re.compile(r"pod[0-9a-f_-]{8,}")


def judge_pod(
    asked: pb.PodSandboxHookRequest, answer: pb.PodSandboxHookResponse, kubelet_parent: str
) -> Judged:
    """``kubelet_parent`` is the cgroup parent that kubelet asked for."""
    uid = asked.pod_meta.uid
    wanted = [
        *_map_changes(Area.LABELS, asked.labels, answer.labels),
        *_map_changes(Area.ANNOTATIONS, asked.annotations, answer.annotations),
        *_parent_change(asked.cgroup_parent, answer.cgroup_parent),
    ]
    return _judged(wanted, kubelet_parent, uid)


def judge_container(
    asked: pb.ContainerResourceHookRequest, answer: pb.ContainerResourceHookResponse
) -> Judged:
    resources = answer.container_resources
    wanted = [
        *_map_changes(Area.ANNOTATIONS, asked.container_annotations, answer.container_annotations),
        *_map_changes(Area.ENVS, asked.container_envs, answer.container_envs),
        *_resource_changes(asked.container_resources, resources),
        *_map_changes(Area.UNIFIED, asked.container_resources.unified, resources.unified),
        *_parent_change(asked.pod_cgroup_parent, answer.pod_cgroup_parent),
    ]
    return _judged(wanted, asked.pod_cgroup_parent, asked.pod_meta.uid)


def _map_changes(
    area: Area, asked: Mapping[str, str], answer: Mapping[str, str]
) -> Iterator[Change]:
    for key in sorted(answer):
        if asked.get(key) != answer[key]:
            yield Change(area, key, answer[key])


def _resource_changes(
    asked: pb.LinuxContainerResources, answer: pb.LinuxContainerResources
) -> Iterator[Change]:
    for key in (*_NUMBERS, "cpuset_cpus", "cpuset_mems"):
        value = getattr(answer, key)
        if value and value != getattr(asked, key):
            yield Change(Area.RESOURCES, key, value)


def _parent_change(asked: str, answer: str) -> Iterator[Change]:
    if answer and answer != asked:
        yield Change(Area.CGROUP_PARENT, "", answer)


def _judged(wanted: list[Change], kubelet_parent: str, uid: str) -> Judged:
    verdicts = [(change, _objection(change, kubelet_parent, uid)) for change in wanted]
    return Judged(
        tuple(change for change, why in verdicts if not why),
        tuple((change, why) for change, why in verdicts if why),
    )


def _objection(change: Change, kubelet_parent: str, uid: str) -> str:
    """Why a change must not be made; empty where it may."""
    text = str(change.value)
    match change.area:
        case Area.LABELS:
            return "labels are kubelet's; only annotations, envs and resources may be changed"
        case Area.CGROUP_PARENT:
            return parent_objection(kubelet_parent, text, uid)
        case Area.RESOURCES:
            return _resource_objection(change.key, change.value)
        case Area.UNIFIED:
            return _unified_objection(change.key, text)
        case Area.ENVS:
            return _env_objection(change.key, text)
        case Area.ANNOTATIONS:
            return _annotation_objection(change.key, text)


def _resource_objection(key: str, value: int | str) -> str:
    if isinstance(value, str):
        try:
            return "" if parse_cpuset(value) else "an empty list"
        except CpuSetError as error:
            return str(error)
    low, high, limit = _NUMBERS[key]
    if low <= value <= high or (value == -1 and key in _MAY_BE_UNLIMITED):
        return ""
    return f"limit: {limit}"


def _unified_objection(key: str, value: str) -> str:
    if not _UNIFIED_KEY.fullmatch(key):
        return "not the name of a cgroup v2 file"
    if key.partition(".")[0] in _UNIFIED_OF_THE_RUNTIME:
        return "the runtime's own file"
    return "" if _UNIFIED_VALUE.fullmatch(value) else "limit: 1 to 4096 printable characters"


def _env_objection(name: str, value: str) -> str:
    if not _ENV_NAME.fullmatch(name) or "\0" in value:
        return "no name and value of an environment variable"
    if name == "PATH" or name.startswith("LD_"):
        return "decides what code runs; never changed by a hook server"
    return "" if len(value) <= _MAX_VALUE_CHARS else f"limit: {_MAX_VALUE_CHARS} characters"


def _annotation_objection(key: str, value: str) -> str:
    if not key or key.startswith(_FOREIGN_ANNOTATIONS):
        return "kept by kubelet or the runtime for themselves"
    return "" if len(value) <= _MAX_VALUE_CHARS else f"limit: {_MAX_VALUE_CHARS} characters"


def parent_objection(kubelet_parent: str, wanted: str, uid: str) -> str:
    """Why ``wanted`` is no cgroup parent for a pod that kubelet wants below ``kubelet_parent``.

    It has to lie in the pod's own tier (the parent of kubelet's choice) and not in another pod's
    directory; it is spelled as kubelet spells it: a path, or the name of a slice.
    """
    if not kubelet_parent:
        return "kubelet named no cgroup parent, so the pod has no tier"
    if kubelet_parent.endswith(".slice"):
        return _slice_objection(kubelet_parent, wanted, uid)
    tier = kubelet_parent.rstrip("/").rpartition("/")[0]
    parts = wanted.removeprefix("/").split("/")
    if not wanted.startswith("/") or not all(_plain(part) for part in parts):
        return "no absolute path without empty, '.' or '..' parts"
    if not wanted.startswith(f"{tier}/"):
        return f"outside of the pod's tier {tier or '/'}"
    return _foreign_pod(wanted[len(tier) :], uid)


def _slice_objection(kubelet_parent: str, wanted: str, uid: str) -> str:
    name = wanted.rpartition("/")[2]
    directory = kubelet_parent.rpartition("/")[0]
    if not wanted.endswith(".slice") or not _plain(name) or ".." in wanted:
        return "no name of a slice"
    if wanted.rpartition("/")[0] not in ("", directory):
        return f"outside of {directory or 'the root slice'}"
    own = kubelet_parent.rpartition("/")[2].removesuffix(".slice")
    tier = own.rpartition("-")[0]
    if not name.startswith(f"{tier}-") or "--" in name or name.endswith("-.slice"):
        return f"outside of the pod's tier {tier}.slice"
    return _foreign_pod(name[len(tier) :].removesuffix(".slice").replace("-", "/"), uid)


def _plain(part: str) -> bool:
    return bool(_PART.fullmatch(part)) and part not in (".", "..")


def _foreign_pod(below_tier: str, uid: str) -> str:
    own = {f"pod{uid}", f"pod{uid.replace('-', '_')}"}
    parts = below_tier.strip("/").split("/")
    if parts[0] in _TIERS:
        return f"the tier {parts[0]}, which is not the pod's"
    for part in parts:
        if _POD_DIRECTORY.fullmatch(part) and part not in own:
            return f"the directory of another pod, {part}"
    return ""
