"""Give everything back from the journal, with no daemon: after SIGKILL at any instant, again and
again, and half-way through another rollback.

It is the executor's own restore over the same rows: compare first, ordered, read back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from koordlet.clock import Clock
from koordlet.host.cgroup import Cgroups
from koordlet.model.actions import Outcome, Status
from koordlet.model.knobs import Knob, Value
from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem, Severity
from koordlet.resexecutor import troubles
from koordlet.resexecutor.executor import Executor
from koordlet.resexecutor.journal import Journal, JournalError, journal_path
from koordlet.resexecutor.judge import CpusetOriginal
from koordlet.resexecutor.lock import LOCK_DIR, WRITER_BUSY, Busy, LockError, acquire_within
from koordlet.resexecutor.unitthread import UnitThread

WRITER_WAIT_S = 10.0
"""How long a writer that was killed may still be stuck in the kernel (hazard H11)."""

SpecRestore = Callable[[str, Knob, Value], str]
"""Puts one value of a container id into the runtime's spec; "" or what the runtime refused."""


class DoneBy(Enum):
    """Who restored."""

    JOURNAL = "journal"
    NOBODY = "nobody"  # nothing was to do, or a daemon is at work


@dataclass(frozen=True, slots=True)
class RollbackHost:
    """One host as a rollback sees it; ``root_identity`` names the managed root for the lock.

    Without ``units`` values of systemd's units stay, and are told as refused.
    """

    cgroups: Cgroups
    boot_id: str
    managed_root: str
    root_identity: tuple[int, int]
    units: UnitThread | None = None


@dataclass(frozen=True, slots=True)
class RollbackOptions:
    """``dry_run`` writes nothing. ``if_no_daemon`` leaves a live daemon's values alone (H16);
    without it the daemon has to be stopped first.
    """

    dry_run: bool = False
    if_no_daemon: bool = False
    writer_wait_s: float = WRITER_WAIT_S
    lock_dir: Path = LOCK_DIR


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """What was done to each file, and what stood in the way."""

    done_by: DoneBy
    outcomes: tuple[Outcome, ...] = ()
    problems: tuple[Problem, ...] = ()
    note: str = ""

    def having(self, *statuses: Status) -> tuple[Outcome, ...]:
        """The outcomes with one of ``statuses``."""
        return tuple(outcome for outcome in self.outcomes if outcome.status in statuses)

    @property
    def restored(self) -> tuple[Outcome, ...]:
        """Files that were given their original."""
        return tuple(o for o in self.having(Status.RESTORED) if o.before != o.after)

    @property
    def already(self) -> tuple[Outcome, ...]:
        """Files that had it already."""
        return tuple(o for o in self.having(Status.RESTORED) if o.before == o.after)

    @property
    def foreign(self) -> tuple[Outcome, ...]:
        """Files left as they are: they hold neither a value of ours nor the original."""
        return self.having(Status.FOREIGN)

    @property
    def is_as_before(self) -> bool:
        """True when every file that is still there holds its original, or would after a dry run."""
        fine = (Status.RESTORED, Status.GONE, Status.DRY_RUN)
        return all(o.status in fine for o in self.outcomes) and not any(
            problem.severity is Severity.ERROR for problem in self.problems
        )


def rollback(
    run_dir: Path,
    host: RollbackHost,
    clock: Clock,
    *,
    options: RollbackOptions | None = None,
    spec_restore: SpecRestore | None = None,
    cpuset_original: CpusetOriginal | None = None,
) -> RollbackReport:
    """Restore all that the journal of ``run_dir`` holds.

    Without ``spec_restore`` values in the runtime's spec stay, and are told as pending.
    ``cpuset_original`` is given under the kubelet's static policy (hazard H9). Never raises for
    what it finds: the report says it.
    """
    options = options or RollbackOptions()
    path = journal_path(run_dir)
    if not path.exists():
        return RollbackReport(DoneBy.NOBODY, note=f"{path}: no journal: nothing to undo")
    if options.dry_run:
        return _with_journal(path, host, clock, options, spec_restore, cpuset_original)
    wait_s = 0.0 if options.if_no_daemon else options.writer_wait_s
    try:
        lock = acquire_within(host.root_identity, wait_s, lock_dir=options.lock_dir)
    except LockError as error:
        return RollbackReport(DoneBy.NOBODY, problems=(_lock_problem(str(error)),))
    if isinstance(lock, Busy):
        return _busy(lock, options)
    try:
        return _with_journal(path, host, clock, options, spec_restore, cpuset_original)
    finally:
        lock.release()


def managed_root_of(run_dir: Path, boot_id: str) -> str | Missing:
    """The managed root that the journal of ``run_dir`` was written for."""
    return _fact(run_dir, boot_id, "managed_root")


def runtime_of(run_dir: Path, boot_id: str) -> str | Missing:
    """The endpoint of the runtime that keeps the specs which the journal of ``run_dir`` names."""
    return _fact(run_dir, boot_id, "runtime")


def _fact(run_dir: Path, boot_id: str, name: str) -> str | Missing:
    path = journal_path(run_dir)
    if not path.exists():
        return Missing(f"{path}: no journal")
    try:
        journal = Journal.read_only(path, boot_id=boot_id)
    except JournalError as error:
        return Missing(str(error))
    try:
        value = journal.meta().get(name)
    except JournalError as error:
        return Missing(str(error))
    finally:
        journal.close()
    return Missing(f"{path}: does not tell the {name}") if value is None else value


def _busy(lock: Busy, options: RollbackOptions) -> RollbackReport:
    who = f"process {lock.pid}" if lock.pid else "another process"
    if options.if_no_daemon:
        return RollbackReport(DoneBy.NOBODY, note=f"{who} manages this host: left to it")
    what = f"{who} still holds {lock.path}: a daemon at work, or a killed one in a slow write"
    return RollbackReport(DoneBy.NOBODY, problems=(_lock_problem(what),))


def _lock_problem(what: str) -> Problem:
    return Problem(
        WRITER_BUSY,
        "writer's lock",
        what,
        limit="one writer for each managed cgroup root",
        remedy="koordletctl release, or stop the daemon and roll back then",
    )


def _with_journal(
    path: Path,
    host: RollbackHost,
    clock: Clock,
    options: RollbackOptions,
    spec_restore: SpecRestore | None,
    cpuset_original: CpusetOriginal | None,
) -> RollbackReport:
    try:
        journal, problems = _open(path, host, dry_run=options.dry_run)
    except JournalError as error:
        return RollbackReport(DoneBy.NOBODY, problems=(troubles.journal(str(error)),))
    runtime = _Runtime()
    try:
        executor = Executor(
            host.cgroups,
            journal,
            clock,
            spec_channel=runtime,
            units=host.units,
            dry_run=options.dry_run,
            cpuset_original=cpuset_original,
        )
        outcomes = _restore(executor, clock, runtime, spec_restore)
        problems += executor.problems()
    except JournalError as error:
        return RollbackReport(DoneBy.NOBODY, problems=(*problems, troubles.journal(str(error))))
    finally:
        journal.close()
    done_by = DoneBy.JOURNAL if outcomes else DoneBy.NOBODY
    note = "" if outcomes else f"{path}: holds nothing to undo"
    return RollbackReport(done_by, outcomes, problems, note)


def _open(path: Path, host: RollbackHost, *, dry_run: bool) -> tuple[Journal, tuple[Problem, ...]]:
    if dry_run:
        return Journal.read_only(path, boot_id=host.boot_id), ()
    opened = Journal.open(path, boot_id=host.boot_id, managed_root=host.managed_root)
    return opened.journal, opened.problems


def _restore(
    executor: Executor, clock: Clock, runtime: _Runtime, spec_restore: SpecRestore | None
) -> tuple[Outcome, ...]:
    """Cgroups that were born as copies of our values come along, then files, then the spec."""
    executor.adopt_inherited(executor.cpuset_tree(), clock.now_s())
    outcomes = {o.key: o for o in executor.restore_all("rollback", clock.now_s())}
    if spec_restore is None:
        return tuple(outcomes.values())
    for container_id, knob, value in runtime.requests:
        error = spec_restore(container_id, knob, value)
        answer = executor.spec_answered(container_id, knob, error or None, clock.now_s())
        if answer is not None:
            outcomes[answer.key] = answer
    return tuple(outcomes.values())


class _Runtime:
    """Collects what the runtime is to be asked; answers come when a caller has asked it."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Knob, Value]] = []

    def original(self, container_id: str, knob: Knob) -> Value | Missing:
        return Missing(f"{knob.value} of {container_id} is in the journal")

    def request(self, container_id: str, knob: Knob, value: Value) -> None:
        self.requests.append((container_id, knob, value))
