"""Pressure triggers on the real kernel: with a window of 2 s, which it allows everybody."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from koordlet import pressure
from koordlet.eventloop import EventLoop
from koordlet.host.machine import Machine, open_machine
from koordlet.host.mounts import Roots
from koordlet.host.psitrigger import Trigger, open_trigger
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.pressure import PressureWatch
from tests.support.cgroot import CgroupRoot, cgroup_root

pytestmark = pytest.mark.kernel

WINDOW_US = 2_000_000
STALL_US = 100_000
WITHIN_S = 8.0
WEB = CgroupPath("web")
SPIN = ("sh", "-c", "while :; do :; done")


@pytest.fixture
def root() -> Iterator[CgroupRoot]:
    with cgroup_root() as made:
        if "unified" not in made.mounts:
            pytest.skip("needs the cgroup v2 hierarchy mounted: pressure files are there")
        made.mk(WEB)
        yield made


@pytest.fixture
def machine(root: CgroupRoot) -> Iterator[Machine]:
    opened = open_machine(Roots(cgroup=root.root), keeps_fds=False)
    yield opened
    opened.files.close()


def _open(path: str) -> Trigger | Missing:
    try:
        return open_trigger(path, STALL_US, WINDOW_US)
    except OSError as error:
        return Missing(str(error), error.errno or 0)


def test_tasks_that_wait_for_each_other_call_for_an_early_tick_and_leave_quietly(
    root: CgroupRoot, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pressure, "open_best", _open)
    loop, fired = EventLoop(), []
    watch = PressureWatch(machine.cgroups, loop, fired.append)
    watch.follow([WEB])
    root.write(WEB, "cpuset.cpus", "0", "cpuset")
    for _ in range(3):  # on one CPU
        root.spawn(WEB, *SPIN)
    deadline_s = time.monotonic() + WITHIN_S
    while not fired and time.monotonic() < deadline_s:
        loop.wait(0.2)
    assert fired[:1] == [WEB]
    root.rm(WEB)  # POLLERR: the trigger lets go and does not fire
    fired.clear()
    for _ in range(3):
        loop.wait(0.05)
    watch.follow([WEB])
    assert fired == []
    watch.close()


def test_without_pressure_no_trigger_fires(
    root: CgroupRoot, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pressure, "open_best", _open)
    loop, fired = EventLoop(), []
    watch = PressureWatch(machine.cgroups, loop, fired.append)
    watch.follow([WEB])
    root.spawn(WEB)  # sleeps
    deadline_s = time.monotonic() + 0.5
    while time.monotonic() < deadline_s:
        loop.wait(0.1)
    assert fired == []
    watch.close()
