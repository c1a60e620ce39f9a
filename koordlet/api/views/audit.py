"""What was done to this host, by whom and why, newest last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from koordlet.api.views.common import Term, iso_time, terms_data
from koordlet.resexecutor.audit import AuditEvent


class AuditEventData(TypedDict):
    """One thing that happened to one file; ``before`` and ``after`` are file texts.

    ``kind`` is write, restore, reset (put back after somebody else's change), rebased (somebody's
    new wish became the original), adopted, gone, order (an operator's), or else the outcome:
    refused, unsupported, pending, foreign. ``pod`` is the pod's UID, "" where none is concerned.
    """

    at: str
    kind: str
    owner: str
    cgroup: str
    knob: str
    file: str
    pod: str
    before: str
    after: str
    reason: str
    terms: list[Term]
    outcome: str


class AuditData(TypedDict):
    """The newest events that match, oldest of them first. ``limit_reached``: there may be more."""

    events: list[AuditEventData]
    limit: int
    limit_reached: bool


def audit_data(events: Iterable[AuditEvent], limit: int) -> AuditData:
    """Events as data."""
    found = [audit_event_data(event) for event in events]
    return {"events": found, "limit": limit, "limit_reached": len(found) >= limit}


def audit_event_data(event: AuditEvent) -> AuditEventData:
    """One event as data."""
    return {
        "at": iso_time(event.at_wall_s),
        "kind": event.kind,
        "owner": event.owner,
        "cgroup": event.target,
        "knob": event.knob,
        "file": event.path,
        "pod": event.pod,
        "before": event.from_text,
        "after": event.to_text,
        "reason": event.reason,
        "terms": terms_data(event.terms),
        "outcome": event.outcome,
    }
