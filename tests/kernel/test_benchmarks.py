"""Each benchmark runs, short, and its figures are whole; how good they are is not asked here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.kernel
BUSY = ("other work on the machine", "the machine was too busy")
REPO = Path(__file__).resolve().parents[2]


def _figures(name: str, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.benchmarks.{name}", *words, "--json"],
        cwd=REPO,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.count("\n") == 1, f"one object on stdout, got {done.stdout!r}\n{done.stderr}"
    figures: dict[str, Any] = json.loads(done.stdout)
    why = figures["invalid_why"]
    assert all(part.startswith(BUSY) for part in filter(None, why.split("; "))), why + done.stderr
    return figures


def test_overhead_gives_every_figure() -> None:
    words = ("--pods", "6", "--containers", "2", "--warmup", "4", "--seconds", "6", "--churn", "50")
    figures = _figures("overhead", *words)
    assert 0 < figures["cpu_core_ratio"] < 1
    assert 0 < figures["pss_mib"] < figures["cgroup_mem_mib"] + figures["pss_mib"]
    assert 0 < figures["tick_ms_p50"] <= figures["tick_ms_p99"] <= figures["tick_ms_max"]
    assert figures["reads_per_tick"] > 0
    assert figures["syscalls_per_tick"] > figures["reads_per_tick"]
    assert figures["files_per_container"] >= 8
    assert figures["fresh_ok"], figures["fresh_s"]
    assert figures["containers"] == 12
    assert isinstance(figures["churn_growth_mib"], float)


def test_reaction_sees_the_quota_fall() -> None:
    figures = _figures("reaction", "--steps", "2", "--warmup", "8", "--limited", "5")
    if "too busy" in figures["invalid_why"]:
        pytest.skip("other work on the machine left BE work no room to narrow")
    assert figures["steps"] == 2
    assert figures["never_narrowed"] == 0
    assert figures["quota_final_us"] < figures["quota_before_us"]
    assert 0 < figures["reaction_ms_p50"] <= figures["reaction_ms_p99"]


@pytest.mark.timeout(240)
def test_rollback_drill_restores_everything() -> None:
    figures = _figures("rollback_drill", "--kills", "20")
    assert figures["kills"] == 20
    assert figures["cgroups"] == 40
    assert figures["unrestored"] == 0, figures["runs"]
    assert figures["foreign_overwritten"] == 0
    assert figures["mid_plan_kills"] >= 6
