"""Hard limits that no plan crosses, whatever a strategy wants. The last word before the executor.

A struck value of ours that is in the kernel already stays there (the row is held) where only the
new value was wrong, and is restored where koordlet has no business in that place at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from koordlet.model.actions import Hold, Plan, Restore, SetValue, Struck
from koordlet.model.knobs import Knob, Value
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.protocol.cpuset import format_cpuset
from koordlet.qosmanager.scope import covering, tiers, unwritable_cgroups
from koordlet.snapshot import Snapshot
from koordlet.units import MIB, QUOTA_MIN_US

MEMORY_MARGIN_BYTES = 64 * MIB
MEMORY_MARGIN_RATIO = 0.05
"""A memory limit stays above use by the larger of the two (hazard H3)."""

_MEMORY_LIMITS = frozenset({Knob.MEMORY_LIMIT, Knob.MEMORY_SWAP_LIMIT})


def guard(plan: Plan, snapshot: Snapshot) -> Plan:
    """The plan without the actions that cross a hard limit; each with the reason in ``struck``."""
    ground, limits = Ground.of(snapshot), Limits.of(snapshot)
    writes: list[SetValue] = []
    struck: list[Struck] = []
    holds: list[Hold] = []
    restores: list[Restore] = []
    for action in plan.writes:
        place, value = ground.objection(action), limits.objection(action)
        if not place and not value:
            writes.append(action)
            continue
        struck.append(Struck(action, place or value))
        row = snapshot.owned.get(action.key)
        if row is None or row.side_effect:
            continue
        if place:
            why = f"struck by the guard: {place}"
            where = (row.target, row.knob, row.owner, why, row.channel, row.container_id)
            restores.append(Restore(*where))
        else:
            holds.append(Hold(row.target, row.knob, row.owner, f"struck by the guard: {value}"))
    return replace(
        plan,
        writes=tuple(writes),
        struck=(*plan.struck, *struck),
        holds=(*plan.holds, *holds),
        restores=(*plan.restores, *restores),
    )


@dataclass(frozen=True, slots=True)
class Ground:
    """Where koordlet may write in this tick."""

    governed: frozenset[CgroupPath]
    kubelets: frozenset[CgroupPath]
    kubepods: CgroupPath | None
    pod_dirs: frozenset[CgroupPath]
    app_dirs: frozenset[CgroupPath]
    unwritable: dict[CgroupPath, str]
    unseen: frozenset[CgroupPath]

    @classmethod
    def of(cls, snapshot: Snapshot) -> Ground:
        """Writable BE roots, marked pods and declared applications; and, while the list of pods
        is unknown, whatever the journal says that we may already write.
        """
        workloads = snapshot.workloads
        pods = workloads.known_pods()
        apps = _paths(app.cgroup for app in workloads.apps if not app.unwritable)
        marked = _paths(pod.cgroup for pod in pods if pod.marked)
        roots = _paths(root.path for root in snapshot.be_roots if root.writable)
        unseen = {key[0] for key in snapshot.owned} if isinstance(workloads.pods, Missing) else ()
        layout = workloads.layout
        return cls(
            governed=roots | marked | apps,
            kubelets=tiers(layout),
            kubepods=None if isinstance(layout, Missing) else layout.kubepods,
            pod_dirs=_paths(pod.cgroup for pod in pods),
            app_dirs=apps,
            unwritable=unwritable_cgroups(workloads),
            unseen=frozenset(unseen),
        )

    def objection(self, action: SetValue) -> str:
        """Why nothing of this kind may be written at this place, or ``""``."""
        path = action.target
        place = covering(path, self.unwritable) if self.unwritable else None
        if place is not None:
            return f"unsupported: {self.unwritable[place]}"
        if not path:
            return "the root of all cgroups is never written"
        if action.knob is Knob.CPU_IDLE and (why := self._idle_objection(path)):
            return why
        if path in self.unseen or covering(path, self.governed) is not None:
            return ""
        return "no marked workload lies here: koordlet writes BE roots and marked workloads only"

    def _idle_objection(self, path: CgroupPath) -> str:
        """cpu.idle goes where nobody else writes the weight (hazard H1, case CQ-23)."""
        if path in self.kubelets:
            return "cpu.idle on a kubepods tier keeps the kubelet from starting"
        ours = path in self.pod_dirs or path in self.app_dirs
        if self.kubepods is not None and path.is_below(self.kubepods) and not ours:
            return "cpu.idle on a container makes every update by its runtime fail"
        return ""


def _paths(paths: Iterable[CgroupPath | Missing]) -> frozenset[CgroupPath]:
    """Those that exist, never the root: everything lies below it."""
    return frozenset(path for path in paths if not isinstance(path, Missing) and path)


def memory_floor_bytes(used_bytes: int) -> int:
    """The least limit for a cgroup that uses so much: use + max(64 MiB, 5 %)."""
    return used_bytes + max(MEMORY_MARGIN_BYTES, int(used_bytes * MEMORY_MARGIN_RATIO))


@dataclass(frozen=True, slots=True)
class Limits:
    """What no value crosses in this tick."""

    usable_cpus: frozenset[int]
    memory_used_bytes: Mapping[CgroupPath, int]

    @classmethod
    def of(cls, snapshot: Snapshot) -> Limits:
        node = snapshot.node
        usable = node.topology.online - node.reserved_cpus - node.exclusive_cpus
        return cls(usable, snapshot.memory_used_bytes)

    def objection(self, action: SetValue) -> str:
        """Why this value must not be, or ``""``."""
        value = action.value
        if action.knob is Knob.CPU_QUOTA:
            return _quota_objection(value)
        if action.knob is Knob.CPUSET_CPUS and isinstance(value, frozenset):
            return self._cpuset_objection(value)
        if action.knob in _MEMORY_LIMITS and isinstance(value, int):
            return self._memory_objection(action.target, value)
        return ""

    def _cpuset_objection(self, cpus: frozenset[int]) -> str:
        if not cpus:
            return "an empty cpuset leaves its tasks no CPU (case CS-01)"
        if cpus & self.usable_cpus:
            return ""
        return f"every CPU of {format_cpuset(cpus)} is offline, reserved or exclusive"

    def _memory_objection(self, target: CgroupPath, limit_bytes: int) -> str:
        used = self.memory_used_bytes.get(target)
        if used is None:
            return "its memory use is unknown, and a limit below use kills on cgroup v2"
        floor = memory_floor_bytes(used)
        if limit_bytes >= floor:
            return ""
        return f"{limit_bytes} bytes is below use + margin ({floor} bytes): it would kill"


def _quota_objection(value: Value) -> str:
    if value is None or (isinstance(value, int) and value >= QUOTA_MIN_US):
        return ""
    return f"{value} us is below the kernel's least quota of {QUOTA_MIN_US} us"
