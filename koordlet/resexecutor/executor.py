"""The only writer: plans go in, outcomes come out, and everything can be taken back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from koordlet.clock import Clock
from koordlet.host.cgroup import Cgroups
from koordlet.model.actions import Outcome, Owned, Plan, Restore, SetValue, Status, Target
from koordlet.model.adoption import Adopted, Adoption, AdoptStatus
from koordlet.model.knobs import Channel, Knob
from koordlet.model.paths import CgroupPath
from koordlet.protocol.problem import Problem
from koordlet.resexecutor import troubles
from koordlet.resexecutor.adopt import adoptable
from koordlet.resexecutor.audit import AuditEvent
from koordlet.resexecutor.effects import Effects
from koordlet.resexecutor.foreign import FightRules, Fights
from koordlet.resexecutor.inherit import inherited, tree_below
from koordlet.resexecutor.jobs import Job, Jobs, Progress, complete
from koordlet.resexecutor.journal import BadRow, Journal, JournalError, Row
from koordlet.resexecutor.judge import CpusetOriginal, Judge, is_v1_cpuset
from koordlet.resexecutor.ledger import Held, Ledger
from koordlet.resexecutor.reads import Reads
from koordlet.resexecutor.refusals import Refusals, Unsupported, explain
from koordlet.resexecutor.review import Review, Reviewer
from koordlet.resexecutor.spec import SpecChannel, SpecDesk
from koordlet.resexecutor.tell import Teller
from koordlet.resexecutor.unitdesk import UnitDesk
from koordlet.resexecutor.unitthread import UnitThread
from koordlet.resexecutor.writer import WAITS_FOR_START, Writer

START_WRITES = 100
"""Most writes of one tick until the first plan is whole in force (hazard H14)."""

SLOW_RESTORE_S = 5.0
"""How long a restore of everything waits for the thread that writes slow files."""

_LEFT = frozenset({Status.RESTORED, Status.GONE, Status.FOREIGN})
"""Verdicts on a restore after which nothing of ours is in the file."""


class Executor:
    """Applies plans and gives values back. One thread uses it.

    With ``dry_run`` nothing is ever written, the journal included; without one nothing is held.
    ``cpuset_original`` is given where the kubelet's CPU manager policy is static (hazard H9).
    ``effects`` writes slow files; without it they are written here. ``units`` talks to systemd;
    without it no value of a unit is written.
    """

    def __init__(
        self,
        cgroups: Cgroups,
        journal: Journal | None,
        clock: Clock,
        *,
        spec_channel: SpecChannel | None = None,
        effects: Effects | None = None,
        units: UnitThread | None = None,
        dry_run: bool = False,
        cpuset_original: CpusetOriginal | None = None,
        fight_rules: FightRules | None = None,
        start_writes: int = START_WRITES,
    ) -> None:
        """Take over what the journal holds. Raises JournalError where it cannot be read."""
        if journal is None and not dry_run:
            raise ValueError("an executor that writes needs a journal")
        self._cgroups = cgroups
        self._journal = journal
        self._clock = clock
        self._effects = effects
        self._dry_run = dry_run
        self._ledger = Ledger(cgroups, journal, read_only=dry_run)
        self._reads = Reads(cgroups)
        self._desk = SpecDesk(spec_channel)
        self._units = UnitDesk(cgroups, self._ledger, units)
        self._judge = Judge(
            cgroups=cgroups,
            ledger=self._ledger,
            reads=self._reads,
            desk=self._desk,
            units=self._units,
            fights=Fights(fight_rules or FightRules()),
            unsupported=Unsupported(),
            refusals=Refusals(),
            cpuset_original=cpuset_original,
        )
        self._writer = Writer(self._judge, effects)
        self._teller = Teller(cgroups)
        self._reviewer = Reviewer(cgroups, self._ledger, self._reads, self._judge, self._teller)
        self._handed_over = self._judge.handed_over
        self._late: list[Outcome] = []
        self._events: list[AuditEvent] = []
        self._standing_in_the_way: tuple[Outcome, ...] = ()
        self._start_writes = start_writes
        self._limit: int | None = start_writes
        self._deferred = 0
        self._bad_rows: tuple[BadRow, ...] = self._ledger.load()

    # -- what is held -----------------------------------------------------------------------------

    def owned(self) -> Mapping[Target, Owned]:
        """All values that we hold; the same object until one changes."""
        return self._ledger.owned()

    def pending(self) -> frozenset[Target]:
        """Targets whose write or restore the runtime, systemd or the effects thread still owes."""
        return self._desk.keys() | frozenset(self._handed_over)

    @property
    def deferred(self) -> int:
        """How many values of the last plan wait for a later tick: so many are written at once."""
        return self._deferred

    @property
    def resets(self) -> int:
        """How often others put one of our values back."""
        return self._judge.fights.resets

    def problems(self) -> tuple[Problem, ...]:
        """What stands in the way now: the journal, refused writes, a write stuck in the kernel."""
        error = self._writer.journal_error or self._reviewer.journal_error
        found = [troubles.journal(error)] if error else []
        found += [troubles.bad_row(row) for row in self._bad_rows]
        stuck = None if self._effects is None else self._effects.stuck()
        if stuck is not None and stuck.key in self._handed_over:
            found.append(troubles.stuck(self._cgroups, stuck.key, stuck.text))
        found += self._units.problems()
        return (*found, *troubles.refusals(self._cgroups, self._standing_in_the_way))

    def take_events(self) -> tuple[AuditEvent, ...]:
        """Audit events since the last call; those of ``review`` come with the Review."""
        events, self._events = tuple(self._events), []
        return events

    # -- a tick -----------------------------------------------------------------------------------

    def review(self, now_s: float) -> Review:
        """Look at every value that we hold: in force, put back, or changed by its owner (H7)."""
        self._reads.at(now_s)
        self._drain(now_s)
        return self._reviewer.look(self.pending(), now_s, self._clock.wall_s())

    def adopt_inherited(
        self, tree: Mapping[CgroupPath, tuple[CgroupPath, ...]], now_s: float
    ) -> tuple[Target, ...]:
        """Journal v1 cpusets that were born as copies of a value of ours (hazard H5).

        ``tree`` gives the children by parent; call it before a plan over the same tree.
        """
        self._reads.at(now_s)
        wall_s = self._clock.wall_s()
        rows = tuple(inherited(tree, self._cgroups, self._ledger, self._reads, wall_s))
        if not rows:
            return ()
        try:
            self._ledger.update(rows, ())
        except JournalError as error:
            self._writer.journal_error = str(error)
            return ()
        for row in rows:
            self._ledger.keep(row, now_s)
            why = f"born with the value that {row.path.parent} holds by our doing"
            text = row.last_written
            self._events.append(self._teller.row("adopted", row, row.original, text, why, wall_s))
        return tuple(row.key for row in rows)

    def adopt(self, entries: Iterable[Adoption], now_s: float) -> tuple[Adopted, ...]:
        """Make known originals the originals of files that another agent left changed (H14).

        Nothing is written but the journal, in one transaction. What no plan asks for is given back
        from then on, at most so many writes a tick as at the start.
        """
        self._reads.at(now_s)
        wall_s, pending = self._clock.wall_s(), self.pending()
        entries = tuple(entries)
        if self._dry_run:
            return tuple(_not_adopted(each, "a dry run journals nothing") for each in entries)
        told: list[Adopted] = []
        rows: list[Row] = []
        for each in entries:
            found = adoptable(each, self._cgroups, self._ledger, self._reads, pending, wall_s)
            if isinstance(found, Row):
                rows.append(found)
            else:
                told.append(found)
        try:
            self._ledger.update(rows, ())
        except JournalError as error:
            self._writer.journal_error = str(error)
            return (*told, *(Adopted(*row.key, AdoptStatus.REFUSED, str(error)) for row in rows))
        for row in rows:
            self._ledger.keep(row, now_s)
            text, why = row.last_written, f"its original is known: {row.source}"
            self._events.append(self._teller.row("adopted", row, row.original, text, why, wall_s))
        self._limit = self._start_writes
        return (*told, *(Adopted(*row.key, AdoptStatus.ADOPTED) for row in rows))

    def cpuset_tree(self) -> Mapping[CgroupPath, tuple[CgroupPath, ...]]:
        """Children by parent below every v1 cpuset that is held, for ``adopt_inherited``."""
        return tree_below(self._cgroups, self._ledger)

    def apply(self, plan: Plan, now_s: float) -> tuple[Outcome, ...]:
        """Put ``plan`` in force; outcomes that became known since the last call come with it."""
        outcomes = self._carry_out(plan.writes, plan.restores, now_s, self._limit)
        late, self._late = self._late, []
        told = (*late, *outcomes)
        notable = [outcome for outcome in told if outcome.status is not Status.UNCHANGED]
        self._standing_in_the_way = tuple(
            outcome for outcome in notable if outcome.status in (Status.REFUSED, Status.UNSUPPORTED)
        )
        self._events += self._teller.plan(notable, self._clock.wall_s())
        return told

    def spec_answered(
        self, container_id: str, knob: Knob, error: str | None, now_s: float
    ) -> Outcome | None:
        """The runtime's answer to a request; None where nobody waits for it any more."""
        job = self._desk.answered(container_id, knob)
        if job is None:
            return None
        self._reads.at(now_s)
        self._reads.forget(job.key)
        job.progress = Progress.PLANNED
        if error:
            job.fail(0, f"the runtime refused: {error}")
            self._judge.refusals.note(job.key, job.wanted, 0, job.why, now_s, patient=True)
        (outcome,) = self._writer.settle({job.key: job}, now_s)
        self._events += self._teller.late((outcome,), self._clock.wall_s())
        return outcome

    # -- giving back ------------------------------------------------------------------------------

    def restore_all(self, why: str, now_s: float) -> tuple[Outcome, ...]:
        """Give every value back, compare first; what the runtime must do stays pending."""
        self._reads.at(now_s)
        self._reads.forget_all()
        self._judge.refusals.clear()  # what stood in the way is most likely given back, too
        keys = {held.row.key for held in self._ledger}
        restores = [_restore(held, why) for held in self._ledger if not self._follows(held, keys)]
        outcomes = {o.key: o for o in self._carry_out((), restores, now_s, limit=None)}
        if self._handed_over:
            self._wait_for_threads()
            self._drain(now_s)
        outcomes |= {outcome.key: outcome for outcome in self._late}
        self._late = []
        self._events += self._teller.late(outcomes.values(), self._clock.wall_s())
        return tuple(outcomes.values())

    def close(self, timeout_s: float = SLOW_RESTORE_S) -> None:
        """End the effects thread and close the journal. Values stay as they are."""
        self._units.stop(timeout_s)
        if self._effects is not None:
            self._effects.stop(timeout_s)
        if self._journal is not None:
            self._journal.close()

    def _follows(self, held: Held, chosen: set[Target]) -> bool:
        """Whether a side effect is restored together with its main row."""
        return held.row.side_effect and any(
            (held.row.path, knob) in chosen for knob in self._mains(held.row.knob)
        )

    def _mains(self, knob: Knob) -> Iterable[Knob]:
        """The knobs of which ``knob`` is a side effect."""
        for main in Knob:
            spec = self._cgroups.spec(main)
            if spec is not None and knob in spec.side_effects:
                yield main

    # -- carrying out -----------------------------------------------------------------------------

    def _carry_out(
        self,
        writes: Sequence[SetValue],
        restores: Sequence[Restore],
        now_s: float,
        limit: int | None,
    ) -> tuple[Outcome, ...]:
        self._reads.at(now_s)
        settled: dict[Target, Outcome] = {}
        jobs: Jobs = {}
        for action in writes:
            _place(action.key, self._judge.write(action, now_s), settled, jobs)
        for restore in restores:
            self._reads.forget(restore.key)
            _place(restore.key, self._judge.restore(restore, now_s), settled, jobs)
        if jobs:
            complete(jobs, writes, self._cgroups, self._ledger, self._reads)
        sides = [side for each in restores for side in self._sides(each, settled, jobs)]
        for side in sides:
            _place(side.key, self._judge.restore(side, now_s), settled, jobs)
        for key in jobs:
            settled.pop(key, None)
        self._drop_needless_witnesses(jobs, settled)
        if self._dry_run:
            told = (job.outcome(Status.DRY_RUN, job.wanted) for job in jobs.values())
            return (*settled.values(), *told)
        self._close(settled, (*restores, *sides))
        self._deferred = 0
        if not jobs:
            return tuple(settled.values())
        written = self._writer.run(jobs, now_s, self._clock.wall_s(), limit)
        for job in jobs.values():
            if job.progress is Progress.HANDED_OVER and job.channel is not Channel.SPEC:
                self._handed_over[job.key] = job
        waits = [job for job in jobs.values() if job.progress is Progress.DEFERRED]
        self._deferred = sum(job.why == WAITS_FOR_START for job in waits)
        if not waits:
            self._limit = None
        return (*settled.values(), *written)

    def _sides(
        self, restore: Restore, settled: Mapping[Target, Outcome], jobs: Jobs
    ) -> Iterable[Restore]:
        """Rows that exist only for the sake of a main row that is being given back."""
        main = settled.get(restore.key)
        spec = self._cgroups.spec(restore.knob)
        if spec is None or (main is not None and main.status not in _LEFT):
            return
        for knob in spec.side_effects:
            held = self._ledger.get((restore.target, knob))
            if held is not None and held.row.side_effect and held.row.key not in jobs:
                yield _restore(held, restore.why)

    def _drop_needless_witnesses(self, jobs: Jobs, settled: dict[Target, Outcome]) -> None:
        """A v1 cpuset that holds the wanted value by its owner's own wish is journaled as it is
        only below one that we narrow, or it would later be taken for a copy of it (hazard H5).
        """
        for job in sorted(jobs.values(), key=lambda job: job.key[0].depth):
            key, parent = job.key, (job.key[0].parent, job.key[1])
            is_witness = job.before == job.wanted and is_v1_cpuset(self._cgroups, key)
            if is_witness and parent not in jobs and parent not in self._ledger:
                settled[key] = jobs.pop(key).outcome(Status.UNCHANGED, job.before)

    def _close(self, settled: Mapping[Target, Outcome], restores: Iterable[Restore]) -> None:
        """Drop the rows of files in which nothing of ours is left."""
        restored = {restore.key for restore in restores}
        closed = [
            key
            for key, outcome in settled.items()
            if outcome.status is not Status.UNCHANGED
            and key in self._ledger
            and (outcome.status is Status.GONE or (key in restored and outcome.status in _LEFT))
        ]
        if not closed:
            return
        try:
            self._ledger.update((), closed)
        except JournalError as error:
            self._writer.journal_error = str(error)
        for key in closed:
            self._judge.forget(key)

    def _wait_for_threads(self) -> None:
        channels = {job.channel for job in self._handed_over.values()}
        if self._effects is not None and Channel.FILE in channels:
            self._effects.wait_idle(SLOW_RESTORE_S)
        if Channel.UNIT in channels:
            self._units.wait_idle()

    def _drain(self, now_s: float) -> None:
        """Take the results of both threads; one that was overtaken says nothing."""
        for answer in self._units.answers(now_s):
            for knob, text in answer.texts.items():
                job = self._handed_over.get((answer.path, knob))
                if job is not None and job.wanted == text:
                    self._reads.forget(job.key)
                    self._units.answered(job, answer)
                    self._late += self._writer.settle({job.key: job}, now_s)
                    del self._handed_over[job.key]
        for result in () if self._effects is None else self._effects.drain():
            job = self._handed_over.get(result.key)
            if job is None or job.wanted != result.text:
                continue
            del self._handed_over[result.key]
            self._reads.forget(result.key)
            job.progress = Progress.PLANNED
            if result.errno:
                why = explain(self._cgroups, self._reads, result.key, result.text, result.errno)
                job.fail(result.errno, why)
            self._late += self._writer.settle({result.key: job}, now_s)


def _place(key: Target, verdict: Outcome | Job, settled: dict[Target, Outcome], jobs: Jobs) -> None:
    if isinstance(verdict, Job):
        jobs[key] = verdict
    else:
        settled[key] = verdict


def _not_adopted(entry: Adoption, why: str) -> Adopted:
    return Adopted(entry.target, entry.knob, AdoptStatus.REFUSED, why)


def _restore(held: Held, why: str) -> Restore:
    row = held.row
    return Restore(row.path, row.knob, row.owner, why, row.channel, row.container_id)
