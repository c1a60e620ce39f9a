"""The journal file: where it lies, what it survives, what it refuses."""

from __future__ import annotations

import errno
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from koordlet.model.actions import Status
from koordlet.model.knobs import Channel, Knob
from koordlet.model.paths import CgroupPath
from koordlet.resexecutor.journal import (
    Journal,
    JournalError,
    Row,
    journal_path,
    prepare_directory,
)
from tests.support.execrig import BOOT, Rig, key, want
from tests.support.fakehost import fake_host

ROW = Row(
    mount="cpu@/sys/fs/cgroup/cpu",
    path=CgroupPath("kubepods/besteffort"),
    knob=Knob.CPU_QUOTA,
    inode=7,
    original="-1",
    may_write=frozenset({"50000", "60000"}),
    last_written="50000",
    owner="cpu_suppress",
    channel=Channel.SPEC,
    container_id="c1",
    side_effect=True,
    created_wall_s=12.5,
)


def opened(path: Path, boot_id: str = BOOT, root: str = "/") -> Journal:
    return Journal.open(path, boot_id=boot_id, managed_root=root, pid=42).journal


def db(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "journal.db"


def test_a_row_comes_back_as_it_was(path: Path) -> None:
    journal = opened(path)
    journal.begin([ROW])
    journal.close()
    assert opened(path).rows() == ((ROW,), ())


def test_the_middle_of_a_plan_is_marked(path: Path) -> None:
    journal = opened(path)
    assert journal.meta()["clean"] == "1"
    journal.begin([ROW])
    assert journal.meta()["clean"] == "0"
    assert opened(path).meta()["clean"] == "0"
    journal.finish([], [ROW.key])
    assert journal.meta()["clean"] == "1"
    assert journal.rows() == ((), ())


def test_facts_about_the_writer_are_kept(path: Path) -> None:
    opened(path)
    meta = opened(path).meta()
    assert (meta["managed_root"], meta["pid"], meta["schema"]) == ("/", "42", "1")


def test_H15_rows_of_another_boot_are_void_and_told(path: Path) -> None:
    journal = opened(path)
    journal.begin([ROW])
    journal.close()
    after = Journal.open(path, boot_id="boot-2", managed_root="/", pid=1)
    assert after.journal.rows() == ((), ())
    assert [problem.code for problem in after.problems] == ["journal-other-boot"]


def test_rows_below_another_root_must_be_rolled_back_first(path: Path) -> None:
    opened(path, root="/a").begin([ROW])
    with pytest.raises(JournalError, match="koordletctl rollback first"):
        opened(path, root="/b")


def test_a_newer_schema_is_left_alone(path: Path) -> None:
    opened(path)
    with db(path) as other:
        other.execute("UPDATE meta SET value = '99' WHERE name = 'schema'")
    with pytest.raises(JournalError, match="newer koordletctl"):
        opened(path)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" * 99])
def test_a_damaged_journal_is_moved_aside_and_told(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(content)
    found = Journal.open(path, boot_id=BOOT, managed_root="/", pid=1)
    assert [problem.code for problem in found.problems] == ["journal-damaged"]
    assert path.with_name("journal.db.damaged-0").read_bytes() == content
    found.journal.begin([ROW])
    assert found.journal.rows() == ((ROW,), ())


def test_H27_a_row_that_names_no_knob_or_climbs_out_is_never_acted_on(path: Path) -> None:
    journal = opened(path)
    journal.begin([ROW])
    with db(path) as other:
        for values in (
            ("../../etc", "cpu.quota"),
            ("kubepods", "cpu.nonsense"),
            ("/abs", "cpu.idle"),
        ):
            other.execute(
                "INSERT INTO rows SELECT boot_id, mount, ?, ?, inode, channel, container_id,"
                " original, may_write, last_written, owner, side_effect, created_wall_s FROM rows"
                " WHERE owner = 'cpu_suppress' LIMIT 1",
                values,
            )
    good, bad = journal.rows()
    assert good == (ROW,)
    assert {row.path for row in bad} == {"../../etc", "kubepods", "/abs"}


def test_a_locked_journal_is_a_typed_error(path: Path) -> None:
    journal = opened(path)
    with db(path) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalError, match="locked"):
            journal.begin([ROW])
        other.execute("ROLLBACK")
    journal.begin([ROW])


def test_H15_what_a_journal_does_not_take_is_not_written_but_restores_go_on(
    tmp_path: Path,
) -> None:
    rig = Rig(fake_host(cgroups={"be": {}, "other": {}}), tmp_path)
    rig.tick(want("be", Knob.CPU_QUOTA, 50_000))
    other = db(rig.path)
    other.execute("BEGIN IMMEDIATE")
    outcomes = rig.tick(want("other", Knob.CPU_QUOTA, 50_000))
    assert outcomes[key("other", Knob.CPU_QUOTA)].status is Status.REFUSED
    assert "locked" in outcomes[key("other", Knob.CPU_QUOTA)].why
    assert rig.host.text("other", "cpu.cfs_quota_us") == "-1"
    assert "journal-unwritable" in {problem.code for problem in rig.executor.problems()}
    restored = rig.restore_all()
    assert restored[key("be", Knob.CPU_QUOTA)].status is Status.RESTORED
    assert rig.host.text("be", "cpu.cfs_quota_us") == "-1"
    other.execute("ROLLBACK")
    assert rig.tick(want("other", Knob.CPU_QUOTA, 50_000))[key("other", Knob.CPU_QUOTA)].status is (
        Status.APPLIED
    )
    assert rig.executor.problems() == ()


def test_H15_a_full_file_system_is_a_typed_error(path: Path) -> None:
    journal = opened(path)
    journal._db.execute("PRAGMA max_page_count = 8")
    many = [
        Row(ROW.mount, CgroupPath(f"be/{n}"), ROW.knob, 1, "-1", frozenset("x" * 500), "", "o")
        for n in range(500)
    ]
    with pytest.raises(JournalError, match="full"):
        journal.begin(many)
    assert journal.rows() == ((), ())


def test_the_directory_is_ours_alone(tmp_path: Path) -> None:
    good = tmp_path / "a" / "b"
    prepare_directory(good)
    assert good.stat().st_mode & 0o777 == 0o700
    loose = tmp_path / "loose"
    loose.mkdir(mode=0o777)
    loose.chmod(0o777)
    with pytest.raises(JournalError, match="nobody else may write"):
        prepare_directory(loose)
    with pytest.raises(JournalError, match="nobody else may write"):
        prepare_directory(loose / "inner")
    loose.chmod(0o1777)  # as /dev/shm
    prepare_directory(loose / "inner")
    link = tmp_path / "link"
    link.symlink_to(good)
    with pytest.raises(JournalError):
        prepare_directory(link)


def test_H15_off_tmpfs_the_journal_moves_to_shared_memory(tmp_path: Path) -> None:
    found = journal_path(tmp_path)  # /tmp is a disk on most machines; else it stays there
    if found.parent == tmp_path:
        pytest.skip("/tmp is a tmpfs here")
    assert found.is_relative_to("/dev/shm/koordlet")
    assert journal_path(tmp_path) == found
    assert journal_path(tmp_path / "other") != found
    assert journal_path(Path("/dev/shm/run")) == Path("/dev/shm/run/journal.db")
    assert journal_path(tmp_path, shm=tmp_path) == tmp_path / "journal.db"


def test_the_file_is_private(path: Path) -> None:
    opened(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_uid == os.geteuid()


def test_H18_a_cgroup_whose_name_is_no_utf8_has_a_row_like_any_other(path: Path) -> None:
    odd = replace(ROW, path=CgroupPath("be/a\udcffb"))
    journal = opened(path)
    journal.begin([ROW, odd])
    assert set(journal.rows()[0]) == {ROW, odd}
    journal.finish([], [odd.key])
    assert journal.rows() == ((ROW,), ())


def test_H15_a_schema_that_is_no_number_is_refused_and_not_a_crash(path: Path) -> None:
    opened(path).close()
    with db(path) as other:
        other.execute("UPDATE meta SET value = 'x' WHERE name = 'schema'")
    with pytest.raises(JournalError, match="schema x"):
        opened(path)


def test_H15_a_file_that_cannot_be_made_ours_is_a_journal_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    opened(path).close()
    monkeypatch.setattr(Path, "chmod", refused)
    with pytest.raises(JournalError, match="Read-only"):
        opened(path)


def test_H15_a_text_that_is_no_utf8_spoils_its_own_row_only(path: Path) -> None:
    journal = opened(path)
    spoilt = replace(ROW, path=CgroupPath("other"))
    journal.begin([ROW, spoilt])
    journal.close()
    with db(path) as other:
        other.execute(
            "UPDATE rows SET knob = CAST(x'ff41' AS TEXT) WHERE path = 'other'",
        )
    good, bad = opened(path).rows()
    assert good == (ROW,)
    assert [each.path for each in bad] == ["other"]
    assert Journal.read_only(path, boot_id=BOOT).rows()[0] == (ROW,)
