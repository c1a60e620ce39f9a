"""Outcomes as audit events: each change once, each standing refusal once (case OPS-01)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from koordlet.host.cgroup import Cgroups
from koordlet.model.actions import Outcome, Status, Target
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.resexecutor.audit import AuditEvent
from koordlet.resexecutor.journal import Row

_KINDS = {Status.APPLIED: "write", Status.RESTORED: "restore"}
_SLICE = ".slice"


class Teller:
    """Makes events; remembers which refusals of the last plan were told."""

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        self._told: dict[Target, tuple[Status, int]] = {}
        self._levels: set[tuple[Knob, int, str]] = set()

    def plan(self, outcomes: Iterable[Outcome], wall_s: float) -> Iterator[AuditEvent]:
        """Events for all outcomes of a plan: what it no longer names is told anew next time."""
        known = self._told
        self._told = {}
        yield from self._news(outcomes, known, wall_s)

    def late(self, outcomes: Iterable[Outcome], wall_s: float) -> Iterator[AuditEvent]:
        """Events for outcomes that came by themselves."""
        yield from self._news(outcomes, self._told, wall_s)

    def _news(
        self,
        outcomes: Iterable[Outcome],
        known: dict[Target, tuple[Status, int]],
        wall_s: float,
    ) -> Iterator[AuditEvent]:
        for outcome in outcomes:
            if outcome.status is Status.UNCHANGED:
                continue
            is_news = outcome.status in _KINDS or self._is_news(outcome, known.get(outcome.key))
            self._told[outcome.key] = (outcome.status, outcome.errno)
            if is_news:
                yield self._event(outcome, wall_s)

    def _is_news(self, outcome: Outcome, known: tuple[Status, int] | None) -> bool:
        if outcome.status is Status.UNSUPPORTED:
            level = (outcome.knob, outcome.target.depth, outcome.owner)
            is_new = level not in self._levels
            self._levels.add(level)
            return is_new
        return known != (outcome.status, outcome.errno)

    def _event(self, outcome: Outcome, wall_s: float) -> AuditEvent:
        reason = "; ".join(part for part in (outcome.reason, outcome.why) if part)
        return AuditEvent(
            at_wall_s=wall_s,
            kind=_KINDS.get(outcome.status, outcome.status.value),
            owner=outcome.owner,
            target=outcome.target,
            knob=outcome.knob.value,
            path=self._path(outcome.key),
            pod=pod_uid_in(outcome.target),
            from_text=outcome.before,
            to_text=outcome.after,
            reason=reason,
            terms=outcome.terms,
            outcome=outcome.status.value,
        )

    def row(
        self, kind: str, row: Row, before: str, after: str, reason: str, wall_s: float
    ) -> AuditEvent:
        """An event about a value that we hold."""
        return AuditEvent(
            at_wall_s=wall_s,
            kind=kind,
            owner=row.owner,
            target=row.path,
            knob=row.knob.value,
            path=self._path(row.key),
            pod=pod_uid_in(row.path),
            from_text=before,
            to_text=after,
            reason=reason,
        )

    def _path(self, key: Target) -> str:
        path = self._cgroups.path_of(*key)
        return "" if isinstance(path, Missing) else path


def pod_uid_in(path: CgroupPath) -> str:
    """The pod's uid as its cgroup directory spells it, in both drivers' forms; ``""`` elsewhere.

    ``kubepods/burstable/pod<uid>``, ``kubepods-burstable-pod<uid with _>.slice``.
    """
    if "kubepods" not in path:
        return ""
    for name in path.split("/"):
        if name.startswith("pod"):
            return name[len("pod") :]
        if name.startswith("kubepods") and name.endswith(_SLICE) and "-pod" in name:
            uid = name.removesuffix(_SLICE).rpartition("-pod")[2]
            return uid.replace("_", "-")
    return ""
