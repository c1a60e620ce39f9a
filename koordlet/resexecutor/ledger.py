"""The values that we hold, in memory and in the journal, and what each file last said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from koordlet.host.cgroup import Cgroups
from koordlet.model.actions import Outcome, Owned, Target
from koordlet.model.knobs import Value
from koordlet.model.readings import Missing
from koordlet.resexecutor.journal import BadRow, Journal, Row

TAKEN_OVER_S = -1.0
"""``Owned.since_s`` of a value that an earlier process wrote."""


@dataclass(slots=True)
class Held:
    """One row with what this process knows of its file.

    ``seen`` is the raw text with which the value is known to be in force; None where that must be
    looked at. ``previous`` is what we wrote before ``row.last_written``. ``settled`` is the value
    that was asked for when the file last agreed, with the outcome told then. ``looked_at`` is the
    text that was last judged. ``path`` is the kernel file.
    """

    row: Row
    path: str
    since_s: float
    seen: bytes | None = None
    previous: str = ""
    looked_at: str = ""
    settled: tuple[Value, Outcome] | None = None

    @property
    def owned(self) -> Owned:
        row = self.row
        return Owned(
            target=row.path,
            knob=row.knob,
            owner=row.owner,
            channel=row.channel,
            original=row.original,
            last_written=row.last_written,
            since_s=self.since_s,
            container_id=row.container_id,
            side_effect=row.side_effect,
            source=row.source,
        )


class Ledger:
    """Rows by target. ``read_only`` takes over what a journal holds and never changes it.

    Raises JournalError from ``load``, ``begin``, ``update`` and ``finish``.
    """

    def __init__(
        self, cgroups: Cgroups, journal: Journal | None, *, read_only: bool = False
    ) -> None:
        self._cgroups = cgroups
        self._source = journal
        self._journal = None if read_only else journal
        self._held: dict[Target, Held] = {}
        self._owned: Mapping[Target, Owned] | None = None

    def load(self) -> tuple[BadRow, ...]:
        """Take over what the journal holds; gives back the rows that cannot be trusted."""
        if self._source is None:
            return ()
        rows, bad = self._source.rows()
        for row in rows:
            self._held[row.key] = Held(row, self._path(row.key), TAKEN_OVER_S)
        self._owned = None
        return bad

    def get(self, key: Target) -> Held | None:
        return self._held.get(key)

    def __contains__(self, key: Target) -> bool:
        return key in self._held

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    def owned(self) -> Mapping[Target, Owned]:
        """All that we hold, as immutable values; the same object until something changes."""
        if self._owned is None:
            self._owned = MappingProxyType({key: held.owned for key, held in self._held.items()})
        return self._owned

    def begin(self, rows: Iterable[Row]) -> None:
        """Journal what a plan may write, before it writes."""
        if self._journal is not None:
            self._journal.begin(rows)

    def update(self, rows: Iterable[Row], closed: Iterable[Target]) -> None:
        """Journal changed or further rows, in a plan or between plans."""
        if self._journal is not None:
            self._journal.update(rows, closed)

    def finish(self, rows: Iterable[Row], closed: Iterable[Target]) -> None:
        """Journal what came of a plan."""
        if self._journal is not None:
            self._journal.finish(rows, closed)

    def keep(self, row: Row, now_s: float, seen: bytes | None = None) -> Held:
        """Hold ``row`` in memory; ``now_s`` counts where it is new."""
        held = self._held.get(row.key)
        if held is None:
            held = self._held[row.key] = Held(row, self._path(row.key), now_s)
        elif row.last_written != held.row.last_written:
            held.previous = held.row.last_written
            held.since_s = now_s
        held.row = row
        held.seen = seen
        held.settled = None
        held.looked_at = row.last_written
        self._owned = None
        return held

    def drop(self, key: Target) -> None:
        """Hold ``key`` no longer."""
        if self._held.pop(key, None) is not None:
            self._owned = None

    def _path(self, key: Target) -> str:
        path = self._cgroups.path_of(*key)
        return "" if isinstance(path, Missing) else path


def mount_name(cgroups: Cgroups, key: Target) -> str:
    """The hierarchy of a knob as the journal names it; ``""`` where there is none."""
    spec, mount = cgroups.spec(key[1]), cgroups.mount_of(key[1])
    return "" if spec is None or isinstance(mount, Missing) else f"{spec.controller}@{mount}"


def inode_of(cgroups: Cgroups, key: Target) -> int:
    """Inode of the cgroup's directory; 0 where it is gone."""
    found = cgroups.identity(*key)
    return 0 if isinstance(found, Missing) else found.ino
