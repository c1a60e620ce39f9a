"""What a release or a rollback did, in one form for both: by the daemon or from the journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypedDict

from koordlet.api.views.common import Unknown, unknown
from koordlet.model.actions import Outcome, Owned, Status, Target


class UndoFile(TypedDict):
    """One file that was to get its original back; ``before`` and ``after`` are file texts.

    ``outcome``: ``restored`` (or ``unchanged``: it had it already), ``gone`` (the cgroup left),
    ``foreign`` (left alone: it holds a value that is not ours), ``refused``, ``unsupported``,
    ``pending`` (handed over, not yet answered), ``dry-run`` (nothing was written).
    """

    file: str | Unknown
    cgroup: str
    knob: str
    owner: str
    outcome: str
    before: str
    after: str
    errno: int
    why: str


class UndoData(TypedDict):
    """The whole of a release or rollback. ``done_by`` is ``nobody`` where nothing was to do."""

    done_by: Literal["daemon", "journal", "nobody"]
    scope: str
    dry_run: bool
    restored: int
    gone: int
    left: int
    failed: int
    pending: int
    files: list[UndoFile]
    note: str


_RESTORED = (Status.RESTORED, Status.APPLIED, Status.UNCHANGED)
_FAILED = (Status.REFUSED, Status.UNSUPPORTED)


def undo_data(
    outcomes: Iterable[Outcome],
    paths: Mapping[Target, str],
    *,
    done_by: Literal["daemon", "journal", "nobody"],
    scope: str = "all",
    dry_run: bool = False,
    note: str = "",
) -> UndoData:
    """Outcomes of restores as data; ``paths`` gives the kernel file of each target."""
    files = [undo_file(outcome, paths.get(outcome.key, "")) for outcome in outcomes]
    statuses = [Status(entry["outcome"]) for entry in files]
    return {
        "done_by": done_by,
        "scope": scope,
        "dry_run": dry_run,
        "restored": sum(status in _RESTORED for status in statuses),
        "gone": statuses.count(Status.GONE),
        "left": statuses.count(Status.FOREIGN),
        "failed": sum(status in _FAILED for status in statuses),
        "pending": statuses.count(Status.PENDING),
        "files": files,
        "note": note,
    }


def undo_file(outcome: Outcome, path: str) -> UndoFile:
    """One outcome of a restore as data; ``path`` "" is unknown."""
    return {
        "file": path or unknown("the cgroup is gone"),
        "cgroup": outcome.target,
        "knob": outcome.knob.value,
        "owner": outcome.owner,
        "outcome": outcome.status.value,
        "before": outcome.before,
        "after": outcome.after,
        "errno": outcome.errno,
        "why": outcome.why,
    }


def would_restore(owned: Iterable[Owned]) -> list[Outcome]:
    """What a restore of these journaled values would do, as outcomes that wrote nothing."""
    return [
        Outcome(
            target=entry.target,
            knob=entry.knob,
            owner=entry.owner,
            status=Status.DRY_RUN,
            before=entry.last_written,
            after=entry.original,
            why="would be restored",
        )
        for entry in owned
    ]
