"""The proxy's benchmarks run, short: their promises hold, how fast they are is not asked here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e
REPO = Path(__file__).resolve().parents[2]


def figures(name: str, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.benchmarks.{name}", *words, "--json"],
        cwd=REPO,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.count("\n") == 1, f"one object on stdout, got {done.stdout!r}\n{done.stderr}"
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_cri_proxy_gives_every_figure() -> None:
    told = figures("cri_proxy", "--calls", "250", "--seconds", "2")
    assert told["identical_bytes"] and told["list_16mib_ok"], told
    assert 0 < told["rss_mib"] < 100
    for name in ("added_ms_p50", "added_ms_p99", "hooked_added_ms_p50", "hooked_added_ms_p99"):
        assert isinstance(told[name], float)
    assert told["calls_per_s"] > 0 and told["calls_per_s_direct"] > 0


@pytest.mark.timeout(240)
def test_H19_cri_proxy_chaos_keeps_its_promises() -> None:
    events = ("--restarts", "4", "--kills", "1", "--hook-faults", "3", "--runtime-restarts", "1")
    load = ("--seconds", "30", "--rate", "60", "--lives", "1", "--deadline", "30")
    told = figures("cri_proxy_chaos", *events, *load)
    promised = {
        "failed_calls_proxy_restart": 0,
        "failed_calls_hook_faults": 0,
        "failed_calls_runtime_other": 0,
        "failed_calls_quiet": 0,
        "stuck_calls": 0,
        "store_equals_runtime": True,
    }
    assert {name: told[name] for name in promised} == promised, told["runs"]
    assert told["pod_lives"] > 0
