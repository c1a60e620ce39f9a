"""What others did to our values since the last look (hazards H7, H17)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from koordlet.host.cgroup import Cgroups
from koordlet.model.actions import Target
from koordlet.model.knobs import Channel
from koordlet.model.readings import Missing
from koordlet.resexecutor.audit import AuditEvent
from koordlet.resexecutor.foreign import Fights, Verdict, judge_text
from koordlet.resexecutor.journal import JournalError, Row
from koordlet.resexecutor.judge import Judge
from koordlet.resexecutor.ledger import Held, Ledger, inode_of
from koordlet.resexecutor.reads import Reads
from koordlet.resexecutor.refusals import is_gone
from koordlet.resexecutor.tell import Teller
from koordlet.resexecutor.unitdesk import rebased

_IDENTITY_ROUND = 4
"""Each look checks the cgroup's identity of a fourth of the values, beside those that moved."""


@dataclass(frozen=True, slots=True)
class Review:
    """``resets`` were put back and stay listed until we write again; ``rebased`` have a new
    original, from which strategies must start again; ``gone`` are no longer held.
    """

    resets: frozenset[Target] = frozenset()
    rebased: frozenset[Target] = frozenset()
    gone: frozenset[Target] = frozenset()
    events: tuple[AuditEvent, ...] = ()


@dataclass(slots=True)
class _Found:
    resets: list[Target] = field(default_factory=list)
    rebased: list[Row] = field(default_factory=list)
    kin: list[Row] = field(default_factory=list)  # of the same unit, by the same property
    gone: list[Target] = field(default_factory=list)
    events: list[AuditEvent] = field(default_factory=list)


class Reviewer:
    """Looks at every value that we hold. ``journal_error`` is set where noting a change failed."""

    def __init__(
        self, cgroups: Cgroups, ledger: Ledger, reads: Reads, judge: Judge, teller: Teller
    ) -> None:
        self._cgroups = cgroups
        self._ledger = ledger
        self._reads = reads
        self._judge = judge
        self._fights: Fights = judge.fights
        self._teller = teller
        self._round = 0
        self.journal_error = ""

    def look(self, pending: frozenset[Target], now_s: float, wall_s: float) -> Review:
        """In force, put back, or changed by its owner? Targets in ``pending`` are left out."""
        found = _Found()
        self._round += 1
        read = self._cgroups.files.read
        for number, held in enumerate(self._ledger, self._round):
            moved = held.seen is None or read(held.path) != held.seen
            if not moved and number % _IDENTITY_ROUND:
                continue
            if self._has_left(held.row):
                found.gone.append(held.row.key)
                found.events.append(
                    self._teller.row("gone", held.row, "", "", "the cgroup left", wall_s)
                )
            elif moved and held.row.key not in pending:
                self._compare(held, found, now_s, wall_s)
        self._note(found, now_s)
        return Review(
            frozenset(found.resets),
            frozenset(row.key for row in found.rebased),
            frozenset(found.gone),
            tuple(found.events),
        )

    def _has_left(self, row: Row) -> bool:
        """A file that is there, but cannot be read at the moment, is still ours to restore; and so
        is a unit, which keeps our values while it does not run.
        """
        if row.channel is Channel.UNIT:
            return False
        raw = self._reads.raw(row.key)
        unreadable = isinstance(raw, Missing) and is_gone(raw.errno)
        return unreadable or inode_of(self._cgroups, row.key) != row.inode

    def _compare(self, held: Held, found: _Found, now_s: float, wall_s: float) -> None:
        row = held.row
        raw, text = self._reads.raw(row.key), self._reads.text(row.key)
        spec = self._cgroups.spec(row.knob)
        held.seen, held.settled = None, None
        if isinstance(raw, Missing) or isinstance(text, Missing) or spec is None:
            return
        first_look, is_new = not held.looked_at, text != held.looked_at
        held.looked_at = text
        if self._reads.masked(row.key):
            held.seen = raw
            return
        verdict = judge_text(row, text, spec, self._judge.online())
        if verdict is Verdict.IN_FORCE:
            held.seen = raw
        elif verdict is Verdict.RESET:
            found.resets.append(row.key)
            if is_new and not first_look:
                self._fights.reset(row.key, now_s)
            if is_new:
                why = "put back by another writer"
                found.events.append(
                    self._teller.row("reset", row, row.last_written, text, why, wall_s)
                )
        elif verdict is Verdict.REBASED:
            why = f"its owner wants {text!r} now, no longer {row.original!r}"
            found.events.append(
                self._teller.row("rebased", row, row.last_written, text, why, wall_s)
            )
            if row.channel is Channel.UNIT:
                main, *kin = rebased(row, text, self._ledger)
                found.rebased.append(main)
                found.kin += kin
                return
            found.rebased.append(
                replace(
                    row, original=text, last_written=text, may_write=frozenset({text}), source=""
                )
            )

    def _note(self, found: _Found, now_s: float) -> None:
        if not found.rebased and not found.gone:
            return
        try:
            self._ledger.update((*found.rebased, *found.kin), found.gone)
            self.journal_error = ""
        except JournalError as error:
            self.journal_error = str(error)
        for row in found.rebased:
            raw = self._reads.raw(row.key)
            self._ledger.keep(row, now_s, None if isinstance(raw, Missing) else raw)
        for row in found.kin:
            self._ledger.keep(row, now_s)
        for key in found.gone:
            self._judge.forget(key)
