"""The kubelet's CPU manager state: which CPUs its static policy gave to containers for good."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from koordlet.host.tree import Files
from koordlet.model.readings import Missing
from koordlet.model.topology import CpuManagerPolicy
from koordlet.protocol.cpuset import format_cpuset, parse_cpuset
from koordlet.protocol.problem import Problem, Severity


@dataclass(frozen=True, slots=True)
class CpuManagerState:
    """``default_cpus`` is the pool of all containers without CPUs of their own; ``exclusive`` is by
    (pod uid, container name), by ("", container id) in files of kubelets before 1.17.
    """

    policy: CpuManagerPolicy
    default_cpus: frozenset[int]
    exclusive: Mapping[tuple[str, str], frozenset[int]] = field(default_factory=dict)

    @property
    def exclusive_cpus(self) -> frozenset[int]:
        """All CPUs that belong to one container."""
        return frozenset().union(*self.exclusive.values())


def read_cpu_manager_state(files: Files, path: str) -> CpuManagerState | Missing:
    """The kubelet's ``cpu_manager_state``; Missing where it is absent or not in its form."""
    text = files.read(path)
    if isinstance(text, Missing):
        return text
    try:
        return parse_cpu_manager_state(text)
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        return Missing(f"{path}: not a CPU manager state: {error}")


def parse_cpu_manager_state(text: bytes) -> CpuManagerState:
    """Raises ValueError, AttributeError or TypeError for text in another form."""
    document = json.loads(text)
    name = document["policyName"] if "policyName" in document else document.get("policy", "")
    exclusive: dict[tuple[str, str], frozenset[int]] = {}
    for outer, inner in (document.get("entries") or {}).items():
        if isinstance(inner, str):
            exclusive["", outer] = parse_cpuset(inner)
            continue
        for container, cpus in inner.items():
            exclusive[outer, container] = parse_cpuset(cpus)
    known = {policy.value: policy for policy in CpuManagerPolicy}
    return CpuManagerState(
        known.get(name, CpuManagerPolicy.UNKNOWN),
        parse_cpuset(document.get("defaultCpuSet") or document.get("defaultCPUSet") or ""),
        exclusive,
    )


def against_online(
    state: CpuManagerState, online: frozenset[int], reserved: frozenset[int], where: str
) -> tuple[CpuManagerState, tuple[Problem, ...]]:
    """The state without offline CPUs, its pool mended where it is stale (case CS-13).

    Under the static policy the pool is what is online and not exclusive, less the reserved CPUs
    under strict reservation. A file saved before the number of CPUs changed says something else.
    """
    exclusive = {key: cpus & online for key, cpus in state.exclusive.items()}
    trimmed = replace(state, default_cpus=state.default_cpus & online, exclusive=exclusive)
    pool = online - trimmed.exclusive_cpus
    if state.policy is not CpuManagerPolicy.STATIC or state.default_cpus in (pool, pool - reserved):
        return trimmed, ()
    problem = Problem(
        code="cpu-manager-state-stale",
        where=where,
        what=f"the shared pool is {format_cpuset(state.default_cpus)!r},"
        f" but {format_cpuset(pool)!r} is online and not exclusive; the latter is used",
        remedy="drain the node, remove the file and restart the kubelet",
        severity=Severity.WARNING,
    )
    return replace(trimmed, default_cpus=pool), (problem,)
