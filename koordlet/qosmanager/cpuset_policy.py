"""Policy cpuset: all BE roots run on one set of CPUs, as large as the budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from koordlet.model.actions import Decision, Hold, Owned, SetValue, Target, Terms
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import BeRoot
from koordlet.model.readings import Missing
from koordlet.model.topology import CpuManagerPolicy
from koordlet.protocol.cpuset import format_cpuset
from koordlet.protocol.cputake import BeCpus, floor_cpus, take_be_cpus
from koordlet.protocol.problem import Problem, Severity
from koordlet.qosmanager import journaled
from koordlet.qosmanager.budget import Budget
from koordlet.qosmanager.cpu_claims import claim_needs, cpu_claims
from koordlet.qosmanager.growth import GROWTH_RATIO, Growth
from koordlet.qosmanager.names import CPU_SUPPRESS
from koordlet.qosmanager.scope import Tree, descendants, kube_tier, writable
from koordlet.qosmanager.strategy import NeedsContext
from koordlet.snapshot import Snapshot

_GROWTH_NAME = "cpuset of all roots"
_ROUNDING_CORES = 1e-9
"""A budget of 3.0000000001 cores is three CPUs."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How deep below a BE root cpusets are written.

    v2: the root alone, the kernel intersects below it. v1: the whole subtree, since a parent
    never shrinks below a child (hazard H18). v1 under the kubelet's static policy: the tier and
    its pods stay wide, since the kubelet starts containers with wide sets (case CS-04, H9).
    """

    version: int | None
    static_tier: CgroupPath | None

    @classmethod
    def of(cls, context: NeedsContext | Snapshot) -> Reach:
        static = context.node.cpu_manager is CpuManagerPolicy.STATIC
        version = context.capabilities.version_of("cpuset")
        return cls(version, kube_tier(context.workloads) if static else None)

    def paths(self, root: BeRoot, tree: Tree) -> Iterator[CgroupPath]:
        """What is written for ``root``, parents before their children."""
        if self.version != 1:
            yield root.path
        elif self.static_tier is not None and root.path.is_at_or_below(self.static_tier):
            for pod in tree.get(root.path, ()):
                yield from descendants(pod, tree)
        else:
            yield root.path
            yield from descendants(root.path, tree)


def cpuset_needs(context: NeedsContext) -> Iterator[Target]:
    """The cpusets that may be written, the roots themselves, and those that tell who holds CPUs."""
    reach = Reach.of(context)
    for root in writable(context.be_roots):
        yield (root.path, Knob.CPUSET_CPUS)
        for path in reach.paths(root, context.be_tree):
            yield (path, Knob.CPUSET_CPUS)
    yield from claim_needs(context)


def decide_cpuset(
    snapshot: Snapshot, budget: Budget, growth: Growth, *, lsr_exclusive: bool
) -> Decision:
    """The same CPUs for every writable root; refused where the least set is all CPUs (H30)."""
    online = len(snapshot.node.topology.cpus)
    if online <= floor_cpus(online):
        return Decision(notes=(_floor_note(online),), terms=budget.terms)
    wanted, size_terms = _wanted_cpus(snapshot, budget, growth)
    taken = _take(snapshot, wanted, lsr_exclusive=lsr_exclusive)
    terms = (*budget.terms, *size_terms, *taken.terms)
    if not taken.cpus:
        return Decision(hold_all=f"no CPU is left for BE: {taken.reason}", terms=terms)
    reason = (
        f"BE may use {budget.cores:.2f} of {budget.capacity_cores:g} cores:"
        f" {len(taken.cpus)} CPUs, the same for every BE root"
    )
    actions: list[SetValue] = []
    holds: list[Hold] = []
    notes = _notes(taken)
    reach = Reach.of(snapshot)
    for root in writable(snapshot.be_roots):
        held = _unusable(snapshot, root, taken.cpus)
        if isinstance(held, Hold):
            holds.append(held)
        elif isinstance(held, Problem):
            notes.append(held)
        else:
            paths = reach.paths(root, snapshot.be_tree)
            actions += _narrow(snapshot, taken.cpus, paths, reason, terms)
    return Decision(tuple(actions), tuple(holds), notes=tuple(notes), terms=terms)


def safe_cpuset(
    snapshot: Snapshot, budget: Budget, held: Iterable[Owned], *, lsr_exclusive: bool
) -> tuple[SetValue, ...]:
    """A set of the safe size for the rows that are held; nothing where no CPU is left."""
    taken = _take(snapshot, _cpus_of(budget), lsr_exclusive=lsr_exclusive)
    if not taken.cpus:
        return ()
    why = f"held for too long: the safe size of the BE cpuset is {len(taken.cpus)} CPUs"
    paths = sorted((row.target for row in held), key=lambda path: (path.depth, path))
    return tuple(_narrow(snapshot, taken.cpus, paths, why, (*budget.terms, *taken.terms)))


def _wanted_cpus(snapshot: Snapshot, budget: Budget, growth: Growth) -> tuple[int, Terms]:
    """CPUs for the budget, growing from the set in force by a tenth of the node at most."""
    desired = _cpus_of(budget)
    before = _cpus_before(snapshot)
    wanted, bound_by = desired, ""
    if before is not None and desired > before:
        step = math.ceil(GROWTH_RATIO * len(snapshot.node.topology.cpus))
        if not growth.may_grow(_GROWTH_NAME):
            wanted, bound_by = before, "grew less than a second ago"
        elif before + step < desired:
            wanted, bound_by = before + step, "growth of 10 % of the CPUs"
    growth.record(_GROWTH_NAME, grew=before is not None and wanted > before)
    terms: Terms = (
        ("desired_cpus", desired),
        ("before_cpus", "none of ours" if before is None else before),
    )
    return wanted, (*terms, ("bound_by", bound_by)) if bound_by else terms


def _cpus_of(budget: Budget) -> int:
    return math.ceil(budget.governed_cores - _ROUNDING_CORES)


def _cpus_before(snapshot: Snapshot) -> int | None:
    """The size of the set that we hold; a foreign reset does not change it (case CQ-01)."""
    texts = {
        row.last_written
        for row in snapshot.owned.values()
        if row.knob is Knob.CPUSET_CPUS and row.owner == CPU_SUPPRESS
    }
    sizes = [len(cpus) for cpus in map(journaled.cpus, texts) if not isinstance(cpus, Missing)]
    return max(filter(None, sizes), default=None)


def _take(snapshot: Snapshot, wanted: int, *, lsr_exclusive: bool) -> BeCpus:
    """CPUs by Koordinator's rules, within what the owners of all roots allow."""
    claims = cpu_claims(snapshot, lsr_exclusive=lsr_exclusive)
    owners_cpus = OwnersCpus(snapshot)
    allowed = online = snapshot.node.topology.online
    for root in writable(snapshot.be_roots):
        owners = owners_cpus.of(root.path)
        allowed = allowed if owners is None else allowed & owners
    excluded = claims.excluded | (online - allowed if allowed else frozenset())
    return take_be_cpus(snapshot.node.topology, wanted, claims.lsr_pods, excluded)


def _unusable(snapshot: Snapshot, root: BeRoot, cpus: frozenset[int]) -> Hold | Problem | None:
    """Why ``root`` cannot get ``cpus``: unreadable now, or outside what its owner gave it."""
    present = snapshot.value((root.path, Knob.CPUSET_CPUS))
    if isinstance(present, Missing):
        why = f"its cpuset cannot be read: {present.why}"
        return Hold(root.path, Knob.CPUSET_CPUS, CPU_SUPPRESS, why)
    owners = OwnersCpus(snapshot).of(root.path)
    if owners is None or owners & cpus:
        return None
    return Problem(
        code="be-root-cpuset-apart",
        where=root.path,
        what=f"its own cpuset {format_cpuset(owners)} has no CPU in common with"
        f" {format_cpuset(cpus)}, which BE may use",
        limit="all BE roots run on the same CPUs",
        remedy="widen the cpuset of this cgroup, or use cpuSuppressPolicy: cfsQuota",
        severity=Severity.WARNING,
    )


def _narrow(
    snapshot: Snapshot,
    cpus: frozenset[int],
    paths: Iterable[CgroupPath],
    reason: str,
    terms: Terms,
) -> Iterator[SetValue]:
    """``cpus`` for every path, parents first, within what its owner gave it and its parent gets."""
    given: dict[CgroupPath, frozenset[int]] = {}
    owners_cpus = OwnersCpus(snapshot)
    for path in paths:
        if isinstance(snapshot.value((path, Knob.CPUSET_CPUS)), Missing):
            continue
        above = given.get(path.parent, cpus)
        owners = owners_cpus.of(path)
        given[path] = above if owners is None else (above & owners or above)
        yield SetValue(
            path,
            Knob.CPUSET_CPUS,
            given[path],
            owner=CPU_SUPPRESS,
            reason=reason,
            terms=terms,
        )


@dataclass(slots=True)
class OwnersCpus:
    """The CPUs that the owners of cgroups gave them, whatever we made of it."""

    snapshot: Snapshot
    parsed: dict[str, frozenset[int] | None] = field(default_factory=dict)

    def of(self, path: CgroupPath) -> frozenset[int] | None:
        """The owner's set for ``path``; None: whatever its parent has.

        A cgroup that appeared under a parent which we hold narrowed, with the parent's very set,
        was born with it: its owner asked for nothing (hazard H5).
        """
        owned, values = self.snapshot.owned, self.snapshot.values
        key: Target = (path, Knob.CPUSET_CPUS)
        present = values.get(key)
        while key[0] and values.get(key) == present:
            if (row := owned.get(key)) is not None:
                return self._original(row.original)
            key = (key[0].parent, Knob.CPUSET_CPUS)
        return present if isinstance(present, frozenset) and present else None

    def _original(self, text: str) -> frozenset[int] | None:
        """Rows by the hundred hold the same few texts."""
        if text not in self.parsed:
            cpus = journaled.cpus(text)
            self.parsed[text] = None if isinstance(cpus, Missing) else cpus or None
        return self.parsed[text]


def _notes(taken: BeCpus) -> list[Problem]:
    notes: list[Problem] = []
    if taken.shortage > 0:
        notes.append(
            Problem(
                code="be-cpus-short",
                where=CPU_SUPPRESS,
                what=f"BE gets {len(taken.cpus)} CPUs, {taken.shortage} fewer than its budget",
                limit="reserved and exclusive CPUs are not given to BE",
                remedy="none needed: BE gets them once they are free",
                severity=Severity.INFO,
            )
        )
    if taken.reason:
        notes.append(
            Problem(
                code="be-cpus-shared",
                where=CPU_SUPPRESS,
                what=taken.reason,
                severity=Severity.WARNING,
            )
        )
    return notes


def _floor_note(online: int) -> Problem:
    return Problem(
        code="cpuset-floor",
        where=CPU_SUPPRESS,
        what=f"policy cpuset is refused: its least set would be every CPU ({online} online)",
        limit="BE keeps min(2, CPUs - 1) CPUs, at least 1",
        remedy="use cpuSuppressPolicy: cfsQuota; the weight of the BE roots stays in force",
        severity=Severity.WARNING,
    )
