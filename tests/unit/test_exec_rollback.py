"""Rollback with no daemon, killed at every instant."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from koordlet.model.actions import SetValue, Status
from koordlet.model.knobs import Channel, Knob, Value
from koordlet.resexecutor import rollback as module
from koordlet.resexecutor.lock import acquire
from koordlet.resexecutor.rollback import (
    DoneBy,
    RollbackHost,
    RollbackOptions,
    RollbackReport,
    managed_root_of,
    rollback,
)
from tests.support.execrig import BOOT, HandClock, Rig, cpus, key, want
from tests.support.fakehost import CgroupTree, fake_host

QUOTA, SHARES, CPUS, IDLE = Knob.CPU_QUOTA, Knob.CPU_SHARES, Knob.CPUSET_CPUS, Knob.CPU_IDLE
TREE: CgroupTree = {
    "be": {"pod": {"cpu.shares": "77", "c": {"tasks": 1, "cpu.cfs_quota_us": "90000"}}},
    "ls": {},
}
PLAN: tuple[SetValue, ...] = (
    want("be", SHARES, 2),
    want("be/pod", SHARES, 2),
    want("be/pod", IDLE, 1),
    want("be", QUOTA, 50_000),
    want("be/pod/c", QUOTA, None),
    want("be", CPUS, cpus(1, 2)),
    want("be/pod", CPUS, cpus(1, 2)),
    want("be/pod/c", CPUS, cpus(1, 2)),
)
NEXT: tuple[SetValue, ...] = (
    want("be", SHARES, 2),
    want("be", QUOTA, 30_000),
    want("be/pod/c", QUOTA, None),
    want("be", CPUS, cpus(3)),
    want("be/pod", CPUS, cpus(3)),
    want("be/pod/c", CPUS, cpus(3)),
)


class Killed(BaseException):
    """SIGKILL, as a test sees it."""


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    made = Rig(fake_host(cgroups=TREE), tmp_path)
    monkeypatch.setattr(module, "journal_path", lambda _run_dir: made.path)
    return made


def photo(rig: Rig) -> dict[str, str]:
    """All files of all cgroups."""
    return {
        f"{group.path}/{name}": group.read(name)
        for hierarchy in rig.host.files.hierarchies
        for group in hierarchy.root.walk()
        for name in group.files
    }


def kill_at(rig: Rig, count: int) -> None:
    """Let the ``count``-th write from now on be the end of the process."""
    real, left = type(rig.host.files).write, [count]

    def dies(path: str, text: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        real(rig.host.files, path, text)

    rig.host.files.write = dies  # type: ignore[method-assign]


def revive(rig: Rig) -> None:
    rig.host.files.__dict__.pop("write", None)


def undo(rig: Rig, **options: object) -> RollbackReport:
    host = RollbackHost(rig.host.cgroups(), BOOT, "/", (30, 1))
    keywords = {
        name: options.pop(name) for name in ("spec_restore", "cpuset_original") if name in options
    }
    chosen = RollbackOptions(lock_dir=rig.path.parent / "locks", **options)  # type: ignore[arg-type]
    return rollback(rig.path.parent, host, HandClock(), options=chosen, **keywords)  # type: ignore[arg-type]


def test_everything_comes_back(rig: Rig) -> None:
    before = photo(rig)
    rig.tick(*PLAN)
    assert photo(rig) != before
    rig.crash()
    report = undo(rig)
    assert photo(rig) == before
    assert report.done_by is DoneBy.JOURNAL
    assert report.is_as_before
    assert len(report.restored) == 8
    again = undo(rig)
    assert again.done_by is DoneBy.NOBODY
    assert "nothing to undo" in again.note


@pytest.mark.parametrize("count", range(1, 13))
def test_H15_killed_between_any_two_writes(rig: Rig, count: int) -> None:
    before = photo(rig)
    kill_at(rig, count)
    with pytest.raises(Killed):
        for plan in (PLAN, NEXT, PLAN, NEXT):
            rig.tick(*plan)
    revive(rig)
    rig.crash()
    assert undo(rig).is_as_before
    assert photo(rig) == before


@pytest.mark.parametrize("count", range(1, 11))
def test_a_rollback_killed_half_way_is_run_again(rig: Rig, count: int) -> None:
    before = photo(rig)
    rig.tick(*PLAN)
    kill_at(rig, 4)
    with pytest.raises(Killed):
        rig.tick(*NEXT)
    revive(rig)
    rig.crash()
    kill_at(rig, count)
    with contextlib.suppress(Killed):
        undo(rig)
    revive(rig)
    undo(rig)
    assert photo(rig) == before


def test_a_foreign_value_is_left_and_reported(rig: Rig) -> None:
    rig.tick(*PLAN)
    rig.crash()
    rig.host.foreign_write("be", "cpu.shares", "300")
    rig.host.foreign_write("ls", "cpu.shares", "400")
    report = undo(rig)
    assert [outcome.key for outcome in report.foreign] == [key("be", SHARES)]
    assert not report.is_as_before
    assert rig.host.text("be", "cpu.shares") == "300"
    assert rig.host.text("ls", "cpu.shares") == "400"


def test_what_somebody_restored_already_is_told_so(rig: Rig) -> None:
    rig.tick(want("be", QUOTA, 95_000))
    rig.crash()
    rig.host.foreign_write("be", "cpu.cfs_quota_us", "-1")
    report = undo(rig)
    assert [outcome.key for outcome in report.already] == [key("be", QUOTA)]
    assert report.is_as_before


def test_H05_cgroups_that_nobody_journaled_become_wide_again(rig: Rig) -> None:
    rig.tick(*PLAN)
    rig.crash()
    rig.host.make("be/pod2/c2/nested", {"tasks": 1})
    assert rig.host.text("be/pod2/c2/nested", "cpuset.cpus") == "1-2"
    assert undo(rig).is_as_before
    for path in ("be/pod2", "be/pod2/c2", "be/pod2/c2/nested", "be"):
        assert rig.host.text(path, "cpuset.cpus") == "0-3"


def test_H05_one_that_is_pinned_by_its_own_wish_is_left(rig: Rig) -> None:
    rig.host.set_text("be/pod/c", "cpuset.cpus", "1-2")
    rig.tick(*PLAN)
    rig.crash()
    rig.host.make("be/own", {"cpuset.cpus": "2"})
    undo(rig)
    assert rig.host.text("be/pod/c", "cpuset.cpus") == "1-2"
    assert rig.host.text("be/own", "cpuset.cpus") == "2"
    assert rig.host.text("be/pod", "cpuset.cpus") == "0-3"


def test_gone_and_recreated_cgroups(rig: Rig) -> None:
    rig.tick(*PLAN)
    rig.crash()
    rig.host.remove("be/pod")
    rig.host.make("be/pod", {"cpu.shares": "2"})
    report = undo(rig)
    assert {outcome.key for outcome in report.having(Status.GONE)} >= {key("be/pod", SHARES)}
    assert rig.host.text("be/pod", "cpu.shares") == "2"
    assert report.is_as_before


def test_a_dry_run_tells_and_writes_nothing(rig: Rig) -> None:
    rig.tick(*PLAN)
    rows = rig.journal.rows()
    rig.crash()
    now = photo(rig)
    report = undo(rig, dry_run=True)
    assert {outcome.status for outcome in report.outcomes} == {Status.DRY_RUN}
    told = {outcome.key: outcome.after for outcome in report.outcomes}
    assert told[key("be", QUOTA)] == "-1"
    assert photo(rig) == now
    rig.start()
    assert rig.journal.rows() == rows


def test_H16_if_no_daemon_leaves_a_live_daemon_alone(rig: Rig) -> None:
    rig.tick(*PLAN)
    now = photo(rig)
    lock = acquire((30, 1), lock_dir=rig.path.parent / "locks")
    report = undo(rig, if_no_daemon=True)
    assert report.done_by is DoneBy.NOBODY
    assert "left to it" in report.note
    assert report.is_as_before
    assert photo(rig) == now
    busy = undo(rig, writer_wait_s=0.0)
    assert [problem.code for problem in busy.problems] == ["writer-busy"]
    assert not busy.is_as_before
    lock.release()  # type: ignore[union-attr]
    assert undo(rig, if_no_daemon=True).done_by is DoneBy.JOURNAL


def test_H27_rows_that_nobody_may_write_are_refused(rig: Rig) -> None:
    rig.tick(want("be", SHARES, 2))
    rig.crash()
    with sqlite3.connect(rig.path) as db:
        db.execute("UPDATE rows SET mount = 'cpu@/somewhere/else'")
        db.execute(
            "INSERT INTO rows SELECT boot_id, mount, '../../etc', knob, inode, channel,"
            " container_id, original, may_write, last_written, owner, side_effect,"
            " created_wall_s FROM rows"
        )
    now = photo(rig)
    report = undo(rig)
    assert photo(rig) == now
    assert not report.is_as_before
    assert [problem.code for problem in report.problems] == ["journal-row-refused"]
    assert "/somewhere/else" in report.outcomes[0].why


def test_H02_shares_beneath_an_idle_that_was_lifted_by_hand(rig: Rig) -> None:
    before = photo(rig)
    rig.tick(*PLAN)
    rig.crash()
    rig.host.foreign_write("be/pod", "cpu.idle", "0")
    undo(rig)
    assert photo(rig) == before


def test_H03_a_limit_is_not_forced_below_the_usage(tmp_path: Path, rig: Rig) -> None:
    limit = Knob.MEMORY_LIMIT
    rig.host.set_text("ls", "memory.limit_in_bytes", str(100 << 20))
    rig.tick(want("ls", limit, 500 << 20))
    rig.crash()
    rig.host.set_memory("ls", 303 << 20)
    report = undo(rig)
    assert not report.is_as_before
    assert rig.host.text("ls", "memory.limit_in_bytes") == str(500 << 20)
    rig.host.set_memory("ls", 1 << 20)
    assert undo(rig).is_as_before
    assert rig.host.text("ls", "memory.limit_in_bytes") == str(100 << 20)


def test_H08_spec_values_go_back_through_the_runtime(rig: Rig) -> None:
    lift = want("be/pod/c", QUOTA, None, channel=Channel.SPEC, container_id="c")
    rig.tick(lift)
    rig.host.foreign_write("be/pod/c", "cpu.cfs_quota_us", "-1")
    rig.executor.spec_answered("c", QUOTA, None, rig.clock.at_s)
    rig.crash()
    report = undo(rig)
    assert [outcome.status for outcome in report.outcomes] == [Status.PENDING]
    assert not report.is_as_before
    asked: list[tuple[str, Knob, Value]] = []

    def restore(container_id: str, knob: Knob, value: Value) -> str:
        asked.append((container_id, knob, value))
        rig.host.foreign_write("be/pod/c", "cpu.cfs_quota_us", str(value))
        return ""

    assert undo(rig, spec_restore=restore).is_as_before
    assert asked == [("c", QUOTA, 90_000)]
    assert undo(rig).done_by is DoneBy.NOBODY


def test_H08_a_runtime_that_refuses_keeps_the_row(rig: Rig) -> None:
    lift = want("be/pod/c", QUOTA, None, channel=Channel.SPEC, container_id="c")
    rig.tick(lift)
    rig.host.foreign_write("be/pod/c", "cpu.cfs_quota_us", "-1")
    rig.executor.spec_answered("c", QUOTA, None, rig.clock.at_s)
    rig.crash()
    report = undo(rig, spec_restore=lambda *_: "connection refused")
    assert "connection refused" in report.outcomes[0].why
    assert undo(rig).done_by is DoneBy.JOURNAL


def test_H09_cpusets_under_static_come_from_the_kubelets_state(rig: Rig) -> None:
    container = "ab" * 32
    rig.host.make(f"be/pod/{container}", {"tasks": 1})
    rig.tick(want(f"be/pod/{container}", CPUS, cpus(1)))
    rig.crash()
    assert undo(rig, cpuset_original=lambda _id: cpus(2, 3)).is_as_before
    assert rig.host.text(f"be/pod/{container}", "cpuset.cpus") == "2-3"


def test_no_journal_is_nothing_to_undo(rig: Rig) -> None:
    rig.crash()
    rig.path.unlink()
    report = undo(rig)
    assert (report.done_by, report.is_as_before) == (DoneBy.NOBODY, True)


def test_a_damaged_journal_is_told(rig: Rig) -> None:
    rig.crash()
    for suffix in ("-wal", "-shm"):
        rig.path.with_name(rig.path.name + suffix).unlink(missing_ok=True)
    rig.path.write_bytes(b"garbage" * 1000)
    report = undo(rig)
    assert [problem.code for problem in report.problems] == ["journal-damaged"]
    assert not report.is_as_before


def test_the_managed_root_is_in_the_journal(rig: Rig, tmp_path: Path) -> None:
    rig.tick(*PLAN)
    rig.crash()
    assert managed_root_of(rig.path.parent, BOOT) == "/"
    rig.path.unlink()
    assert not managed_root_of(rig.path.parent, BOOT)


def v2_rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    made = Rig(fake_host("v2", cgroups={"be": {"pod": {"tasks": 1}}, "ls": {}}), tmp_path)
    monkeypatch.setattr(module, "journal_path", lambda _run_dir: made.path)
    return made


def test_CS_02_v2_a_cpuset_that_cannot_be_emptied_gets_all_cpus_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = v2_rig(tmp_path, monkeypatch)
    rig.tick(want("be", CPUS, cpus(1)), want("ls", CPUS, cpus(1)))
    rig.crash()
    report = undo(rig)
    be, ls = (o for path in ("be", "ls") for o in report.outcomes if o.target == path)
    assert (be.status, be.after) == (Status.RESTORED, "0-3")
    assert "all CPUs of its parent" in be.why
    assert (ls.status, ls.after, ls.why) == (Status.RESTORED, "", "")
    assert report.is_as_before
    assert undo(rig).done_by is DoneBy.NOBODY


@pytest.mark.parametrize("count", range(1, 4))
def test_CS_02_v2_widening_is_killed_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    rig = v2_rig(tmp_path, monkeypatch)
    rig.tick(want("be", CPUS, cpus(1)))
    rig.crash()
    kill_at(rig, count)
    with contextlib.suppress(Killed):
        undo(rig)
    revive(rig)
    undo(rig)
    assert rig.host.cgroups().read(key("be", CPUS)[0], CPUS) == cpus(0, 1, 2, 3)
    assert undo(rig).done_by is DoneBy.NOBODY


def test_CS_02_v2_a_tick_that_gives_a_cpuset_back_is_done_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = v2_rig(tmp_path, monkeypatch)
    rig.tick(want("be", CPUS, cpus(1)))
    (outcome,) = rig.executor.restore_all("clean stop", rig.clock.now_s())
    assert (outcome.status, outcome.after) == (Status.RESTORED, "0-3")
    assert rig.executor.owned() == {}
    assert rig.executor.problems() == ()
