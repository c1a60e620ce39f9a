"""Values of cgroups that systemd owns: asked of systemd now, answered later (hazard H6).

A row of such a value also has what the properties behind it were before the first change, and
whether each had a drop-in: the file alone does not tell "not set" from "set to the default".
"""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from koordlet.host.cgroup import Cgroups
from koordlet.host.unitowner import Fault, SystemdError, TakeBack, UnitState
from koordlet.host.unitprops import (
    IDLE_SINCE,
    PERIOD,
    PROPERTIES,
    UNSET,
    PropertyValue,
    facts_of,
    knows_idle,
    property_of,
    quota_text,
    setting_text,
    values_of,
)
from koordlet.model.actions import Outcome, Status, Target
from koordlet.model.knobs import Channel, Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem
from koordlet.resexecutor import troubles
from koordlet.resexecutor.jobs import Job, Progress
from koordlet.resexecutor.journal import Row
from koordlet.resexecutor.ledger import Ledger
from koordlet.resexecutor.unitrows import Original
from koordlet.resexecutor.unitthread import UnitFacts, UnitOrder, UnitResult, UnitThread

FRESH_S = 3.0
"""For how long an answer about a unit may become the original of a value."""

SLOW_S = 15.0
"""A call that takes longer is told."""

Rows = Mapping[Target, Row]

_ERRNOS = {
    Fault.NO_UNIT: errno.ENOENT,
    Fault.REFUSED: errno.EPERM,
    Fault.UNREACHABLE: errno.ETIMEDOUT,
}


@dataclass(frozen=True, slots=True)
class _Known:
    at_s: float
    state: UnitState | SystemdError


@dataclass(slots=True)
class UnitDesk:
    """What is known of units, and orders under way. ``thread`` is None where nothing is asked."""

    cgroups: Cgroups
    ledger: Ledger
    thread: UnitThread | None
    _known: dict[CgroupPath, _Known] = field(default_factory=dict)
    _asked: set[CgroupPath] = field(default_factory=set)

    # -- before a job -----------------------------------------------------------------------------

    def cannot(self, key: Target) -> str:
        """Why ``key``'s value cannot be had from systemd at all; ``""`` where it may."""
        if self.thread is None:
            return self.cgroups.no_systemd or "systemd is not asked here"
        version = self.cgroups.version_of(key[1])
        if property_of(key[1], version) is None:
            return f"systemd has no property for {key[1].value} on cgroup v{version}"
        if key[1] is Knob.CPU_IDLE and not knows_idle(self.thread.version):
            return f"CPUWeight=idle needs systemd {IDLE_SINCE}, this is {self.thread.version}"
        return ""

    def originals(self, key: Target, now_s: float) -> tuple[Original, ...] | Missing | SystemdError:
        """What the properties behind ``key`` were before our first change: from the rows of its
        unit, else by systemd's word; Missing while it is asked.
        """
        path, knob = key
        names = facts_of(knob, self.cgroups.version_of(knob))
        kin = self._rows_of(path)
        noted = {o.name: o for row in kin for o in row.properties if o.value is not None}
        if names[0] in noted:
            return tuple(noted[name] for name in names if name in noted)
        known = self._known.get(path)
        if known is None or now_s - known.at_s > FRESH_S:
            self._ask(path)
            return Missing(f"systemd is asked about {self.cgroups.unit_of(path)}")
        if isinstance(known.state, SystemdError):
            return known.state
        state, left = known.state, self._left_behind(kin)
        if names[0] not in state.values:
            return SystemdError(Fault.REFUSED, f"this systemd knows no property {names[0]}")
        return tuple(
            Original(name, state.values[name], _has_drop_in(state, name, left))
            for name in names
            if name in state.values
        )

    def settled(self, key: Target, text: str, period: str, originals: Iterable[Original]) -> str:
        """What the file will read once systemd has been asked for ``text``."""
        if key[1] is not Knob.CPU_QUOTA or not text.isdigit() or not period.isdigit():
            return text
        wanted = {each.name: each.value for each in originals}.get(PERIOD, UNSET)
        owners_period_us = wanted if isinstance(wanted, int) else UNSET
        return quota_text(int(text), int(period), owners_period_us)

    def _ask(self, path: CgroupPath) -> None:
        """Everything that any knob of the unit needs to know, so that one answer does."""
        if self.thread is None or path in self._asked:
            return
        names = [name for knob in Knob for name in facts_of(knob, self.cgroups.version_of(knob))]
        self._asked.add(path)
        self.thread.ask(path, self.cgroups.unit_of(path), dict.fromkeys(names))

    def _left_behind(self, rows: Iterable[Row]) -> frozenset[tuple[str, PropertyValue]]:
        """Every property and value that we set ourselves."""
        return frozenset(
            pair
            for row in rows
            for text in row.may_write
            for pair in self._properties(row, text).items()
        )

    def _rows_of(self, path: CgroupPath) -> list[Row]:
        found = [self.ledger.get((path, knob)) for knob in Knob]
        rows = [held.row for held in found if held is not None]
        return [row for row in rows if row.channel is Channel.UNIT]

    # -- orders -----------------------------------------------------------------------------------

    def submit(self, jobs: Iterable[Job], rows: Rows) -> None:
        """Order what ``jobs`` want; ``rows`` are all rows, those of ``jobs`` as journaled now."""
        by_unit: dict[CgroupPath, list[Job]] = defaultdict(list)
        for job in jobs:
            if job.channel is Channel.UNIT and job.progress is Progress.PLANNED:
                by_unit[job.key[0]].append(job)
        for path, own in by_unit.items():
            if self.thread is None:
                for job in own:
                    job.fail(0, self.cannot(job.key))
                continue
            kin = [r for r in rows.values() if r.path == path and r.channel is Channel.UNIT]
            self.thread.submit(self._order(path, own, kin))
            for job in own:
                job.progress, job.why = Progress.HANDED_OVER, "asked systemd"

    def _order(self, path: CgroupPath, jobs: list[Job], rows: list[Row]) -> UnitOrder:
        wanted = self._wanted(jobs, rows)
        touched = {
            name: None
            for job in jobs
            for row in rows
            if row.key == job.key
            for name in self._touched(row, job.wanted)
        }
        return UnitOrder(
            path=path,
            unit=self.cgroups.unit_of(path),
            values={name: wanted[name] for name in touched if name in wanted},
            take_back=tuple(self._take_back(name, rows) for name in touched if name not in wanted),
            texts={job.key[1]: job.wanted for job in jobs},
            before={job.key[1]: job.before for job in jobs},
        )

    def _wanted(self, jobs: list[Job], rows: list[Row]) -> dict[str, PropertyValue]:
        """The properties of everything that is still wanted of the unit; idle hides the weight."""
        by_key = {job.key: job for job in jobs}
        found: dict[str, PropertyValue] = {}
        for row in sorted(rows, key=lambda row: row.knob is Knob.CPU_IDLE):
            job = by_key.get(row.key)
            if job is None or not job.restoring:
                text = row.last_written if job is None else job.wanted
                found.update(self._properties(row, text))
        return found

    def _take_back(self, name: str, rows: list[Row]) -> TakeBack:
        properties = [each for row in rows for each in row.properties if each.name == name]
        original = next((each for each in properties if each.value is not None), None)
        texts = [(row, text) for row in rows for text in (*row.may_write, row.last_written)]
        ours = {self._properties(row, text).get(name) for row, text in texts}
        return TakeBack(
            name,
            None if original is None else original.value,
            had_drop_in=original is not None and original.had_drop_in,
            ours=frozenset(value for value in ours if value is not None),
        )

    def _touched(self, row: Row, text: str) -> Iterator[str]:
        """The properties that a row's values went through; the last one wanted, too."""
        for each in (*row.may_write, row.last_written, text):
            yield from self._properties(row, each)

    def _properties(self, row: Row, text: str) -> dict[str, PropertyValue]:
        originals = {o.name: o.value for o in row.properties if o.value is not None}
        with suppress(ValueError):
            return values_of(row.knob, self.cgroups.version_of(row.knob), text, originals)
        return {}

    # -- answers ----------------------------------------------------------------------------------

    def answered(self, job: Job, result: UnitResult) -> None:
        """Note in ``job`` what systemd made of it."""
        job.progress, job.why = Progress.PLANNED, ""
        if result.fault is not None:
            job.fail(_ERRNOS[result.fault], result.why)
        elif result.overtaken:
            job.progress, job.why = Progress.DEFERRED, result.overtaken
        names = facts_of(job.key[1], self.cgroups.version_of(job.key[1]))
        job.is_foreign = not result.foreign.isdisjoint(names)

    def answers(self, now_s: float) -> Iterator[UnitResult]:
        """Results of orders; what was asked is noted on the way."""
        for each in () if self.thread is None else self.thread.drain():
            if isinstance(each, UnitResult):
                self._known.pop(each.path, None)
                yield each
            else:
                self._note(each, now_s)

    def _note(self, facts: UnitFacts, now_s: float) -> None:
        self._asked.discard(facts.path)
        self._known = {
            path: known for path, known in self._known.items() if now_s - known.at_s <= FRESH_S
        }
        state = facts.state
        if isinstance(state, UnitState):
            state = _checked(state, self.cgroups.host_path(facts.path))
        self._known[facts.path] = _Known(now_s, state)

    def wait_idle(self) -> None:
        """Wait for everything that is under way, as long as the thread has patience."""
        if self.thread is not None:
            self.thread.wait_idle(self.thread.patience_s)

    def problems(self) -> Iterator[Problem]:
        """What stands between systemd and us."""
        if self.thread is not None and self.thread.busy_s() > SLOW_S:
            yield troubles.systemd_silent(self.thread.busy_s())
        if self.thread is not None and self.thread.trouble:
            yield troubles.not_reloaded(self.thread.trouble)

    def stop(self, timeout_s: float) -> None:
        """End the thread."""
        if self.thread is not None:
            self.thread.stop(timeout_s)


def unit_outcome(job: Job, text: str | Missing, *, is_hidden: bool) -> Outcome:
    """What came of ``job``: of a value that was given back by systemd's word, of another by its
    file's ``text``, which is Missing where the unit does not run.
    """
    after = "" if isinstance(text, Missing) else text
    if job.progress is Progress.FAILED:
        is_gone = job.restoring and job.errno == errno.ENOENT
        return job.outcome(Status.GONE if is_gone else Status.REFUSED, after)
    if job.restoring and job.is_foreign and after != job.wanted:
        why = "holds a value that is not ours; left as it is"
        return job.outcome(Status.FOREIGN, after, why=why)
    if job.restoring:
        return job.outcome(Status.RESTORED, after)
    if isinstance(text, Missing):
        return job.outcome(Status.PENDING, why="in force as soon as the unit runs")
    if text != job.wanted and not is_hidden:
        job.why = f"took {job.wanted!r} and reads {text!r}: another writer is at work"
        return job.outcome(Status.REFUSED, text)
    return job.outcome(Status.APPLIED, text)


def rebased(row: Row, text: str, ledger: Ledger) -> Iterator[Row]:
    """A unit's row whose owner wants ``text`` now, and others that share a property with it.

    The properties have to be asked for anew, and what we wrote stays known: our drop-in may still
    be there, hidden by the owner's.
    """
    names = {each.name for each in row.properties}
    yield replace(
        _stale(row, names),
        original=text,
        last_written=text,
        may_write=(row.may_write | {row.last_written}) - {text},
    )
    for knob in Knob:
        held = ledger.get((row.path, knob))
        if held is not None and knob is not row.knob and held.row.channel is Channel.UNIT:
            kin = _stale(held.row, names)
            if kin != held.row:
                yield kin


def _stale(row: Row, names: set[str]) -> Row:
    properties = tuple(
        replace(each, value=None) if each.name in names else each for each in row.properties
    )
    return replace(row, properties=properties)


def _has_drop_in(state: UnitState, name: str, left: frozenset[tuple[str, PropertyValue]]) -> bool:
    """Whether a drop-in is the owner's: one that says a value of ours was left behind by us."""
    says = state.drop_ins.get(name)
    ours = {setting_text(PROPERTIES[n], value) for n, value in left if n == name}
    return says is not None and says not in ours


def _checked(state: UnitState, path: str) -> UnitState | SystemdError:
    if state.control_group == path:
        return state
    what = f"{state.unit}: its cgroup is {state.control_group or 'gone'}, not {path}"
    return SystemdError(Fault.REFUSED, what)
