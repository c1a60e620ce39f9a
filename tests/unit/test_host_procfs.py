from __future__ import annotations

import pytest

from koordlet.host import procfs
from koordlet.host.mounts import Roots
from koordlet.model.readings import Missing
from tests.support.fakehost import FakeFiles, fake_host


def files_with(path: str, text: str | bytes) -> FakeFiles:
    files = FakeFiles(())
    files.put(path, text)
    return files


def test_OPS_12_iowait_and_steal_are_no_use() -> None:
    before = procfs.parse_stat(b"cpu  0 0 0 0 0 0 0 0 0 0\n")
    after = procfs.parse_stat(b"cpu  10 0 0 50 30 0 0 10 0 0\ncpu0 1 1 1 1\n")
    assert after.busy - before.busy == 10
    assert (after.iowait, after.steal) == (30, 10)


def test_guest_time_is_not_counted_twice() -> None:
    assert procfs.parse_stat(b"cpu  10 2 3 50 0 1 4 0 10 2\n").busy == 20


def test_a_stat_of_an_old_kernel_has_fewer_columns() -> None:
    found = procfs.parse_stat(b"cpu 1 2 3 4\n")
    assert (found.busy, found.steal) == (6, 0)


def test_a_stat_without_cpu_is_missing() -> None:
    found = procfs.node_cpu(files_with("/proc/stat", "btime 1\n"), Roots())
    assert found == Missing("/proc/stat: no cpu line")
    assert isinstance(procfs.node_cpu(FakeFiles(()), Roots()), Missing)


def test_MEM_09_nul_padding_is_ignored() -> None:
    text = b"MemTotal: 7999812 kB\nMemFree: 1 kB\n"
    found = procfs.parse_meminfo(text + b"\0" * (4_096 - len(text)))
    assert found.total_bytes == 7_999_812 * 1_024


def test_MEM_10_a_total_of_zero_is_missing() -> None:
    found = procfs.meminfo(files_with("/proc/meminfo", "MemTotal: 0 kB\n"), Roots())
    assert found == Missing("/proc/meminfo: MemTotal is 0 or missing")


def test_MEM_02_node_use_comes_from_available_memory_and_stays_within_the_machine() -> None:
    total_kib = 32_879_017_984 // 1_024
    found = procfs.parse_meminfo(f"MemTotal: {total_kib} kB\nMemAvailable: 10000000 kB\n".encode())
    assert 0 <= found.used_bytes <= found.total_bytes
    odd = procfs.parse_meminfo(b"MemTotal: 100 kB\nMemAvailable: 200 kB\n")
    assert odd.used_bytes == 0


def test_meminfo_without_available_counts_free_and_cache() -> None:
    found = procfs.parse_meminfo(
        b"MemTotal: 100 kB\nMemFree: 10 kB\nBuffers: 5 kB\nCached: 20 kB\nHugePages_Total: 0\nOdd\n"
    )
    assert found.available_bytes == 35 * 1_024
    assert found.cached_bytes == 25 * 1_024


def test_net_dev_with_a_name_that_sticks_to_its_number() -> None:
    text = (
        "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n"
        "    lo: 100 2 0 0 0 0 0 0 100 2 0 0 0 0 0 0\n"
        "eth0.5:4294967296 7 0 0 0 0 0 0 9 8 0 0 0 0 0 0\n"
        "eth0:1:5 6 0 0 0 0 0 0 7 8 0 0 0 0 0 0\n"
    )
    found = procfs.net_dev(files_with("/proc/42/net/dev", text), Roots(), "42")
    assert not isinstance(found, Missing)
    assert found["lo"] == procfs.NetCounters(100, 2, 100, 2)
    assert found["eth0.5"].rx_bytes == 4_294_967_296
    assert found["eth0:1"].tx_bytes == 7
    assert len(found) == 3


def test_diskstats_in_bytes() -> None:
    text = "254 0 vda 10 1 16 5 20 2 32 9 0 7 7 0 0 0 0\n   8       0 sda 1 2\n"
    found = procfs.diskstats(files_with("/proc/diskstats", text), Roots())
    assert found == {"vda": procfs.DiskCounters(8_192, 10, 16_384, 20)}


def test_the_odd_machine_has_another_path_in_each_hierarchy() -> None:
    text = (
        "9:name=systemd:/\n8:pids:/\n4:memory:/agent/0123456789abcdef0123456789abcdef\n"
        "2:cpuacct:/\n1:cpu,cpuset:/test.slice:cri-containerd:abc\n0::/\n"
    )
    found = procfs.own_cgroups(files_with("/proc/self/cgroup", text), Roots())
    assert found == {
        "pids": "/",
        "memory": "/agent/0123456789abcdef0123456789abcdef",
        "cpuacct": "/",
        "cpu": "/test.slice:cri-containerd:abc",
        "cpuset": "/test.slice:cri-containerd:abc",
        "unified": "/",
    }


def test_boot_id_and_other_roots() -> None:
    assert procfs.boot_id(fake_host().files, Roots()) == "00000000-0000-0000-0000-000000000001"
    files = files_with("/host/proc/stat", "cpu 1 1 1 1\n")
    assert not isinstance(procfs.node_cpu(files, Roots(proc="/host/proc")), Missing)


@pytest.mark.parametrize("text", [b"", b"\0\0\0", b"cpu x y\n", b"\xff\xfe"])
def test_rubbish_is_missing_everywhere(text: bytes) -> None:
    files = files_with("/proc/stat", text)
    files.put("/proc/meminfo", text)
    assert isinstance(procfs.node_cpu(files, Roots()), Missing)
    assert isinstance(procfs.meminfo(files, Roots()), Missing)


def test_OPS_12_ticks_that_are_none_give_no_sample() -> None:
    for text in (b"cpu -1 2 3 4\n", b"cpu\n", b"cpu 1 2\n", b"cpu 1 2 3 x\n"):
        with pytest.raises(ValueError, match=r"counter|columns"):
            procfs.parse_stat(text)
    assert procfs.parse_stat(b"\ncpu  1 2 3 4\0\0").idle == 4


def test_MEM_02_no_part_of_memory_is_larger_than_the_whole() -> None:
    found = procfs.parse_meminfo(b"MemTotal: 100 kB\nMemFree: 200 kB\nMemAvailable: 500 kB\n")
    assert found.available_bytes == found.free_bytes == found.total_bytes
