"""cgroup v1: a cgroup born under a cpuset that we hold narrowed copies it, and keeps it when we
let go (hazard H5).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from koordlet.host.cgroup import Cgroups
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.resexecutor.journal import Row
from koordlet.resexecutor.ledger import Held, Ledger, inode_of
from koordlet.resexecutor.reads import Reads, descendants

_CPUS = Knob.CPUSET_CPUS


def inherited(
    tree: Mapping[CgroupPath, tuple[CgroupPath, ...]],
    cgroups: Cgroups,
    ledger: Ledger,
    reads: Reads,
    wall_s: float,
) -> Iterator[Row]:
    """Rows for the directories of ``tree`` (children by parent) that copied a value of ours.

    They equal what their parent may hold by our doing and nobody journaled them; those that were
    there before us have a row of their own. Their original is their parent's.
    """
    if cgroups.version_of(_CPUS) != 1:
        return
    parents: dict[CgroupPath, Row] = {}
    for parent in sorted(tree, key=lambda path: path.depth):
        held = ledger.get((parent, _CPUS))
        row = held.row if held is not None else parents.get(parent)
        if row is None:
            continue
        texts = texts_of_ours(row, held)
        if not texts:
            continue
        for child in tree[parent]:
            copy = _copied(child, row, texts, cgroups, ledger, reads, wall_s)
            if copy is not None:
                parents[child] = copy
                yield copy


def texts_of_ours(row: Row, held: Held | None) -> frozenset[str]:
    """What the file of ``row`` may have held by our doing, its original left out."""
    before = {held.previous} if held is not None else set()
    return (row.may_write | {row.last_written} | before) - {row.original, ""}


def tree_below(cgroups: Cgroups, ledger: Ledger) -> dict[CgroupPath, tuple[CgroupPath, ...]]:
    """Children by parent below every v1 cpuset in the journal, for who has no such list."""
    tree: dict[CgroupPath, list[CgroupPath]] = {}
    if cgroups.version_of(_CPUS) != 1:
        return {}
    held = [each.row.path for each in ledger if each.row.knob is _CPUS]
    tops = [path for path in held if not any(path.is_below(other) for other in held)]
    for top in tops:
        tree[top] = []
        for path in descendants(cgroups, top, _CPUS):
            tree.setdefault(path.parent, []).append(path)
            tree.setdefault(path, [])
    return {parent: tuple(children) for parent, children in tree.items()}


def _copied(
    child: CgroupPath,
    parent: Row,
    texts: frozenset[str],
    cgroups: Cgroups,
    ledger: Ledger,
    reads: Reads,
    wall_s: float,
) -> Row | None:
    key = (child, _CPUS)
    if key in ledger:
        return None
    text = reads.text(key)
    if isinstance(text, Missing) or text not in texts:
        return None
    return Row(
        mount=parent.mount,
        path=child,
        knob=_CPUS,
        inode=inode_of(cgroups, key),
        original=parent.original,
        may_write=frozenset({text}),
        last_written=text,
        owner=parent.owner,
        created_wall_s=wall_s,
    )
