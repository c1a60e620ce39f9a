"""One planned write or restore on its way to the kernel, and the writes that it brings along."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from koordlet.host.cgroup import Cgroups
from koordlet.model.actions import Outcome, SetValue, Status, Target, Terms
from koordlet.model.knobs import Channel, Direction, Knob
from koordlet.model.readings import Missing
from koordlet.resexecutor.journal import Row
from koordlet.resexecutor.ledger import Ledger, inode_of, mount_name
from koordlet.resexecutor.ordering import Change, Step, amount
from koordlet.resexecutor.reads import Reads
from koordlet.resexecutor.unitrows import Original


class Progress(Enum):
    """How far a job came."""

    PLANNED = "planned"
    FAILED = "failed"
    DEFERRED = "deferred"
    HANDED_OVER = "handed over"  # to the effects thread, the runtime or systemd


@dataclass(slots=True)
class Job:
    """Bring ``key`` from ``before`` to ``wanted``, both canonical."""

    key: Target
    owner: str
    before: str
    wanted: str
    restoring: bool = False
    reason: str = ""
    terms: Terms = ()
    direction: Direction = Direction.RESTRICT
    channel: Channel = Channel.FILE
    container_id: str = ""
    properties: tuple[Original, ...] = ()  # for Channel.UNIT
    is_foreign: bool = False  # a unit's property holds what somebody else set, and was left so
    side_effect: bool = False  # asked for by nobody: another knob's write needs it
    progress: Progress = Progress.PLANNED
    begun: bool = False  # its first write is due or done
    errno: int = 0
    why: str = ""

    @property
    def change(self) -> Change:
        """What it changes; a value that is given back waits for those that protect (H14)."""
        direction = Direction.RELAX if self.restoring else self.direction
        return Change(*self.key, self.wanted, direction)

    def fail(self, number: int, why: str) -> None:
        """The kernel or the journal said no."""
        self.progress, self.errno, self.why = Progress.FAILED, number, why

    def outcome(self, status: Status, after: str = "", *, why: str = "") -> Outcome:
        """The result, told."""
        return Outcome(
            *self.key,
            self.owner,
            status,
            before=self.before,
            after=after,
            errno=self.errno,
            why=why or self.why,
            reason=self.reason,
            terms=self.terms,
        )


Jobs = dict[Target, Job]


def job_of(action: SetValue) -> Job:
    """A job for a planned value; ``before`` and ``wanted`` are still to be found out."""
    return Job(
        action.key,
        action.owner,
        "",
        "",
        reason=action.reason,
        terms=action.terms,
        direction=action.direction,
        channel=action.channel,
        container_id=action.container_id,
    )


def complete(
    jobs: Jobs, writes: Iterable[SetValue], cgroups: Cgroups, ledger: Ledger, reads: Reads
) -> None:
    """Add the writes without which those in ``jobs`` would be refused, or would leave a second
    file changed (hazard H2). ``writes`` is what the plan wants, weights that idle hides included.
    """
    weights = {wish.target: wish for wish in writes if wish.knob is Knob.CPU_SHARES}
    for job in tuple(jobs.values()):
        if job.channel is not Channel.FILE:
            continue
        if job.key[1] is Knob.CPU_IDLE and job.wanted == "0":
            wish = weights.get(job.key[0])
            if wish is None:
                _weight_after_idle(job, jobs, ledger, reads)
            else:
                _wished_after_idle(wish, jobs, cgroups, reads)
        if job.key[1] is Knob.CPU_QUOTA:
            _burst_within_quota(job, jobs, cgroups, ledger, reads)


def _weight_after_idle(job: Job, jobs: Jobs, ledger: Ledger, reads: Reads) -> None:
    """Idle going to 0 resets the weight: it gets back what it is to be."""
    key = (job.key[0], Knob.CPU_SHARES)
    held = ledger.get(key)
    before = reads.text(key)
    if key in jobs or held is None or isinstance(before, Missing):
        return
    row = held.row
    wanted = row.original if row.side_effect else row.last_written
    jobs[key] = _follower(job, key, before, wanted, restoring=row.side_effect)


def _wished_after_idle(wish: SetValue, jobs: Jobs, cgroups: Cgroups, reads: Reads) -> None:
    before = reads.text(wish.key)
    if wish.key not in jobs and not isinstance(before, Missing):
        job = job_of(wish)
        job.before = before
        job.wanted = cgroups.canonical(wish.knob, cgroups.encode(wish.knob, wish.value))
        jobs[wish.key] = job


def _burst_within_quota(
    job: Job, jobs: Jobs, cgroups: Cgroups, ledger: Ledger, reads: Reads
) -> None:
    """A burst above the new quota goes down with it, and comes back as the quota allows (CQ-05)."""
    key = (job.key[0], Knob.CPU_BURST)
    if key in jobs or cgroups.spec(Knob.CPU_BURST) is None:
        return
    held = ledger.get(key)
    before = reads.text(key)
    if isinstance(before, Missing) or (held is not None and not held.row.side_effect):
        return
    original = before if held is None else held.row.original
    fits = amount(original) <= amount(job.wanted)
    wanted = original if fits else job.wanted
    if wanted != before:
        jobs[key] = _follower(job, key, before, wanted, restoring=fits)


def _follower(job: Job, key: Target, before: str, wanted: str, *, restoring: bool) -> Job:
    return Job(
        key,
        job.owner,
        before,
        wanted,
        restoring=restoring,
        reason=f"goes with {job.key[1].value} {job.wanted}",
        direction=job.direction,
        side_effect=True,
    )


def rows_before(
    jobs: Mapping[Target, Job],
    steps: tuple[Step, ...],
    cgroups: Cgroups,
    ledger: Ledger,
    reads: Reads,
    wall_s: float,
) -> Iterator[Row]:
    """The rows to commit before the first step: every text that a file may hold on the way."""
    texts: dict[Target, set[str]] = {}
    for step in steps:
        texts.setdefault(step.key, set()).add(step.text)
    for job in jobs.values():
        row = _row(job, cgroups, ledger, wall_s)
        may_write = row.may_write | texts.get(job.key, set()) | {job.wanted}
        is_by_unit = job.channel is Channel.UNIT
        if (job.key[0], Knob.CPU_IDLE) in jobs and not is_by_unit:
            may_write |= left_behind(cgroups, job.key)
        yield replace(row, may_write=may_write)
        if job.key[1] is Knob.CPU_IDLE and job.wanted != "0" and not is_by_unit:
            yield from _weight_row(job, jobs, cgroups, ledger, reads, wall_s)


def _row(job: Job, cgroups: Cgroups, ledger: Ledger, wall_s: float) -> Row:
    held = ledger.get(job.key)
    if held is not None:
        row = held.row
        if job.restoring or job.side_effect:
            return row
        return replace(
            row,
            owner=job.owner,
            side_effect=False,
            channel=row.channel if job.channel is Channel.FILE else job.channel,
            container_id=job.container_id or row.container_id,
            properties=job.properties or row.properties,
        )
    return Row(
        mount=mount_name(cgroups, job.key),
        path=job.key[0],
        knob=job.key[1],
        inode=inode_of(cgroups, job.key),
        original=job.before,
        may_write=frozenset(),
        last_written=job.before,
        owner=job.owner,
        channel=job.channel,
        container_id=job.container_id,
        properties=job.properties,
        side_effect=job.side_effect,
        created_wall_s=wall_s,
    )


def _weight_row(
    job: Job,
    jobs: Mapping[Target, Job],
    cgroups: Cgroups,
    ledger: Ledger,
    reads: Reads,
    wall_s: float,
) -> Iterator[Row]:
    """The weight that cpu.idle is about to hide, unless it is a job of its own."""
    key = (job.key[0], Knob.CPU_SHARES)
    text = reads.text(key)
    if key in jobs or isinstance(text, Missing):
        return
    held = ledger.get(key)
    hidden = Job(key, job.owner, text, text, side_effect=True)
    row = _row(hidden, cgroups, ledger, wall_s) if held is None else held.row
    yield replace(row, may_write=row.may_write | {text} | left_behind(cgroups, key))


def left_behind(cgroups: Cgroups, key: Target) -> frozenset[str]:
    """What the kernel itself may leave in the file when a related knob is written (hazard H2)."""
    spec = cgroups.spec(key[1])
    if spec is None or spec.masked_by is None:
        return frozenset()
    return frozenset(text for text in (spec.reset_text, spec.masked_text) if text)
