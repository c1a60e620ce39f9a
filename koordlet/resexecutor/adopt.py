"""Originals that are known better than by their files: into the journal before any write (H14)."""

from __future__ import annotations

from dataclasses import replace

from koordlet.host.cgroup import Cgroups
from koordlet.model.actions import Target
from koordlet.model.adoption import ADOPTED, Adopted, Adoption, AdoptStatus
from koordlet.model.knobs import Channel
from koordlet.model.readings import Missing
from koordlet.resexecutor.jobs import left_behind
from koordlet.resexecutor.journal import Row
from koordlet.resexecutor.ledger import Held, Ledger, inode_of, mount_name
from koordlet.resexecutor.reads import Reads


def adoptable(
    entry: Adoption,
    cgroups: Cgroups,
    ledger: Ledger,
    reads: Reads,
    pending: frozenset[Target],
    wall_s: float,
) -> Row | Adopted:
    """The row that makes ``entry.original`` the original, or why there is none.

    Only what was listed is adopted: the same cgroup, and the same value in it.
    """
    spec = cgroups.spec(entry.knob)
    if spec is None or spec.read_only:
        return _told(entry, AdoptStatus.REFUSED, "is not written on this host")
    if cgroups.place(entry.target) is not None:
        return _told(entry, AdoptStatus.REFUSED, "is systemd's, which knows what it was")
    if inode_of(cgroups, entry.key) != entry.inode:
        return _told(entry, AdoptStatus.GONE, "the cgroup left")
    if entry.key in pending:
        return _told(entry, AdoptStatus.CHANGED, "a write to it is under way")
    try:
        entry = replace(entry, original=cgroups.canonical(entry.knob, entry.original))
    except ValueError as error:
        return _told(entry, AdoptStatus.REFUSED, str(error))
    held = ledger.get(entry.key)
    if held is not None:
        return _governed(entry, held)
    return _ungoverned(entry, cgroups, reads, wall_s)


def _governed(entry: Adoption, held: Held) -> Row | Adopted:
    """A value that we hold already: it stays, only its original is another one."""
    row = held.row
    if row.original == entry.original:
        return _told(entry, AdoptStatus.ALREADY, "its original is this already")
    if row.original != entry.found:
        return _told(entry, AdoptStatus.CHANGED, f"its original is {row.original!r} now")
    return replace(row, original=entry.original, source=entry.source)


def _ungoverned(entry: Adoption, cgroups: Cgroups, reads: Reads, wall_s: float) -> Row | Adopted:
    text = reads.text(entry.key)
    if isinstance(text, Missing):
        return _told(entry, AdoptStatus.REFUSED, text.why)
    if text != entry.found:
        is_there = text == entry.original
        status = AdoptStatus.ALREADY if is_there else AdoptStatus.CHANGED
        return _told(entry, status, f"holds {text!r} now")
    hidden = left_behind(cgroups, entry.key) if entry.side_effect else frozenset()
    return Row(
        mount=mount_name(cgroups, entry.key),
        path=entry.target,
        knob=entry.knob,
        inode=entry.inode,
        original=entry.original,
        may_write=frozenset({text}) | hidden,
        last_written=text,
        owner=ADOPTED,
        channel=entry.channel if entry.container_id else Channel.FILE,
        container_id=entry.container_id,
        side_effect=entry.side_effect,
        created_wall_s=wall_s,
        source=entry.source,
    )


def _told(entry: Adoption, status: AdoptStatus, why: str) -> Adopted:
    return Adopted(entry.target, entry.knob, status, why)
