"""The benchmarks' own arithmetic: a wrong figure is worse than none."""

from __future__ import annotations

import json
import math

import pytest

from tests.benchmarks import common, photo
from tests.benchmarks.common import Bench, quantile
from tests.benchmarks.overhead import files_per_container
from tests.benchmarks.reaction import judge_step
from tests.benchmarks.scrape import Page


def test_quantile_is_a_value_that_was_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert quantile(values, 0.5) == 50
    assert quantile(values, 0.99) == 99
    assert quantile(values, 1.0) == 100
    assert quantile([7.0], 0.5) == 7
    assert math.isnan(quantile([], 0.5))


def test_reaction_counts_from_the_first_instruction_to_the_first_narrow_read() -> None:
    seen = [(10.0, 100_000), (10.3, 60_000), (10.5, 31_000), (10.6, 30_000), (12.5, 30_000)]
    step = judge_step(100_000, 10.1, seen)
    assert step.final_us == 30_000
    assert step.reaction_ms == pytest.approx(200)
    assert step.settled_ms == pytest.approx(400)


def test_a_small_move_is_no_reaction_and_a_late_spike_does_not_change_the_final_value() -> None:
    seen = [(0.0, 100_000), (0.2, 95_000), (0.4, 40_000), (2.4, 90_000), (2.45, 40_000), (2.5, 1)]
    step = judge_step(100_000, 0.0, seen)
    assert step.reaction_ms == pytest.approx(400)
    assert step.final_us == 40_000


def test_a_quota_that_never_narrows_is_not_a_number() -> None:
    step = judge_step(100_000, 0.0, [(0.0, 100_000), (2.5, 100_000)])
    assert math.isnan(step.reaction_ms)


def test_files_are_counted_once_for_each_container_and_hierarchy() -> None:
    calls = [
        "17 pread64(9</cg/cpu/koordtest-1-a/kubepods/podx/c1/cpu.stat>, ..., 4096, 0) = 90",
        "17 pread64(9</cg/cpu/koordtest-1-a/kubepods/podx/c1/cpu.stat>, ..., 4096, 0) = 90",
        "17 read(5</cg/memory/koordtest-1-a/kubepods/podx/c1/memory.stat>, ..., 4096) = 900",
        "17 write(5</cg/cpu/koordtest-1-a/kubepods/podx/c1/cpu.shares>, ..., 1) = 1",
        "17 read(5</cg/cpu/koordtest-1-a/kubepods/podx/cpu.stat>, ..., 4096) = 90",
    ]
    counts = files_per_container(calls, "/koordtest-1-a", ["kubepods/podx/c1", "kubepods/podx/c2"])
    assert counts == [2, 0]


def test_a_page_that_does_not_name_a_container_gives_no_zero() -> None:
    labels = 'namespace="default",pod="p",uid="ab-12",container="main",qos="BE"'
    page = Page(f"koordlet_container_used_cpu_cores{{{labels}}} 0.21\n")
    assert page.container_cores("ab-12", "main") == 0.21
    assert page.container_cores("ab-12", "other") is None
    assert page.container_cores("ff-00", "main") is None


def test_a_photo_difference_is_named_in_both_directions() -> None:
    before = {"/a/cpu.shares": b"2\n", "/a/gone": b"1\n"}
    after = {"/a/cpu.shares": b"3\n", "/a/new": b"1\n"}
    assert photo.differences(before, after) == ["/a/cpu.shares", "/a/gone", "/a/new"]


def test_an_invalid_run_says_why_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    def body(bench: Bench) -> None:
        bench.figures["answer"] = 42
        bench.require(condition=False, why_not="the load did not start")

    code = common.main("nothing", common.parser("nothing", None), body, ["--json", "--seed", "7"])
    printed = json.loads(capsys.readouterr().out)
    assert code == 1
    assert printed["answer"] == 42
    assert printed["valid"] is False
    assert "the load did not start" in printed["invalid_why"]
    wanted = {"seed", "kernel", "cgroup", "cores", "wall_s", "dirty_ratio", "runs"}
    assert wanted <= printed.keys()
    assert printed["seed"] == 7
