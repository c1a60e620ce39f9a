"""The front's picture of the node, part by part, and that it forgets what is gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordlet.config import Config
from koordlet.frontstate import RECENT_OUTCOMES, TICKS_KEPT, FrontState
from koordlet.metrics.readings import EntityKey, Group, Level, Readings
from koordlet.model.actions import Mode, Outcome, Owned, Plan, SetValue, Status
from koordlet.model.knobs import Channel, Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import Workloads
from koordlet.model.readings import Missing
from koordlet.report import (
    CoreStatus,
    SourceState,
    SourceStatus,
    StrategyStatus,
    TickCause,
    TickReport,
    TickStats,
)
from tests.support.execrig import HandClock
from tests.support.fakehost import fake_host
from tests.support.snapshots import node

STATUS = CoreStatus(
    pid=1,
    started_wall_s=0.0,
    dry_run=False,
    released=(),
    takeover="",
    journal_path="",
    node=node(),
    be_roots=(),
    floor_bound=False,
    strategies=(),
    problems=(),
    waiting_for=(),
)


class Rig:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.state = FrontState(Config(node_name="testnode"), fake_host("v1").cgroups(), self.clock)
        self.ticks = 0

    def apply(self, **parts: Any) -> None:
        self.ticks += 1
        stats = TickStats(self.ticks, 0.0, TickCause.REGULAR, 0.0, 0.0, 0, 0, 0, False)
        self.state.apply(TickReport(stats, parts.pop("readings", Readings(self.ticks)), **parts))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def _outcome(path: str, status: Status = Status.APPLIED) -> Outcome:
    return Outcome(CgroupPath(path), Knob.CPU_QUOTA, "cpu_suppress", status)


def _owned(path: str) -> Owned:
    return Owned(
        CgroupPath(path), Knob.CPU_QUOTA, "cpu_suppress", Channel.FILE, "-1", "5000", since_s=1.0
    )


def _write(path: str) -> SetValue:
    return SetValue(CgroupPath(path), Knob.CPU_IDLE, 1, "be_priority", "a test")


def test_before_the_first_report_every_part_says_why_it_is_not_there(rig: Rig) -> None:
    view = rig.state.view()
    for part in (view.core, view.plan, view.workloads, view.capabilities, view.slo):
        assert isinstance(part, Missing)
        assert part.why
    assert view.node == "testnode"
    assert view.sources == ()


def test_a_part_that_a_report_leaves_out_stays_as_it_was(rig: Rig) -> None:
    workloads = Workloads((), 0.0, (), Missing("none"))
    rig.apply(status=STATUS, plan=Plan(), workloads=workloads, owned=(_owned("a"),))
    rig.apply()
    view = rig.state.view()
    assert view.core is STATUS
    assert view.workloads is workloads
    assert view.owned == (_owned("a"),)
    assert len(view.ticks) == 2
    rig.apply(owned=())
    assert rig.state.view().owned == ()


def test_the_core_grows_old_when_it_is_silent(rig: Rig) -> None:
    rig.apply(status=STATUS)
    rig.clock.at_s += 7
    assert rig.state.view().core_age_s == 7.0
    rig.apply()
    assert rig.state.view().core_age_s == 0.0


def test_a_lost_core_is_a_stale_source_even_before_its_first_report(rig: Rig) -> None:
    rig.state.core_lost()
    rig.clock.at_s += 3
    (source,) = rig.state.view().sources
    assert (source.name, source.state, source.age_s) == ("core", SourceState.STALE, 3.0)


def test_the_age_of_a_source_grows_and_one_without_stays_without(rig: Rig) -> None:
    rig.state.source(SourceStatus("cri", SourceState.OK, "", 2.0))
    rig.state.source(SourceStatus("nodeslo", SourceState.OK, "", None))
    rig.clock.at_s += 5
    ages = {source.name: source.age_s for source in rig.state.view().sources}
    assert ages == {"cri": 7.0, "nodeslo": None}


def test_a_view_does_not_change_afterwards(rig: Rig) -> None:
    rig.apply(outcomes=(_outcome("a"),))
    view = rig.state.view()
    rig.apply(outcomes=(_outcome("b"),))
    assert len(view.outcomes) == 1
    assert len(view.ticks) == 1


def test_OPS_03_what_is_gone_is_forgotten(rig: Rig) -> None:
    rig.apply(status=STATUS)
    for number in range(3_000):
        path = f"kubepods/besteffort/pod{number}"
        rig.apply(
            plan=Plan(writes=(_write(path),)),
            owned=(_owned(path),),
            outcomes=(_outcome(path), _outcome(f"{path}/c")),
        )
    view = rig.state.view()
    assert len(view.outcomes) <= RECENT_OUTCOMES + 2
    assert len(view.paths) <= RECENT_OUTCOMES + 4
    assert len(view.ticks) == TICKS_KEPT


def test_outcomes_of_what_is_still_held_stay_however_many_others_come(rig: Rig) -> None:
    rig.apply(owned=(_owned("kept"),), outcomes=(_outcome("kept", Status.REFUSED),))
    for number in range(2 * RECENT_OUTCOMES):
        rig.apply(outcomes=(_outcome(f"gone{number}"),))
    target = (CgroupPath("kept"), Knob.CPU_QUOTA)
    assert rig.state.view().outcomes[target].status is Status.REFUSED


def test_the_newest_outcomes_of_targets_that_are_no_longer_held_are_kept(rig: Rig) -> None:
    rig.apply(outcomes=tuple(_outcome(f"gone{number}") for number in range(RECENT_OUTCOMES)))
    rig.apply(outcomes=(_outcome("gone0", Status.RESTORED),))
    rig.apply(outcomes=(_outcome("new"),))
    outcomes = rig.state.view().outcomes
    assert outcomes[CgroupPath("gone0"), Knob.CPU_QUOTA].status is Status.RESTORED
    assert (CgroupPath("gone1"), Knob.CPU_QUOTA) not in outcomes


def test_every_target_that_is_shown_has_its_file(rig: Rig) -> None:
    would = StrategyStatus(
        "be_priority", Mode.OBSERVE, None, True, 0, "", 0.0, (), (), (_write("observed"),)
    )
    rig.apply(
        status=replace(STATUS, strategies=(would,)),
        plan=Plan(writes=(_write("planned"),)),
        owned=(_owned("held"),),
        outcomes=(_outcome("done"),),
    )
    paths = {str(target): path for (target, _), path in rig.state.view().paths.items()}
    assert paths["planned"] == "/sys/fs/cgroup/cpu/planned/cpu.idle"
    assert paths["held"] == "/sys/fs/cgroup/cpu/held/cpu.cfs_quota_us"
    assert paths.keys() == {"observed", "planned", "held", "done"}


def test_readings_of_a_restarted_core_replace_all_before(rig: Rig) -> None:
    from koordlet.metrics.readings import Scope

    key = EntityKey(Level.POD, pod="web", uid="u1")
    rig.apply(readings=Readings(1, keys=((1, key),), changed=((1, int(Group.CPU), (1.0, 2.0)),)))
    assert [k for k, _ in rig.state.readings.at(Level.POD)] == [key]
    other = EntityKey(Level.POD, pod="api", uid="u2")
    rig.apply(readings=Readings(1, Scope.WHOLE, keys=((1, other),)))
    assert [k for k, _ in rig.state.readings.at(Level.POD)] == [other]
