"""Taking a node over: when adopted values wait, and when everything does (hazard H14)."""

from __future__ import annotations

from dataclasses import replace

from koordlet.model.actions import Hold, Mode, Owned
from koordlet.model.adoption import ADOPTED
from koordlet.model.readings import Missing
from koordlet.qosmanager.registry import Proposals
from koordlet.snapshot import Snapshot


def hold_adopted(proposals: Proposals, snapshot: Snapshot) -> Proposals:
    """Adopted values that nobody asks for are given back, but not before everybody can ask.

    While a strategy holds all that it owns, or the pods are not known, it may yet want them.
    """
    silent = {**proposals.silent, ADOPTED: "left behind by another agent; no strategy asks for it"}
    proposals = replace(proposals, silent=silent)
    why = _undecided(proposals, snapshot)
    if not why:
        return proposals
    wanted = {action.key for action in proposals.actions}
    holds = tuple(
        Hold(row.target, row.knob, ADOPTED, why)
        for row in _own_rows(snapshot)
        if row.owner == ADOPTED and row.key not in wanted
    )
    return replace(proposals, holds=(*proposals.holds, *holds))


def stand_by(proposals: Proposals, snapshot: Snapshot, why: str) -> Proposals:
    """Nothing is written while another agent does: what strategies want is only told, and what is
    in force stays. What an operator switched off or released is still given back.
    """
    reports = proposals.reports
    enforcing = {report.name for report in reports if report.mode is Mode.ENFORCE}
    idle = {report.name for report in reports} - enforcing
    holds = tuple(
        Hold(row.target, row.knob, row.owner, why)
        for row in _own_rows(snapshot)
        if enforcing and row.owner not in idle
    )
    told = tuple(
        replace(report, would=report.decision.actions, hold_why=why, hold_age_s=0.0)
        if report.name in enforcing
        else report
        for report in reports
    )
    return replace(proposals, actions=(), holds=holds, reports=told)


def _undecided(proposals: Proposals, snapshot: Snapshot) -> str:
    """Why the last word on adopted values is not spoken yet; "" where it is."""
    if isinstance(snapshot.workloads.pods, Missing):
        return f"the pods of this node are unknown: {snapshot.workloads.pods.why}"
    held = [report for report in proposals.reports if report.hold_why]
    return f"{held[0].name} cannot decide yet: {held[0].hold_why}" if held else ""


def _own_rows(snapshot: Snapshot) -> list[Owned]:
    """Rows that stand for themselves; side effects go with theirs."""
    return [row for row in snapshot.owned.values() if not row.side_effect]
