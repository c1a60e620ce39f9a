"""The demo, short: its object is whole, and it leaves nothing behind, interrupted or not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from tests.benchmarks.demofigures import DAY, Arm
from tests.support import cgroot
from tests.support.cgroot import hierarchies
from tests.support.waiting import until

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(240)]

REPO = Path(__file__).resolve().parents[2]
# What a busy machine, or so short a run, may do to it.
EXCUSES = ("other work on the machine", "the generator was late", "the service alone used")
SOON_S = 60.0


def start(plot: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.demo", "--json", "--plot", str(plot), *words],
        cwd=REPO,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], str]]:
    """The object of a short run, and all that it told on the way."""
    plot = tmp_path_factory.mktemp("demo") / "demo.html"
    demo = start(plot, "--slice", "0.6", "--settle", "0.4")
    out, told = demo.communicate()
    assert out.count("\n") == 1, told
    assert left_of(demo.pid) == []
    assert "<svg" in plot.read_text(encoding="utf-8")
    yield json.loads(out), told


def left_of(pid: int) -> list[str]:
    """Cgroups of a process's runs."""
    mounts = set(hierarchies().values())
    return [str(each) for mount in mounts for each in mount.glob(f"koordtest-{pid}-*")]


def test_the_demo_gives_every_figure(result: tuple[dict[str, Any], str]) -> None:
    figures, told = result
    excused = [part for part in figures["invalid_why"].split("; ") if part.startswith(EXCUSES)]
    assert "; ".join(excused) == figures["invalid_why"], told
    assert list(figures["arms"]) == list(Arm)
    for arm in figures["arms"].values():
        assert 0 < arm["p50_ms"] <= arm["p99_ms"] <= arm["p999_ms"]
        assert list(arm["phases"]) == [phase.name for phase in DAY]
        assert arm["unanswered"] == 0
    assert figures["arms"]["alone"]["units_per_s"] == 0
    assert figures["arms"]["unmanaged"]["units_per_s"] > 0
    assert 0 < figures["batch_kept_ratio"] < 2
    assert figures["sent_ratio"] == 1.0
    assert 0.3 < figures["request_cpu_ms"] < 2
    assert len(figures["runs"]) == len(DAY) * len(Arm)


def test_each_arm_is_in_force_in_its_turns_only(result: tuple[dict[str, Any], str]) -> None:
    by_arm: dict[str, list[dict[str, str]]] = {arm: [] for arm in Arm}
    for run in result[0]["runs"]:
        by_arm[run["arm"]].append(run["in_force"])
    plain = by_arm["alone"][0]
    assert all(each == plain for each in by_arm["alone"] + by_arm["unmanaged"])
    least = "2" if cgroot.version() == 1 else "1"
    assert all(each == {**plain, "weight": least} for each in by_arm["k8s_default"])
    assert all(each["idle"] == "1" for each in by_arm["managed"])
    assert all(each["quota_us"] != plain["quota_us"] for each in by_arm["managed"])


def test_progress_and_the_table_are_for_people(result: tuple[dict[str, Any], str]) -> None:
    told = result[1]
    assert "16/16" in told
    assert "batch kept" in told


def test_ctrl_c_restores_everything_and_ends_everything(tmp_path: Path) -> None:
    demo = start(tmp_path / "demo.html")
    assert demo.stderr is not None
    read_to(demo.stderr, "unmanaged")
    until(lambda: "koordlet" in commands_of(demo.pid), SOON_S, "the managed arm")
    below = psutil.Process(demo.pid).children(recursive=True)
    os.killpg(demo.pid, signal.SIGINT)
    out, told = demo.communicate(timeout=SOON_S)
    assert demo.returncode == 130, told
    assert "interrupted" in told
    assert out == ""
    assert left_of(demo.pid) == []
    until(lambda: not any(each.is_running() for each in below), SOON_S, "its processes to end")


def read_to(stream: IO[str], word: str) -> None:
    """Read lines up to one with ``word``."""
    lines = []
    for line in stream:
        lines.append(line)
        if word in line:
            return
    pytest.fail("".join(lines))


def commands_of(pid: int) -> str:
    """The command lines of all its descendants."""
    words = []
    for child in psutil.Process(pid).children(recursive=True):
        try:
            words += child.cmdline()
        except psutil.NoSuchProcess:
            continue
    return " ".join(words)
