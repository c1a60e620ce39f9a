"""One look at what another agent left on this node: for the daemon's API, and without a daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from koordlet.adoption.asking import CpuManager
from koordlet.adoption.strays import Stray, find_strays
from koordlet.adoption.survey import Kubelet, Leftover, SpecOf, survey
from koordlet.config import Config
from koordlet.host.cgroup import Cgroups
from koordlet.host.cpumanager import against_online, read_cpu_manager_state
from koordlet.host.mounts import Roots
from koordlet.host.qdiscs import Qdisc, root_qdiscs
from koordlet.host.topology import read_topology
from koordlet.model.actions import Owned
from koordlet.model.knobs import Knob
from koordlet.model.pods import Workloads
from koordlet.model.readings import Missing
from koordlet.model.topology import CpuManagerPolicy
from koordlet.pods.kubeletfacts import KubeletFacts
from koordlet.protocol.problem import Problem, Severity
from koordlet.protocol.qos import KubeQos


@dataclass(frozen=True, slots=True)
class Found:
    """What differs, what is not koordlet's to undo, how many files were compared, and what could
    not be known.
    """

    leftovers: tuple[Leftover, ...] = ()
    strays: tuple[Stray, ...] = ()
    compared: int = 0
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Witnesses:
    """Who is asked beside the cgroups: the kubelet's configuration (None: no kubelet was found),
    the runtime, and the kernel's network.
    """

    kubelet: KubeletFacts | None
    spec_of: SpecOf
    qdiscs: Callable[[], tuple[Qdisc, ...] | Missing] = root_qdiscs


def find_leftovers(
    config: Config,
    cgroups: Cgroups,
    workloads: Workloads | Missing,
    owned: Iterable[Owned],
    witnesses: Witnesses,
) -> Found:
    """Compare and tell; reads only."""
    if isinstance(workloads, Missing):
        return Found(problems=(_blind("workloads", workloads),))
    if isinstance(workloads.pods, Missing):
        return Found(problems=(_blind("pods", workloads.pods),))
    found = survey(
        cgroups,
        workloads,
        {row.key: row for row in owned},
        _kubelet(config, cgroups, witnesses.kubelet),
        witnesses.spec_of,
    )
    strays = find_strays(cgroups, config.roots, found.paths, witnesses.qdiscs)
    return Found(found.leftovers, strays, found.compared, _unknown_requests(workloads))


def find_on_tiers(
    config: Config, cgroups: Cgroups, workloads: Workloads | Missing, owned: Iterable[Owned]
) -> tuple[str, ...]:
    """Files of kubepods and its tiers alone: cheap, asks nobody, and an agent that limited batch
    work shows there. Weights are left out: those are sums over pods.
    """
    if isinstance(workloads, Missing) or isinstance(workloads.layout, Missing):
        return ()
    layout = workloads.layout
    below = {layout.kubepods: (layout.burstable, layout.besteffort)}
    found = survey(
        cgroups,
        replace(workloads, pods=(), apps=()),
        {row.key: row for row in owned},
        _kubelet(config, cgroups, None),
        lambda container_id: Missing("not asked"),
        lambda path: below.get(path, ()),
    )
    known = (each for each in found.leftovers if not isinstance(each.original, Missing))
    return tuple(each.file for each in known if each.knob is not Knob.CPU_SHARES)


def _kubelet(config: Config, cgroups: Cgroups, facts: KubeletFacts | None) -> Kubelet:
    manager = _cpu_manager(config, cgroups, config.roots, facts)
    if facts is None:
        return Kubelet(cpu_manager=manager)
    return Kubelet(
        is_found=True,
        cpu_manager=manager,
        cfs_quota=facts.cfs_quota,
        memory_qos=facts.memory_qos,
    )


def _cpu_manager(
    config: Config, cgroups: Cgroups, roots: Roots, facts: KubeletFacts | None
) -> CpuManager:
    """The policy by the kubelet's configuration, else by its state file; CPUs by the latter."""
    policy = CpuManagerPolicy.UNKNOWN if facts is None else facts.cpu_manager
    state = read_cpu_manager_state(cgroups.files, str(config.kubelet_state_file))
    if isinstance(state, Missing):
        return CpuManager(policy)
    topology = read_topology(cgroups.files, roots)
    if not isinstance(topology, Missing):
        reserved = frozenset() if facts is None else facts.reserved_cpus
        where = str(config.kubelet_state_file)
        state, _ = against_online(state, topology.online, reserved, where)
    if policy is CpuManagerPolicy.UNKNOWN:
        policy = state.policy
    return CpuManager(policy, state.default_cpus, state.exclusive)


def _unknown_requests(workloads: Workloads) -> tuple[Problem, ...]:
    """Pods whose files hold the kernel's default say nothing while their requests are unknown."""
    untold = [
        pod
        for pod in workloads.known_pods()
        if pod.record.native is None
        and pod.kube_qos is not KubeQos.BEST_EFFORT
        and not isinstance(pod.cgroup, Missing)
    ]
    if not untold:
        return ()
    return (
        Problem(
            "adopt-incomplete",
            f"{len(untold)} pods, e.g. {untold[0].full_name}",
            "no kubelet has told what they ask for, or a resize is under way: their own values are"
            " not known",
            remedy="let koordlet reach the kubelet's pod list; koordletctl doctor shows the source",
            severity=Severity.WARNING,
        ),
    )


def _blind(where: str, why: Missing) -> Problem:
    what = f"not known, so nothing was compared: {why.why}"
    remedy = "koordletctl doctor shows which source does not answer"
    return Problem("adopt-blind", where, what, remedy=remedy)
