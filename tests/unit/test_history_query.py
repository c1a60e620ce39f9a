"""Ranges of the history: who is meant, which step, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from koordlet.history import query as query_module
from koordlet.history.codec import pack_steady
from koordlet.history.fields import MAIN_SERIES
from koordlet.history.query import HistoryReader, RangeAnswer, RangeQuery
from koordlet.history.rollup import Row, Subject
from koordlet.history.store import HistoryStore
from koordlet.metrics.readings import Level
from koordlet.protocol.problem import RefusedError, Severity
from tests.support.historyrig import T0_S

NODE = Subject(Level.NODE, "", "", "", "", "")
TIER = Subject(Level.TIER, "besteffort", "", "", "", "")
APP = Subject(Level.APP, "crunch", "", "", "", "")
WEB = Subject(Level.POD, "", "shop", "web", "uid-1", "")
MAIN = Subject(Level.CONTAINER, "", "shop", "web", "uid-1", "main")
OTHER = Subject(Level.POD, "", "test", "web", "uid-2", "")
DISK = Subject(Level.DISK, "sda", "", "", "", "")
ALL = (NODE, TIER, APP, WEB, MAIN, OTHER, DISK)
MINUTES = 90


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "history.db"
    store = HistoryStore(path)
    for minute in range(MINUTES):
        rows = {
            subject: Row(
                pack_steady(store.numbers["used_cpu_cores"], 1.0 + minute, 60)
                + pack_steady(store.numbers["throttled_ratio"], 0.25, 60),
                None,
            )
            for subject in ALL
        }
        store.append(int(T0_S // 60) + minute, rows)
    store.close()
    return path


def ask(
    path: Path, since_s: float = T0_S, until_s: float = T0_S + 3_600, **rest: object
) -> RangeAnswer:
    query = RangeQuery(since_s, until_s, **rest)  # type: ignore[arg-type]
    return HistoryReader(path).query(query)


def subjects(answer: RangeAnswer) -> list[Subject]:
    return list(dict.fromkeys(line.subject for line in answer.lines))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, [NODE]),
        ({"target": "node"}, [NODE]),
        ({"target": "shop/web"}, [WEB]),
        ({"target": "uid-2"}, [OTHER]),
        ({"target": "web"}, [WEB, OTHER]),
        ({"target": "shop/web/main"}, [MAIN]),
        ({"target": "shop/web", "level": Level.CONTAINER}, [MAIN]),
        ({"target": "besteffort"}, [TIER]),
        ({"target": "crunch"}, [APP]),
        ({"target": "sda"}, [DISK]),
        ({"level": Level.POD}, [WEB, OTHER]),
        ({"level": Level.APP, "target": "crunch"}, [APP]),
    ],
)
def test_what_a_target_means(path: Path, asked: dict[str, Any], found: list[Subject]) -> None:
    assert subjects(ask(path, series=("used_cpu_cores",), **asked)) == found


def test_an_unknown_target_tells_what_could_be_meant(path: Path) -> None:
    with pytest.raises(RefusedError, match="did you mean shop/web"):
        ask(path, target="shop/wbe")


def test_an_unknown_series_tells_what_could_be_meant(path: Path) -> None:
    with pytest.raises(RefusedError, match="did you mean used_cpu_cores"):
        ask(path, series=("used_cpu_core",))


def test_without_a_series_the_main_ones_are_shown_in_their_order(path: Path) -> None:
    found = [line.series for line in ask(path, target="shop/web").lines]
    assert found == [name for name in MAIN_SERIES[Level.POD] if name in found]
    assert found == ["used_cpu_cores", "throttled_ratio"]


def test_a_family_is_several_series(path: Path) -> None:
    lines = ask(path, target="shop/web", series=("cpu", "throttled_ratio")).lines
    assert [line.series for line in lines] == ["used_cpu_cores", "throttled_ratio"]


def test_the_step_is_a_nice_one_and_the_range_whole_steps(path: Path) -> None:
    answer = ask(path, T0_S + 130, T0_S + 130 + 2 * 3_600, series=("used_cpu_cores",))
    assert answer.step_s == 120
    assert (answer.since_s - T0_S, answer.until_s - T0_S) == (120, 7_440)
    (line,) = answer.lines
    assert line.points[0].start_s == answer.since_s
    assert line.points[0].mean == pytest.approx(1.0 + 2.5)
    assert len(line.points) == (MINUTES - 2) / 2


def test_a_step_below_the_roll_ups_that_are_left_is_raised_and_told(
    path: Path, tmp_path: Path
) -> None:
    coarse = tmp_path / "history.db"
    store = HistoryStore(coarse)
    store._add(3_600, int(T0_S), {1: (pack_steady(store.numbers["used_cpu_cores"], 1.0, 3_600),)})
    store._look_up(WEB, None, 0)
    store.close()
    answer = ask(coarse, T0_S + 1_800, T0_S + 3 * 3_600, target="shop/web", step_s=60)
    assert answer.step_s == 3_600
    assert answer.since_s == T0_S
    (problem,) = answer.problems
    assert (problem.code, problem.severity) == ("history-step", Severity.INFO)
    assert not ask(coarse, T0_S + 1_800, T0_S + 3 * 3_600, target="shop/web").problems


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"since_s": T0_S, "until_s": T0_S}, "ends before it begins"),
        ({"since_s": T0_S, "until_s": T0_S - 1}, "ends before it begins"),
        ({"since_s": 0.0, "until_s": T0_S}, "too long"),
        ({"step_s": 90}, "multiple of 60"),
        ({"step_s": 0}, "multiple of 60"),
        ({"percentiles": (101.0,)}, "0 to 100"),
        ({"percentiles": (float("nan"),)}, "0 to 100"),
    ],
)
def test_a_bad_range_is_refused_with_its_limit(
    path: Path, asked: dict[str, object], what: str
) -> None:
    with pytest.raises(RefusedError, match=what):
        ask(path, **asked)  # type: ignore[arg-type]


def test_an_answer_is_bounded_in_what_is_read_and_in_what_is_said(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_module, "MOST_ROWS", 119)
    with pytest.raises(RefusedError, match="up to 120 roll-ups; limit: 119"):
        ask(path, level=Level.POD)
    monkeypatch.setattr(query_module, "MOST_ROWS", 50_000)
    monkeypatch.setattr(query_module, "MOST_POINTS", 100)
    with pytest.raises(RefusedError, match="points"):
        ask(path, level=Level.POD, series=("used_cpu_cores",), step_s=60)
    # Where nobody asks for a step it is one that fits.
    answer = ask(path, level=Level.POD, series=("used_cpu_cores",))
    assert sum(len(line.points) for line in answer.lines) <= 100
    assert len(answer.lines) == 2


def test_H10_others_have_their_turn_while_a_long_answer_is_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_module, "_BREATHE_EVERY", 20)
    breaths: list[int] = []
    reader = HistoryReader(path, breathe=lambda: breaths.append(1))
    reader.query(RangeQuery(T0_S, T0_S + 3_600, level=Level.POD))
    assert len(breaths) == 6


def test_a_range_without_anything_has_no_lines(path: Path) -> None:
    answer = ask(path, T0_S - 7_200, T0_S - 3_600, target="shop/web")
    assert answer.lines == ()


def test_the_percentiles_are_those_asked_for(path: Path) -> None:
    (line,) = ask(path, series=("used_cpu_cores",), percentiles=(0.0, 50.0, 100.0)).lines
    assert line.whole.percentiles[0] == pytest.approx(1.0, rel=1 / 64)
    assert line.whole.percentiles[1] == pytest.approx(30.0, rel=1 / 64)
    assert line.whole.percentiles[2] == 60.0
