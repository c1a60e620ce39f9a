"""What a real daemon leaves in its history, and that it goes on with it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cgroot import CgroupRoot, cgroup_root
from tests.support.koordletd import Koordlet, running
from tests.support.waiting import until

pytestmark = pytest.mark.kernel

RAN_S = 3.0


@pytest.fixture
def root() -> Iterator[CgroupRoot]:
    with cgroup_root() as made:
        yield made


@pytest.fixture
def koordlet(root: CgroupRoot, tmp_path: Path) -> Iterator[Koordlet]:
    with running(tmp_path, root.root, cri_endpoint="none") as daemon:
        yield daemon


def node_line(koordlet: Koordlet) -> dict[str, Any]:
    """The node's CPU use of the last ten minutes."""
    state = ("--state-dir", str(koordlet.directory / "state"))
    said = koordlet.ctl("metrics", "used_cpu_cores", "--since", "10m", "-o", "json", *state)
    assert said.returncode == 0, said.stderr
    (line,) = json.loads(said.stdout)["data"]["range"]["lines"]
    found: dict[str, Any] = line
    return found


def test_a_stopped_daemon_leaves_its_running_minute_and_the_next_one_adds_to_it(
    koordlet: Koordlet,
) -> None:
    time.sleep(RAN_S)
    assert koordlet.stop() == 0
    first = node_line(koordlet)
    assert first["level"] == "node"
    assert first["whole"]["covered_s"] >= RAN_S - 1
    assert 0 <= first["whole"]["min"] <= first["whole"]["mean"] <= first["whole"]["max"]
    koordlet.start()
    time.sleep(RAN_S)
    assert koordlet.stop() == 0
    second = node_line(koordlet)
    assert second["whole"]["covered_s"] >= first["whole"]["covered_s"] + RAN_S - 1


def test_H15_a_damaged_history_keeps_nobody_from_starting(koordlet: Koordlet) -> None:
    assert koordlet.stop() == 0
    path = koordlet.directory / "state" / "history.db"
    path.write_bytes(b"no database at all" * 1_000)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    koordlet.start()
    until(lambda: "history-damaged" in koordlet.ctl("status", "-o", "json").stdout, 20.0)
    assert path.with_name("history.db.damaged-0").exists()
    assert koordlet.ctl("metrics", "--node").returncode == 0
