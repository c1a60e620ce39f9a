"""Holds: what is left as it is while a strategy cannot decide, and for how long already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from koordlet.model.actions import Decision, Hold, Owned, target_order
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.snapshot import Snapshot

HeldSince = Mapping[str, float]
"""Monotonic seconds at which each hold began, by owner and target."""


def aged(
    name: str, decision: Decision, snapshot: Snapshot, before: HeldSince
) -> tuple[tuple[Hold, ...], HeldSince]:
    """All holds of one strategy with their ages, and since when each is held, for the next tick.

    ``hold_all`` has an age of its own, under the strategy's name: it can outlive single rows.
    A beginning in the future is from another boot's clock: such a hold begins now.
    """
    now_s = snapshot.now_s
    holds = _held_by(name, decision, snapshot)
    keys = [_key(hold) for hold in holds] + ([name] if decision.hold_all else [])
    since = {key: min(before.get(key, now_s), now_s) for key in keys}
    return tuple(replace(hold, age_s=now_s - since[_key(hold)]) for hold in holds), since


def _held_by(name: str, decision: Decision, snapshot: Snapshot) -> tuple[Hold, ...]:
    """Every hold of one strategy, one for each target.

    ``hold_all`` reaches all that it owns. So does the silence of a source: while no source has
    told which pods exist, a row outside the known BE roots is of a pod that nobody saw leave.
    """
    wanted = {action.key for action in decision.actions}
    holds = {hold.key: hold for hold in decision.holds if hold.key not in wanted}
    pods = snapshot.workloads.pods
    if decision.hold_all or isinstance(pods, Missing):
        for row in _rows(name, snapshot):
            why = decision.hold_all
            if not why and not _seen(row.target, snapshot):
                why = f"the pods of this node are unknown: {pods}"
            if why and row.key not in wanted and row.key not in holds:
                holds[row.key] = Hold(row.target, row.knob, name, why)
    return tuple(holds.values())


def _key(hold: Hold) -> str:
    return f"{hold.owner} {hold.knob.value} {hold.target}"


def _rows(name: str, snapshot: Snapshot) -> list[Owned]:
    """What the strategy owns by its own wish, in a stable order."""
    rows = [r for r in snapshot.owned.values() if r.owner == name and not r.side_effect]
    return sorted(rows, key=lambda row: target_order(row.key))


def _seen(target: CgroupPath, snapshot: Snapshot) -> bool:
    return any(target.is_at_or_below(root.path) for root in snapshot.be_roots)
