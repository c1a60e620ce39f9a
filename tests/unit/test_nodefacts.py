"""What this node is: from sysfs, the kubelet and our own configuration."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from koordlet.config import Config
from koordlet.ipc import KubeletUpdate
from koordlet.model.pods import CgroupDriver
from koordlet.model.readings import Missing
from koordlet.model.topology import CpuManagerPolicy, NodeFacts
from koordlet.nodefacts import REFRESH_S, NodeFactsReader
from koordlet.protocol.cpuset import parse_cpuset
from tests.support.fakehost import FakeHost, fake_host, put_topology

STATE = "/var/lib/kubelet/cpu_manager_state"


def _kubelet(
    policy: CpuManagerPolicy = CpuManagerPolicy.NONE, reserved: str = "", milli: int = 0
) -> KubeletUpdate:
    cpus = parse_cpuset(reserved)
    return KubeletUpdate("", CgroupDriver.CGROUPFS, policy, cpus, milli)


class Rig:
    def __init__(self, cpus: str = "0-7", **config: object) -> None:
        self.host: FakeHost = fake_host("v2", cpus=cpus)
        self.reader = NodeFactsReader(
            self.host.cgroups(),
            Config(node_name="testnode", kubelet_state_file=Path(STATE), **config),  # type: ignore[arg-type]
            self.host.roots,
        )
        self.now_s = 0.0

    def facts(self, kubelet: KubeletUpdate | None = None, *, after_s: float = 0.0) -> NodeFacts:
        self.now_s += after_s
        found = self.reader.refresh(self.now_s, kubelet)
        assert isinstance(found, NodeFacts)
        return found

    def put_state(self, **document: object) -> None:
        self.host.files.put(STATE, json.dumps(document))


def test_a_plain_host_is_its_online_cpus_and_its_memory() -> None:
    facts = Rig().facts()
    assert facts.name == "testnode"
    assert facts.capacity_cores == 8.0
    assert facts.memory_bytes == 8 << 30
    assert facts.reserved_cores == 0.0
    assert facts.cpu_manager is CpuManagerPolicy.UNKNOWN


def test_CQ_19_capacity_is_physical_whatever_the_kubelet_offers() -> None:
    assert Rig().facts(_kubelet(milli=500)).capacity_cores == 8.0


def test_CS_11_reserved_cpus_are_ids_not_a_count() -> None:
    rig = Rig("0-11,24-35", reserved_cpus=parse_cpuset("28-35"))
    facts = rig.facts()
    assert facts.reserved_cpus == parse_cpuset("28-35")
    assert facts.reserved_cores == 8.0
    assert not rig.reader.problems


def test_reserved_cpus_that_are_offline_do_not_count() -> None:
    facts = Rig("0-3", reserved_cpus=parse_cpuset("3-5")).facts()
    assert facts.reserved_cpus == {3}
    assert facts.reserved_cores == 1.0


@pytest.mark.parametrize(
    "cpus, milli, kubelet, expected",
    [
        ("", 0, _kubelet(milli=4_000), 4.0),  # CFG-08: by quantity, with no list
        ("", 1_500, _kubelet(milli=500), 1.5),
        ("0-1", 1_500, _kubelet(milli=500), 2.0),
        ("0", 0, _kubelet(reserved="1-2", milli=500), 3.0),
        ("", 90_000, None, 8.0),  # never more than there is
    ],
)
def test_CFG_08_the_largest_reservation_counts_not_the_sum(
    cpus: str, milli: int, kubelet: KubeletUpdate | None, expected: float
) -> None:
    rig = Rig(reserved_cpus=parse_cpuset(cpus), system_reserved_cpu_milli=milli)
    assert rig.facts(kubelet).reserved_cores == expected


def test_CS_13_a_stale_pool_is_replaced_by_what_is_online_and_said_so() -> None:
    rig = Rig("0-3")
    rig.put_state(policyName="static", defaultCpuSet="0", checksum=885245905)
    facts = rig.facts(_kubelet(CpuManagerPolicy.STATIC))
    assert facts.exclusive_cpus == frozenset()
    state = rig.reader.kubelet.state
    assert not isinstance(state, Missing)
    assert state.default_cpus == {0, 1, 2, 3}
    assert [problem.code for problem in rig.reader.problems] == ["cpu-manager-state-stale"]


def test_CS_13_offline_cpus_of_the_file_are_dropped() -> None:
    rig = Rig("0-3")
    rig.put_state(
        policyName="static",
        defaultCpuSet="0-1,6-7",
        entries={"uid1": {"main": "2-3"}, "uid2": {"main": "4-5"}},
    )
    facts = rig.facts(_kubelet(CpuManagerPolicy.STATIC))
    assert facts.exclusive_cpus == {2, 3}
    state = rig.reader.kubelet.state
    assert not isinstance(state, Missing)
    assert state.default_cpus == {0, 1}


def test_the_file_tells_the_policy_where_no_kubelet_was_found() -> None:
    rig = Rig()
    rig.put_state(policyName="static", defaultCpuSet="0-5", entries={"u": {"main": "6-7"}})
    assert rig.facts().cpu_manager is CpuManagerPolicy.STATIC
    assert rig.facts().exclusive_cpus == {6, 7}


def test_a_kubelet_that_restarted_with_another_policy_is_noticed_at_once() -> None:
    rig = Rig()
    assert rig.facts(_kubelet()).cpu_manager is CpuManagerPolicy.NONE
    assert rig.facts(_kubelet(CpuManagerPolicy.STATIC)).cpu_manager is CpuManagerPolicy.STATIC


def test_hotplug_is_noticed_within_ten_seconds() -> None:
    rig = Rig("0-7")
    assert rig.facts().capacity_cores == 8.0
    rig.host.files.remove("/sys/devices/system/cpu")
    put_topology(rig.host.files, parse_cpuset("0-3"))
    assert rig.facts(after_s=REFRESH_S / 2).capacity_cores == 8.0
    assert rig.facts(after_s=REFRESH_S / 2).capacity_cores == 4.0


def test_the_last_whole_facts_stay_while_the_host_cannot_be_read() -> None:
    rig = Rig()
    rig.facts()
    for path in ("/proc/meminfo", "/sys/devices/system/cpu/online"):
        rig.host.files.fail(path, errno.EIO)
        assert rig.facts(after_s=REFRESH_S).capacity_cores == 8.0


def test_before_the_first_whole_look_there_are_none() -> None:
    rig = Rig()
    rig.host.files.fail("/proc/meminfo", errno.EIO)
    assert isinstance(rig.reader.refresh(0.0, None), Missing)
    rig.host.files.fail("/proc/meminfo", errno.EIO, times=0)
    assert rig.facts(after_s=REFRESH_S).capacity_cores == 8.0


def test_a_state_file_that_is_no_json_is_no_state() -> None:
    rig = Rig()
    rig.host.files.put(STATE, "{")
    assert rig.facts(_kubelet(CpuManagerPolicy.STATIC)).exclusive_cpus == frozenset()
    assert isinstance(rig.reader.kubelet.state, Missing)
