"""Each entry of a plan against what the kernel says now: already so, not now, or a job."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from koordlet.host.cgroup import Cgroups
from koordlet.host.unitowner import SystemdError
from koordlet.model.actions import Outcome, Restore, SetValue, Status, Target
from koordlet.model.knobs import Channel, Knob
from koordlet.model.paths import ROOT, CgroupPath
from koordlet.model.readings import Missing
from koordlet.protocol.cpuset import format_cpuset, parse_cpuset
from koordlet.resexecutor.foreign import Fights
from koordlet.resexecutor.jobs import Job, Jobs, job_of
from koordlet.resexecutor.ledger import Held, Ledger, inode_of, mount_name
from koordlet.resexecutor.reads import Reads
from koordlet.resexecutor.refusals import Refusals, Unsupported, is_gone, memory_floor
from koordlet.resexecutor.spec import SpecDesk
from koordlet.resexecutor.unitdesk import UnitDesk

CpusetOriginal = Callable[[str], frozenset[int] | None]
"""The CPUs that the kubelet's static policy gives a container id now; None where not known (H9)."""

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Judge:
    """Reads, and decides whether the kernel has to be written to.

    ``handed_over`` are the jobs that the effects thread or systemd has.
    """

    cgroups: Cgroups
    ledger: Ledger
    reads: Reads
    desk: SpecDesk
    units: UnitDesk
    fights: Fights
    unsupported: Unsupported
    refusals: Refusals
    cpuset_original: CpusetOriginal | None
    handed_over: Jobs = field(default_factory=dict)

    def forget(self, key: Target) -> None:
        """Nothing of ours is in this file any more."""
        self.ledger.drop(key)
        self.fights.drop(key)
        self.desk.drop(key)

    def write(self, action: SetValue, now_s: float) -> Outcome | Job:
        """A planned value: an outcome where nothing is to be done now, else a job.

        A v1 cpuset that nobody journaled and that holds the value already is a job without a
        step: see ``Executor.apply``.
        """
        key = action.key
        held = self.ledger.get(key)
        if held is not None and held.seen is not None and held.settled is not None:
            value, told = held.settled
            if value == action.value and held.row.owner == action.owner:
                return told
        job = job_of(action)
        if held is not None and held.row.channel is Channel.UNIT:
            job.channel = Channel.UNIT
        return (
            self._systemds(job)
            or self._unwritable(job, now_s)
            or self._compare(job, action, held, now_s)
        )

    def _systemds(self, job: Job) -> Outcome | None:
        """Find out whether systemd has to be asked; the outcome where it cannot do it (H6)."""
        if job.channel is Channel.SPEC:
            return None
        place = self.cgroups.place(job.key[0])
        if place is None or (not place.is_own and self.cgroups.is_delegated(place)):
            return None
        if not place.is_own:
            why = f"lies in {place.unit}, and systemd has not delegated what is in there"
            return job.outcome(Status.UNSUPPORTED, why=why)
        job.channel = Channel.UNIT
        why = self.units.cannot(job.key)
        return job.outcome(Status.UNSUPPORTED, why=why) if why else None

    def _unwritable(self, job: Job, now_s: float) -> Outcome | None:
        """The outcome where the file cannot be read, or is known not to take a value."""
        key = job.key
        if job.channel is Channel.UNIT:
            return self._unready(job, now_s)
        why = self.unsupported.why(key, now_s)
        if why:
            return job.outcome(Status.UNSUPPORTED, why=why)
        text = self.reads.text(key)
        if isinstance(text, Missing):
            if self.cgroups.spec(key[1]) is not None and not self.reads.is_there(key):
                return job.outcome(Status.GONE, why=text.why)
            if text.errno not in (errno.ENOENT, errno.EOPNOTSUPP):
                job.errno = text.errno  # it is there, and cannot be read at the moment
                return job.outcome(Status.REFUSED, why=text.why)
            self.unsupported.mark(key, text.why, now_s)
            return job.outcome(Status.UNSUPPORTED, why=text.why)
        job.before = text
        return None

    def _unready(self, job: Job, now_s: float) -> Outcome | None:
        """The outcome where a unit does not run, or is not known well enough yet."""
        text = self.reads.text(job.key)
        if isinstance(text, Missing):
            job.errno = text.errno
            is_there = self.cgroups.is_there(job.key[0])
            return job.outcome(Status.REFUSED if is_there else Status.PENDING, why=text.why)
        job.before = text
        originals = self.units.originals(job.key, now_s)
        refused = self.refusals.recent(job.key, now_s)
        if isinstance(originals, Missing) and refused is not None:
            job.errno, job.why = refused
            return job.outcome(Status.REFUSED, text)
        if isinstance(originals, Missing):
            return job.outcome(Status.PENDING, text, why=originals.why)
        if isinstance(originals, SystemdError):
            return job.outcome(Status.REFUSED, text, why=str(originals))
        job.properties = originals
        return None

    def _settled(self, job: Job) -> str:
        """What the file will read: systemd rounds quotas."""
        period = self.reads.text((job.key[0], Knob.CPU_PERIOD))
        is_known = job.channel is Channel.UNIT and isinstance(period, str)
        if not is_known:
            return job.wanted
        return self.units.settled(job.key, job.wanted, str(period), job.properties)

    def _compare(
        self, job: Job, action: SetValue, held: Held | None, now_s: float
    ) -> Outcome | Job:
        key = job.key
        try:
            text = self.cgroups.encode(key[1], action.value)
            job.wanted = self.cgroups.canonical(key[1], text)
            job.wanted = self._settled(job)
        except ValueError as error:
            return job.outcome(Status.REFUSED, job.before, why=str(error))
        under_way = self._under_way(key, now_s)
        if under_way is not None and under_way.wanted == job.wanted:
            return job.outcome(Status.PENDING, job.before, why=under_way.why)
        if self.reads.masked(key):
            job.why = "hidden while cpu.idle is 1"
            return self._agreed(job, action, held)
        if job.before == job.wanted:
            self.unsupported.works(key)
            is_witness = held is None and is_v1_cpuset(self.cgroups, key)
            return job if is_witness else self._agreed(job, action, held)
        unseen = held is not None and job.before != held.looked_at
        if held is not None and unseen and not self._is_ours(held, job.before):
            why = "another writer changed it since the last look; judged in the next tick"
            return job.outcome(Status.PENDING, job.before, why=why)
        return self._not_now(job, now_s) or job

    def _agreed(self, job: Job, action: SetValue, held: Held | None) -> Outcome:
        told = job.outcome(Status.UNCHANGED, job.before)
        if held is not None and held.row.last_written == job.wanted:
            raw = self.reads.raw(job.key)
            held.seen = None if isinstance(raw, Missing) else raw
            held.settled = (action.value, told)
        return told

    def _not_now(self, job: Job, now_s: float) -> Outcome | None:
        waits = self.fights.waits(job.key, job.direction, now_s)
        if waits:
            yielded = self.fights.yielded(job.key, now_s)
            status = Status.FOREIGN if yielded else Status.PENDING
            return job.outcome(status, job.before, why=waits)
        return self._refused_now(job, now_s)

    def restore(self, restore: Restore, now_s: float) -> Outcome | Job:
        """Compare and restore: only a value of ours is ever replaced."""
        held = self.ledger.get(restore.key)
        job = Job(restore.key, restore.owner, "", "", restoring=True, reason=restore.why)
        if held is None:
            return job.outcome(Status.UNCHANGED, why="nothing of ours is there")
        row = held.row
        job.channel, job.container_id = row.channel, row.container_id
        mount = mount_name(self.cgroups, row.key)
        if mount != row.mount:
            why = f"journaled for {row.mount}; this host has {mount or 'no such controller'}"
            return job.outcome(Status.REFUSED, why=why)
        if row.channel is Channel.UNIT:
            return self._restore_unit(held, job, now_s)
        text = self.reads.text(row.key)
        if inode_of(self.cgroups, row.key) != row.inode:
            return job.outcome(Status.GONE, why="the cgroup left")
        if isinstance(text, Missing):
            if is_gone(text.errno):
                return job.outcome(Status.GONE, why="its file left")
            job.errno = text.errno  # it is there, and cannot be read at the moment
            return job.outcome(Status.REFUSED, why=text.why)
        job.before, job.wanted = text, self.original(held)
        under_way = self._under_way(row.key, now_s)
        if under_way is not None:
            if under_way.restoring:
                return job.outcome(Status.PENDING, text, why=under_way.why)
            job.before = under_way.wanted  # soon; the restore follows on its heels
            return self._refused_now(job, now_s) or job
        if text == job.wanted and not self._spec_may_differ(held):
            return job.outcome(Status.RESTORED, text)
        return self._left_alone(held, job) or self._refused_now(job, now_s) or job

    def _restore_unit(self, held: Held, job: Job, now_s: float) -> Outcome | Job:
        """systemd is asked whatever the file says, or whether there is one: a drop-in outlives a
        unit's stop. It is compared there, too.
        """
        text = self.reads.text(job.key)
        job.before, job.wanted = "" if isinstance(text, Missing) else text, held.row.original
        why = self.units.cannot(job.key)
        if why:
            return job.outcome(Status.REFUSED, job.before, why=why)
        under_way = self._under_way(job.key, now_s)
        if under_way is not None and under_way.restoring:
            return job.outcome(Status.PENDING, job.before, why=under_way.why)
        return self._refused_now(job, now_s) or job

    def _spec_may_differ(self, held: Held) -> bool:
        """A file can be put back by hand while the runtime's spec still holds our value (H8)."""
        row = held.row
        return row.channel is Channel.SPEC and row.last_written != row.original

    def _left_alone(self, held: Held, job: Job) -> Outcome | None:
        row, text = held.row, job.before
        if text != job.wanted and not self._is_ours(held, text):
            why = "holds a value that is not ours; left as it is"
            return job.outcome(Status.FOREIGN, text, why=why)
        if self.reads.masked(row.key) and (row.path, Knob.CPU_IDLE) not in self.ledger:
            why = "hidden by a cpu.idle that is not ours; left as it is"
            return job.outcome(Status.FOREIGN, text, why=why)
        return None

    def _refused_now(self, job: Job, now_s: float) -> Outcome | None:
        """What the kernel refused a short while ago, or would answer by killing (hazard H3)."""
        refused = self.refusals.now(job.key, job.wanted, now_s)
        if refused is not None:
            job.errno, job.why = refused
            return job.outcome(Status.REFUSED, job.before)
        floor = memory_floor(self.cgroups, job.key, job.before, job.wanted)
        return job.outcome(Status.PENDING, job.before, why=floor) if floor else None

    def _under_way(self, key: Target, now_s: float) -> Job | None:
        """A write of ``key`` that the runtime or the effects thread still owes."""
        return self.handed_over.get(key) or self.desk.waiting(key, now_s)

    def _is_ours(self, held: Held, text: str) -> bool:
        return text == held.row.last_written or text in held.row.may_write

    def original(self, held: Held) -> str:
        """What the file is to be given back, canonical.

        A container's cpuset under the kubelet's static policy is what the kubelet's state file
        says now (hazard H9). A v1 cpuset gets no CPU that has gone offline.
        """
        row = held.row
        if row.knob is not Knob.CPUSET_CPUS:
            return row.original
        text = row.original
        container_id = row.container_id or container_id_in(row.path)
        if self.cpuset_original is not None and container_id:
            cpus = self.cpuset_original(container_id)
            text = format_cpuset(cpus) if cpus else text
        root = self.online()
        if root is None or self.cgroups.version_of(row.knob) != 1:
            return text
        return format_cpuset(parse_cpuset(text) & root) or text

    def online(self) -> frozenset[int] | None:
        """The CPUs of the managed root's cpuset on v1, which the kernel keeps to online ones."""
        if self.cgroups.version_of(Knob.CPUSET_CPUS) != 1:
            return None
        text = self.reads.text((ROOT, Knob.CPUSET_CPUS))
        return None if isinstance(text, Missing) or not text else parse_cpuset(text)


def container_id_in(path: CgroupPath) -> str:
    """The container id in a cgroup's name, in any runtime's spelling; ``""`` where there is none.

    ``cri-containerd-<id>.scope``, ``<id>``, ``crio-<id>.scope``.
    """
    found = _CONTAINER_ID.search(path.name)
    return found[0] if found else ""


def is_v1_cpuset(cgroups: Cgroups, key: Target) -> bool:
    """Whether the kernel keeps this file within its parent's and around its children's."""
    return key[1] is Knob.CPUSET_CPUS and cgroups.version_of(key[1]) == 1


def spec_original(desk: SpecDesk, cgroups: Cgroups, job: Job) -> str:
    """What the runtime's spec holds, else what the file says."""
    if job.channel is not Channel.SPEC or desk.channel is None:
        return job.before
    value = desk.channel.original(job.container_id, job.key[1])
    if isinstance(value, Missing):
        return job.before
    return cgroups.canonical(job.key[1], cgroups.encode(job.key[1], value))
