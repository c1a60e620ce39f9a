"""The demo's arithmetic, its table and its page: a wrong figure is worse than none."""

from __future__ import annotations

import argparse
import dataclasses
import io
import itertools
import statistics
from pathlib import Path

import pytest
from rich.console import Console

from tests.benchmarks import demo, demofigures, demoplot
from tests.benchmarks.demofigures import DAY, Arm, Slice, demand_cores
from tests.support.openloop import Played

OPTIONS = argparse.Namespace(seed=1, slice=15.0, settle=3.0)
REQUEST_S = 0.001


def one(arm: Arm, phase: int, latency_s: float, units: float) -> Slice:
    """100 requests in 10 s; the slowest two have ten times the latency of the others."""
    offsets = tuple(number / 10 for number in range(100))
    done = tuple(at + latency_s * (10 if number >= 98 else 1) for number, at in enumerate(offsets))
    return Slice(
        arm,
        DAY[phase],
        wall_s=10.0,
        played=Played(offsets, offsets, done),
        service_s=4.0,
        batch_s=units / 10,
        units=units,
        switch_s=0.5,
        in_force={"weight": "1024"},
    )


SLICES = [
    one(arm, phase, latency_s, units)
    for arm, latency_s, units in (
        (Arm.ALONE, 0.001, 0.0),
        (Arm.UNMANAGED, 0.003, 100.0),
        (Arm.K8S_DEFAULT, 0.0015, 90.0),
        (Arm.MANAGED, 0.0012, 70.0),
    )
    for phase in range(4)
]


def test_the_arms_are_compared_with_the_service_alone_and_with_all_batch_work() -> None:
    figures = demofigures.of_all(SLICES, cores=2)
    assert figures["ls_p99_ratio_unmanaged"] == pytest.approx(3.0)
    assert figures["ls_p99_ratio_k8s_default"] == pytest.approx(1.5)
    assert figures["ls_p99_ratio_managed"] == pytest.approx(1.2)
    assert figures["ls_p99_managed_to_k8s_default"] == pytest.approx(0.8)
    assert figures["batch_kept_ratio"] == pytest.approx(0.7)
    assert figures["batch_kept_ratio_k8s_default"] == pytest.approx(0.9)
    assert figures["sent_ratio"] == 1.0


def test_an_arm_is_its_requests_together_and_its_work_over_its_time() -> None:
    arm = demofigures.of_arm([each for each in SLICES if each.arm is Arm.UNMANAGED], cores=2)
    assert arm["p50_ms"] == pytest.approx(3.0)
    assert arm["p99_ms"] == pytest.approx(30.0)
    assert arm["units_per_s"] == pytest.approx(10.0)
    assert arm["cpu_utilization"] == pytest.approx((4.0 + 10.0) / (2 * 10.0))
    assert arm["seconds"] == 40.0
    assert list(arm["phases"]) == ["night", "morning", "noon", "evening"]
    assert arm["phases"]["noon"]["p99_ms"] == pytest.approx(30.0)


def test_an_unsent_request_lowers_the_ratio_of_its_arm() -> None:
    whole = one(Arm.ALONE, 0, 0.001, 0.0)
    played = Played((0.0, 1.0), (0.0, None), (0.001, None))
    part = dataclasses.replace(whole, played=played)
    assert demofigures.of_arm([part], cores=2)["sent_ratio"] == 0.5
    assert demofigures.of_arm([part], cores=2)["unanswered"] == 1


def test_the_day_rises_from_night_to_noon_and_falls_again() -> None:
    assert demand_cores(0.0) == pytest.approx(0.15)
    assert demand_cores(0.5) == pytest.approx(0.7)
    assert demand_cores(0.25) == pytest.approx(demand_cores(0.75))
    assert [sooner.ends for sooner in DAY[:-1]] == [later.begins for later in DAY[1:]]
    assert DAY[-1].ends - DAY[0].begins == 1.0


def test_a_phase_has_the_same_arrivals_each_time_and_the_settling_ones_before_zero() -> None:
    noon = DAY[2]
    offsets = demo.phase_arrivals(OPTIONS, noon, REQUEST_S)
    assert offsets == demo.phase_arrivals(OPTIONS, noon, REQUEST_S)
    assert offsets != demo.phase_arrivals(OPTIONS, DAY[0], REQUEST_S)
    counted = [offset for offset in offsets if offset >= 0]
    assert -3.0 <= offsets[0] < 0 < offsets[-1] < 15.0
    mean_cores = statistics.fmean(demand_cores(noon.begins + step / 400) for step in range(101))
    assert len(counted) / 15 * REQUEST_S == pytest.approx(mean_cores, rel=0.15)


def test_each_arm_has_each_place_once_and_follows_each_other_once() -> None:
    assert all(sorted(column) == sorted(Arm) for column in zip(*demo.ORDERS, strict=True))
    pairs = [pair for order in demo.ORDERS for pair in itertools.pairwise(order)]
    assert len(set(pairs)) == len(pairs) == 12


def test_the_table_shows_all_four_arms() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(demofigures.table(demofigures.of_all(SLICES, cores=2)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(arm in shown for arm in Arm)
    assert "batch kept" in shown and "0.70" in shown


def test_the_page_has_its_charts_in_it_and_asks_no_network(tmp_path: Path) -> None:
    path = tmp_path / "demo.html"
    demoplot.write(path, demofigures.of_all(SLICES, cores=2), SLICES)
    page = path.read_text(encoding="utf-8")
    assert page.count("<svg") == 4
    for foreign in ("src=", "<link", "@import", "<script"):
        assert foreign not in page
