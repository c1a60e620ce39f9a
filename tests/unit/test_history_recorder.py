"""From reports to pieces of minutes: what holds, what is a gap, and what the clocks do to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from koordlet.history.fields import ALL_SERIES, FAMILIES, MAIN_SERIES, SERIES, unit_of
from koordlet.history.recorder import MOST_LEFT, Recorder
from koordlet.history.rollup import roll_up, subject_of
from koordlet.metrics.readings import FIELDS, EntityKey, Group, Level, Scope
from koordlet.model.actions import Plan, SetValue
from koordlet.model.knobs import Knob
from koordlet.model.pods import BeRoot
from koordlet.protocol.qos import Qos
from tests.support import views
from tests.support.historyrig import POD, T0_S, HistoryRig, cpu, detail

NUMBERS = {name: number for number, name in enumerate(ALL_SERIES)}
MAIN = EntityKey(Level.CONTAINER, namespace="shop", pod="web", uid="uid-web", container="main")


@pytest.fixture
def rig(tmp_path: Path) -> HistoryRig:
    return HistoryRig(tmp_path)


def test_every_reading_but_counters_has_a_history() -> None:
    for group in Group:
        assert SERIES[group] == tuple(n for n in FIELDS[group] if not n.endswith("_total"))
    assert {unit_of(name) for name in ALL_SERIES} >= {"cores", "bytes", "ratio", "bytes_per_s"}
    assert len(ALL_SERIES) < 256, "a series' number is one byte"


def test_every_family_and_level_names_series_that_there_are() -> None:
    for names in (*FAMILIES.values(), *MAIN_SERIES.values()):
        assert names and set(names) <= set(ALL_SERIES)
    assert MAIN_SERIES.keys() == set(Level)


def test_a_value_holds_until_the_next_one_so_that_each_second_counts_once(rig: HistoryRig) -> None:
    rig.tick(cpu(1, 0.0), keys=((1, POD),))
    rig.idle(29)
    for _ in range(30):  # busy now, and told of each second
        rig.tick(cpu(1, 1.0))
    rig.tick()
    (line,) = rig.lines()
    assert line.points[0].covered_s == 60
    assert line.points[0].mean == pytest.approx(0.5)
    assert line.points[0].percentiles[1] == 1.0


def test_a_value_holds_over_the_minute_it_came_in(rig: HistoryRig) -> None:
    rig.tick(cpu(1, 0.25), keys=((1, POD),))
    rig.idle(180)
    (line,) = rig.lines()
    assert [(point.start_s - T0_S, point.mean, point.covered_s) for point in line.points] == [
        (0, 0.25, 60), (60, 0.25, 60), (120, 0.25, 60),
    ]  # fmt: skip


def test_missing_is_a_gap_and_never_zero(rig: HistoryRig) -> None:
    rig.tick(cpu(1, 2.0), keys=((1, POD),))
    rig.idle(19)
    rig.tick(cpu(1, None))
    rig.idle(100)
    (line,) = rig.lines()
    (point,) = line.points
    assert (point.covered_s, point.lowest, point.mean) == (20, 2.0, 2.0)


def test_one_unknown_value_of_a_group_leaves_the_others(rig: HistoryRig) -> None:
    rig.tick(detail(1, memory_usage_bytes=4096.0), keys=((1, POD),))
    rig.idle(60)
    found = {line.series: line for line in rig.lines(series=("all",))}
    assert list(found) == ["memory_usage_bytes"]
    assert found["memory_usage_bytes"].whole.percentiles == (4096.0,) * 3


def test_a_silent_core_is_a_gap(rig: HistoryRig) -> None:
    rig.tick(cpu(1, 1.0), keys=((1, POD),))
    rig.idle(9)
    rig.tick(after_s=40.0)
    rig.tick(cpu(1, None))
    rig.idle(10)
    (line,) = rig.lines()
    assert line.points[0].covered_s == 11  # nine seconds, the tick that was due, and the next


def test_values_of_an_earlier_core_end_with_it(rig: HistoryRig) -> None:
    rig.tick(cpu(7, 1.0), keys=((7, POD),))
    rig.idle(19)
    rig.tick(cpu(7, 3.0), keys=((7, MAIN),), scope=Scope.WHOLE)
    rig.idle(40)
    (line,) = rig.lines()
    assert (line.whole.covered_s, line.whole.highest) == (20, 1.0)
    (other,) = rig.lines(target="shop/web/main")
    assert (other.whole.covered_s, other.whole.lowest) == (40, 3.0)


def test_a_restarted_container_goes_on_under_its_name(rig: HistoryRig) -> None:
    rig.tick(cpu(1, 1.0), keys=((1, replace(MAIN, container_id="a")),))
    rig.idle(19)
    rig.tick(cpu(2, 3.0), keys=((2, replace(MAIN, container_id="b")),), gone=(1,))
    rig.idle(40)
    (line,) = rig.lines(target="shop/web/main")
    assert (line.whole.covered_s, line.whole.lowest, line.whole.highest) == (60, 1.0, 3.0)
    assert line.whole.mean == pytest.approx((20 + 120) / 60)


def test_what_lives_for_seconds_leaves_no_history_of_its_own(rig: HistoryRig) -> None:
    for number in range(100, 140):
        key = replace(MAIN, container=f"c{number}")
        rig.tick(cpu(number, 1.0), keys=((number, key),), gone=(number - 2,))
    assert len(rig.recorder._tracks) <= 2
    rig.idle(60)
    assert len(rig.lines(target="", level=Level.CONTAINER)) == 2


def test_OPS_03_those_that_left_are_bounded(rig: HistoryRig) -> None:
    rig.store = None
    keys = [(number, replace(MAIN, container=f"c{number}")) for number in range(MOST_LEFT + 50)]
    rig.tick(*(cpu(number, 1.0) for number, _ in keys), keys=keys)
    rig.idle(20)
    rig.tick(gone=[number for number, _ in keys])
    rig.idle(60)
    assert len(rig.pieces[0].tracks) == MOST_LEFT
    assert not rig.recorder._tracks and not rig.recorder._left


def test_a_qos_class_that_changed_is_shown_as_it_is_now(rig: HistoryRig) -> None:
    rig.tick(cpu(1, 1.0), keys=((1, replace(POD, qos=Qos.LS)),))
    rig.idle(60)
    rig.tick(keys=((1, replace(POD, qos=Qos.BE)),))
    rig.idle(60)
    (line,) = rig.lines()
    assert (line.qos, len(line.points)) == ("BE", 2)


# -- clocks ---------------------------------------------------------------------------------------


def test_PP_17_a_clock_set_back_merges_into_the_minutes_that_it_meets_again(
    rig: HistoryRig,
) -> None:
    rig.tick(cpu(1, 1.0), keys=((1, POD),))
    rig.idle(119)
    rig.clock.ahead_s -= 60
    rig.tick(cpu(1, 3.0))
    rig.idle(61)
    (line,) = rig.lines()
    first, second, *_ = line.points
    assert (first.covered_s, first.lowest, first.highest) == (60, 1.0, 1.0)
    assert (second.covered_s, second.lowest, second.highest) == (120, 1.0, 3.0)
    assert second.mean == pytest.approx(2.0, rel=0.02)


def test_PP_17_a_clock_set_forward_leaves_a_gap_and_nothing_absurd(rig: HistoryRig) -> None:
    rig.tick(cpu(1, 1.0), keys=((1, POD),))
    rig.idle(29)
    rig.clock.ahead_s += 600
    rig.idle(91)
    (line,) = rig.lines()
    assert [point.start_s - T0_S for point in line.points] == [0, 600, 660]
    assert [point.covered_s for point in line.points] == [30, 30, 60]


def test_PP_17_a_clock_that_was_set_is_not_trusted_for_an_hour(rig: HistoryRig) -> None:
    rig.tick(cpu(1, 1.0), keys=((1, POD),))
    rig.idle(3_660)
    assert [piece.steady for piece in rig.pieces][-3:] == [False, True, True]
    rig.clock.ahead_s += 10
    rig.idle(60)
    assert not rig.pieces[-1].steady


def test_early_ticks_weigh_by_the_time_they_stand_for(rig: HistoryRig) -> None:
    rig.tick(cpu(1, 0.0), keys=((1, POD),))
    for _ in range(29):
        rig.tick(cpu(1, 0.0))
    for number in range(150):  # five a second
        rig.tick(cpu(1, 1.0 + (number % 2)), after_s=0.2)
    rig.tick(after_s=1.0)
    (line,) = rig.lines()
    assert line.points[0].covered_s == 60
    assert line.points[0].mean == pytest.approx(0.75, abs=0.06)
    assert (line.points[0].lowest, line.points[0].highest) == (0.0, 2.0)


def test_a_slow_tick_is_no_silence() -> None:
    rig = HistoryRig()
    rig.recorder = Recorder(rig.clock, rig.pieces.append, tick_s=30.0)
    rig.tick(cpu(1, 1.0), keys=((1, POD),), after_s=30.0)
    for _ in range(4):
        rig.tick(after_s=30.0)
    assert [piece.lasted_s for piece in rig.pieces] == [60.0, 60.0]


# -- what suppression decided ---------------------------------------------------------------------


def test_budget_and_quotas_have_a_history(rig: HistoryRig) -> None:
    core = replace(
        views.core_status(),
        be_roots=(BeRoot(views.BE_TIER, "tier"), BeRoot(views.ENCODER, "encoder")),
    )
    write = SetValue(
        views.BE_TIER, Knob.CPU_QUOTA, 80_000, "cpu_suppress", "", (("period_us", 100_000),)
    )
    rig.tick(keys=((0, EntityKey(Level.NODE)),), status=core, plan=Plan(writes=(write,)))
    rig.idle(29)
    rig.tick(plan=Plan(writes=(replace(write, value=40_000),)))
    rig.idle(29)
    rig.tick(plan=Plan())
    rig.idle(60)
    (budget,) = rig.lines(target="", series=("be_budget_cores",))
    assert budget.whole.mean == pytest.approx(1.2)
    assert budget.whole.covered_s == 120
    (quota,) = rig.lines(target="besteffort", series=("be_quota_cores",))
    assert quota.whole.covered_s == 60
    assert quota.whole.lowest == pytest.approx(0.4)
    assert quota.whole.highest == pytest.approx(0.8)


def test_a_piece_without_a_second_leaves_no_row() -> None:
    rig = HistoryRig()
    rig.tick(cpu(1, 1.0), keys=((1, POD),))
    rig.recorder.finish()
    assert rig.pieces == []
    rig.tick(after_s=0.3)
    rig.recorder.finish()
    assert roll_up(rig.pieces[0], NUMBERS) == {}


def test_a_subject_is_the_same_over_restarts() -> None:
    assert subject_of(replace(MAIN, container_id="a")) == subject_of(replace(MAIN, qos=Qos.BE))
