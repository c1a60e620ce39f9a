"""Hardware and cgroups that this machine may not have: SMT siblings, two NUMA nodes, cgroup v1."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from tests.support import cgroot
from tests.support.vmguest import Guest, Hardware, Kind
from tests.support.vmtests import RecordProperty, run_tests
from tests.vm.conftest import StartGuest

pytestmark = [pytest.mark.vm, pytest.mark.long]

_READ = """
import json
from koordlet.host.mounts import Roots
from koordlet.host.topology import read_topology
from koordlet.host.tree import Tree
found = read_topology(Tree(16), Roots())
print(json.dumps([[cpu.id, cpu.core, cpu.socket, cpu.numa] for cpu in found.cpus]))
"""


class SeenCpu(NamedTuple):
    """One CPU as koordlet's topology reader sees it."""

    id: int
    core: int
    socket: int
    numa: int


@pytest.fixture(scope="module")
def wide_guest(start_guest: StartGuest) -> Guest:
    """Four CPUs on two cores, the cores on two NUMA nodes, and cgroup v1."""
    return start_guest(Kind.V1, Hardware(cores=2, threads_per_core=2, numa_nodes=2))


def test_siblings_and_numa_nodes_are_seen(wide_guest: Guest) -> None:
    wide_guest.put("/tmp/read.py", _READ.encode())
    read = json.loads(wide_guest.ok("/venv/bin/python /tmp/read.py"))
    cpus = [SeenCpu(*each) for each in read]
    assert [cpu.id for cpu in cpus] == [0, 1, 2, 3]
    assert {cpu.socket for cpu in cpus} == {0}
    assert cpus[0].core == cpus[1].core != cpus[2].core == cpus[3].core
    assert [cpu.numa for cpu in cpus] == [0, 0, 1, 1]


def test_the_contract_suite_holds_on_cgroup_v1(
    wide_guest: Guest, record_property: RecordProperty
) -> None:
    if cgroot.version() == 1:
        pytest.skip("this machine's own kernel tests are on cgroup v1")
    words = ("-m", "kernel", "tests/contract/test_contract.py")
    run_tests(wide_guest, record_property, *words, limit_s=120)
