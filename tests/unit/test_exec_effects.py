"""The thread for slow files."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from koordlet.model.actions import Status
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.resexecutor.effects import Effects
from koordlet.resexecutor.ordering import Step
from tests.support.execrig import Rig, key, want
from tests.support.fakehost import FakeHost, fake_host

LIMIT = Knob.MEMORY_LIMIT
MIB = 1 << 20


class Gate:
    """Holds every write until it is opened, as a kernel that reclaims would."""

    def __init__(self, host: FakeHost) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self._real = host.files.write
        host.files.write = self._write  # type: ignore[method-assign]

    def _write(self, path: str, text: str) -> None:
        self.entered.set()
        assert self.open.wait(10)
        self._real(path, text)


def step(path: str, mib: int) -> Step:
    return Step(CgroupPath(path), LIMIT, str(mib * MIB))


@pytest.fixture
def host() -> FakeHost:
    return fake_host("v2", cgroups={"a": {}, "b": {}})


@pytest.fixture
def effects(host: FakeHost) -> Effects:
    return Effects(host.cgroups(), limit=2)


def test_H11_the_tick_does_not_wait_for_a_slow_file(tmp_path: Path, host: FakeHost) -> None:
    gate = Gate(host)
    effects = Effects(host.cgroups())
    effects.start()
    rig = Rig(host, tmp_path, effects=effects)
    assert rig.tick(want("a", LIMIT, 100 * MIB))[key("a", LIMIT)].status is Status.PENDING
    assert rig.executor.pending() == {key("a", LIMIT)}
    assert gate.entered.wait(10)
    assert [problem.code for problem in rig.executor.problems()] == ["write-stuck"]
    assert rig.tick(want("a", LIMIT, 100 * MIB))[key("a", LIMIT)].status is Status.PENDING
    gate.open.set()
    assert effects.wait_idle(10)
    outcomes = rig.tick(want("a", LIMIT, 100 * MIB))
    assert outcomes[key("a", LIMIT)].status is Status.UNCHANGED
    assert rig.executor.pending() == frozenset()
    assert rig.executor.owned()[key("a", LIMIT)].last_written == str(100 * MIB)
    assert "write" in rig.events()
    assert rig.restore_all()[key("a", LIMIT)].status is Status.RESTORED
    assert host.text("a", "memory.max") == "max"
    rig.executor.close()


def test_H11_a_restore_follows_a_write_that_is_still_in_the_kernel(
    tmp_path: Path, host: FakeHost
) -> None:
    gate = Gate(host)
    effects = Effects(host.cgroups())
    effects.start()
    rig = Rig(host, tmp_path, effects=effects)
    rig.tick(want("a", LIMIT, 100 * MIB))
    assert gate.entered.wait(10)
    threading.Timer(0.05, gate.open.set).start()
    assert rig.restore_all()[key("a", LIMIT)].status is Status.RESTORED
    assert [text for _, text in host.files.writes] == [str(100 * MIB), "max"]
    assert not rig.executor.owned()
    rig.executor.close()


def test_H11_latest_wins_for_one_file(host: FakeHost, effects: Effects) -> None:
    gate = Gate(host)
    effects.start()
    assert effects.submit((step("a", 500),))
    assert gate.entered.wait(10)
    for mib in (400, 300, 200):
        assert effects.submit((step("a", mib),))
    gate.open.set()
    assert effects.wait_idle(10)
    assert [text for _, text in host.files.writes] == [str(500 * MIB), str(200 * MIB)]
    assert [result.text for result in effects.drain()] == [str(500 * MIB), str(200 * MIB)]
    effects.stop(10)


def test_H11_the_queue_is_bounded(host: FakeHost, effects: Effects) -> None:
    assert effects.submit((step("a", 1),))
    assert effects.submit((step("b", 1),))
    assert not effects.submit((step("c", 1),))
    assert effects.submit((step("a", 2),))
    effects.start()
    assert effects.stop(10) is None
    assert not effects.submit((step("a", 1),))


def test_H11_a_stuck_write_does_not_block_the_stop(host: FakeHost, effects: Effects) -> None:
    gate = Gate(host)
    effects.start()
    effects.submit((step("a", 1),))
    assert gate.entered.wait(10)
    stuck = effects.stop(0.05)
    assert stuck is not None
    assert stuck.key == key("a", LIMIT)
    gate.open.set()
    assert effects.wait_idle(10)


def test_a_refused_write_comes_back_with_its_errno(tmp_path: Path, host: FakeHost) -> None:
    effects = Effects(host.cgroups())
    effects.start()
    host.files.fail("/sys/fs/cgroup/a/memory.max", 16, on="write", times=1)
    rig = Rig(host, tmp_path, effects=effects)
    rig.tick(want("a", LIMIT, 100 * MIB))
    assert effects.wait_idle(10)
    rig.clock.at_s += 1
    rig.executor.review(rig.clock.at_s)
    assert rig.executor.pending() == frozenset()
    assert not rig.executor.owned()
    rig.tick(want("a", LIMIT, 100 * MIB))
    assert effects.wait_idle(10)
    rig.executor.close()
    assert host.text("a", "memory.max") == str(100 * MIB)
