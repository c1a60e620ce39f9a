"""The thread that stores roll-ups: what is told where the disk refuses or the file is damaged."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from koordlet.history.query import HistoryReader, RangeQuery
from koordlet.history.recorder import Piece
from koordlet.history.store import HistoryStore, Limits
from koordlet.history.writer import PIECES_WAITING, HistoryWriter
from tests.support.historyrig import POD, T0_S, HistoryRig, cpu

AMPLE = Limits(7, 64 << 20)


def piece(minute: int = 0) -> Piece:
    """A minute of pod web."""
    rig = HistoryRig()
    rig.clock.ahead_s += minute * 60
    rig.tick(cpu(1, 1.0), keys=((1, POD),))
    rig.idle(60)
    return rig.pieces[0]


def minutes(path: Path) -> int:
    query = RangeQuery(T0_S, T0_S + 3_600, target="shop/web", series=("used_cpu_cores",), step_s=60)
    lines = HistoryReader(path).query(query).lines
    return len(lines[0].points) if lines else 0


def wrote(path: Path, *pieces: Piece) -> HistoryWriter:
    """A writer that has taken these and ended."""
    writer = HistoryWriter(path, AMPLE)
    writer.start()
    for each in pieces:
        writer.put(each)
    writer.stop()
    return writer


def test_pieces_are_stored_and_the_last_ones_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    writer = wrote(path, piece(0), piece(1))
    assert writer.trouble() is None
    assert minutes(path) == 2


def test_the_file_is_there_before_the_first_minute_is_over(tmp_path: Path) -> None:
    wrote(tmp_path / "history.db")
    with pytest.raises(Exception, match="no target"):
        minutes(tmp_path / "history.db")


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" * 99])
def test_a_damaged_file_is_put_aside_and_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(content)
    writer = wrote(path, piece(0))
    status = writer.trouble()
    assert status is not None
    (problem,) = status.problems
    assert problem.code == "history-damaged"
    assert path.with_name("history.db.damaged-0").read_bytes() == content
    assert minutes(path) == 1


def test_damage_that_shows_later_is_put_aside_too(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    writer = HistoryWriter(path, AMPLE)
    writer._attempt(piece(0))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE rollups_60 SET data = x'010909'")
    db.close()
    writer._attempt(piece(0))  # meets what is damaged, and is lost
    writer._attempt(piece(1))
    writer._close()
    assert (writer.lost_minutes, minutes(path)) == (1, 1)
    assert path.with_name("history.db.damaged-0").exists()


def test_of_damaged_files_three_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    for number in range(5):
        path.write_bytes(f"no database {number}".encode() * 100)
        wrote(path)
    kept = sorted(each.name for each in tmp_path.iterdir() if "damaged" in each.name)
    assert kept == [f"history.db.damaged-{number}" for number in range(3)]
    assert b"no database 4" in (tmp_path / "history.db.damaged-2").read_bytes()


def test_H15_where_the_disk_takes_no_file_minutes_are_lost_and_told(tmp_path: Path) -> None:
    path = tmp_path / "none" / "history.db"
    writer = HistoryWriter(path, AMPLE)
    writer._attempt(None)
    writer._attempt(piece(0))
    status = writer.trouble()
    assert status is not None
    assert status.problems[0].code == "history-not-stored"
    assert "1 minutes have no roll-ups" in status.problems[0].what
    path.parent.mkdir()
    writer._attempt(piece(1))
    writer._close()
    assert writer.trouble() is None
    assert minutes(path) == 1


def test_H15_a_full_disk_loses_the_minute_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.db"
    writer = HistoryWriter(path, AMPLE)
    writer._attempt(piece(0))
    whole = HistoryStore.append

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(HistoryStore, "append", full)
    writer._attempt(piece(1))
    monkeypatch.setattr(HistoryStore, "append", whole)
    writer._attempt(piece(2))
    writer._close()
    assert (writer.lost_minutes, minutes(path)) == (1, 2)


def test_a_disk_that_is_too_slow_costs_minutes_and_no_memory(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "history.db", AMPLE)  # its thread never takes any
    for number in range(PIECES_WAITING + 3):
        writer.put(piece(number))
    assert writer.lost_minutes == 3
    status = writer.trouble()
    assert status is not None and "too slow" in status.problems[0].what


def test_at_a_stop_nobody_waits_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    pause: Callable[[float], None] = slept.append
    monkeypatch.setattr(time, "sleep", pause)
    writer = HistoryWriter(tmp_path / "history.db", AMPLE)
    writer._breathe()
    writer.start()
    writer.stop()
    writer._breathe()
    assert len(slept) == 1
