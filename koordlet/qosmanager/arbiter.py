"""One plan out of all proposals: at most one entry for each kernel file, by a written table.

The result does not depend on the order of strategies: winners follow from the set of proposals,
ties from the owners' names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from koordlet.model.actions import Conflict, Hold, Plan, Restore, SetValue, Target
from koordlet.model.knobs import Knob, Value
from koordlet.model.readings import Missing
from koordlet.qosmanager.registry import Proposals
from koordlet.snapshot import Snapshot

Pick = Callable[[Sequence[Value]], Value]


def tighter(values: Sequence[Value]) -> Value:
    """The smallest limit; ``None`` is unlimited and loses to any number."""
    numbers = [value for value in values if isinstance(value, int)]
    return min(numbers, default=None)


def heavier_idle(values: Sequence[Value]) -> Value:
    """Idle (1) wins: it is the lowest weight there is."""
    return max(value for value in values if isinstance(value, int))


def common_cpus(values: Sequence[Value]) -> Value:
    """The CPUs that every set has; where there are none, the smallest set."""
    sets = [value for value in values if isinstance(value, frozenset)]
    common = frozenset.intersection(*sets)
    return common or min(sets, key=lambda cpus: (len(cpus), sorted(cpus)))


TABLE: dict[Knob, tuple[Pick, str]] = {
    Knob.CPU_SHARES: (tighter, "the lower weight wins"),
    Knob.CPU_IDLE: (heavier_idle, "idle is the lowest weight, and wins"),
    Knob.CPU_QUOTA: (tighter, "the tighter quota wins"),
    Knob.CPUSET_CPUS: (common_cpus, "the CPUs in common, else the smaller set"),
    Knob.MEMORY_LIMIT: (tighter, "the tighter limit wins"),
    Knob.MEMORY_HIGH: (tighter, "the tighter limit wins"),
    Knob.MEMORY_SWAP_LIMIT: (tighter, "the tighter limit wins"),
}
"""Who wins where two owners want one file. A knob that is not here has one owner."""

_RUNGS = {knob: rung for rung, knob in enumerate(TABLE)}
"""Weight first, then quota and cpuset (hazard H30)."""


@dataclass(slots=True)
class _Draft:
    """What is agreed so far, by target."""

    writes: dict[Target, SetValue] = field(default_factory=dict)
    holds: dict[Target, Hold] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)


def arbitrate(proposals: Proposals, snapshot: Snapshot) -> Plan:
    """The plan of this tick.

    A journaled row that nobody asks for and nobody holds is restored. A row that is only a side
    effect of another write goes with its main row: it never appears on its own.
    """
    draft = _Draft()
    for target, wishes in _by_target(proposals.actions).items():
        draft.writes[target] = _settle(wishes, draft.conflicts)
    for hold in sorted(proposals.holds, key=lambda hold: (_order(hold.key), hold.owner)):
        _place_hold(hold, draft, snapshot)
    _unmask(draft, snapshot)
    return Plan(
        writes=tuple(draft.writes[key] for key in sorted(draft.writes, key=_order)),
        restores=_restores(proposals, snapshot, draft),
        holds=tuple(draft.holds[key] for key in sorted(draft.holds, key=_order)),
        conflicts=tuple(sorted(draft.conflicts, key=_conflict_order)),
    )


def _by_target(actions: Iterable[SetValue]) -> dict[Target, list[SetValue]]:
    """The wishes for each target, in an order of their own."""
    wishes: dict[Target, list[SetValue]] = defaultdict(list)
    for action in actions:
        wishes[action.key].append(action)
    for same in filter(lambda several: len(several) > 1, wishes.values()):
        same.sort(key=lambda action: (action.owner, _text(action.value), action.reason))
    return wishes


def _settle(wishes: Sequence[SetValue], conflicts: list[Conflict]) -> SetValue:
    """The one value for a target; every other owner's different wish becomes a conflict."""
    if len(wishes) == 1:
        return wishes[0]
    pick, rule = TABLE.get(wishes[0].knob, (_first, "one owner for each knob: the first by name"))
    value = pick([wish.value for wish in wishes])
    author = next((wish for wish in wishes if wish.value == value), _closest(wishes))
    winner = replace(author, value=value)
    conflicts += [
        Conflict(winner, wish, rule)
        for wish in wishes
        if wish.owner != winner.owner and wish.value != value
    ]
    return winner


def _first(values: Sequence[Value]) -> Value:
    return values[0]


def _closest(wishes: Sequence[SetValue]) -> SetValue:
    """Whose reason stands for CPUs in common that nobody proposed: the smallest set's."""
    return min(wishes, key=lambda w: len(w.value) if isinstance(w.value, frozenset) else 0)


def _place_hold(hold: Hold, draft: _Draft, snapshot: Snapshot) -> None:
    """A hold stands, unless another owner wants a tighter value than the one that is there."""
    other = draft.writes.get(hold.key)
    if other is not None and other.owner != hold.owner:
        present = snapshot.value(hold.key)
        if not isinstance(present, Missing) and hold.knob in TABLE:
            pick, _ = TABLE[hold.knob]
            if other.value != present and pick([other.value, present]) == other.value:
                return
        hold = replace(hold, why=f"{hold.why}; {other.owner} wanted another value")
    draft.writes.pop(hold.key, None)
    draft.holds.setdefault(hold.key, hold)


def _unmask(draft: _Draft, snapshot: Snapshot) -> None:
    """While idle is 1 the weight is masked and cannot be written (hazard H2).

    Only the owner of idle may ask for both; another owner's weight loses, and what is journaled of
    it waits until idle is gone.
    """
    for (path, knob), idle in list(draft.writes.items()):
        if knob is not Knob.CPU_IDLE or idle.value != 1:
            continue
        key: Target = (path, Knob.CPU_SHARES)
        shares = draft.writes.get(key)
        if shares is not None and shares.owner == idle.owner:
            continue
        if shares is not None:
            del draft.writes[key]
            draft.conflicts.append(Conflict(idle, shares, "idle masks the weight, and wins"))
        row = snapshot.owned.get(key)
        if row is not None and not row.side_effect:
            why = "cpu.idle is 1 here, which masks the weight"
            draft.holds.setdefault(key, Hold(path, Knob.CPU_SHARES, row.owner, why))


def _restores(proposals: Proposals, snapshot: Snapshot, draft: _Draft) -> tuple[Restore, ...]:
    rows = [
        row
        for key, row in snapshot.owned.items()
        if not row.side_effect and key not in draft.writes and key not in draft.holds
    ]
    return tuple(
        Restore(
            row.target,
            row.knob,
            row.owner,
            proposals.silent.get(row.owner, f"there is no strategy {row.owner}"),
            row.channel,
            row.container_id,
        )
        for row in sorted(rows, key=lambda row: _order(row.key))
    )


def _order(target: Target) -> tuple[int, int, str, str]:
    path, knob = target
    return (_RUNGS.get(knob, len(_RUNGS)), path.depth, path, knob.value)


def _conflict_order(conflict: Conflict) -> tuple[tuple[int, int, str, str], str, str]:
    loser = conflict.loser
    return (_order(loser.key), loser.owner, _text(loser.value))


def _text(value: Value) -> str:
    """The same text for the same value, however a set was built."""
    return repr(sorted(value)) if isinstance(value, frozenset) else repr(value)
