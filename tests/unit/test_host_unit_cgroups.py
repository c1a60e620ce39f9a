"""Cgroups of systemd's units: whose they are, and what stands for a file that is not there (H6)."""

from __future__ import annotations

import pytest

from koordlet.model.knobs import Knob, Value
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from tests.support.fakehost import FakeHost, fake_host

UNIT = CgroupPath("system.slice/batch.service")


def bare(layout: str, *, systemd: bool = True) -> FakeHost:
    """A unit to which systemd gave no controllers."""
    host = fake_host(layout, systemd=systemd)
    host.make(UNIT)
    if layout == "v2":
        for file in ("cpu.max", "cpu.weight", "cpu.idle", "cpuset.cpus", "memory.max"):
            host.delete_file(UNIT, file)
    else:
        for hierarchy in host.files.hierarchies:
            if "memory" not in hierarchy.controllers:
                hierarchy.root.children.clear()
    return host


def test_the_kernels_default_is_in_force_without_a_controller() -> None:
    cgroups = bare("v2").cgroups()
    wanted: dict[Knob, Value] = {
        Knob.CPU_QUOTA: None,
        Knob.CPU_PERIOD: 100_000,
        Knob.CPU_IDLE: 0,
        Knob.CPUSET_CPUS: frozenset(),
        Knob.MEMORY_LIMIT: None,
    }
    assert {knob: cgroups.read(UNIT, knob) for knob in wanted} == wanted
    assert cgroups.read_raw(UNIT, Knob.CPU_SHARES) == b"100"


def test_on_v1_a_unit_is_only_in_the_hierarchies_that_it_needs() -> None:
    cgroups = bare("v1").cgroups()
    assert cgroups.read(UNIT, Knob.CPU_QUOTA) is None
    assert cgroups.read(UNIT, Knob.CPU_PERIOD) == 100_000
    assert cgroups.read(UNIT, Knob.CPU_SHARES) == 1024
    assert isinstance(cgroups.read(UNIT, Knob.CPUSET_CPUS), Missing)
    assert cgroups.is_there(UNIT)


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_a_unit_that_does_not_run_reads_nothing(layout: str) -> None:
    host = bare(layout)
    gone = CgroupPath("system.slice/gone.service")
    assert isinstance(host.cgroups().read(gone, Knob.CPU_QUOTA), Missing)
    assert not host.cgroups().is_there(gone)


def test_nothing_stands_for_files_that_are_missing_elsewhere() -> None:
    without = bare("v2", systemd=False).cgroups()
    assert isinstance(without.read(UNIT, Knob.CPU_QUOTA), Missing)
    host = fake_host("v2", systemd=True)
    plain = host.make("host-best-effort/crunch")
    host.delete_file(plain, "cpu.max")
    assert isinstance(host.cgroups().read(plain, Knob.CPU_QUOTA), Missing)


def test_whose_a_cgroup_is_is_counted_from_the_root_of_the_hierarchy() -> None:
    host = fake_host("v2", systemd=True, root="/system.slice")
    cgroups = host.cgroups()
    assert cgroups.host_path(CgroupPath("batch.service")) == "/system.slice/batch.service"
    assert cgroups.unit_of(CgroupPath("batch.service")) == "batch.service"
    below = fake_host("v2", systemd=True, root="/koordtest-1").cgroups()
    assert below.unit_of(UNIT) == ""


def test_delegation_is_marked_on_the_units_own_directory() -> None:
    host = fake_host("v2", systemd=True, root="/system.slice")
    cgroups = host.cgroups()
    place = cgroups.place(CgroupPath("batch.service/part"))
    assert place is not None
    assert not cgroups.is_delegated(place)
    host.files.attributes["/sys/fs/cgroup/system.slice/batch.service", "user.delegate"] = b"1"
    assert cgroups.is_delegated(place)
