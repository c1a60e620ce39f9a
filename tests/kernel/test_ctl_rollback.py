"""``koordletctl rollback`` after a daemon that left no word but its journal."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.clock import SystemClock
from koordlet.host.machine import Machine, open_machine
from koordlet.host.mounts import Roots
from koordlet.model.actions import Plan, SetValue
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.resexecutor.executor import Executor
from koordlet.resexecutor.journal import Journal
from koordlet.resexecutor.lock import Lock, acquire
from tests.support.cgroot import CgroupRoot, cgroup_root
from tests.unit.test_api_views import validator

pytestmark = pytest.mark.kernel

TIER = CgroupPath("kubepods/besteffort")
REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def root() -> Iterator[CgroupRoot]:
    with cgroup_root() as made:
        made.mk(TIER, shares=1024)
        yield made


@pytest.fixture
def run_dir() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="koordtest-", dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory)


def machine_of(root: CgroupRoot) -> Machine:
    return open_machine(Roots(cgroup=root.root), keeps_fds=False)


def left_behind(root: CgroupRoot, run_dir: Path) -> None:
    """Values in force and their journal, as a killed daemon leaves them."""
    machine = machine_of(root)
    opened = Journal.open(
        run_dir / "journal.db", boot_id=machine.boot_id, managed_root=machine.managed_root
    )
    clock = SystemClock()
    executor = Executor(machine.cgroups, opened.journal, clock)
    writes = (
        SetValue(TIER, Knob.CPU_SHARES, 2, owner="be_priority", reason="test"),
        SetValue(TIER, Knob.CPU_QUOTA, 50_000, owner="cpu_suppress", reason="test"),
    )
    executor.apply(Plan(writes=writes), clock.now_s())
    opened.journal.close()
    machine.files.close()


def values(root: CgroupRoot) -> tuple[str, int]:
    return root.weight(TIER), root.quota_us(TIER)


def ours(root: CgroupRoot) -> tuple[str, int]:
    """What ``left_behind`` wrote."""
    return root.weight_of(2), 50_000


def originals(root: CgroupRoot) -> tuple[str, int]:
    return root.weight_of(1024), -1


def roll_back(run_dir: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """The command as an operator gives it: nothing but the run directory is named."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "koordlet.ctl.app", "--run-dir", str(run_dir)),
            *("-o", "json", "rollback", *words),
        ],
        capture_output=True,
        text=True,
        cwd=REPO,
        check=False,
        timeout=60,
    )
    assert done.stdout, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    validator("rollback")(said)
    return done.returncode, said["data"]


def test_the_journal_alone_restores_everything(root: CgroupRoot, run_dir: Path) -> None:
    left_behind(root, run_dir)
    assert values(root) == ours(root)
    code, data = roll_back(run_dir, "--dry-run")
    assert (code, data["dry_run"], values(root)) == (0, True, ours(root))
    assert len(data["files"]) == 2
    code, data = roll_back(run_dir)
    assert (code, data["done_by"], data["restored"]) == (0, "journal", 2)
    assert values(root) == originals(root)
    code, data = roll_back(run_dir)
    assert (code, data["done_by"], data["files"]) == (0, "nobody", [])


def test_a_foreign_value_is_left_and_ends_with_4(root: CgroupRoot, run_dir: Path) -> None:
    left_behind(root, run_dir)
    root.set_shares(TIER, 333)
    code, data = roll_back(run_dir)
    assert (code, data["left"], data["restored"]) == (4, 1, 1)
    assert values(root) == (root.weight_of(333), -1)


def test_H16_a_living_writer_is_left_alone_or_named(root: CgroupRoot, run_dir: Path) -> None:
    left_behind(root, run_dir)
    machine = machine_of(root)
    lock = acquire(machine.root_identity)
    machine.files.close()
    assert isinstance(lock, Lock)
    try:
        code, data = roll_back(run_dir, "--if-no-daemon")
        assert (code, data["done_by"]) == (0, "nobody")
        assert "left to it" in data["note"]
        assert values(root) == ours(root)
    finally:
        lock.release()
    code, _ = roll_back(run_dir, "--if-no-daemon")
    assert (code, values(root)) == (0, originals(root))


def test_a_root_that_is_gone_leaves_nothing_to_undo(run_dir: Path) -> None:
    with cgroup_root() as root:
        root.mk(TIER, shares=1024)
        left_behind(root, run_dir)
    code, data = roll_back(run_dir)
    assert (code, data["done_by"]) == (0, "nobody")
    assert "gone" in data["note"]


def test_without_a_journal_there_is_nothing_to_undo(run_dir: Path) -> None:
    code, data = roll_back(run_dir, "--if-no-daemon")
    assert (code, data["done_by"]) == (0, "nobody")
    assert "no journal" in data["note"]


def test_H16_a_configuration_that_is_refused_stands_in_no_way(
    root: CgroupRoot, run_dir: Path, tmp_path: Path
) -> None:
    left_behind(root, run_dir)
    broken = tmp_path / "koordlet.yaml"
    broken.write_text("runDir: [")
    broken.chmod(0o644)
    code, data = roll_back(run_dir, "--config", str(broken), "--if-no-daemon")
    assert (code, data["restored"]) == (0, 2)
    assert values(root) == originals(root)


def test_H16_after_a_stop_without_systemd_to_wait_under_everything_is_restored(
    root: CgroupRoot, run_dir: Path
) -> None:
    left_behind(root, run_dir)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "koordlet.daemon", "after-stop", "koordtest-none.service"),
            *("--run-dir", str(run_dir)),
        ],
        capture_output=True,
        text=True,
        cwd=REPO,
        env={"PATH": "/nonexistent", "SERVICE_RESULT": "signal"},
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "restored" in done.stderr
    assert values(root) == originals(root)
