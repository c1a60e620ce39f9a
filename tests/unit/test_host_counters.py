from __future__ import annotations

import pytest

from koordlet.host.cgroup import Cgroups
from koordlet.host.counters import (
    IoCounters,
    parse_cpu_stat_v1,
    parse_cpu_stat_v2,
    parse_io_v1,
    parse_io_v2,
    parse_memory,
)
from koordlet.host.formats import parse_counter, parse_flat_keyed
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from tests.support.fakehost import fake_host

POD = CgroupPath("pod")
LRU = "inactive_anon {0}\nactive_anon {1}\ninactive_file {2}\nactive_file {3}\nunevictable {4}\n"


def pod_of(layout: str, **files: str) -> Cgroups:
    return fake_host(layout, cgroups={"pod": dict(files)}).cgroups()


def test_V1_11_one_vendor_line_does_not_kill_the_rest() -> None:
    text = b"cache 68259840\n\ntotal_unevictable 68124672\nAnon:\t101436 kB\nzram:\t0 kB\n"
    assert parse_flat_keyed(text) == {b"cache": 68259840, b"total_unevictable": 68124672}


def test_V1_12_throttled_time_is_nanoseconds_on_v1_and_microseconds_on_v2() -> None:
    v1 = parse_cpu_stat_v1(0, b"nr_periods 7\nnr_throttled 3\nthrottled_time 12070000\n")
    v2 = parse_cpu_stat_v2(b"usage_usec 0\nnr_periods 7\nnr_throttled 3\nthrottled_usec 12070\n")
    assert v1 == v2
    assert v1.throttled_ns == 12_070_000


def test_V2_09_microseconds_become_nanoseconds() -> None:
    stat = parse_cpu_stat_v2(
        b"usage_usec 73899\nuser_usec 27213\nsystem_usec 46685\n"
        b"nr_periods 7\nnr_throttled 3\nthrottled_usec 139381\n"
    )
    assert stat.usage_ns == 73_899_000
    assert stat.throttled_ns == 139_381_000


def test_CQ_16_missing_burst_counters_are_unknown_not_zero() -> None:
    stat = parse_cpu_stat_v2(b"usage_usec 1\nnr_periods 7\nnr_throttled 3\nthrottled_usec 1\n")
    assert stat.nr_bursts is None
    assert stat.burst_ns is None
    v1 = parse_cpu_stat_v1(1, b"nr_bursts 10\nburst_time 160000000\n")
    v2 = parse_cpu_stat_v2(b"usage_usec 1\nnr_bursts 10\nburst_usec 160000\n")
    assert v1.burst_ns == v2.burst_ns == 160_000_000


def test_a_v2_cgroup_without_the_cpu_controller_has_usage_only() -> None:
    host = fake_host("hybrid", cgroups={"pod": {}})
    host.delete_file("pod", "cpu.stat")  # v1's own
    stat = host.cgroups().cpu_stat(POD)
    assert not isinstance(stat, Missing)
    assert stat.nr_periods is None
    bare = parse_cpu_stat_v2(b"usage_usec 5\nuser_usec 5\nsystem_usec 0\n")
    assert (bare.usage_ns, bare.nr_periods, bare.throttled_ns) == (5_000, None, None)


def test_a_cpu_stat_without_usage_is_missing() -> None:
    cgroups = pod_of("v2", **{"cpu.stat": "nr_periods 3"})
    assert cgroups.cpu_stat(POD) == Missing(
        "/sys/fs/cgroup/pod/cpu.stat: cpu.stat has no usage_usec"
    )
    assert isinstance(cgroups.cpu_usage_ns(POD), Missing)


@pytest.mark.parametrize("layout", ["v1", "v1-together", "hybrid", "v2"])
def test_usage_and_throttling_of_every_layout(layout: str) -> None:
    host = fake_host(layout, cgroups={"pod": {"app": {}}})
    host.use_cpu("pod/app", 3_000_000)
    host.throttle("pod/app", periods=10, throttled=4, throttled_ns=2_000_000)
    stat = host.cgroups().cpu_stat(CgroupPath("pod/app"))
    assert not isinstance(stat, Missing)
    assert (stat.usage_ns, stat.nr_periods, stat.nr_throttled) == (3_000_000, 10, 4)
    assert stat.throttled_ns == 2_000_000
    assert host.cgroups().cpu_usage_ns(POD) == 3_000_000


def test_v1_memory_counts_descendants_by_the_total_keys() -> None:
    own = LRU.format(1, 1, 1, 1, 1)
    total = "".join(f"total_{line}\n" for line in LRU.format(10, 20, 30, 40, 5).splitlines())
    memory = parse_memory(1_000, (own + total).encode(), version=1)
    assert (memory.usage_bytes, memory.working_set_bytes, memory.anon_bytes) == (1_000, 970, 35)
    assert memory.consistent


def test_v2_memory_by_three_definitions() -> None:
    memory = parse_memory(1_000, LRU.format(10, 20, 30, 40, 5).encode(), version=2)
    assert (memory.usage_bytes, memory.working_set_bytes, memory.anon_bytes) == (1_000, 970, 35)


def test_MEM_03_page_cache_in_use_counts_by_one_definition_and_not_by_the_other() -> None:
    current, active_file = 2_048_086_016, 1_942_446_080
    anon = current - active_file
    memory = parse_memory(current, LRU.format(0, anon, 0, active_file, 0).encode(), version=2)
    assert memory.working_set_bytes == current
    assert memory.anon_bytes == anon == 105_639_936


def test_V1_13_parts_larger_than_the_whole_are_flagged() -> None:
    stat = (
        "total_inactive_anon 4831838208\ntotal_active_anon 4831838208\n"
        "total_unevictable 0\ntotal_inactive_file 0\n"
    )
    memory = parse_memory(629_145_600, stat.encode(), version=1)
    assert memory.anon_bytes == 629_145_600
    assert not memory.consistent


def test_a_working_set_is_never_negative() -> None:
    memory = parse_memory(585_728, LRU.format(0, 0, 1_572_753_409, 0, 0).encode(), version=2)
    assert memory.working_set_bytes == 0
    assert not memory.consistent


def test_V2_05_a_cgroup_without_the_memory_controller_is_missing_once_and_for_all() -> None:
    host = fake_host("v2", cgroups={"pod": {}})
    for file in ("memory.current", "memory.stat", "memory.max"):
        host.delete_file("pod", file)
    cgroups = host.cgroups()
    assert isinstance(cgroups.memory(POD), Missing)
    assert isinstance(cgroups.read(POD, Knob.MEMORY_LIMIT), Missing)
    assert cgroups.cpu_usage_ns(POD) == 0


def test_a_memory_stat_of_another_kernel_is_missing() -> None:
    memory = pod_of("v1", **{"memory.stat": "cache 1"}).memory(POD)
    assert isinstance(memory, Missing)
    assert "memory.stat lacks" in memory.why


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_MEM_18_without_swap_accounting_swap_is_missing_and_nothing_fails(
    layout: str,
) -> None:
    host = fake_host(layout, cgroups={"pod": {}}, swap_accounting=False)
    cgroups = host.cgroups()
    assert isinstance(cgroups.read(POD, Knob.MEMORY_SWAP_LIMIT), Missing)
    assert cgroups.read(POD, Knob.MEMORY_LIMIT) is None
    assert not isinstance(cgroups.memory(POD), Missing)


def test_BL_05_an_unnamed_device_is_left_out() -> None:
    rows = (
        b"(unknown) Read 4096\n8:0 Read 100\n8:0 Write 50\n8:0 Sync 150\n8:0 Total 150\n"
        b"259:3 Read 7\nTotal 157\n"
    )
    io = parse_io_v1(rows, b"8:0 Read 3\n8:0 Write 2\nTotal 5\n")
    assert io.devices == {"8:0": IoCounters(100, 50, 3, 2), "259:3": IoCounters(7, 0, 0, 0)}
    assert io.total == IoCounters(107, 50, 3, 2)


def test_BL_09_numbers_beyond_32_bits_pass() -> None:
    row = b"254:3 rbytes=598016 wbytes=227002702848000 rios=146 wios=124342581 dbytes=0 dios=0\n"
    assert parse_io_v2(row).total == IoCounters(598_016, 227_002_702_848_000, 146, 124_342_581)


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"252:0 \n", b"252:0\n", b"(unknown) rbytes=1\n", b"8:0 rbytes=x\n"]
)
def test_io_rows_without_numbers_count_nothing(text: bytes) -> None:
    assert parse_io_v2(text).total == IoCounters()


def test_v1_io_prefers_the_recursive_files() -> None:
    files = {
        "blkio.throttle.io_service_bytes": "8:0 Read 1",
        "blkio.throttle.io_service_bytes_recursive": "8:0 Read 9",
    }
    host = fake_host("v1", cgroups={"pod": files})
    io = host.cgroups().io(POD)
    assert not isinstance(io, Missing)
    assert io.total.read_bytes == 9
    host.delete_file("pod", "blkio.throttle.io_service_bytes_recursive")
    io = host.cgroups().io(POD)
    assert not isinstance(io, Missing)
    assert io.total.read_bytes == 1


def test_a_controller_that_is_not_mounted_makes_its_counters_missing() -> None:
    host = fake_host("hybrid", cgroups={"pod": {}})
    kept = {name: each for name, each in host.hierarchies.v1.items() if name == "cpu"}
    bare = Cgroups(host.files, type(host.hierarchies)(kept, None))
    for found in (bare.cpu_usage_ns(POD), bare.cpu_stat(POD), bare.memory(POD)):
        assert isinstance(found, Missing)
    assert isinstance(bare.io(POD), Missing)
    assert isinstance(bare.pids(POD), Missing)


@pytest.mark.parametrize(
    "text", [b"-5\n", b"", b"1_000", "٣".encode(), b"9" * 5_000, b"5 6", b"nan"]
)
def test_PP_15_what_is_no_counter_is_missing_and_never_negative(text: bytes) -> None:
    host = fake_host("v1", cgroups={"pod": {}})
    cgroups = host.cgroups()
    for file in ("cpuacct.usage", "memory.usage_in_bytes"):
        host.set_text("pod", file, text.decode())
    assert isinstance(cgroups.cpu_usage_ns(POD), Missing)
    assert isinstance(cgroups.memory(POD), Missing)


def test_MEM_09_nuls_after_a_counter_are_ignored() -> None:
    assert parse_counter(b"4096\n" + b"\0" * 40) == 4096


def test_V1_11_a_number_without_end_is_skipped_like_any_other_odd_line() -> None:
    huge = b"9" * 5_000
    assert parse_flat_keyed(b"nr_periods " + huge + b"\nnr_throttled 3\n") == {b"nr_throttled": 3}
    rows = b"8:0 Read " + huge + b"\n8:0 Write 7\n"
    assert parse_io_v1(rows, b"").total == IoCounters(write_bytes=7)
    assert parse_io_v2(b"8:0 rbytes=" + huge + b" wbytes=7\n").total == IoCounters(write_bytes=7)
