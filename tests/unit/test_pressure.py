"""Early ticks by pressure: where latency-sensitive work waits for others, not for its limit."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable

import pytest

from koordlet import pressure
from koordlet.host.psitrigger import Trigger
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import Workloads
from koordlet.model.readings import Missing
from koordlet.pressure import MAX_TRIGGERS, PressureWatch, latency_sensitive_cgroups
from koordlet.protocol.qos import Qos
from tests.support.fakehost import FakeHost, fake_host
from tests.support.snapshots import LAYOUT, app, pod

BURSTABLE = LAYOUT.burstable
WEB = CgroupPath("kubepods/burstable/podweb")


class FakeLoop:
    def __init__(self) -> None:
        self.handlers: dict[int, Callable[[int], None]] = {}

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        assert events == select.POLLPRI
        self.handlers[fd] = handler

    def forget(self, fd: int) -> None:
        del self.handlers[fd]


class Rig:
    """Triggers that the test fires, on cgroups of a fake host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host: FakeHost = fake_host("v2", cgroups={"kubepods": {"burstable": {"podweb": {}}}})
        self.loop = FakeLoop()
        self.fired: list[str] = []
        self.asked: list[str] = []
        self.refuses = False
        self.triggers: dict[str, Trigger] = {}
        monkeypatch.setattr(pressure, "open_best", self._open)
        self.watch = PressureWatch(self.host.cgroups(), self.loop, self.fired.append)  # type: ignore[arg-type]

    def _open(self, path: str) -> Trigger | Missing:
        self.asked.append(path)
        if self.refuses:
            return Missing("no trigger", errno.EOPNOTSUPP)
        trigger = Trigger(os.eventfd(0), path, 100_000, 500_000)
        self.triggers[path.split("/cgroup/")[1].removesuffix("/cpu.pressure")] = trigger
        return trigger

    def stall(self, cgroup: str, total_us: int) -> None:
        rest = "avg10=0.00 avg60=0.00 avg300=0.00"
        self.host.set_text(
            cgroup, "cpu.pressure", f"some {rest} total={total_us}\nfull {rest} total=0"
        )

    def fire(self, cgroup: str, events: int = select.POLLPRI) -> None:
        self.loop.handlers[self.triggers[cgroup].fd](events)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def test_a_stall_calls_for_an_early_tick(rig: Rig) -> None:
    rig.watch.follow([BURSTABLE])
    rig.stall(BURSTABLE, 120_000)
    rig.fire(BURSTABLE)
    assert rig.fired == [BURSTABLE]
    rig.watch.close()


def test_H28_a_stall_that_its_own_limit_explains_calls_for_none(rig: Rig) -> None:
    """Throttling anywhere below counts: the pod's limit, or a container's."""
    rig.watch.follow([BURSTABLE])
    rig.host.throttle(WEB, periods=2, throttled=2, throttled_ns=90_000_000)
    rig.stall(BURSTABLE, 120_000)
    rig.fire(BURSTABLE)
    assert rig.fired == []
    rig.stall(BURSTABLE, 480_000)  # and only what came since the last look
    rig.fire(BURSTABLE)
    assert rig.fired == [BURSTABLE]
    rig.watch.close()


def test_a_wake_up_without_any_stall_calls_for_none(rig: Rig) -> None:
    rig.stall(BURSTABLE, 500)
    rig.watch.follow([BURSTABLE])
    rig.fire(BURSTABLE)
    assert rig.fired == []
    rig.watch.close()


def test_a_cgroup_that_is_gone_is_let_go_and_armed_anew_when_it_is_back(rig: Rig) -> None:
    rig.watch.follow([WEB])
    rig.fire(WEB, select.POLLERR)
    assert rig.loop.handlers == {}
    rig.host.remove(WEB)
    rig.watch.follow([WEB])
    assert len(rig.asked) == 1  # no file, nothing to open
    rig.watch.follow([])  # its pod is no longer listed
    rig.host.make(WEB)
    rig.watch.follow([WEB])
    assert len(rig.asked) == 2
    rig.watch.close()
    assert rig.loop.handlers == {}


def test_PP_02_what_takes_no_trigger_is_asked_once(rig: Rig) -> None:
    rig.refuses = True
    for _ in range(3):
        rig.watch.follow([BURSTABLE])
    assert len(rig.asked) == 1
    rig.watch.close()


def test_exactly_what_is_wanted_is_followed(rig: Rig) -> None:
    rig.watch.follow([BURSTABLE, WEB])
    assert len(rig.loop.handlers) == 2
    fd = rig.triggers[BURSTABLE].fd
    rig.watch.follow([WEB])
    assert len(rig.loop.handlers) == 1
    with pytest.raises(OSError):
        os.fstat(fd)
    rig.watch.close()


# -- what is watched ------------------------------------------------------------------------------


def _wanted(pods: tuple[object, ...] = (), apps: tuple[object, ...] = ()) -> tuple[str, ...]:
    return latency_sensitive_cgroups(Workloads(pods, 0.0, apps, LAYOUT))  # type: ignore[arg-type]


def test_unmarked_and_BE_work_is_not_watched() -> None:
    assert _wanted((pod("web", Qos.LS, marked=False), pod("batch", Qos.BE)), (app("render"),)) == ()


def test_the_burstable_tier_stands_for_its_pods_and_guaranteed_ones_for_themselves() -> None:
    pods = (pod("web", Qos.LS), pod("api", Qos.LS), pod("db", Qos.LSR))
    apps = (app("nginx", Qos.LS),)
    assert _wanted(pods, apps) == (BURSTABLE, apps[0].cgroup, pods[2].cgroup)


def test_the_number_of_triggers_is_bounded_tiers_and_applications_first() -> None:
    pods = tuple(pod(f"db{n}", Qos.LSR) for n in range(100))
    found = _wanted((*pods, pod("web", Qos.LS)), (app("nginx", Qos.LS),))
    assert len(found) == MAX_TRIGGERS
    assert found[:2] == (BURSTABLE, "host-latency-sensitive/nginx")
