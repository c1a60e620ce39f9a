"""Carries jobs out: journal, ordered writes, retries, read-back, journal."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from koordlet.host.cgroup import Cgroups
from koordlet.model.actions import Outcome, Status, Target
from koordlet.model.knobs import Channel, Direction, Knob
from koordlet.model.paths import ROOT
from koordlet.model.readings import Missing
from koordlet.protocol.cpuset import format_cpuset, parse_cpuset
from koordlet.resexecutor.effects import Effects
from koordlet.resexecutor.inherit import texts_of_ours
from koordlet.resexecutor.jobs import Job, Jobs, Progress, left_behind, rows_before
from koordlet.resexecutor.journal import JournalError, Row
from koordlet.resexecutor.judge import Judge, is_v1_cpuset, spec_original
from koordlet.resexecutor.ledger import Ledger, inode_of, mount_name
from koordlet.resexecutor.ordering import Change, Step, order
from koordlet.resexecutor.reads import Reads, descendants
from koordlet.resexecutor.refusals import explain, is_for_good, is_gone
from koordlet.resexecutor.spec import SpecDesk
from koordlet.resexecutor.unitdesk import unit_outcome

CPUSET_RETRIES = 3
WAITS_FOR_START = "waits for its turn: a bounded number of writes a tick until all are in force"
NOT_EMPTIED = "had none of its own; with tasks in it, it was given all CPUs of its parent"
_MEMORY = (Knob.MEMORY_LIMIT, Knob.MEMORY_SWAP_LIMIT, Knob.MEMORY_HIGH)


@dataclass(slots=True)
class Writer:
    """The only place that writes kernel files, ``slow`` ones excepted.

    ``journal_error`` says why the journal took nothing in the last run.
    """

    judge: Judge
    effects: Effects | None
    journal_error: str = ""
    _rows: dict[Target, Row] = field(default_factory=dict)

    @property
    def cgroups(self) -> Cgroups:
        return self.judge.cgroups

    @property
    def ledger(self) -> Ledger:
        return self.judge.ledger

    @property
    def reads(self) -> Reads:
        return self.judge.reads

    @property
    def desk(self) -> SpecDesk:
        return self.judge.desk

    def run(self, jobs: Jobs, now_s: float, wall_s: float, limit: int | None) -> list[Outcome]:
        """Carry ``jobs`` out, at most ``limit`` writes; the rest is told as pending."""
        for job in jobs.values():
            if job.channel is Channel.SPEC and job.key not in self.ledger:
                job.before = spec_original(self.desk, self.cgroups, job)
        steps = self._journal(jobs, wall_s)
        steps = self._cut(steps, jobs, limit)
        for step in steps:
            job = jobs[step.key]
            if job.progress is Progress.PLANNED and not self._is_slow(step):
                if not job.begun:
                    self._look_again(job, jobs)
                if job.progress is Progress.PLANNED:
                    self._step(step, job, jobs, wall_s)
        self._hand_over(tuple(step for step in steps if self._is_slow(step)), jobs)
        self._ask(jobs, now_s, None if limit is None else limit - len(steps))
        self._order_units(jobs)
        return self.settle(jobs, now_s)

    # -- before the first write -------------------------------------------------------------------

    def _journal(self, jobs: Jobs, wall_s: float) -> tuple[Step, ...]:
        """Commit the rows of all jobs; where that fails only restores go on (hazard H15)."""
        steps = self._order(jobs)
        rows = tuple(rows_before(jobs, steps, self.cgroups, self.ledger, self.reads, wall_s))
        self._rows = {row.key: row for row in rows}
        try:
            self.ledger.begin(rows)
        except JournalError as error:
            self.journal_error = str(error)
            for job in jobs.values():
                if not job.restoring:
                    job.fail(0, self.journal_error)
            return self._order(jobs)
        self.journal_error = ""
        return steps

    def _order(self, jobs: Jobs) -> tuple[Step, ...]:
        planned = [
            job
            for job in jobs.values()
            if job.channel is Channel.FILE and job.progress is Progress.PLANNED
        ]
        current = {job.key: job.before for job in planned}
        versions = {job.key[1]: self.cgroups.version_of(job.key[1]) or 1 for job in planned}
        return order([job.change for job in planned], current, versions)

    def _cut(self, steps: tuple[Step, ...], jobs: Jobs, limit: int | None) -> tuple[Step, ...]:
        if limit is None or len(steps) <= limit:
            return steps
        for step in steps[limit:]:
            _defer(jobs[step.key])
        return steps[:limit]

    # -- writes -----------------------------------------------------------------------------------

    def _look_again(self, job: Job, jobs: Jobs) -> None:
        """Others write too: what changed since the plan was made is judged anew next time."""
        job.begun = True
        self.reads.forget(job.key)
        text = self.reads.text(job.key)
        if isinstance(text, Missing) or text == job.before or text == job.wanted:
            return
        if text in left_behind(self.cgroups, job.key) and (job.key[0], Knob.CPU_IDLE) in jobs:
            return
        job.progress = Progress.DEFERRED
        job.why = f"another writer made it {text!r} this moment; looked at again in the next tick"

    def _step(self, step: Step, job: Job, jobs: Jobs, wall_s: float) -> None:
        number = self._write(step)
        if number in (errno.EBUSY, errno.EACCES) and is_v1_cpuset(self.cgroups, step.key):
            for _ in range(CPUSET_RETRIES):
                if number == errno.EBUSY and not job.restoring:
                    self._narrow_below(step, job, jobs, wall_s)
                number = self._write(step)
                if number == 0:
                    return
        if number == errno.ENOSPC and job.restoring and not step.text:
            number = self._widen(step, job)
        if number and job.progress is Progress.PLANNED:
            job.fail(number, explain(self.cgroups, self.reads, step.key, step.text, number))

    def _widen(self, step: Step, job: Job) -> int:
        """Give a v2 cpuset all CPUs of its parent, as none of its own would: the kernel empties
        none that has tasks in or below it. 0, or the errno.
        """
        cpus = self.cgroups.read(step.target.parent, Knob.CPUSET_CPUS_EFFECTIVE)
        if step.knob is not Knob.CPUSET_CPUS or not isinstance(cpus, frozenset):
            return errno.ENOSPC
        wide = replace(step, text=format_cpuset(cpus))
        held = self.ledger.get(step.key)
        row = self._rows.get(step.key) or (held.row if held else None)
        if row is not None:
            row = self._rows[step.key] = replace(row, may_write=row.may_write | {wide.text})
            try:
                self.ledger.update([row], ())
            except JournalError as error:
                job.fail(0, str(error))
                return errno.EIO
        job.wanted, job.why = wide.text, NOT_EMPTIED
        return self._write(wide)

    def _write(self, step: Step) -> int:
        """0, or the kernel's errno."""
        self.reads.forget(step.key)
        try:
            self.cgroups.write(step.target, step.knob, step.text)
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def _narrow_below(self, step: Step, job: Job, jobs: Jobs, wall_s: float) -> None:
        """Narrow whatever below stands in the way, however deep and whoever made it: a cgroup
        that was born since the tree was listed, or nested in a container (hazard H18).
        """
        strays = self._strays(step, job, jobs)
        changes = [Change(*stray.key, narrow) for stray, narrow in strays]
        current = {stray.key: str(self.reads.text(stray.key)) for stray, _ in strays}
        steps = order(changes, current, {step.knob: 1})
        for stray, _ in strays:  # parents first: a child's original may be its parent's
            row = self._rows.get(stray.key) or self._stray_row(stray, wall_s)
            texts = frozenset(each.text for each in steps if each.key == stray.key)
            self._rows[stray.key] = replace(row, may_write=row.may_write | texts)
        try:
            self.ledger.update([self._rows[stray.key] for stray, _ in strays], ())
        except JournalError as error:
            for stray, _ in strays:
                stray.fail(0, str(error))
            return
        for each in steps:
            stray = jobs[each.key]
            number = self._write(each)
            stray.progress = Progress.FAILED if number else Progress.PLANNED
            stray.errno = number

    def _strays(self, step: Step, job: Job, jobs: Jobs) -> list[tuple[Job, str]]:
        """Cgroups below that are not within the step's set, and what they are to hold."""
        wanted = parse_cpuset(step.text)
        strays: list[tuple[Job, str]] = []
        for path in descendants(self.cgroups, step.target, step.knob):
            key = (path, step.knob)
            self.reads.forget(key)
            text = self.reads.text(key)
            stray = jobs.get(key)
            if isinstance(text, Missing) or parse_cpuset(text) <= wanted:
                continue
            if stray is not None and stray.restoring:
                continue
            narrow = format_cpuset(parse_cpuset(text) & wanted or wanted)
            if stray is None:
                why = f"lies in {step.target}, which is to hold {step.text}"
                stray = jobs[key] = Job(key, job.owner, text, narrow, reason=why)
            strays.append((stray, narrow))
        return strays

    def _stray_row(self, stray: Job, wall_s: float) -> Row:
        """Its row, or a new one: what it copied from a value of ours is not its own wish (H5)."""
        held = self.ledger.get(stray.key)
        if held is not None:
            return held.row
        row = Row(
            mount=mount_name(self.cgroups, stray.key),
            path=stray.key[0],
            knob=stray.key[1],
            inode=inode_of(self.cgroups, stray.key),
            original=stray.before,
            may_write=frozenset({stray.before}),
            last_written=stray.before,
            owner=stray.owner,
            created_wall_s=wall_s,
        )
        above = row.path
        while above != ROOT:
            above = above.parent
            holder = self.ledger.get((above, row.knob))
            parent = self._rows.get((above, row.knob)) or (holder.row if holder else None)
            if parent is not None:
                is_copy = stray.before in texts_of_ours(parent, holder)
                return replace(row, original=parent.original) if is_copy else row
        return row

    def _is_slow(self, step: Step) -> bool:
        spec = self.cgroups.spec(step.knob)
        return self.effects is not None and spec is not None and spec.slow

    def _hand_over(self, steps: tuple[Step, ...], jobs: Jobs) -> None:
        by_key: dict[Target, list[Step]] = {}
        for step in steps:
            by_key.setdefault(step.key, []).append(step)
        for key, own in by_key.items():
            job = jobs[key]
            if job.progress is not Progress.PLANNED or self.effects is None:
                continue
            if self.effects.submit(tuple(own)):
                job.progress, job.why = Progress.HANDED_OVER, "with the thread for slow files"
            else:
                job.fail(errno.EAGAIN, "the queue for slow files is full")

    def _ask(self, jobs: Jobs, now_s: float, limit: int | None) -> None:
        """Requests to the runtime go out last, when the parents' files allow their values; at most
        ``limit`` of them.
        """
        asked = 0
        for job in jobs.values():
            if job.channel is not Channel.SPEC or job.progress is not Progress.PLANNED:
                continue
            if limit is not None and asked >= limit:
                _defer(job)
                continue
            asked += 1
            spec = self.cgroups.spec(job.key[1])
            if self.desk.channel is None or spec is None:
                job.fail(0, "there is no way to the container runtime")
                continue
            self.desk.ask(job, spec.parse(job.wanted), now_s)
            job.progress, job.why = Progress.HANDED_OVER, "asked the runtime"

    def _order_units(self, jobs: Jobs) -> None:
        """What systemd is to do; as many as there are: units are declared one by one."""
        if any(job.channel is Channel.UNIT for job in jobs.values()):
            rows = {held.row.key: held.row for held in self.ledger} | self._rows
            self.judge.units.submit(jobs.values(), rows)

    # -- after the last write ---------------------------------------------------------------------

    def settle(self, jobs: Jobs, now_s: float) -> list[Outcome]:
        """Read back, journal what is known now, and tell."""
        kept: list[Row] = []
        closed: list[Target] = []
        outcomes: list[Outcome] = []
        for job in jobs.values():
            outcome = self._verdict(job, now_s)
            outcomes.append(outcome)
            row = self._row_after(job, outcome)
            if row is None:
                closed.append(job.key)
            else:
                kept.append(row)
        for row in self._hidden(jobs):
            kept.append(row)
        self._commit(kept, closed, now_s, {outcome.key: outcome for outcome in outcomes})
        return outcomes

    def _verdict(self, job: Job, now_s: float) -> Outcome:
        if job.progress in (Progress.DEFERRED, Progress.HANDED_OVER):
            return job.outcome(Status.PENDING, job.before)
        self.reads.forget(job.key)
        if job.channel is Channel.UNIT:
            return self._unit_verdict(job, now_s)
        text = self.reads.text(job.key)
        after = "" if isinstance(text, Missing) else text
        if job.progress is Progress.FAILED:
            return self._refusal(job, after, now_s)
        if isinstance(text, Missing):
            status = Status.GONE if is_gone(text.errno) else Status.PENDING
            return job.outcome(status, why=text.why)
        if text != job.wanted and not self.reads.masked(job.key):
            job.why = f"took {job.wanted!r} and reads {text!r}: another writer is at work"
            return job.outcome(Status.REFUSED, text)
        self.judge.unsupported.works(job.key)
        self.judge.refusals.drop(job.key)
        self.judge.fights.reapplied(job.key, now_s)
        if job.restoring:
            return job.outcome(Status.RESTORED, text)
        return job.outcome(Status.UNCHANGED if job.before == text else Status.APPLIED, text)

    def _unit_verdict(self, job: Job, now_s: float) -> Outcome:
        """What came of a unit's value."""
        text = self.reads.text(job.key)
        outcome = unit_outcome(job, text, is_hidden=self.reads.masked(job.key))
        if job.progress is not Progress.FAILED:
            self.judge.refusals.drop(job.key)
            self.judge.fights.reapplied(job.key, now_s)
        elif outcome.status is Status.REFUSED:
            self.judge.refusals.note(job.key, job.wanted, job.errno, job.why, now_s, patient=True)
        return outcome

    def _refusal(self, job: Job, after: str, now_s: float) -> Outcome:
        spec = self.cgroups.spec(job.key[1])
        if is_gone(job.errno) and not self.reads.is_there(job.key):
            return job.outcome(Status.GONE, why="the cgroup left")
        if spec is not None and is_for_good(spec, job.errno):
            self.judge.unsupported.mark(job.key, job.why, now_s)
            return job.outcome(Status.UNSUPPORTED, after)
        if job.errno:
            patient = job.restoring or job.direction is Direction.RELAX or job.key[1] in _MEMORY
            self.judge.refusals.note(
                job.key, job.wanted, job.errno, job.why, now_s, patient=patient
            )
        return job.outcome(Status.REFUSED, after)

    def _row_after(self, job: Job, outcome: Outcome) -> Row | None:
        """The row that the journal is to hold now; None where nothing of ours is left."""
        held = self.ledger.get(job.key)
        row = self._rows.get(job.key) or (held.row if held else None)
        if row is None or outcome.status is Status.GONE:
            return None
        if outcome.status in (Status.RESTORED, Status.FOREIGN):
            return None
        if outcome.status in (Status.APPLIED, Status.UNCHANGED):
            may_write = {job.wanted}
            if self._is_hidden(job.key) and job.channel is not Channel.UNIT:
                may_write |= left_behind(self.cgroups, job.key)
            return replace(row, last_written=job.wanted, may_write=frozenset(may_write))
        refused = outcome.status in (Status.REFUSED, Status.UNSUPPORTED)
        may_come = job.channel is Channel.UNIT and job.errno == errno.ETIMEDOUT
        if refused and outcome.after == row.original == row.last_written and not may_come:
            return None
        if outcome.after in row.may_write:
            return replace(row, last_written=outcome.after)
        return row

    def _is_hidden(self, key: Target) -> bool:
        return key[1] is Knob.CPU_SHARES and self.reads.text((key[0], Knob.CPU_IDLE)) == "1"

    def _hidden(self, jobs: Jobs) -> Iterable[Row]:
        """Rows of weights that a cpu.idle written now hides."""
        for key, row in self._rows.items():
            if key not in jobs and self._is_hidden(key):
                self.reads.forget(key)
                yield row

    def _commit(
        self,
        kept: list[Row],
        closed: list[Target],
        now_s: float,
        outcomes: dict[Target, Outcome],
    ) -> None:
        told = {row.key for row in kept} | set(closed)
        for key, row in self._rows.items():
            if key not in told:  # a weight that was not hidden after all
                if key in self.ledger:
                    kept.append(row)
                else:
                    closed.append(key)
        try:
            self.ledger.finish(kept, closed)
        except JournalError as error:
            self.journal_error = str(error)
        for row in kept:
            outcome = outcomes.get(row.key)
            agrees = outcome is None or outcome.status in (Status.APPLIED, Status.UNCHANGED)
            raw = self.reads.raw(row.key) if agrees else None
            self.ledger.keep(row, now_s, None if isinstance(raw, Missing) else raw)
        for key in closed:
            self.judge.forget(key)
        self._rows = {}


def _defer(job: Job) -> None:
    """Leave it to a later tick: at the start so many are written at once, and no more (H14)."""
    job.progress, job.why = Progress.DEFERRED, WAITS_FOR_START
