"""One object for what is equal: a list that comes anew, from a source or from another process,
keeps the parts of the list before it.

On a node where containers come and go each second this is no matter of taste: parts that are
replaced by their equals lie scattered in memory, and hold on to far more of it than they fill.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from koordlet.model.pods import Pod, PodRecord

T = TypeVar("T")
S = TypeVar("S", bound=str)


def share_record(new: PodRecord, before: PodRecord | None) -> PodRecord:
    """``new``, made of the parts of ``before`` that are equal; ``before`` itself if all are."""
    if before is None or new is before or new == before:
        return before or new
    known = {container.id: container for container in before.containers}
    return replace(
        new,
        labels=_one_of(new.labels, before.labels),
        annotations=_one_of(new.annotations, before.annotations),
        requests=_one_of(new.requests, before.requests),
        limits=_one_of(new.limits, before.limits),
        containers=tuple(_one_of(each, known.get(each.id)) for each in new.containers),
    )


def share_pod(new: Pod, before: Pod | None) -> Pod:
    """``new``, made of the parts of ``before`` that are equal; ``before`` itself if all are."""
    if before is None or new is before or new == before:
        return before or new
    known = {container.id: container for container in before.containers}
    return replace(
        new,
        record=share_record(new.record, before.record),
        cgroup=_one_of(new.cgroup, before.cgroup),
        containers=tuple(_one_of(each, known.get(each.id)) for each in new.containers),
        sandboxes=_one_of(new.sandboxes, before.sandboxes),
    )


def share_paths(new: tuple[S, ...], before: tuple[S, ...]) -> tuple[S, ...]:
    """``new``, made of the paths of ``before`` that are equal; ``before`` itself if all are."""
    if new == before:
        return before
    known = {path: path for path in before}
    return tuple(known.get(path, path) for path in new)


def _one_of(new: T, before: T | None) -> T:
    return before if before is not None and before == new else new
