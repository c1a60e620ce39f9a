"""A fake node as a kubelet makes it, and as Koordinator's agent leaves it.

    node = ManagedNode(pipe)        # pods, tiers and values by the kubelet's formulas
    node.photo                      # the node before any agent
    node.manage()                   # suppressed, bursting, pinned, shrunken: as the agent left it
    node.found()                    # what koordlet finds

One BestEffort pod ``batch``, one Burstable ``web``, one Guaranteed ``db`` with CPUs of its own by
the scheduler's resource-status. Eight CPUs.
"""

from __future__ import annotations

from dataclasses import replace

from koordlet.adoption.kubelet import (
    WeightFormula,
    milli_to_quota_us,
    milli_to_shares,
    weight_of,
)
from koordlet.host.qdiscs import Qdisc
from koordlet.leftovers import Found, Witnesses, find_leftovers
from koordlet.model.adoption import RuntimeSpec
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import Asked, Resources
from koordlet.model.readings import Missing
from koordlet.model.topology import CpuManagerPolicy
from koordlet.pods.kubeletfacts import KubeletFacts
from koordlet.protocol.qos import Qos
from tests.support.pipeline import BURSTABLE, TIER, FakePod, Photo, Pipeline

GIB = 1 << 30
WEB = Asked(Resources(1_000, GIB), Resources(2_000, 2 * GIB))
DB = Asked(Resources(2_000, 4 * GIB), Resources(2_000, 4 * GIB))
NOTHING = Asked()
FACTS = KubeletFacts(pid=1, config_file="/var/lib/kubelet/config.yaml")


class ManagedNode:
    """The node on ``pipe``. ``specs`` are what the runtime keeps, by container id; ``facts`` what
    the kubelet was told.
    """

    def __init__(self, pipe: Pipeline, formula: WeightFormula = WeightFormula.LINEAR) -> None:
        self.pipe = pipe
        self.host = pipe.host
        self.is_v2 = "cpu" not in pipe.host.hierarchies.v1
        self.specs: dict[str, RuntimeSpec | Missing] = {}
        self.facts: KubeletFacts | None = FACTS
        self.qdiscs: tuple[Qdisc, ...] = ()
        self._formula = formula
        self.batch = self._pod("batch", Qos.BE, NOTHING)
        self.web = self._pod("web", Qos.LS, WEB)
        self.db = self._pod("db", Qos.LSR, DB, cpuset="6-7")
        self._set_shares(BURSTABLE, milli_to_shares(WEB.requests.cpu_milli))
        self._set_shares(TIER, 2)
        pipe.tell_pods()
        self.photo: Photo = pipe.photo()

    def _pod(self, name: str, qos: Qos, asked: Asked, cpuset: str = "") -> FakePod:
        pod = self.pipe.add_pod(name, qos, cpuset=cpuset, told=False)
        containers = tuple(replace(each, native=asked) for each in pod.record.containers)
        record = replace(pod.record, native=asked, containers=containers)
        pod = self.pipe.told.pods[name] = FakePod(record, pod.cgroup)
        shares = milli_to_shares(asked.requests.cpu_milli)
        quota_us = milli_to_quota_us(asked.limits.cpu_milli, 100_000)
        for path in (pod.cgroup, pod.container()):
            self._set_shares(path, shares)
            self.set_quota(path, quota_us)
            self._set_memory(path, asked.limits.memory_bytes)
        self.specs[record.containers[0].id] = RuntimeSpec(
            shares=shares, quota_us=quota_us, memory_bytes=asked.limits.memory_bytes
        )
        return pod

    def manage(self) -> None:
        """As the agent leaves it: the tier suppressed and shrunken, batch-cpu and batch-memory in
        force, web scaled and bursting, db pinned.
        """
        for path in (self.batch.container(), self.batch.cgroup):
            self._set_shares(path, 512)
            self.set_quota(path, 50_000)
            self._set_memory(path, GIB)
        self.set_quota(TIER, 120_000)
        for path in (self.batch.container(), self.batch.cgroup, TIER):
            self.set("cpuset.cpus", path, "0-2")
        self._rescale_web()
        self._pin_db()
        self._weigh_groups()

    def _rescale_web(self) -> None:
        for path in (self.web.cgroup, self.web.container()):
            self.set_quota(path, 240_000)
            self.set_burst(path, 200_000)
            if self.is_v2:
                self.set("memory.min", path, str(GIB // 2))

    def _pin_db(self) -> None:
        """Through the runtime, as the agent's hooks do."""
        for path in (self.db.cgroup, self.db.container()):
            self.set_quota(path, None)
        self.set("cpuset.cpus", self.db.container(), "6-7")
        spec = self.specs[self.db.record.containers[0].id]
        assert isinstance(spec, RuntimeSpec)
        self.specs[self.db.record.containers[0].id] = replace(spec, quota_us=None, cpus="6-7")

    def _weigh_groups(self) -> None:
        for path, level in ((TIER, "-1"), (BURSTABLE, "2")):
            self.set("cpu.bvt_warp_ns", path, level)

    # -- the node's files -------------------------------------------------------------------------

    def set(self, file: str, path: str, text: str) -> None:
        self.host.set_text(path, file, text)

    def set_quota(self, path: str, quota_us: int | None) -> None:
        if self.is_v2:
            self.set("cpu.max", path, f"{'max' if quota_us is None else quota_us} 100000")
        else:
            self.set("cpu.cfs_quota_us", path, str(-1 if quota_us is None else quota_us))

    def set_burst(self, path: str, burst_us: int) -> None:
        self.set("cpu.max.burst" if self.is_v2 else "cpu.cfs_burst_us", path, str(burst_us))

    def _set_shares(self, path: str, shares: int) -> None:
        if self.is_v2:
            self.set("cpu.weight", path, str(weight_of(shares, self._formula)))
        else:
            self.set("cpu.shares", path, str(shares))

    def _set_memory(self, path: str, limit_bytes: int | None) -> None:
        if limit_bytes is None:
            text = "max" if self.is_v2 else "9223372036854771712"
        else:
            text = str(limit_bytes)
        self.set("memory.max" if self.is_v2 else "memory.limit_in_bytes", path, text)

    # -- what is found ----------------------------------------------------------------------------

    def found(self) -> Found:
        """A look now."""
        view = self.pipe.view()
        return find_leftovers(
            self.pipe.config,
            self.host.cgroups(),
            view.workloads,
            view.owned,
            Witnesses(self.facts, self._spec_of, lambda: self.qdiscs),
        )

    def _spec_of(self, container_id: str) -> RuntimeSpec | Missing:
        return self.specs.get(container_id, Missing("not asked"))

    def originals(self) -> dict[tuple[CgroupPath, Knob], str | Missing]:
        """What is found, as the originals by target."""
        return {leftover.key: leftover.original for leftover in self.found().leftovers}


STATIC = replace(FACTS, cpu_manager=CpuManagerPolicy.STATIC)
