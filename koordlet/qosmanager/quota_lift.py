"""cgroup v1 refuses a quota below any child's: such children are lifted first (hazard H4).

Every quota below a BE root that is higher than the root's, by quota / period (case CQ-08), becomes
unlimited: the root's own quota bounds it anyway. A running container that a runtime knows is lifted
in the runtime's spec, since the runtime would write its own value back at the next update (H8);
pod directories, nested cgroups and containers of nobody by file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from koordlet.model.actions import Hold, Owned, SetValue, Target
from koordlet.model.knobs import Channel, Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem, Severity
from koordlet.qosmanager import journaled
from koordlet.qosmanager.names import CPU_SUPPRESS
from koordlet.qosmanager.scope import Tree, descendants, running_containers
from koordlet.snapshot import Snapshot

_STAY_LIFTED_NUM, _STAY_LIFTED_DEN = 11, 10
"""A lifted child gets its limit back once the root's quota is 1.1 times that limit."""


@dataclass(frozen=True, slots=True)
class Lifts:
    """What must be lifted for one root's quota.

    ``least_root_us`` is the least quota that the kernel takes for the root before the runtime has
    lifted ``bound_by``; 0 where nothing stands in the way.
    """

    actions: tuple[SetValue, ...] = ()
    holds: tuple[Hold, ...] = ()
    notes: tuple[Problem, ...] = ()
    least_root_us: int = 0
    bound_by: str = ""


@dataclass(frozen=True, slots=True)
class ChildQuota:
    """A directory below a root: its limit by its owner, and what the kernel holds now."""

    path: CgroupPath
    limit_us: int
    present_us: int | None
    period_us: int
    row: Owned | None

    def above(self, quota_us: int, period_us: int) -> bool:
        """True when the limit is a higher ratio than ``quota_us`` / ``period_us``."""
        return self.limit_us * period_us > quota_us * self.period_us

    def stays_lifted(self, quota_us: int, period_us: int) -> bool:
        """True for a lifted child while the root's quota is not well above its limit."""
        reached = quota_us * self.period_us * _STAY_LIFTED_DEN
        return self.row is not None and reached < self.limit_us * period_us * _STAY_LIFTED_NUM

    def least_parent_us(self, period_us: int) -> int:
        """The least quota of a parent with ``period_us`` that this child's present quota allows."""
        return -(-(self.present_us or 0) * period_us // self.period_us)


def lift_needs(root: CgroupPath, tree: Tree) -> Iterator[Target]:
    """Quota and period of everything below ``root``."""
    for path in descendants(root, tree):
        yield (path, Knob.CPU_QUOTA)
        yield (path, Knob.CPU_PERIOD)


def lift(snapshot: Snapshot, root: CgroupPath, quota_us: int, period_us: int) -> Lifts:
    """Everything below ``root`` that has to be unlimited while it has ``quota_us``."""
    limited = [path for path in descendants(root, snapshot.be_tree) if _may_limit(snapshot, path)]
    channels = _Channels.of(snapshot) if limited else _Channels({})
    actions: list[SetValue] = []
    holds: list[Hold] = []
    binding: list[ChildQuota] = []
    for path in limited:
        child = _read(snapshot, path)
        if isinstance(child, Hold):
            holds.append(child)
        if not isinstance(child, ChildQuota):
            continue
        above = child.above(quota_us, period_us)
        if above or child.stays_lifted(quota_us, period_us):
            action = channels.set_unlimited(child, root)
            actions.append(action)
            if above and action.channel is Channel.SPEC and child.present_us is not None:
                binding.append(child)
    if not binding:
        return Lifts(tuple(actions), tuple(holds))
    worst = max(binding, key=lambda child: child.least_parent_us(period_us))
    return Lifts(
        tuple(actions),
        tuple(holds),
        (_bound_note(worst, root),),
        worst.least_parent_us(period_us),
        worst.path,
    )


def stay_lifted(row: Owned) -> SetValue:
    """Keep what ``row`` lifted unlimited, through the channel that lifted it."""
    return SetValue(
        row.target,
        Knob.CPU_QUOTA,
        None,
        owner=CPU_SUPPRESS,
        reason="held for too long: stays lifted while the quota above it is in force",
        channel=row.channel,
        container_id=row.container_id,
    )


def _may_limit(snapshot: Snapshot, path: CgroupPath) -> bool:
    """False for what has no limit and never had one: most of the hundreds below a tier."""
    key: Target = (path, Knob.CPU_QUOTA)
    return key in snapshot.owned or snapshot.values.get(key, 0) is not None


def _read(snapshot: Snapshot, path: CgroupPath) -> ChildQuota | Hold | None:
    """The child's quota; None where it has no limit; Hold where a lifted one cannot be read."""
    key: Target = (path, Knob.CPU_QUOTA)
    present = snapshot.value(key)
    period = snapshot.value((path, Knob.CPU_PERIOD))
    row = snapshot.owned.get(key)
    if row is not None and row.owner != CPU_SUPPRESS:
        row = None
    original = journaled.quota_us(row.original) if row else None
    unreadable = isinstance(present, Missing) or isinstance(original, Missing)
    if unreadable or not isinstance(period, int) or period <= 0:
        why = f"its quota or period cannot be used: {present}, {period}"
        return Hold(path, Knob.CPU_QUOTA, CPU_SUPPRESS, why) if row else None
    limits = [us for us in (original, present) if isinstance(us, int)]
    if not limits:
        return None
    return ChildQuota(path, max(limits), present if isinstance(present, int) else None, period, row)


@dataclass(frozen=True, slots=True)
class _Channels:
    """Through what each container is lifted."""

    ids: dict[CgroupPath, str]

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Channels:
        cri = snapshot.capabilities.others.get("cri")
        if cri is not None and not cri.usable:
            return cls({})
        return cls(running_containers(snapshot.workloads))

    def set_unlimited(self, child: ChildQuota, root: CgroupPath) -> SetValue:
        """Lift ``child``; a child that is lifted already stays in the channel of its row."""
        container_id = child.row.container_id if child.row else self.ids.get(child.path, "")
        channel = Channel.SPEC if container_id else Channel.FILE
        if child.row is not None:
            channel = child.row.channel
        limit_cores = child.limit_us / child.period_us
        return SetValue(
            child.path,
            Knob.CPU_QUOTA,
            None,
            owner=CPU_SUPPRESS,
            reason=f"cgroup v1 takes no quota on {root} below its limit of {limit_cores:.2f} cores;"
            " the quota there bounds this cgroup too",
            terms=(("limit_us", child.limit_us), ("limit_period_us", child.period_us)),
            channel=channel,
            container_id=container_id,
        )


def _bound_note(child: ChildQuota, root: CgroupPath) -> Problem:
    return Problem(
        code="v1-child-quota",
        where=child.path,
        what=f"its cpu limit of {child.limit_us / child.period_us:.2f} cores keeps the quota of"
        f" {root} from going lower until the container runtime has lifted it",
        limit="cgroup v1 refuses a quota below any child's",
        remedy="none if this passes within seconds; else check the container runtime's socket",
        severity=Severity.INFO,
    )
