from __future__ import annotations

import errno

import pytest

from koordlet.host.cgroup import Cgroups
from koordlet.host.detect import probe, prove, shortcomings
from koordlet.host.mounts import Hierarchies, Roots, discover
from koordlet.model.capabilities import Proof
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from tests.support.fakehost import CgroupTree, FakeFiles, FakeHost, fake_host
from tests.unit.test_host_mounts import ODD_MACHINE

RUN = "/run/koordlet"
PODS: CgroupTree = {"kubepods": {"besteffort": {f"pod{number}": {} for number in range(100)}}}


def privileged(host: FakeHost, *, capability: bool = True, tmpfs: bool = True) -> FakeHost:
    bits = "000001ffffffffff" if capability else "000001fffeffffff"
    host.files.put("/proc/self/status", f"Name:\tx\nCapEff:\t{bits}\n")
    if tmpfs:
        mounts = host.files.texts["/proc/self/mountinfo"]
        host.files.put("/proc/self/mountinfo", mounts + b"90 1 0:90 / /run rw - tmpfs tmpfs rw\n")
    return host


@pytest.mark.parametrize("layout", ["v1", "v1-together", "hybrid", "v2"])
def test_H25_probing_writes_nothing_and_proves_nothing(layout: str) -> None:
    host = privileged(fake_host(layout, cgroups=PODS))
    found = probe(host.cgroups(), host.roots, run_dir=RUN)
    assert host.files.writes == []
    assert host.files.refused == []
    for knob in (Knob.CPU_QUOTA, Knob.CPU_SHARES, Knob.CPU_IDLE, Knob.CPUSET_CPUS):
        assert found.knob(knob).proof is Proof.UNPROVEN
        assert found.knob(knob).usable
    version = 2 if layout == "v2" else 1
    assert found.version_of("cpu") == version
    assert found.knob(Knob.CPU_QUOTA).detail.startswith(f"cgroup v{version}: ")


def test_OPS_01_an_unsupported_file_is_told_once_for_a_hundred_pods() -> None:
    host = privileged(fake_host("v1", cgroups=PODS))
    found = probe(host.cgroups(), host.roots, run_dir=RUN)
    assert found.knob(Knob.MEMORY_HIGH).proof is Proof.ABSENT
    told = [each for each in shortcomings(found) if each.where == "memory.high"]
    assert len(told) == 1
    assert "none has memory.high" in told[0].what
    assert told[0].remedy


def test_a_vendor_file_on_v1_is_found_by_its_presence() -> None:
    host = privileged(fake_host("v1", cgroups={"pod": {"memory.high": "max"}}))
    assert probe(host.cgroups(), host.roots, run_dir=RUN).knob(Knob.MEMORY_HIGH).usable
    assert host.cgroups().read(CgroupPath("pod"), Knob.MEMORY_HIGH) is None


def test_V1_06_absent_swap_accounting_has_a_remedy() -> None:
    host = privileged(fake_host("v1", cgroups=PODS, swap_accounting=False))
    swap = probe(host.cgroups(), host.roots, run_dir=RUN).knob(Knob.MEMORY_SWAP_LIMIT)
    assert swap.proof is Proof.ABSENT
    assert "swapaccount=1" in swap.remedy


def test_a_v2_controller_not_enabled_below_the_root_names_its_owner() -> None:
    host = privileged(fake_host("v2", cgroups={"system.slice": {}}))
    host.delete_file("system.slice", "cpu.max")
    quota = probe(host.cgroups(), host.roots, run_dir=RUN).knob(Knob.CPU_QUOTA)
    assert quota.proof is Proof.ABSENT
    assert "enable the cpu controller" in quota.remedy


def test_a_host_without_cgroups_yet_is_not_called_unable() -> None:
    host = privileged(fake_host("v2"))
    assert (
        "no cgroup to look at"
        in probe(host.cgroups(), host.roots, run_dir=RUN).knob(Knob.CPU_QUOTA).why
    )


def test_a_read_only_mount_refuses_every_knob() -> None:
    files = FakeFiles(())
    files.put("/proc/self/mountinfo", "31 1 0:26 / /cg/cpu ro - cgroup cgroup rw,cpu\n")
    found = discover(files, Roots())
    assert isinstance(found, Hierarchies)
    quota = probe(Cgroups(files, found), Roots(), run_dir=RUN).knob(Knob.CPU_QUOTA)
    assert quota.proof is Proof.REFUSED
    assert "read-only" in quota.why


def test_H04_v1_names_what_its_quota_cannot_do() -> None:
    v1 = privileged(fake_host("v1", cgroups=PODS))
    limit = probe(v1.cgroups(), v1.roots, run_dir=RUN).others["cfs-quota-new-containers"]
    assert limit.proof is Proof.REFUSED
    assert "cannot start" in limit.why
    assert "cpuset" in limit.remedy
    v2 = privileged(fake_host("v2", cgroups=PODS))
    assert probe(v2.cgroups(), v2.roots, run_dir=RUN).others["cfs-quota-new-containers"].usable


def test_PP_01_no_psi_is_one_capability_off() -> None:
    host = privileged(fake_host("v1", cgroups=PODS))
    host.files.remove("/proc/pressure")
    others = probe(host.cgroups(), host.roots, run_dir=RUN).others
    assert others["psi"].proof is Proof.ABSENT
    assert "psi=1" in others["psi"].remedy
    assert not others["psi-trigger"].usable
    assert not others["psi-cgroup"].usable


def test_PP_02_psi_that_cannot_be_read_is_off() -> None:
    host = privileged(fake_host("v2", cgroups=PODS))
    host.files.fail("/proc/pressure/cpu", errno.EOPNOTSUPP)
    psi = probe(host.cgroups(), host.roots, run_dir=RUN).others["psi"]
    assert psi.proof is Proof.ABSENT
    assert "Operation not supported" in psi.why


def test_PP_08_the_place_of_cgroup_pressure_is_reported() -> None:
    host = privileged(fake_host("hybrid", cgroups={"pod": {}}))
    psi = probe(host.cgroups(), host.roots, run_dir=RUN).others["psi-cgroup"]
    assert psi.detail == "/sys/fs/cgroup/unified/pod/cpu.pressure"


def test_without_cap_sys_resource_windows_are_long() -> None:
    host = privileged(fake_host("v2", cgroups=PODS), capability=False)
    others = probe(host.cgroups(), host.roots, run_dir=RUN).others
    assert others["cap_sys_resource"].proof is Proof.REFUSED
    assert "2 s" in others["psi-trigger"].detail
    granted = privileged(fake_host("v2", cgroups=PODS))
    assert (
        "500 ms"
        in probe(granted.cgroups(), granted.roots, run_dir=RUN).others["psi-trigger"].detail
    )


def test_H15_the_run_dir_must_be_in_memory() -> None:
    host = privileged(fake_host("v1", cgroups=PODS))
    assert probe(host.cgroups(), host.roots, run_dir=RUN).others["tmpfs"].usable
    disk = privileged(fake_host("v1", cgroups=PODS), tmpfs=False)
    disk.files.put("/proc/self/mountinfo", "1 0 254:0 / / rw - ext4 /dev/vda rw\n")
    tmpfs = probe(disk.cgroups(), disk.roots, run_dir=RUN).others["tmpfs"]
    assert tmpfs.proof is Proof.ABSENT
    assert "ext4" in tmpfs.why


def test_the_odd_machine() -> None:
    host = privileged(fake_host("hybrid", cgroups=PODS))
    host.files.put("/proc/self/mountinfo", ODD_MACHINE)
    found = discover(host.files, Roots())
    assert isinstance(found, Hierarchies)
    odd = "test.slice:cri-containerd:" + "0" * 64
    host.make(odd)
    capabilities = probe(Cgroups(host.files, found), Roots(), run_dir=RUN)
    assert capabilities.knob(Knob.CPU_IDLE).usable
    assert capabilities.knob(Knob.CPU_BURST).usable
    assert capabilities.knob(Knob.CPUSET_CPUS_EFFECTIVE).detail.endswith("cpuset.effective_cpus")
    assert not capabilities.knob(Knob.MEMORY_HIGH).usable
    assert not capabilities.knob(Knob.IO_WEIGHT).usable
    assert capabilities.version_of("cpu") == 1
    assert capabilities.version_of("net_cls") is None


# -- proving ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["v1", "v1-together", "hybrid", "v2"])
def test_H25_proving_stays_in_a_scratch_cgroup(layout: str) -> None:
    host = privileged(fake_host(layout, cgroups={"koordlet": {}, **PODS}))
    scratch = CgroupPath("koordlet/scratch")
    found = prove(probe(host.cgroups(), host.roots, run_dir=RUN), host.cgroups(), scratch)
    assert found.knob(Knob.CPU_QUOTA).proof is Proof.PROVEN
    assert found.knob(Knob.CPUSET_CPUS).proof is Proof.PROVEN
    assert host.files.writes
    assert all("/koordlet/scratch/" in path for path, _ in host.files.writes)
    assert host.cgroups().children(CgroupPath("koordlet")) == ()


def test_what_the_kernel_refuses_is_refused_in_its_words() -> None:
    host = privileged(fake_host("v1", cgroups={"koordlet": {}}))
    host.files.fail("/sys/fs/cgroup/cpu/koordlet/s/cpu.idle", errno.EOPNOTSUPP, on="write")
    before = probe(host.cgroups(), host.roots, run_dir=RUN)
    found = prove(before, host.cgroups(), CgroupPath("koordlet/s"))
    assert found.knob(Knob.CPU_IDLE).proof is Proof.REFUSED
    assert "Operation not supported" in found.knob(Knob.CPU_IDLE).why
    assert found.knob(Knob.CPU_QUOTA).proof is Proof.PROVEN


def test_H04_a_relation_is_no_lack_of_support() -> None:
    host = privileged(fake_host("v1", cgroups={"koordlet": {"cpu.cfs_quota_us": "20000"}, **PODS}))
    before = probe(host.cgroups(), host.roots, run_dir=RUN)
    found = prove(before, host.cgroups(), CgroupPath("koordlet/s"))
    assert found.knob(Knob.CPU_QUOTA).proof is Proof.UNPROVEN
    assert "Invalid argument" in found.knob(Knob.CPU_QUOTA).why
    assert host.cgroups().children(CgroupPath("koordlet")) == ()


def test_a_file_that_does_not_keep_what_is_written_is_refused() -> None:
    host = privileged(fake_host("v1", cgroups={"koordlet": {}}))
    path = "/sys/fs/cgroup/pids/koordlet/s/pids.max"
    host.files.fail(path, errno.EIO)
    before = probe(host.cgroups(), host.roots, run_dir=RUN)
    found = prove(before, host.cgroups(), CgroupPath("koordlet/s"))
    assert found.knob(Knob.PIDS_MAX).proof is Proof.REFUSED
    assert "wrote '100', read ''" in found.knob(Knob.PIDS_MAX).why
