"""Policy cfsQuota: each BE root gets its part of the budget as a cfs quota."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from koordlet.model.actions import Decision, Hold, SetValue, Target, Terms
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem, Severity
from koordlet.qosmanager import journaled
from koordlet.qosmanager.budget import Budget
from koordlet.qosmanager.growth import GROWTH_RATIO, Growth
from koordlet.qosmanager.names import CPU_SUPPRESS
from koordlet.qosmanager.quota_lift import Lifts, lift, lift_needs
from koordlet.qosmanager.scope import kube_tier, writable
from koordlet.qosmanager.strategy import NeedsContext
from koordlet.qosmanager.waterfill import Claim, split, want_cores
from koordlet.snapshot import Snapshot
from koordlet.units import BASE_PERIOD_US, QUOTA_MIN_US, cores_to_quota_us

FLOOR_CORES = 2_000 / BASE_PERIOD_US
"""Koordinator's least quota, 2000 us in 100 ms; scaled with the period (case CQ-08)."""

DEAD_BAND_RATIO = 0.01
"""Of the node: smaller changes are not worth a write."""


@dataclass(frozen=True, slots=True)
class RootQuota:
    """One BE root before the decision. ``None`` is unlimited.

    ``base_us`` is what growth starts from: the value of ours that is in force, or was until
    somebody reset it (case CQ-01); None where there is none. ``original_us`` is the owner's own
    limit: never exceeded by us.
    """

    path: CgroupPath
    period_us: int
    base_us: int | None
    original_us: int | None

    @property
    def floor_us(self) -> int:
        floor = max(QUOTA_MIN_US, round(FLOOR_CORES * self.period_us))
        return floor if self.original_us is None else min(floor, self.original_us)

    def claim(self, want: float, capacity_cores: float) -> Claim:
        """What this root takes part in the split with, in cores."""
        original = self.original_us
        ceiling = capacity_cores if original is None else original / self.period_us
        return Claim(want, self.floor_us / self.period_us, max(ceiling, 0.0))


@dataclass(frozen=True, slots=True)
class Step:
    """The quota of one root for now, what it moves towards, and what kept it from going there."""

    quota_us: int
    desired_us: int
    bound_by: str


def quota_needs(context: NeedsContext) -> Iterator[Target]:
    """Quota and period of each writable root; on v1 also of all that lies below."""
    for root in writable(context.be_roots):
        yield (root.path, Knob.CPU_QUOTA)
        yield (root.path, Knob.CPU_PERIOD)
        if context.capabilities.version_of("cpu") == 1:
            yield from lift_needs(root.path, context.be_tree)


def decide_quota(snapshot: Snapshot, budget: Budget, growth: Growth) -> Decision:
    """A quota for every writable root; a root whose files cannot be read is held."""
    roots: list[RootQuota] = []
    holds: list[Hold] = []
    for root in writable(snapshot.be_roots):
        read = read_root(snapshot, root.path)
        if isinstance(read, Missing):
            holds.append(Hold(root.path, Knob.CPU_QUOTA, CPU_SUPPRESS, read.why))
        else:
            roots.append(read)
    available = budget.governed_cores - _used_cores(snapshot, (hold.target for hold in holds))
    claims = _claims(snapshot, roots, budget.capacity_cores)
    shares = split(available, claims)
    floor_bound = sum(claim.floor_cores for claim in claims.values()) > available
    shared: Terms = (*budget.terms, ("be_roots", len(roots)), ("floor_bound", int(floor_bound)))
    actions: list[SetValue] = []
    notes = _notes(snapshot, roots, floor_bound=floor_bound)
    for one in roots:
        terms = (*shared, ("want_cores", claims[one.path].want_cores))
        value, lifts = _govern(snapshot, one, shares[one.path], budget, terms, growth)
        actions += (value, *lifts.actions)
        holds += lifts.holds
        notes += lifts.notes
    return Decision(tuple(actions), tuple(holds), notes=tuple(notes), terms=shared)


def safe_quota(
    snapshot: Snapshot, path: CgroupPath, cores: float, terms: Terms
) -> tuple[SetValue, ...]:
    """A quota of ``cores`` for one root, and the lifts that it needs; nothing if unreadable."""
    root = read_root(snapshot, path)
    if isinstance(root, Missing):
        return ()
    quota_us = _clamped_us(root, cores)
    why = f"held for too long: the safe share of this root is {cores:.2f} cores"
    lifts = _lifts(snapshot, root, quota_us)
    return (_set(root, max(quota_us, lifts.least_root_us), why, terms), *lifts.actions)


def read_root(snapshot: Snapshot, path: CgroupPath) -> RootQuota | Missing:
    """What the kernel and the journal say about one root's quota."""
    key: Target = (path, Knob.CPU_QUOTA)
    current = snapshot.value(key)
    period = snapshot.value((path, Knob.CPU_PERIOD))
    if isinstance(current, Missing):
        return Missing(f"its quota cannot be read: {current.why}")
    if not isinstance(period, int) or period <= 0:
        return Missing(f"its cfs period cannot be used: {period}")
    present = current if isinstance(current, int) else None
    row = snapshot.owned.get(key)
    if row is None:
        return RootQuota(path, period, base_us=None, original_us=present)
    original = journaled.quota_us(row.original)
    if isinstance(original, Missing):
        return original
    base = present if row.owner == CPU_SUPPRESS and key not in snapshot.foreign_resets else None
    if base is None and row.owner == CPU_SUPPRESS:
        last = journaled.quota_us(row.last_written)
        base = None if isinstance(last, Missing) else last
    return RootQuota(path, period, base, original)


def next_step(root: RootQuota, desired_us: int, capacity_cores: float, *, may_grow: bool) -> Step:
    """Shrink at once, grow by a tenth of the node, and leave small differences alone."""
    base_us = root.base_us
    node_us = capacity_cores * root.period_us
    if base_us is None:
        return Step(desired_us, desired_us, "")
    change_us = desired_us - base_us
    if change_us == 0:
        return Step(desired_us, desired_us, "")
    if abs(change_us) < DEAD_BAND_RATIO * node_us and desired_us != root.floor_us:
        return Step(base_us, desired_us, "dead band of 1 % of the node")
    if change_us < 0:
        return Step(desired_us, desired_us, "")
    if not may_grow:
        return Step(base_us, desired_us, "grew less than a second ago")
    grown_us = base_us + max(round(GROWTH_RATIO * node_us), 1)
    if grown_us < desired_us:
        return Step(grown_us, desired_us, "growth of 10 % of the node")
    return Step(desired_us, desired_us, "")


def _govern(
    snapshot: Snapshot,
    root: RootQuota,
    share_cores: float,
    budget: Budget,
    terms: Terms,
    growth: Growth,
) -> tuple[SetValue, Lifts]:
    step = next_step(
        root,
        _clamped_us(root, share_cores),
        budget.capacity_cores,
        may_grow=growth.may_grow(root.path),
    )
    growth.record(root.path, grew=root.base_us is not None and step.quota_us > root.base_us)
    lifts = _lifts(snapshot, root, step.quota_us)
    quota_us = max(step.quota_us, lifts.least_root_us)
    terms += (
        ("share_cores", share_cores),
        ("period_us", root.period_us),
        ("before_us", "none of ours" if root.base_us is None else root.base_us),
        ("owner_limit_us", "unlimited" if root.original_us is None else root.original_us),
        ("desired_us", step.desired_us),
    )
    bounds = [step.bound_by] if step.bound_by else []
    if lifts.least_root_us > step.quota_us:
        bounds.append(f"until {lifts.bound_by} is lifted")
        terms += (("child_bound_us", lifts.least_root_us),)
    if (root.path, Knob.CPU_QUOTA) in snapshot.foreign_resets:
        bounds.append("put back at once: somebody had reset it")
    if bounds:
        terms += (("bound_by", "; ".join(bounds)),)
    return _set(root, quota_us, _reason(root, quota_us, bounds, budget), terms), lifts


def _lifts(snapshot: Snapshot, root: RootQuota, quota_us: int) -> Lifts:
    if snapshot.capabilities.version_of("cpu") != 1:
        return Lifts()
    return lift(snapshot, root.path, quota_us, root.period_us)


def _clamped_us(root: RootQuota, cores: float) -> int:
    quota_us = max(root.floor_us, cores_to_quota_us(cores, root.period_us))
    return quota_us if root.original_us is None else min(quota_us, root.original_us)


def _claims(
    snapshot: Snapshot, roots: Iterable[RootQuota], capacity_cores: float
) -> dict[CgroupPath, Claim]:
    return {
        root.path: root.claim(
            want_cores(snapshot.be_demand.get(root.path), capacity_cores), capacity_cores
        )
        for root in roots
    }


def _used_cores(snapshot: Snapshot, paths: Iterable[CgroupPath]) -> float:
    demands = (snapshot.be_demand.get(path) for path in paths)
    return sum(demand.used_cores for demand in demands if demand is not None)


def _set(root: RootQuota, quota_us: int, reason: str, terms: Terms) -> SetValue:
    return SetValue(
        root.path, Knob.CPU_QUOTA, quota_us, owner=CPU_SUPPRESS, reason=reason, terms=terms
    )


def _reason(root: RootQuota, quota_us: int, bounds: list[str], budget: Budget) -> str:
    text = (
        f"BE may use {budget.cores:.2f} of {budget.capacity_cores:g} cores;"
        f" this root gets {quota_us / root.period_us:.2f}"
    )
    return f"{text} ({'; '.join(bounds)})" if bounds else text


def _notes(snapshot: Snapshot, roots: Iterable[RootQuota], *, floor_bound: bool) -> list[Problem]:
    notes: list[Problem] = []
    if floor_bound:
        notes.append(
            Problem(
                code="floor-bound",
                where=CPU_SUPPRESS,
                what="the least quotas of the BE roots add up to more than the BE budget",
                limit=f"{FLOOR_CORES:g} cores each",
                remedy="none needed: BE keeps its least share, and latency-sensitive work is"
                " protected by the weight of the BE roots",
                severity=Severity.INFO,
            )
        )
    tier = kube_tier(snapshot.workloads)
    if snapshot.capabilities.version_of("cpu") == 1 and tier in {root.path for root in roots}:
        notes.append(
            Problem(
                code="v1-quota-new-container",
                where=str(tier),
                what="on cgroup v1 a new BE container with a cpu limit above the quota of the BE"
                " tier cannot start while that quota is in force",
                limit="cgroup v1 refuses a child quota above its parent's",
                remedy="use cpuSuppressPolicy: cpuset, cgroup v2, or BE pods without cpu limits",
                severity=Severity.WARNING,
            )
        )
    return notes
