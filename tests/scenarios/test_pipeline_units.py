"""systemd's units from declaration to undo, over a whole pipeline (hazard H6)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.host.systemd import Systemd
from koordlet.host.unitprops import UNSET
from koordlet.model.actions import Status
from koordlet.pods.hostapp import HostAppRecord
from koordlet.protocol.nodeslo import CpuSuppressPolicy, NodeSlo
from koordlet.protocol.qos import Qos
from koordlet.report import CoreStatus
from koordlet.resexecutor.unitthread import UnitThread
from tests.support.fakehost import CgroupTree, FakeHost, fake_host
from tests.support.fakesystemd import FakeSystemd
from tests.support.pipeline import Pipeline
from tests.support.snapshots import slo

UNIT = "batch.service"
PATH = "system.slice/batch.service"
QUOTA = slo(CpuSuppressPolicy.CFS_QUOTA, priority=True)
PER_S = "CPUQuotaPerSecUSec"
TREE: CgroupTree = {"kubepods": {"burstable": {}, "besteffort": {}}, "system.slice": {}}


class Node:
    """A pipeline with a declared unit, and systemd beside it."""

    def __init__(self, directory: Path, host: FakeHost) -> None:
        self.host = host
        self.systemd = FakeSystemd(directory, host)
        self.systemd.add(UNIT)
        self.units = UnitThread(Systemd(**self.systemd.client_options()), host.cgroups())
        self.pipe = Pipeline(directory, "v2", host=host, slo=QUOTA, units=self.units, hushed=True)
        record = HostAppRecord("batch", qos=Qos.BE, systemd_unit=UNIT, declared_in="test.yaml")
        self.pipe.told.apps["batch"] = record
        self.pipe.tell_all()
        self.web = self.pipe.add_pod("web", Qos.LS)
        self.pipe.load = {self.web.cgroup: 2.0, PATH: 1.0}

    def follow(self, wanted: NodeSlo) -> None:
        self.pipe.tell_slo(wanted)

    def property(self, name: str) -> object:
        return self.systemd.units[UNIT].values[name]

    def problems(self) -> set[str]:
        core = self.pipe.front.view().core
        assert isinstance(core, CoreStatus)
        return {problem.code for problem in core.problems}

    def close(self) -> None:
        self.units.stop(5.0)
        self.systemd.close()
        self.pipe.__exit__()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, fake_host("v2", cpus="0-7", systemd=True, cgroups=TREE))
    yield made
    made.close()


def test_H06_a_unit_shares_the_budget_and_is_given_back_when_nothing_is_wanted(node: Node) -> None:
    before = node.systemd.show()
    node.pipe.run(8)
    # 8 x 65 % - 2.0 of the LS pod = 3.2 cores, for the only BE root
    assert node.property(PER_S) == 3_200_000
    assert node.property("CPUWeight") == 1
    assert node.host.text(PATH, "cpu.max") == "320000 100000"
    assert node.problems() == set()
    node.follow(slo())
    node.pipe.run(4)
    assert node.systemd.show() == before


def test_H28_a_surge_reaches_a_unit_within_one_tick(node: Node) -> None:
    node.pipe.run(8)
    node.pipe.load[node.web.cgroup] = 4.0
    node.pipe.sample()
    node.pipe.run_tick()
    assert node.property(PER_S) == 1_200_000


def test_H06_a_daemon_reload_changes_nothing(node: Node) -> None:
    node.pipe.run(8)
    node.systemd.daemon_reload()
    node.pipe.run(2)
    assert node.property(PER_S) == 3_200_000
    assert "reset" not in {event.kind for report in node.pipe.reports for event in report.audit}


def test_the_cpuset_policy_and_back(node: Node) -> None:
    before = node.systemd.show()
    node.follow(slo(CpuSuppressPolicy.CPUSET))
    node.pipe.run(8)
    assert len(node.host.text(PATH, "cpuset.cpus").replace("-", ",").split(",")) > 1
    node.follow(slo())
    node.pipe.run(4)
    assert node.systemd.show() == before


def test_a_unit_that_stops_is_let_go_and_governed_again_when_it_starts(node: Node) -> None:
    before = node.systemd.show()
    node.pipe.run(8)
    node.pipe.load.pop(PATH)
    node.systemd.stop(UNIT)
    node.pipe.run(4)
    assert node.systemd.show() == before
    assert not node.pipe.parts.executor.owned()
    node.systemd.start(UNIT)
    node.pipe.run(4)
    assert node.property("CPUWeight") == 1


def test_H06_a_clean_stop_gives_units_back(node: Node) -> None:
    before = node.systemd.show()
    node.pipe.run(8)
    node.pipe.tick.restore_all("clean stop")
    assert node.systemd.show() == before


def test_OPS_01_a_unit_that_systemd_refuses_is_told_once(node: Node) -> None:
    node.systemd.units[UNIT].slice = "other.slice"
    node.pipe.run(10)
    assert node.property("CPUWeight") == UNSET
    told = [event for report in node.pipe.reports for event in report.audit]
    refused = [event for event in told if event.kind == Status.REFUSED.value]
    assert len(refused) <= 4
    assert "unit-refused" in node.problems()
