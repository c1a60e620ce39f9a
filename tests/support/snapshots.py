"""Builds snapshots for decisions, and carries a plan out on them as a perfect executor would."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from koordlet.model.actions import Mode, Owned, Plan, SetValue, Target
from koordlet.model.capabilities import Capabilities, Capability, Proof
from koordlet.model.knobs import Knob, Value
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import (
    AppBackend,
    CgroupDriver,
    Container,
    ContainerRecord,
    ContainerState,
    HostApp,
    KubeLayout,
    Pod,
    PodRecord,
    Workloads,
    be_roots,
)
from koordlet.model.readings import Missing
from koordlet.model.topology import Cpu, NodeFacts, Topology
from koordlet.protocol.cpuset import format_cpuset, parse_cpuset
from koordlet.protocol.names import ANNOTATION_RESOURCE_STATUS
from koordlet.protocol.nodeslo import (
    CpuSuppressPolicy,
    KoordletExtensions,
    NodeSlo,
    ResourceUsedThreshold,
)
from koordlet.protocol.nodeslo_qos import ClassQos, CpuQos, ResourceQosStrategy
from koordlet.protocol.qos import KubeQos, PriorityClass, Qos, QosSource, ValueSource
from koordlet.qosmanager.arbiter import arbitrate
from koordlet.qosmanager.guard import guard
from koordlet.qosmanager.registry import HOLD_MAX_S, Memory, Proposals, decide_all
from koordlet.snapshot import CpuUse, RootDemand, Snapshot

LAYOUT = KubeLayout(
    CgroupDriver.CGROUPFS,
    CgroupPath("kubepods"),
    CgroupPath("kubepods/burstable"),
    CgroupPath("kubepods/besteffort"),
)
TIER = LAYOUT.besteffort
_USABLE = (Knob.CPU_SHARES, Knob.CPU_IDLE, Knob.CPU_QUOTA, Knob.CPUSET_CPUS)


def topology(cpus: int, threads: int = 1, nodes: int = 1) -> Topology:
    """``cpus`` CPUs, ``threads`` to a core (siblings are neighbours), spread over NUMA nodes."""
    per_node = max(cpus // nodes, 1)
    return Topology(
        tuple(
            Cpu(
                n,
                core=n // threads,
                socket=min(n // per_node, nodes - 1),
                numa=min(n // per_node, nodes - 1),
                l3=min(n // per_node, nodes - 1),
            )
            for n in range(cpus)
        )
    )


def node(cpus: int = 8, threads: int = 1, nodes: int = 1) -> NodeFacts:
    return NodeFacts("node", topology(cpus, threads, nodes), float(cpus), 16 << 30)


def slo(
    policy: CpuSuppressPolicy | None = None,
    *,
    threshold_percent: int = 65,
    min_percent: int | None = None,
    priority: bool = False,
    idle: int = 0,
    lsr_exclusive: bool = False,
) -> NodeSlo:
    """A NodeSLO with suppression by ``policy`` (None: off) and BE priority as told."""
    be = ClassQos(cpu_qos=CpuQos(enable=priority, sched_idle=idle))
    return NodeSlo(
        threshold=ResourceUsedThreshold(
            enable=policy is not None,
            cpu_suppress_threshold_percent=threshold_percent,
            cpu_suppress_min_percent=min_percent,
            cpu_suppress_policy=policy or CpuSuppressPolicy.CPUSET,
        ),
        qos=ResourceQosStrategy(be=be),
        extensions=KoordletExtensions(lsr_exclusive=lsr_exclusive),
    )


def pod(
    name: str,
    qos: Qos = Qos.BE,
    containers: Sequence[str] = ("main",),
    *,
    marked: bool = True,
    cpuset: str = "",
    refused: str = "",
    state: ContainerState = ContainerState.RUNNING,
) -> Pod:
    """A pod in the tier of its class; its containers' ids are ``NAME-CONTAINER``."""
    kube = {Qos.BE: KubeQos.BEST_EFFORT, Qos.LS: KubeQos.BURSTABLE}.get(qos, KubeQos.GUARANTEED)
    parent = {
        KubeQos.BEST_EFFORT: LAYOUT.besteffort,
        KubeQos.BURSTABLE: LAYOUT.burstable,
        KubeQos.GUARANTEED: LAYOUT.kubepods,
    }[kube]
    cgroup = parent.child(f"pod{name}")
    records = tuple(ContainerRecord(f"{name}-{c}", c, 0, state) for c in containers)
    status = {ANNOTATION_RESOURCE_STATUS: json.dumps({"cpuset": cpuset})} if cpuset else {}
    return Pod(
        record=PodRecord(name, name, "default", name, annotations=status, containers=records),
        cgroup=cgroup,
        kube_qos=kube,
        qos=qos,
        qos_source=QosSource.LABEL if marked else QosSource.KUBE_DEFAULT,
        marked=marked,
        refused=refused,
        priority=None,
        priority_class=PriorityClass.NONE,
        priority_source=ValueSource.UNKNOWN,
        containers=tuple(Container(record, cgroup.child(record.id)) for record in records),
    )


def app(
    name: str,
    qos: Qos = Qos.BE,
    *,
    cgroup: str = "",
    backend: AppBackend = AppBackend.FILE,
    unwritable: str = "",
) -> HostApp:
    path = cgroup or f"host-{'best-effort' if qos is Qos.BE else 'latency-sensitive'}/{name}"
    return HostApp(
        name,
        qos,
        None,
        PriorityClass.NONE,
        CgroupPath(path),
        backend,
        declared_in="test.yaml",
        unwritable=unwritable,
    )


def unit(name: str, unwritable: str = "") -> HostApp:
    """A BE application that is a systemd unit."""
    cgroup = f"system.slice/{name}.service"
    return app(name, cgroup=cgroup, backend=AppBackend.SYSTEMD_UNIT, unwritable=unwritable)


def use(
    pods: float = 0.0,
    apps: float = 0.0,
    system: float = 0.0,
    be: Mapping[str, float] | None = None,
    window_s: float = 1.0,
) -> CpuUse:
    """Use in cores: non-BE pods, non-BE applications, the system, and each BE root."""
    roots = {CgroupPath(path): cores for path, cores in (be or {}).items()}
    return CpuUse(window_s, pods + apps + system + sum(roots.values()), pods, apps, system, roots)


def capabilities(version: int = 2, unusable: Iterable[Knob] = ()) -> Capabilities:
    absent = frozenset(unusable)
    return Capabilities(
        {"cpu": version, "cpuset": version},
        {
            knob: Capability(
                knob.value, Proof.ABSENT if knob in absent else Proof.PROVEN, "no such file"
            )
            for knob in _USABLE
        },
    )


@dataclass(slots=True)
class Bench:
    """A node of the test's making. Values that a test does not name are a fresh kernel's."""

    node: NodeFacts = field(default_factory=node)
    version: int = 2
    slo: NodeSlo | Missing = field(default_factory=slo)
    pods: tuple[Pod, ...] | Missing = ()
    apps: tuple[HostApp, ...] = ()
    nested: tuple[str, ...] = ()
    cpu: CpuUse | Missing = field(default_factory=use)
    cpu_surge: CpuUse | Missing = field(default_factory=lambda: Missing("no surge in this test"))
    demand: Mapping[str, RootDemand] = field(default_factory=dict)
    values: Mapping[tuple[str, Knob], Value | Missing] = field(default_factory=dict)
    unusable: tuple[Knob, ...] = ()
    modes: Mapping[str, Mode] = field(default_factory=dict)
    now_s: float = 1000.0

    def snapshot(self) -> Snapshot:
        workloads = Workloads(self.pods, 0.0, self.apps, LAYOUT)
        roots = be_roots(workloads)
        dirs = self._dirs(workloads)
        tree: dict[CgroupPath, tuple[CgroupPath, ...]] = {}
        for path in sorted(p for p in dirs if any(p.is_at_or_below(r.path) for r in roots)):
            tree[path] = ()
            if path.parent in tree:
                tree[path.parent] = (*tree[path.parent], path)
        values = {k: v for path in dirs for k, v in self._fresh(path).items()}
        named = {(CgroupPath(path), knob): v for (path, knob), v in self.values.items()}
        return Snapshot(
            now_s=self.now_s,
            tick=1,
            node=self.node,
            workloads=workloads,
            be_roots=roots,
            be_tree=tree,
            cpu=self.cpu,
            cpu_surge=self.cpu_surge,
            be_demand={CgroupPath(path): demand for path, demand in self.demand.items()},
            values=values | named,
            owned={},
            capabilities=capabilities(self.version, self.unusable),
            slo=self.slo,
            modes=self.modes,
        )

    def _dirs(self, workloads: Workloads) -> set[CgroupPath]:
        dirs = {LAYOUT.kubepods, LAYOUT.burstable, LAYOUT.besteffort}
        dirs |= {CgroupPath(path) for path in self.nested}
        for one in workloads.known_pods():
            paths = (one.cgroup, *(c.cgroup for c in one.containers))
            dirs |= {path for path in paths if not isinstance(path, Missing)}
        return dirs | {a.cgroup for a in self.apps if not isinstance(a.cgroup, Missing)}

    def _fresh(self, path: CgroupPath) -> dict[Target, Value | Missing]:
        wide = self.node.topology.online if self.version == 1 else frozenset[int]()
        return {
            (path, Knob.CPU_SHARES): 1024,
            (path, Knob.CPU_IDLE): 0,
            (path, Knob.CPU_QUOTA): None,
            (path, Knob.CPU_PERIOD): 100_000,
            (path, Knob.CPUSET_CPUS): wide,
        }


@dataclass(frozen=True, slots=True)
class Tick:
    """One decided tick."""

    snapshot: Snapshot
    proposals: Proposals
    plan: Plan

    def value(self, path: str, knob: Knob) -> Value | str:
        """The planned value of one file; ``"no write"`` where the plan has none."""
        wanted = (CgroupPath(path), knob)
        return next((w.value for w in self.plan.writes if w.key == wanted), "no write")

    def write(self, path: str, knob: Knob) -> SetValue:
        return next(w for w in self.plan.writes if w.key == (CgroupPath(path), knob))

    def codes(self) -> set[str]:
        return {problem.code for problem in self.proposals.problems}

    def after(self, *, seconds: float = 1.0, **changes: Any) -> Snapshot:
        """The next snapshot: the plan carried out, ``seconds`` later, and ``changes`` made."""
        done = carry_out(self.snapshot, self.plan)
        return replace(done, now_s=done.now_s + seconds, tick=done.tick + 1, **changes)


def decide(
    snapshot: Snapshot, memory: Memory | None = None, hold_max_s: float = HOLD_MAX_S
) -> Tick:
    """Strategies, arbiter and guard on one snapshot."""
    proposals = decide_all(snapshot, memory or Memory(), hold_max_s)
    return Tick(snapshot, proposals, guard(arbitrate(proposals, snapshot), snapshot))


def carry_out(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The snapshot after every write and restore of ``plan`` succeeded."""
    values, owned = dict(snapshot.values), dict(snapshot.owned)
    for restore in plan.restores:
        values[restore.key] = parse(restore.knob, owned.pop(restore.key).original)
    for write in plan.writes:
        row = owned.get(write.key)
        owned[write.key] = Owned(
            write.target,
            write.knob,
            write.owner,
            write.channel,
            original=row.original if row else text(write.knob, snapshot.value(write.key)),
            last_written=text(write.knob, write.value),
            since_s=row.since_s if row else snapshot.now_s,
            container_id=write.container_id,
        )
        values[write.key] = write.value
    return replace(snapshot, values=values, owned=owned, foreign_resets=frozenset())


def reset(snapshot: Snapshot, path: str, knob: Knob) -> Snapshot:
    """Somebody put the original of one file back."""
    key = (CgroupPath(path), knob)
    original = parse(knob, snapshot.owned[key].original)
    return replace(
        snapshot,
        values={**snapshot.values, key: original},
        foreign_resets=snapshot.foreign_resets | {key},
    )


def text(knob: Knob, value: Value | Missing) -> str:
    """A value as a journal row holds it."""
    if isinstance(value, frozenset):
        return format_cpuset(value)
    if value is None:
        return "-1"
    return str(value)


def parse(knob: Knob, written: str) -> Value:
    if knob is Knob.CPUSET_CPUS:
        return parse_cpuset(written)
    return None if written == "-1" else int(written)
