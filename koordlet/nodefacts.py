"""What this node is: topology, size and reservation, from sysfs, the kubelet and our config."""

from __future__ import annotations

from dataclasses import dataclass

from koordlet.config import Config
from koordlet.host.cgroup import Cgroups
from koordlet.host.cpumanager import (
    CpuManagerState,
    against_online,
    read_cpu_manager_state,
)
from koordlet.host.mounts import Roots
from koordlet.host.procfs import meminfo
from koordlet.host.topology import read_topology
from koordlet.ipc import KubeletUpdate
from koordlet.model.readings import Missing
from koordlet.model.topology import CpuManagerPolicy, NodeFacts, Topology
from koordlet.protocol.problem import Problem
from koordlet.units import milli_to_cores

REFRESH_S = 10.0  # CPU hotplug and a kubelet restart are noticed within this time


@dataclass(frozen=True, slots=True)
class Kubelet:
    """The kubelet's part of the facts: its configuration and its CPU manager's state."""

    update: KubeletUpdate | None
    state: CpuManagerState | Missing


class NodeFactsReader:
    """Reads NodeFacts at most every ``REFRESH_S`` seconds; keeps the last ones that were whole."""

    def __init__(self, cgroups: Cgroups, config: Config, roots: Roots) -> None:
        self._cgroups = cgroups
        self._config = config
        self._roots = roots
        self._read_at_s = float("-inf")
        self.facts: NodeFacts | Missing = Missing("not read yet")
        self.kubelet = Kubelet(None, Missing("not read yet"))
        self.problems: tuple[Problem, ...] = ()

    def reconfigure(self, config: Config) -> None:
        """Read again at the next refresh, by ``config``."""
        self._config = config
        self._read_at_s = float("-inf")

    def refresh(self, now_s: float, kubelet: KubeletUpdate | None) -> NodeFacts | Missing:
        """The facts now; re-read when due or when the kubelet's configuration changed."""
        due = now_s - self._read_at_s >= REFRESH_S or kubelet is not self.kubelet.update
        if due:
            self._read_at_s = now_s
            state = read_cpu_manager_state(
                self._cgroups.files, str(self._config.kubelet_state_file)
            )
            self.kubelet = Kubelet(kubelet, state)
            facts = self._read()
            if isinstance(self.facts, Missing) or not isinstance(facts, Missing):
                self.facts = facts
        return self.facts

    def _read(self) -> NodeFacts | Missing:
        files = self._cgroups.files
        topology = read_topology(files, self._roots)
        if isinstance(topology, Missing):
            return topology
        memory = meminfo(files, self._roots)
        if isinstance(memory, Missing):
            return memory
        self._mend_state(topology)
        return node_facts(self._config, topology, memory.total_bytes, self.kubelet)

    def _mend_state(self, topology: Topology) -> None:
        """Drop offline CPUs from the kubelet's state, and its pool where it is stale (CS-13)."""
        state = self.kubelet.state
        self.problems = ()
        if not isinstance(state, Missing):
            update = self.kubelet.update
            reserved = update.reserved_cpus if update else frozenset()
            where = str(self._config.kubelet_state_file)
            mended, self.problems = against_online(state, topology.online, reserved, where)
            self.kubelet = Kubelet(update, mended)


def node_facts(
    config: Config, topology: Topology, memory_bytes: int, kubelet: Kubelet
) -> NodeFacts:
    """Facts from parts that were read. Reserved cores are the largest of the kubelet's
    reservation, the configured one and the number of reserved CPUs (koordlet-wide maximum, not a
    sum: they describe the same CPUs).
    """
    update, state = kubelet.update, kubelet.state
    online = topology.online
    reserved_cpus = config.reserved_cpus | (update.reserved_cpus if update else frozenset())
    reserved_cpus &= online
    reserved = max(
        milli_to_cores(update.reserved_milli) if update else 0.0,
        milli_to_cores(config.system_reserved_cpu_milli),
        float(len(reserved_cpus)),
    )
    policy = update.cpu_manager if update else CpuManagerPolicy.UNKNOWN
    exclusive: frozenset[int] = frozenset()
    if not isinstance(state, Missing):
        policy = state.policy if policy is CpuManagerPolicy.UNKNOWN else policy
        exclusive = state.exclusive_cpus & online
    return NodeFacts(
        name=config.node_name,
        topology=topology,
        capacity_cores=float(len(online)),
        memory_bytes=memory_bytes,
        reserved_cores=min(reserved, float(len(online))),
        reserved_memory_bytes=min(config.system_reserved_memory_bytes, memory_bytes),
        reserved_cpus=reserved_cpus,
        cpu_manager=policy,
        exclusive_cpus=exclusive,
    )
