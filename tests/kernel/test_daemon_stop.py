"""A stop restores everything, whatever the processes of the daemon are doing at that moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cgroot import CgroupRoot, cgroup_root
from tests.support.koordletd import Koordlet, running
from tests.support.waiting import until

pytestmark = pytest.mark.kernel

APP = "host-best-effort/crunch"
SLO = """
resourceUsedThresholdWithBE: {enable: true, cpuSuppressPolicy: cfsQuota}
resourceQOSStrategy: {beClass: {cpuQOS: {enable: true, schedIdle: 1}}}
"""
APPS = """
apiVersion: koordlet/v1
kind: HostApplications
applications: [{name: crunch, qos: BE}]
"""


@pytest.fixture
def root() -> Iterator[CgroupRoot]:
    with cgroup_root() as made:
        made.mk(APP, shares=1024)
        yield made


@pytest.fixture
def koordlet(root: CgroupRoot, tmp_path: Path) -> Iterator[Koordlet]:
    slo, apps = tmp_path / "nodeslo.yaml", tmp_path / "hostapps.d"
    apps.mkdir(mode=0o755)
    for path, text in ((slo, SLO), (apps / "a.yaml", APPS)):
        path.write_text(text)
        path.chmod(0o644)
    options = {"node_slo": slo, "host_apps_dir": apps, "cri_endpoint": "none"}
    with running(tmp_path, root.root, **options) as daemon:
        _wait(lambda: _is_idle(root) and root.quota_us(APP) != -1)
        yield daemon


def _is_idle(root: CgroupRoot) -> bool:
    return (root.weight(APP), root.read(APP, "cpu.idle")) == (root.idle_weight, "1")


def _is_restored(root: CgroupRoot) -> bool:
    values = (root.weight(APP), root.read(APP, "cpu.idle"), root.quota_us(APP))
    return values == (root.weight_of(1024), "0", -1)


def _wait(condition: Callable[[], object], within_s: float = 20.0) -> None:
    until(condition, within_s)


def test_H02_a_clean_stop_gives_weight_idle_and_quota_back(
    koordlet: Koordlet, root: CgroupRoot
) -> None:
    assert koordlet.stop(signal.SIGINT) == 0
    assert _is_restored(root)


def test_H16_a_stop_while_the_core_is_down_restores_from_its_journal(
    koordlet: Koordlet, root: CgroupRoot
) -> None:
    """The core is stopped dead, killed, and the daemon told to end before it can come back."""
    core = int(koordlet.status()["core"]["pid"])
    os.kill(core, signal.SIGKILL)
    assert koordlet.stop() == 0
    assert _is_restored(root)


def test_H16_a_killed_core_comes_back_and_takes_its_values_over(
    koordlet: Koordlet, root: CgroupRoot
) -> None:
    core = int(koordlet.status()["core"]["pid"])
    os.kill(core, signal.SIGKILL)
    _wait(lambda: "taken over" in koordlet.log_tail() or "takeover" in koordlet.log_tail())
    assert _is_idle(root)
    assert koordlet.stop() == 0
    assert _is_restored(root)


def test_a_killed_front_comes_back_and_the_core_goes_on(
    koordlet: Koordlet, root: CgroupRoot
) -> None:
    before = koordlet.status()["core"]["pid"]
    front = next(p for p in koordlet.tree() if p not in (koordlet.pid, int(before)))
    os.kill(front, signal.SIGKILL)
    _wait(lambda: koordlet.tree() and front not in koordlet.tree() and len(koordlet.tree()) == 3)
    koordlet.wait_ready()
    assert koordlet.status()["core"]["pid"] == before
    assert _is_idle(root)
