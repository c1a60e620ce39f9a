"""The store of roll-ups: what is added, what is merged, what leaves, and what a crash leaves."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.history import store as store_module
from koordlet.history.codec import pack_steady, tallied
from koordlet.history.levels import DAY_S, GRAINS, HOUR_S, Fate, Held, next_work
from koordlet.history.query import HistoryReader, RangeQuery, Stat
from koordlet.history.rollup import Row, Subject
from koordlet.history.store import HistoryStore, Limits, key_of, start_of
from koordlet.metrics.readings import Level
from koordlet.protocol.qos import Qos
from tests.support.historyrig import T0_S

MINUTE0 = int(T0_S // 60)
WEB = Subject(Level.POD, "", "shop", "web", "uid-web", "")
AMPLE = Limits(keep_days=7, keep_bytes=64 << 20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def store(path: Path) -> Iterator[HistoryStore]:
    made = HistoryStore(path)
    yield made
    made.close()


def row(store: HistoryStore, cores: float, covered_s: int = 60, series: int = 1) -> Row:
    data = pack_steady(store.numbers["used_cpu_cores"], cores, covered_s)
    if series > 1:
        others = [number for number in store.numbers.values() if number > 1][: series - 1]
        data += b"".join(pack_steady(number, cores + 1, covered_s) for number in others)
    return Row(data, Qos.LS)


def points(path: Path, since_s: float, until_s: float, **asked: object) -> tuple[Stat, ...]:
    query = RangeQuery(since_s, until_s, target="shop/web", **asked)  # type: ignore[arg-type]
    lines = HistoryReader(path).query(query).lines
    return lines[0].points if lines else ()


def test_a_key_is_a_minute_and_a_subject() -> None:
    key = key_of(int(T0_S) + 120, 7)
    assert start_of(key) == T0_S + 120
    assert key_of(int(T0_S) + 60, (1 << 24) - 1) < key_of(int(T0_S) + 120)
    assert key.bit_length() < 63


def test_a_minute_comes_back(store: HistoryStore, path: Path) -> None:
    store.append(MINUTE0, {WEB: row(store, 0.5)})
    (point,) = points(path, T0_S, T0_S + 60)
    assert point == Stat(int(T0_S), 60, 0.5, 0.5, 0.5, (0.5, 0.5, 0.5))


def test_a_restart_within_a_minute_keeps_both_parts(path: Path) -> None:
    for cores, covered_s in ((1.0, 20), (4.0, 30)):
        store = HistoryStore(path)
        store.append(MINUTE0, {WEB: row(store, cores, covered_s)})
        store.close()
    (point,) = points(path, T0_S, T0_S + 60)
    assert (point.covered_s, point.lowest, point.highest) == (50, 1.0, 4.0)
    assert point.mean == pytest.approx((20 + 120) / 50)


def test_minutes_older_than_a_day_are_merged_into_tens(store: HistoryStore, path: Path) -> None:
    for minute in range(20):
        store.append(MINUTE0 + minute, {WEB: row(store, float(minute))})
    now_s = T0_S + DAY_S + 600
    assert store.settle(now_s, AMPLE, trusts_clock=True)
    assert not store.settle(now_s, AMPLE, trusts_clock=True)
    assert rows_of(path) == {60: 10, 600: 1, 3600: 0}
    first, second = points(path, T0_S, T0_S + 1_200, step_s=600)
    assert (first.covered_s, first.mean, first.lowest, first.highest) == (600, 4.5, 0.0, 9.0)
    assert (second.covered_s, second.mean) == (600, 14.5)


def rows_of(path: Path) -> dict[int, int]:
    with sqlite3.connect(path) as db:
        counts = {
            grain.period_s: db.execute(f"SELECT count(*) FROM rollups_{grain.period_s}").fetchone()[
                0
            ]
            for grain in GRAINS
        }
    db.close()
    return counts


def test_a_range_over_several_grains_counts_everything_once(
    store: HistoryStore, path: Path
) -> None:
    for minute in range(120):
        store.append(MINUTE0 + minute, {WEB: row(store, 1.0 + minute % 2)})
    while store.settle(T0_S + DAY_S + 3_600, AMPLE, trusts_clock=True):
        pass
    while store.settle(T0_S + 7 * DAY_S, Limits(30, 64 << 20), trusts_clock=True):
        pass
    counts = rows_of(path)
    assert counts[60] == 0 and counts[600] == 12
    while store.settle(T0_S + 7 * DAY_S + 3_600, Limits(30, 64 << 20), trusts_clock=True):
        pass
    assert rows_of(path) == {60: 0, 600: 6, 3600: 1}
    store.append(MINUTE0 + 120, {WEB: row(store, 9.0)})
    found = points(path, T0_S, T0_S + 3 * HOUR_S, step_s=HOUR_S)
    assert [point.covered_s for point in found] == [3_600, 3_600, 60]
    assert [point.mean for point in found] == [1.5, 1.5, 9.0]


def test_roll_ups_older_than_the_retention_leave(store: HistoryStore, path: Path) -> None:
    for day in range(5):
        store.append(MINUTE0 + day * 1_440, {WEB: row(store, float(day))})
    while store.settle(T0_S + 5 * DAY_S, Limits(2, 64 << 20), trusts_clock=True):
        pass
    found = points(path, T0_S, T0_S + 5 * DAY_S, step_s=DAY_S)
    assert [point.mean for point in found] == [3.0, 4.0]


def test_PP_17_a_clock_that_cannot_be_trusted_ages_nothing(store: HistoryStore, path: Path) -> None:
    store.append(MINUTE0, {WEB: row(store, 1.0)})
    assert not store.settle(T0_S + 3_650 * DAY_S, AMPLE, trusts_clock=False)
    assert len(points(path, T0_S, T0_S + 60)) == 1


def test_PP_17_roll_ups_from_the_future_leave(store: HistoryStore, path: Path) -> None:
    store.append(MINUTE0, {WEB: row(store, 1.0)})
    store.append(MINUTE0 + 10 * 365 * 1_440, {WEB: row(store, 1.0)})
    while store.settle(T0_S + 60, AMPLE, trusts_clock=True):
        pass
    assert rows_of(path)[60] == 1


def test_the_file_stays_within_its_limit(store: HistoryStore, path: Path) -> None:
    limits = Limits(keep_days=7, keep_bytes=1 << 20)
    subjects = [WEB._replace(pod=f"web-{number}", uid=f"u{number}") for number in range(100)]
    largest = 0
    for minute in range(300):
        made = row(store, 1.0 + minute, series=15)
        store.append(MINUTE0 + minute, dict.fromkeys(subjects, made))
        for _ in range(5):
            if not store.settle(T0_S + minute * 60, limits, trusts_clock=False):
                break
        largest = max(largest, path.stat().st_size)
    assert largest <= 1 << 20
    counts = rows_of(path)
    assert counts[60] > 0 and counts[600] > 0, "the newest is kept fine, the older coarse"
    wal = path.with_name("history.db-wal")
    assert wal.stat().st_size <= 5 << 20


def test_a_lower_limit_makes_the_file_smaller(store: HistoryStore, path: Path) -> None:
    for minute in range(100):
        subjects = {WEB._replace(pod=f"web-{n}"): row(store, 2.0, series=15) for n in range(120)}
        store.append(MINUTE0 + minute, subjects)
    assert path.stat().st_size + path.with_name("history.db-wal").stat().st_size > 1 << 20
    limits = Limits(7, 256 << 10)
    while store.settle(T0_S + 100 * 60, limits, trusts_clock=False):
        pass
    assert path.stat().st_size <= 256 << 10


def test_OPS_03_subjects_of_which_nothing_is_left_are_forgotten(
    store: HistoryStore, path: Path
) -> None:
    for hour in range(30):
        name = WEB._replace(pod=f"web-{hour}")
        store.append(MINUTE0 + hour * 60, {name: row(store, 1.0)})
    while store.settle(T0_S + 30 * HOUR_S, Limits(1, 64 << 20), trusts_clock=True):
        pass
    with sqlite3.connect(path) as db:
        (count,) = db.execute("SELECT count(*) FROM subjects").fetchone()
    db.close()
    assert 24 <= count <= 26
    store.append(MINUTE0 + 30 * 60, {WEB: row(store, 1.0)})
    assert len(points(path, T0_S + 30 * HOUR_S, T0_S + 31 * HOUR_S)) == 1


@pytest.mark.parametrize("merged_before", [0, 1, 2])
def test_a_kill_between_two_merges_loses_and_doubles_nothing(
    path: Path, merged_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MERGED_AT_ONCE", 2)
    _in_a_process_that_is_killed(path, merged_before)
    store = HistoryStore(path)
    while store.settle(T0_S + DAY_S + 600, AMPLE, trusts_clock=True):
        pass
    store.close()
    query = RangeQuery(T0_S, T0_S + 600, step_s=600, level=Level.POD, series=("used_cpu_cores",))
    lines = HistoryReader(path).query(query).lines
    assert [line.whole.covered_s for line in lines] == [600] * 6
    assert [line.whole.mean for line in lines] == [4.5] * 6


def _in_a_process_that_is_killed(path: Path, merged_before: int) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            store = HistoryStore(path)
            for minute in range(10):
                subjects = [WEB._replace(pod=f"web-{number}") for number in range(6)]
                store.append(MINUTE0 + minute, dict.fromkeys(subjects, row(store, float(minute))))
            left = iter([True] * merged_before)

            def breathe() -> None:
                if not next(left, False):
                    os.kill(os.getpid(), signal.SIGKILL)

            store.settle(T0_S + DAY_S + 600, AMPLE, trusts_clock=True, breathe=breathe)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_a_kill_in_the_middle_of_a_write_leaves_the_minute_out(path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            store = HistoryStore(path)
            store.append(MINUTE0, {WEB: row(store, 1.0)})

            class Fatal(dict[Subject, Row]):
                def items(self) -> object:  # type: ignore[override]
                    yield WEB, row(store, 2.0)
                    sys.stdout.flush()
                    os.kill(os.getpid(), signal.SIGKILL)

            store.append(MINUTE0 + 1, Fatal())
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
    assert [point.mean for point in points(path, T0_S, T0_S + 600, step_s=60)] == [1.0]
    store = HistoryStore(path)
    store.append(MINUTE0 + 1, {WEB: row(store, 3.0)})
    store.close()
    assert [point.mean for point in points(path, T0_S, T0_S + 600, step_s=60)] == [1.0, 3.0]


def test_H15_a_full_disk_refuses_and_the_store_goes_on_afterwards(
    store: HistoryStore, path: Path
) -> None:
    store.append(MINUTE0, {WEB: row(store, 1.0)})
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    many = {WEB._replace(pod=f"web-{n}"): row(store, 1.0, series=15) for n in range(500)}
    with pytest.raises(sqlite3.OperationalError, match="full"):
        store.append(MINUTE0 + 1, many)
    store._db.execute("PRAGMA max_page_count = 100000")
    store.append(MINUTE0 + 1, many)
    assert rows_of(path)[60] == 501


def test_another_version_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(sqlite3.DatabaseError, match="version 99"):
        HistoryStore(path)


def test_a_damaged_roll_up_is_a_damaged_database(store: HistoryStore, path: Path) -> None:
    store.append(MINUTE0, {WEB: row(store, 1.0)})
    store._db.execute("UPDATE rollups_60 SET data = x'010909'")
    with pytest.raises(sqlite3.DatabaseError, match="damaged roll-up"):
        store.append(MINUTE0, {WEB: row(store, 1.0)})
    with pytest.raises(sqlite3.DatabaseError, match="damaged roll-up"):
        points(path, T0_S, T0_S + 60)


def test_H18_a_name_that_is_no_utf8_is_stored_as_far_as_it_is_text(store: HistoryStore) -> None:
    odd = Subject(Level.APP, "a\udcffb", "", "", "", "")
    store.append(MINUTE0, {odd: row(store, 1.0)})
    store.append(MINUTE0 + 1, {odd: row(store, 1.0)})
    assert store._db.execute("SELECT name FROM subjects").fetchall() == [("a?b",)]


# -- what is to be done, purely ------------------------------------------------------------------


def test_the_first_thing_by_age_is_what_is_too_old_for_all() -> None:
    held = {3600: Held(0, 7_200, 1), 60: Held(100 * HOUR_S, 200 * HOUR_S, 1)}
    work = next_work(held, 200 * HOUR_S, keep_s=DAY_S, is_short=False, trusts_clock=True)
    assert work is not None
    assert (work.fate, work.grain.period_s, work.start_s) == (Fate.DROP, 60, 100 * HOUR_S)


def for_room(**last_bytes: int) -> tuple[Fate, int] | None:
    """What gives way where room is short: ten hours of minutes, of tens, of hours before them."""
    held = {}
    for number, (grain, size) in enumerate(last_bytes.items()):
        start_s = (20 - 10 * number) * HOUR_S
        held[int(grain[1:])] = Held(start_s, start_s + 10 * HOUR_S, size)
    work = next_work(held, 1e9, keep_s=1e12, is_short=True, trusts_clock=False)
    return None if work is None else (work.fate, work.grain.period_s)


def test_where_room_is_short_the_finest_that_takes_too_much_is_merged_first() -> None:
    assert for_room(_60=1, _600=1, _3600=1) == (Fate.MERGE, 60)
    assert for_room(_60=1, _600=20, _3600=1) == (Fate.MERGE, 600)
    assert for_room(_60=1, _600=1, _3600=1_000) == (Fate.DROP, 3600)
    assert for_room(_60=1) == (Fate.MERGE, 60)
    assert for_room() is None


def test_what_is_still_added_to_is_not_merged_but_dropped_if_it_alone_is_too_much() -> None:
    held = {60: Held(0, 300, 1 << 20)}
    work = next_work(held, 360, keep_s=DAY_S, is_short=True, trusts_clock=True)
    assert work is not None
    assert (work.fate, work.start_s) == (Fate.DROP, 0)


def test_rows_of_one_subject_may_hold_a_series_twice() -> None:
    data = pack_steady(1, 2.0, 10) + pack_steady(1, 4.0, 20)
    whole = tallied([data])[1].summary()
    assert (whole.covered_s, whole.lowest, whole.highest) == (30, 2.0, 4.0)
