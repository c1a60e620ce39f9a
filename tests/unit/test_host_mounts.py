from __future__ import annotations

import pytest

from koordlet.host.cgroup import Cgroups
from koordlet.host.mounts import Hierarchies, Roots, discover, parse_mountinfo
from koordlet.model.knobs import Knob
from koordlet.model.paths import ROOT, CgroupPath
from koordlet.model.readings import Missing
from tests.support.fakehost import FakeFiles, fake_host

BE = CgroupPath("kubepods/besteffort")

ODD_MACHINE = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
23 27 0:22 / /sys rw,relatime - sysfs sysfs rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
38 31 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
TOGETHER = (
    "30 23 0:25 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755\n"
    "31 30 0:26 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "32 30 0:27 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory\n"
)
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def found_in(text: str, roots: Roots | None = None, controllers: str = "") -> Hierarchies:
    files = FakeFiles(())
    files.put("/proc/self/mountinfo", text)
    for base in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        files.put(f"{base}/cgroup.controllers", controllers + "\n")
    found = discover(files, roots or Roots())
    assert isinstance(found, Hierarchies)
    return found


def managed(hierarchies: Hierarchies, controller: str) -> str:
    hierarchy = hierarchies.of(controller)
    assert hierarchy is not None
    return hierarchy.managed


def test_V1_01_cpu_and_cpuacct_mounted_apart() -> None:
    host = fake_host("v1", cgroups={"kubepods": {"besteffort": {"cpuacct.usage": "42"}}})
    cgroups = host.cgroups()
    assert cgroups.path_of(BE, Knob.CPU_QUOTA) == (
        "/sys/fs/cgroup/cpu/kubepods/besteffort/cpu.cfs_quota_us"
    )
    assert cgroups.dir_of(BE, "cpuacct") == "/sys/fs/cgroup/cpuacct/kubepods/besteffort"
    assert cgroups.cpu_usage_ns(BE) == 42


def test_controllers_mounted_together_have_one_hierarchy() -> None:
    found = found_in(TOGETHER)
    assert found.of("cpu") == found.of("cpuacct")
    assert managed(found, "cpu") == "/sys/fs/cgroup/cpu,cpuacct"
    assert [each.mount for each in found.all()] == [
        "/sys/fs/cgroup/cpu,cpuacct",
        "/sys/fs/cgroup/memory",
    ]
    assert found.of("cpuset") is None
    assert found.of("unified") is None


def test_the_odd_machine_is_v1_with_an_empty_v2_beside() -> None:
    found = found_in(ODD_MACHINE, controllers="hugetlb")
    assert found.versions() == {
        "cpu": 1,
        "cpuacct": 1,
        "cpuset": 1,
        "memory": 1,
        "blkio": 1,
        "pids": 1,
        "hugetlb": 2,
    }
    assert found.of("io") == found.of("blkio")
    assert managed(found, "unified") == "/sys/fs/cgroup/unified"
    assert found.of("cpuacct") != found.of("unified")
    assert found.of("net_cls") is None


def test_pure_v2_takes_controllers_from_the_root() -> None:
    found = found_in(V2, controllers="cpuset cpu io memory pids")
    assert found.versions()["cpu"] == 2
    assert found.of("blkio") == found.of("io") == found.of("cpuacct") == found.unified
    assert found.of("rdma") is None


def test_v2_without_a_controller_lacks_its_knobs() -> None:
    files = FakeFiles(())
    cgroups = Cgroups(files, found_in(V2, controllers="memory pids"))
    assert cgroups.spec(Knob.CPU_QUOTA) is None
    assert cgroups.version_of(Knob.CPU_QUOTA) is None
    assert isinstance(cgroups.path_of(BE, Knob.CPU_QUOTA), Missing)
    assert isinstance(cgroups.read(BE, Knob.CPU_QUOTA), Missing)
    assert isinstance(cgroups.mount_of(Knob.CPU_QUOTA), Missing)
    assert isinstance(cgroups.identity(BE, Knob.CPU_QUOTA), Missing)
    with pytest.raises(ValueError, match=r"no mounted cgroup hierarchy has a file for cpu\.quota"):
        cgroups.encode(Knob.CPU_QUOTA, 1)
    with pytest.raises(OSError, match=r"cpu\.quota"):
        cgroups.write(BE, Knob.CPU_QUOTA, "1")


def test_the_managed_root_lies_in_every_hierarchy() -> None:
    found = found_in(ODD_MACHINE, Roots(cgroup="/koordtest-1/"), "hugetlb")
    assert managed(found, "cpu") == "/sys/fs/cgroup/cpu/koordtest-1"
    assert managed(found, "unified") == "/sys/fs/cgroup/unified/koordtest-1"
    confined = {each.mount: each.managed for each in found.confinements()}
    assert confined["/sys/fs/cgroup/memory"] == "/sys/fs/cgroup/memory/koordtest-1"


def test_another_sysfs_moves_the_mount_points_below_it() -> None:
    files = FakeFiles(())
    files.put("/host/proc/self/mountinfo", V2)
    files.put("/host/sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
    found = discover(files, Roots(sysfs="/host/sys", proc="/host/proc"))
    assert isinstance(found, Hierarchies)
    assert managed(found, "cpu") == "/host/sys/fs/cgroup"


def test_a_mount_that_shows_a_part_of_the_hierarchy() -> None:
    line = "31 30 0:26 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n"
    found = found_in(line, Roots(cgroup="/docker/abc/koordtest-1"))
    assert managed(found, "cpu") == "/sys/fs/cgroup/cpu/koordtest-1"
    hierarchy = found.of("cpu")
    assert hierarchy is not None
    assert hierarchy.read_only
    assert managed(found_in(line), "cpu") == "/sys/fs/cgroup/cpu"


def test_of_two_mounts_of_one_hierarchy_the_whole_writable_one_wins() -> None:
    lines = (
        "31 30 0:26 / /a ro - cgroup cgroup rw,cpu\n"
        "32 30 0:26 /docker/abc /b rw - cgroup cgroup rw,cpu\n"
        "33 30 0:26 / /somewhere/else rw - cgroup cgroup rw,cpu\n"
        "34 30 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    )
    assert managed(found_in(lines), "cpu") == "/sys/fs/cgroup/cpu"


def test_a_later_mount_hides_an_earlier_one() -> None:
    lines = (
        "31 30 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "32 31 0:40 / /sys/fs/cgroup/cpu rw - tmpfs tmpfs rw\n"
    )
    files = FakeFiles(())
    files.put("/proc/self/mountinfo", lines)
    assert discover(files, Roots()) == Missing(
        "/proc/self/mountinfo: no cgroup hierarchy is mounted"
    )


def test_no_mountinfo_is_missing() -> None:
    assert isinstance(discover(FakeFiles(()), Roots()), Missing)


def test_mountinfo_escapes_and_broken_lines() -> None:
    text = (
        rb"31 30 0:26 /a\040b /mnt/x\134y\011z rw - cgroup cgroup rw,cpu"
        b"\n\nnonsense\n1 2 3 - 4\n31 30 0:26 / /q\n"
    )
    (mount,) = parse_mountinfo(text)
    assert (mount.root, mount.point) == ("/a b", "/mnt/x\\y\tz")
    assert mount.super_options == {"rw", "cpu"}


def test_a_controller_is_found_by_its_whole_name() -> None:
    lines = "31 30 0:26 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    assert found_in(lines).of("cpu") is None


def test_dir_of_says_what_is_not_mounted() -> None:
    cgroups = fake_host("v1").cgroups()
    found = cgroups.dir_of(ROOT, "unified")
    assert found == Missing("no cgroup hierarchy offers the unified controller")
    assert isinstance(cgroups.children(ROOT, "unified"), Missing)


def test_V1_01_every_escape_and_no_other_line_break_than_the_kernels() -> None:
    line = "25 1 0:1 / /a\\043b\\134040\u0085\u2028c rw - cgroup cgroup rw,cpu\n"
    (mount,) = parse_mountinfo(line.encode())
    assert mount.point == "/a#b\\040\u0085\u2028c"
