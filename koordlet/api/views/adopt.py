"""What another agent left on this node, and what came of taking it over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypedDict

from koordlet.adoption.strays import Stray
from koordlet.adoption.survey import Leftover
from koordlet.api.views.common import Unknown, unknown
from koordlet.model.actions import Outcome, Target
from koordlet.model.adoption import Adopted, AdoptStatus
from koordlet.model.readings import Missing

Verdict = Literal["proposed", "unknown", "adopted", "already", "changed", "gone", "refused"]


class AdoptFile(TypedDict):
    """One file that does not hold what it would without another agent; texts are as files read.

    ``original`` is what it would hold, ``source`` who says so; unknown is never adopted. With
    ``held`` koordlet governs the file already, and ``found`` is what it took for the original.
    ``verdict``: ``proposed`` or ``unknown`` where nothing was ordered, else what came of it
    (``already``: it was known before; ``changed``: no longer what was listed, nothing was done).
    ``outcome`` is that of the first write after it, "" where there was none yet.
    """

    file: str
    cgroup: str
    knob: str
    belongs_to: str
    found: str
    original: str | Unknown
    source: str
    channel: str
    held: bool
    note: str
    verdict: Verdict
    why: str
    outcome: str


class StrayData(TypedDict):
    """Something of another agent that koordlet does not govern: found, and left to a person."""

    area: str
    where: str
    found: str
    default: str
    remedy: str


class AdoptData(TypedDict):
    """All leftovers of ``scope``. ``list`` names this very list: an order may ask for it alone.

    ``compared`` files were looked at. ``changed`` counts the gone ones, too.
    """

    done_by: Literal["daemon", "nobody"]
    scope: str
    dry_run: bool
    list: str
    compared: int
    proposed: int
    unknown: int
    adopted: int
    already: int
    changed: int
    refused: int
    files: list[AdoptFile]
    unmanaged: list[StrayData]
    note: str


def adopt_data(
    leftovers: Iterable[Leftover],
    strays: Iterable[Stray],
    *,
    scope: str,
    compared: int,
    list_id: str,
    adopted: Mapping[Target, Adopted] | None = None,
    outcomes: Mapping[Target, Outcome] | None = None,
    note: str = "",
) -> AdoptData:
    """A list, or with ``adopted`` what came of ordering it."""
    files = [adopt_file(leftover, adopted, outcomes or {}) for leftover in leftovers]
    verdicts = [entry["verdict"] for entry in files]
    return {
        "done_by": "nobody" if adopted is None else "daemon",
        "scope": scope,
        "dry_run": adopted is None,
        "list": list_id,
        "compared": compared,
        "proposed": verdicts.count("proposed"),
        "unknown": verdicts.count("unknown"),
        "adopted": verdicts.count("adopted"),
        "already": verdicts.count("already"),
        "changed": verdicts.count("changed") + verdicts.count("gone"),
        "refused": verdicts.count("refused"),
        "files": files,
        "unmanaged": [stray_data(stray) for stray in strays],
        "note": note,
    }


def adopt_file(
    leftover: Leftover,
    adopted: Mapping[Target, Adopted] | None,
    outcomes: Mapping[Target, Outcome],
) -> AdoptFile:
    """One leftover as data."""
    verdict, why = _verdict(leftover, adopted)
    outcome = outcomes.get(leftover.key)
    original = leftover.original
    return {
        "file": leftover.file,
        "cgroup": leftover.place.path,
        "knob": leftover.knob.value,
        "belongs_to": leftover.place.name,
        "found": leftover.found,
        "original": unknown(original) if isinstance(original, Missing) else original,
        "source": leftover.source,
        "channel": leftover.channel.value,
        "held": leftover.held,
        "note": leftover.note,
        "verdict": verdict,
        "why": why,
        "outcome": outcome.status.value if outcome else "",
    }


_VERDICTS: Mapping[AdoptStatus, Verdict] = {
    AdoptStatus.ADOPTED: "adopted",
    AdoptStatus.ALREADY: "already",
    AdoptStatus.CHANGED: "changed",
    AdoptStatus.GONE: "gone",
    AdoptStatus.REFUSED: "refused",
}


def _verdict(leftover: Leftover, adopted: Mapping[Target, Adopted] | None) -> tuple[Verdict, str]:
    if isinstance(leftover.original, Missing):
        return "unknown", leftover.original.why
    if adopted is None:
        return "proposed", ""
    told = adopted.get(leftover.key)
    if told is None:
        return "refused", "the core has not told what came of it"
    return _VERDICTS[told.status], told.why


def stray_data(stray: Stray) -> StrayData:
    """One stray as data."""
    return {
        "area": stray.area,
        "where": stray.where,
        "found": stray.found,
        "default": stray.default,
        "remedy": stray.remedy,
    }
