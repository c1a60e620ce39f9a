from __future__ import annotations

import pytest

from koordlet.host.cpumanager import against_online, read_cpu_manager_state
from koordlet.host.mounts import Roots
from koordlet.host.topology import read_topology
from koordlet.model.readings import Missing
from koordlet.model.topology import Cpu, CpuManagerPolicy, Topology
from koordlet.protocol.cpuset import parse_cpuset
from tests.support.fakehost import FakeFiles, put_topology

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
STATE = "/var/lib/kubelet/cpu_manager_state"


def machine(cpus: str, *, smt: int = 1) -> FakeFiles:
    files = FakeFiles(())
    put_topology(files, parse_cpuset(cpus), smt=smt)
    return files


def topology_of(files: FakeFiles) -> Topology:
    found = read_topology(files, Roots())
    assert isinstance(found, Topology)
    return found


def test_an_smt_machine() -> None:
    found = topology_of(machine("0-3", smt=2))
    assert found.cpus == (
        Cpu(0, 0, 0, 0, 0),
        Cpu(1, 0, 0, 0, 0),
        Cpu(2, 1, 0, 0, 0),
        Cpu(3, 1, 0, 0, 0),
    )
    assert found.isolated == frozenset()


def test_CS_07_an_offline_cpu_is_left_out() -> None:
    files = machine("0-5")
    files.remove(f"{CPU}/cpu5/topology")
    files.put(f"{CPU}/cpu5/online", "0\n")
    assert topology_of(files).online == frozenset(range(5))
    files.put(f"{CPU}/online", "0-4\n")
    assert topology_of(files).online == frozenset(range(5))


def test_CS_08_cpu0_has_no_online_file() -> None:
    files = machine("0-1")
    assert not files.exists(f"{CPU}/cpu0/online")
    assert 0 in topology_of(files).online


def test_CS_10_a_machine_without_l3() -> None:
    files = machine("0-1")
    for cpu in (0, 1):
        files.remove(f"{CPU}/cpu{cpu}/cache/index3")
        files.put(f"{CPU}/cpu{cpu}/cache/index2/level", "2\n")
        files.put(f"{CPU}/cpu{cpu}/cache/index2/id", "0\n")
    assert [cpu.l3 for cpu in topology_of(files).cpus] == [None, None]


def test_CS_10_a_machine_without_a_cache_directory() -> None:
    files = machine("0-1")
    for cpu in (0, 1):
        files.remove(f"{CPU}/cpu{cpu}/cache")
    assert [cpu.l3 for cpu in topology_of(files).cpus] == [None, None]


def test_l3_without_an_id_is_named_by_its_first_cpu() -> None:
    files = machine("0-3")
    for cpu in range(4):
        files.remove(f"{CPU}/cpu{cpu}/cache/index3/id")
        files.put(f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_list", "0-1\n" if cpu < 2 else "2-3\n")
    assert [cpu.l3 for cpu in topology_of(files).cpus] == [0, 0, 2, 2]


def test_CS_11_online_ids_have_gaps() -> None:
    found = topology_of(machine("0-11,24-35"))
    assert len(found.cpus) == 24
    assert parse_cpuset("28-35") <= found.online


def test_CS_12_hybrid_cores_partly_smt() -> None:
    files = machine("0-5")
    for cpu, core in ((0, 0), (1, 0), (2, 4), (3, 4), (4, 8), (5, 9)):
        files.put(f"{CPU}/cpu{cpu}/topology/core_id", f"{core}\n")
    siblings = [cpu.id for cpu in topology_of(files).cpus if cpu.core == 0]
    assert siblings == [0, 1]
    assert [cpu.core for cpu in topology_of(files).cpus] == [0, 0, 4, 4, 8, 9]


def test_numa_nodes_sockets_and_isolated_cpus() -> None:
    files = machine("0-3")
    files.put(f"{NODE}/node0/cpulist", "0-1\n")
    files.put(f"{NODE}/node1/cpulist", "2-3\n")
    files.put(f"{NODE}/node2/cpulist", "\n")  # memory only
    files.put(f"{CPU}/isolated", "3,9\n")
    for cpu in (2, 3):
        files.put(f"{CPU}/cpu{cpu}/topology/physical_package_id", "1\n")
    found = topology_of(files)
    assert [cpu.numa for cpu in found.cpus] == [0, 0, 1, 1]
    assert [cpu.socket for cpu in found.cpus] == [0, 0, 1, 1]
    assert found.isolated == frozenset({3})


def test_no_numa_directory_is_one_node() -> None:
    files = machine("0-1")
    files.remove(NODE)
    assert [cpu.numa for cpu in topology_of(files).cpus] == [0, 0]


def test_firmware_without_sockets_says_minus_one() -> None:
    files = machine("0-1")
    for cpu in (0, 1):
        files.put(f"{CPU}/cpu{cpu}/topology/physical_package_id", "-1\n")
    assert [cpu.socket for cpu in topology_of(files).cpus] == [0, 0]


def test_no_topology_at_all_makes_each_cpu_a_core() -> None:
    files = machine("0-2", smt=2)
    for cpu in range(3):
        files.remove(f"{CPU}/cpu{cpu}/topology")
    assert [(cpu.core, cpu.socket) for cpu in topology_of(files).cpus] == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize("text", ["", "\n", "zero\n"])
def test_no_online_cpus_is_missing(text: str) -> None:
    files = machine("0-1")
    files.put(f"{CPU}/online", text)
    assert isinstance(read_topology(files, Roots()), Missing)
    assert isinstance(read_topology(FakeFiles(()), Roots()), Missing)


# -- the kubelet's CPU manager ------------------------------------------------------------------


def state_of(text: str) -> FakeFiles:
    files = FakeFiles(())
    files.put(STATE, text)
    return files


def test_exclusive_cpus_by_pod_and_container() -> None:
    text = (
        '{"policyName":"static","defaultCpuSet":"0-1","checksum":1,'
        '"entries":{"uid-1":{"app":"2-3","side":"5"},"uid-2":{"app":"4"}}}'
    )
    found = read_cpu_manager_state(state_of(text), STATE)
    assert not isinstance(found, Missing)
    assert found.policy is CpuManagerPolicy.STATIC
    assert found.default_cpus == frozenset({0, 1})
    assert found.exclusive["uid-1", "app"] == frozenset({2, 3})
    assert found.exclusive_cpus == frozenset({2, 3, 4, 5})
    assert against_online(found, frozenset(range(6)), frozenset(), STATE) == (found, ())


def test_policy_none_and_old_kubelets() -> None:
    none = read_cpu_manager_state(state_of('{"policyName":"none","defaultCpuSet":""}'), STATE)
    assert not isinstance(none, Missing)
    assert none.policy is CpuManagerPolicy.NONE
    assert against_online(none, frozenset({0, 1}), frozenset(), STATE)[1] == ()
    old = '{"policyName":"static","defaultCpuSet":"0","entries":{"4f6e":"1"}}'
    found = read_cpu_manager_state(state_of(old), STATE)
    assert not isinstance(found, Missing)
    assert found.exclusive == {("", "4f6e"): frozenset({1})}


def test_CS_13_a_stale_pool_is_mended_and_told() -> None:
    text = '{"policyName":"static","defaultCpuSet":"0","checksum":885245905}'
    found = read_cpu_manager_state(state_of(text), STATE)
    assert not isinstance(found, Missing)
    mended, (problem,) = against_online(found, frozenset(range(4)), frozenset(), STATE)
    assert mended.default_cpus == frozenset(range(4))
    assert problem.code == "cpu-manager-state-stale"
    assert problem.where == STATE
    assert "'0'" in problem.what
    assert "'0-3'" in problem.what


def test_CS_13_cpus_that_went_offline_are_dropped() -> None:
    text = '{"policyName":"static","defaultCpuSet":"0-1,6","entries":{"u":{"c":"2,7"}}}'
    found = read_cpu_manager_state(state_of(text), STATE)
    assert not isinstance(found, Missing)
    mended, problems = against_online(found, frozenset(range(4)), frozenset(), STATE)
    assert mended.exclusive_cpus == frozenset({2})
    assert mended.default_cpus == frozenset({0, 1, 3})
    assert len(problems) == 1


def test_strict_reservation_keeps_reserved_cpus_out_of_the_pool() -> None:
    text = '{"policyName":"static","defaultCpuSet":"1-3"}'
    found = read_cpu_manager_state(state_of(text), STATE)
    assert not isinstance(found, Missing)
    assert against_online(found, frozenset(range(4)), frozenset({0}), STATE) == (found, ())


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"entries":3}', '{"entries":{"a":{"b":3}}}', '{"defaultCpuSet":"x"}'],
)
def test_another_form_is_missing(text: str) -> None:
    assert isinstance(read_cpu_manager_state(state_of(text), STATE), Missing)
    assert isinstance(read_cpu_manager_state(FakeFiles(()), STATE), Missing)
