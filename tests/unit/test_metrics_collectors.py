"""What is read how often, and the values that come of it, on a fake host."""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import replace

import pytest

from koordlet.metrics.readings import Level, Scope
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import ContainerState
from koordlet.model.readings import Missing
from koordlet.protocol.qos import Qos
from koordlet.snapshot import CpuUse
from tests.support.metricsrig import LAYOUT, MetricsRig, container, host_app, pod

MIB = 1 << 20


@pytest.mark.parametrize("layout", ["v1", "v1-together", "hybrid", "v2"])
def test_a_container_in_full(layout: str) -> None:
    rig = MetricsRig(layout)
    rig.add(pod("a"))
    main = rig.cgroup_of("main")
    rig.run(2, main=0.5)
    rig.host.throttle(main, periods=100, throttled=25, throttled_ns=2_000_000_000)
    rig.run(20, main=0.5)
    values = rig.values(Level.CONTAINER, container="main")
    assert values["used_cpu_cores"] == pytest.approx(0.5, abs=1e-3)
    assert values["cpu_usage_seconds_total"] == pytest.approx(11.0, abs=3.0)
    assert values["memory_usage_bytes"] == 110 * MIB
    assert values["memory_working_set_bytes"] == 70 * MIB
    assert values["memory_anon_bytes"] == 35 * MIB
    assert values["throttled_seconds_total"] == pytest.approx(2.0)
    assert rig.values(Level.POD, pod="a")["used_cpu_cores"] == pytest.approx(0.5, abs=1e-3)
    tier = rig.values(Level.TIER, name="burstable")
    assert tier["used_cpu_cores"] == pytest.approx(0.5, abs=1e-3)


def test_V1_12_V2_09_throttled_seconds_are_the_same_on_both_versions() -> None:
    for layout in ("v1", "v2"):
        rig = MetricsRig(layout)
        rig.add(pod("a"))
        rig.host.throttle(rig.cgroup_of("main"), periods=7, throttled=3, throttled_ns=12_070_000)
        rig.run()
        values = rig.values(Level.CONTAINER, container="main")
        assert values["throttled_seconds_total"] == pytest.approx(0.01207)


def test_throttled_ratio_is_of_the_periods_between_two_samples() -> None:
    rig = MetricsRig()
    rig.add(pod("a"), pod("b", ("calm",)))
    rig.host.throttle(rig.cgroup_of("main"), periods=1_000, throttled=1_000)
    rig.run()
    for _ in range(25):
        rig.host.throttle(rig.cgroup_of("main"), periods=10, throttled=3)
        rig.run()
    assert rig.values(Level.CONTAINER, container="main")["throttled_ratio"] == pytest.approx(0.3)
    assert rig.values(Level.CONTAINER, container="calm")["throttled_ratio"] == 0.0


def test_V1_13_dead_child_cgroups_do_not_make_memory_above_usage() -> None:
    rig = MetricsRig()
    rig.add(pod("a"))
    main = rig.cgroup_of("main")
    stat = "\n".join(
        f"total_{name} {size}"
        for name, size in (
            ("inactive_anon", 9_000_000_000),
            ("active_anon", 663_676_416),
            ("unevictable", 0),
            ("inactive_file", 0),
        )
    )
    rig.host.set_text(main, "memory.stat", stat)
    rig.host.set_memory(main, 629_145_600)
    rig.run()
    assert rig.values(Level.CONTAINER, container="main")["memory_anon_bytes"] == 629_145_600


def test_V2_05_a_leaf_without_the_memory_controller_has_cpu_and_no_memory() -> None:
    rig = MetricsRig("v2")
    rig.add(pod("a"))
    main = rig.cgroup_of("main")
    rig.host.delete_file(main, "memory.current")
    rig.host.delete_file(main, "memory.stat")
    rig.run(3, main=0.5)
    values = rig.values(Level.CONTAINER, container="main")
    assert values["used_cpu_cores"] == pytest.approx(0.5)
    assert "memory_usage_bytes" not in values
    assert "memory_usage_bytes" in rig.values(Level.POD, pod="a")


def test_V2_17_a_feature_that_always_fails_does_not_blank_the_others() -> None:
    rig = MetricsRig("v2")
    rig.add(pod("a"))
    main = rig.cgroup_of("main")
    for resource in ("cpu", "memory", "io"):
        path = f"/sys/fs/cgroup/{main}/{resource}.pressure"
        rig.host.files.fail(path, errno.EINVAL)
    rig.run(12, main=0.5)
    values = rig.values(Level.CONTAINER, container="main")
    assert "cpu_some_ratio" not in values
    assert values["memory_usage_bytes"] == 110 * MIB
    assert values["used_cpu_cores"] == pytest.approx(0.5)


def test_OPS_01_what_a_kernel_does_not_have_is_looked_for_once_a_minute() -> None:
    rig = MetricsRig("v2")
    rig.add(pod("a"))
    main = rig.cgroup_of("main")
    seen: Counter[str] = Counter()
    rig.host.files.tap = lambda path, _answer: seen.update((path,))
    path = f"/sys/fs/cgroup/{main}/cpu.pressure"
    rig.host.files.fail(path, errno.EOPNOTSUPP)
    rig.run(120)
    assert 2 <= seen[path] <= 5
    rig.host.files.fail(path, errno.EOPNOTSUPP, times=0)
    rig.run(75)
    assert "cpu_some_ratio" in rig.values(Level.CONTAINER, container="main")


def test_a_container_without_a_cgroup_and_an_exited_one_are_not_measured() -> None:
    rig = MetricsRig()
    good = pod("a", ("one", "two"))
    one, two = good.containers
    exited = replace(two, record=replace(two.record, state=ContainerState.EXITED))
    lost = replace(container("x", "lost"), cgroup=Missing("no spelling exists"))
    rig.add(replace(good, containers=(one, exited, lost)))
    rig.run(2)
    assert [key.container for key in rig.keys(Level.CONTAINER)] == ["one"]


def test_a_pod_with_only_a_sandbox_is_there_with_use_zero() -> None:
    rig = MetricsRig()
    rig.add(pod("a", ()))
    rig.run(3)
    assert rig.values(Level.POD, pod="a")["used_cpu_cores"] == 0.0


def test_pause_containers_are_never_read() -> None:
    rig = MetricsRig()
    sandbox = CgroupPath("kubepods/burstable/poda/pause")
    rig.add(replace(pod("a"), sandboxes=(sandbox,)))
    rig.host.make(sandbox)
    seen: list[str] = []
    rig.host.files.tap = lambda path, _answer: seen.append(path)
    rig.run(30)
    assert seen
    assert not [path for path in seen if "/pause/" in path]


def test_PP_15_a_restarted_container_starts_a_new_baseline_by_its_id() -> None:
    """Same pod, same name, another id: never the difference of two containers."""
    rig = MetricsRig()
    rig.add(pod("a", (container("kubepods/burstable/poda", "main", id="old"),)))
    rig.host.use_cpu(rig.cgroup_of("main"), 5_000_000_000)
    rig.run(6, main=1.0)
    rig.host.remove("kubepods/burstable/poda/old")
    rig.pods = ()
    restarted = container("kubepods/burstable/poda", "main", id="new", attempt=1)
    rig.add(pod("a", (restarted,)))
    readings = rig.run(1, main=1.0)
    assert len(readings.gone) == 1
    assert "used_cpu_cores" not in rig.values(Level.CONTAINER, container="main")
    rig.run(1, main=1.0)
    assert rig.values(Level.CONTAINER, container="main")["used_cpu_cores"] == pytest.approx(1.0)


def test_OPS_03_a_container_of_a_new_name_has_a_series_once_it_has_lasted() -> None:
    rig = MetricsRig()
    path = "kubepods/burstable/poda"
    main = container(path, "main")
    rig.add(pod("a", (main,)))
    rig.run(2)
    assert [key.container for key in rig.keys(Level.CONTAINER)] == ["main"]  # there from the start
    rig.pods = ()
    rig.add(pod("a", (main, container(path, "job", id="job-1"))))
    rig.run(3)
    assert [key.container for key in rig.keys(Level.CONTAINER)] == ["main"]
    rig.run(1)
    assert {key.container for key in rig.keys(Level.CONTAINER)} == {"main", "job"}


def test_OPS_03_what_ends_before_it_has_lasted_leaves_nothing() -> None:
    rig = MetricsRig()
    path = "kubepods/burstable/poda"
    main = container(path, "main")
    rig.add(pod("a", (main,)))
    rig.run(2)
    for number in range(20):
        rig.pods = ()
        rig.add(pod("a", (main, container(path, f"job-{number}"))))
        readings = rig.run(2, **{f"job-{number}": 0.5})
        assert not readings.gone
        assert [key.container for key in rig.keys(Level.CONTAINER)] == ["main"]
    assert rig.values(Level.POD, pod="a")["used_cpu_cores"] > 0.0


def test_of_two_attempts_of_one_container_only_the_newer_is_told() -> None:
    rig = MetricsRig()
    path = "kubepods/burstable/poda"
    both = (container(path, "main", id="new", attempt=1), container(path, "main", id="old"))
    rig.add(pod("a", both))
    rig.run(2)
    assert [key.container_id for key in rig.keys(Level.CONTAINER)] == ["new"]


def test_PP_15_a_counter_that_goes_back_gives_no_value_for_that_sample_only() -> None:
    rig = MetricsRig()
    rig.add(pod("a"))
    rig.active = frozenset({"uid-a"})
    rig.run(5, main=1.0)
    rig.host.set_text(rig.cgroup_of("main"), "cpuacct.usage", "1000")
    rig.run(1)
    assert "used_cpu_cores" not in rig.values(Level.CONTAINER, container="main")
    rig.run(1, main=0.25)
    assert rig.values(Level.CONTAINER, container="main")["used_cpu_cores"] == pytest.approx(0.25)


def test_PP_17_a_silence_of_minutes_gives_no_rate_across_it() -> None:
    rig = MetricsRig()
    rig.add(pod("a"))
    rig.run(12, main=1.0)
    rig.run(1, step_s=300.0, main=3.9)
    assert "used_cpu_cores" not in rig.values(Level.POD, pod="a")
    rig.run(1, main=0.5)
    assert rig.values(Level.POD, pod="a")["used_cpu_cores"] == pytest.approx(0.5)


def test_a_cgroup_that_vanished_has_no_values_until_its_pod_leaves() -> None:
    rig = MetricsRig()
    rig.add(pod("a"))
    rig.run(11, main=1.0)
    rig.host.remove("kubepods/burstable/poda")
    rig.run(12)
    assert rig.values(Level.POD, pod="a") == {}
    rig.pods = ()
    rig.run(1)
    assert rig.keys(Level.POD) == rig.keys(Level.CONTAINER) == []


def test_a_pod_whose_cgroup_is_lost_is_the_sum_of_its_containers_rates() -> None:
    rig = MetricsRig()
    rig.add(replace(pod("a", ("one", "two")), cgroup=Missing("no spelling exists")))
    rig.run(3, one=0.5, two=0.25)
    assert rig.values(Level.POD, pod="a")["used_cpu_cores"] == pytest.approx(0.75)


def test_values_of_a_cgroup_that_moved_are_not_kept() -> None:
    rig = MetricsRig()
    rig.add(pod("a"))
    rig.run(12, main=1.0)
    assert "memory_usage_bytes" in rig.values(Level.POD, pod="a")
    rig.pods = (replace(rig.pods[0], cgroup=Missing("not found"), containers=()),)
    rig.run(1)
    assert rig.values(Level.POD, pod="a") == {}


def test_a_changed_class_reaches_the_labels() -> None:
    rig = MetricsRig()
    rig.add(pod("a"))
    rig.run(2)
    rig.pods = (replace(rig.pods[0], qos=Qos.BE),)
    readings = rig.run(1)
    assert {key.qos for _, key in readings.keys} == {Qos.BE}
    assert [key.qos for key in rig.keys(Level.CONTAINER)] == [Qos.BE]


# -- how often (hazard H29) ---------------------------------------------------------------------


def reads_by_file(rig: MetricsRig, seconds: int) -> Counter[str]:
    """How often each file was read in so many ticks of a second."""
    seen: Counter[str] = Counter()
    rig.host.files.tap = lambda path, _answer: seen.update((path,))
    rig.run(seconds)
    return seen


def usage_file(cgroup: str) -> str:
    return f"/sys/fs/cgroup/cpuacct/{cgroup}/cpuacct.usage"


def test_H29_cadence_by_level() -> None:
    rig = MetricsRig()
    rig.add(pod("quiet"), pod("active", ("worker",), qos=Qos.BE))
    rig.active = frozenset({"uid-active"})
    rig.run(20)
    seen = reads_by_file(rig, 40)
    assert seen[usage_file("kubepods/burstable/podquiet")] == pytest.approx(44, abs=2)
    assert seen[usage_file(rig.cgroup_of("main"))] == pytest.approx(8 + 4, abs=2)
    assert seen[usage_file(rig.cgroup_of("worker"))] == pytest.approx(44, abs=2)
    memory = f"/sys/fs/cgroup/memory/{rig.cgroup_of('main')}/memory.stat"
    assert seen[memory] == pytest.approx(4, abs=1)
    assert seen["/proc/stat"] == 40


def test_H29_an_early_tick_reads_nothing_twice() -> None:
    rig = MetricsRig()
    rig.add(pod("a"))
    rig.run(10)
    seen: Counter[str] = Counter()
    rig.host.files.tap = lambda path, _answer: seen.update((path,))
    rig.run(1, step_s=0.2)
    again = (usage_file("kubepods/burstable/poda"), usage_file("kubepods"), "/proc/stat")
    assert not seen.keys() & set(again)


def test_H29_no_tick_reads_all_details() -> None:
    """110 pods of three: about a tenth of them in each second, from the second round on."""
    rig = MetricsRig()
    rig.add(*(pod(f"p{n}", (f"a{n}", f"b{n}", f"c{n}")) for n in range(110)))
    rig.run(20)
    per_tick = []
    for _ in range(20):
        seen: Counter[str] = Counter()
        rig.host.files.tap = lambda path, _answer, seen=seen: seen.update((path,))
        rig.run(1)
        per_tick.append(sum(count for path, count in seen.items() if "memory.stat" in path))
    assert sum(per_tick) == pytest.approx(2 * 443, abs=100)
    assert max(per_tick) <= 70


def test_H29_the_first_ticks_do_not_read_everything_at_once() -> None:
    rig = MetricsRig()
    rig.add(*(pod(f"p{n}", (f"a{n}",)) for n in range(100)))
    counts = []
    for _ in range(8):
        seen: Counter[str] = Counter()
        rig.host.files.tap = lambda path, _answer, seen=seen: seen.update((path,))
        rig.run(1)
        counts.append(sum(count for path, count in seen.items() if "memory.stat" in path))
    assert max(counts) <= 60
    assert (
        len([1 for _, values in rig.table.at(Level.CONTAINER) if "memory_usage_bytes" in values])
        == 100
    )


def test_load_that_moves_shows_within_two_seconds() -> None:
    """Containers of a quiet pod are read every 5 s, but a pod's own use tells when to look."""
    rig = MetricsRig()
    rig.add(*(pod(f"p{n}", (f"a{n}", f"b{n}", f"c{n}")) for n in range(10)))
    rig.run(30, a3=0.3)
    for start in range(5):
        rig.run(start)
        rig.run(2, b7=0.5, a3=0.1)
        moved = rig.values(Level.CONTAINER, container="b7")["used_cpu_cores"]
        assert moved == pytest.approx(0.5, rel=0.1)
        slowed = rig.values(Level.CONTAINER, container="a3")["used_cpu_cores"]
        assert slowed == pytest.approx(0.1, rel=0.1)
        rig.run(13, a3=0.3)


def test_the_first_second_of_a_move_is_not_smeared_over_the_quiet_time() -> None:
    rig = MetricsRig()
    rig.add(pod("a", ("one", "two")))
    rig.run(30, one=0.2)
    rig.run(4, one=0.2)
    rig.run(1, one=0.2, two=0.8)
    found = rig.values(Level.CONTAINER, container="two")["used_cpu_cores"]
    assert found == pytest.approx(0.8, rel=0.1)
    assert rig.values(Level.CONTAINER, container="one")["used_cpu_cores"] == pytest.approx(0.2)


def test_noise_of_a_quiet_pod_does_not_call_for_its_containers() -> None:
    rig = MetricsRig()
    rig.add(pod("a"))
    rig.run(20, main=0.010)
    seen: Counter[str] = Counter()
    rig.host.files.tap = lambda path, _answer: seen.update((path,))
    for n in range(20):
        rig.run(1, main=0.009 + 0.002 * (n % 2))
    assert seen[usage_file(rig.cgroup_of("main"))] <= 4 + 3


# -- node, tiers, applications ------------------------------------------------------------------


def test_OPS_12_iowait_and_steal_are_not_use() -> None:
    rig = MetricsRig()
    rig.host.files.put("/proc/stat", "cpu  100 0 0 1000 500 0 0 300 0 0\n")
    rig.run()
    rig.host.files.put("/proc/stat", "cpu  110 0 0 1050 530 0 0 310 0 0\n")
    rig.run()
    node = rig.values(Level.NODE)
    assert node["used_cpu_cores"] == pytest.approx(0.1)
    assert node["iowait_cpu_cores"] == pytest.approx(0.3)
    assert node["steal_cpu_cores"] == pytest.approx(0.1)
    assert node["busy_seconds_total"] == pytest.approx(1.1)


def test_node_memory_by_its_definitions() -> None:
    rig = MetricsRig()
    rig.host.files.put(
        "/proc/meminfo",
        "MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 600 kB\nBuffers: 0 kB\nCached: 350 kB\n"
        "Active(anon): 100 kB\nInactive(anon): 50 kB\nInactive(file): 200 kB\nUnevictable: 10 kB\n",
    )
    rig.run()
    node = rig.values(Level.NODE)
    assert node["memory_usage_bytes"] == 700 << 10
    assert node["memory_working_set_bytes"] == 500 << 10
    assert node["memory_anon_bytes"] == 160 << 10
    assert node["used_memory_bytes"] == 400 << 10


def test_system_memory_is_the_node_without_workloads_and_never_negative() -> None:
    rig = MetricsRig(memory_bytes=1 << 30)
    rig.apps = (host_app("web"),)
    rig.make("web")
    rig.host.set_memory("kubepods", 200 * MIB)
    rig.host.set_text(
        "kubepods",
        "memory.stat",
        "total_inactive_anon 0\ntotal_active_anon 0\ntotal_unevictable 0\ntotal_inactive_file 0",
    )
    rig.run()
    node = rig.values(Level.NODE)
    assert node["system_memory_usage_bytes"] == (512 - 200 - 110) * MIB
    rig.host.set_memory("kubepods", 4_000 * MIB)
    rig.run(16)
    assert rig.values(Level.NODE)["system_memory_usage_bytes"] == 0


def test_system_memory_is_unknown_where_a_part_of_it_is() -> None:
    rig = MetricsRig()
    rig.host.files.fail("/sys/fs/cgroup/memory/kubepods/memory.usage_in_bytes", errno.EIO)
    rig.run()
    assert "system_memory_usage_bytes" not in rig.values(Level.NODE)


def test_shares_of_the_node_come_from_the_sampler() -> None:
    rig = MetricsRig()
    rig.cpu = CpuUse(1.0, 3.0, 1.0, 0.5, 0.25, {LAYOUT.besteffort: 1.0, CgroupPath("b"): 0.25})
    rig.run()
    node = rig.values(Level.NODE)
    assert node["nonbe_pods_cores"] == 1.0
    assert node["be_cores"] == 1.25
    assert node["system_cores"] == 0.25
    rig.cpu = Missing("gap")
    rig.run()
    assert "system_cores" not in rig.values(Level.NODE)


def test_a_host_without_pressure_has_everything_else() -> None:
    """PP-01, PP-02: no /proc/pressure at all."""
    rig = MetricsRig()
    rig.host.files.remove("/proc/pressure")
    rig.run(2)
    node = rig.values(Level.NODE)
    assert "cpu_some_ratio" not in node
    assert "memory_usage_bytes" in node


def test_whole_disks_that_are_used_and_interfaces_with_hardware() -> None:
    rig = MetricsRig()
    files = rig.host.files
    zeros = "0 " * 9
    files.put(
        "/proc/diskstats",
        "254 0 vda 10 0 2000 5 20 0 4000 5 0 0 0\n254 1 vda1 10 0 2000 5 20 0 4000 5 0 0 0\n"
        f"254 16 vdb {zeros}\n7 0 loop0 5 0 10 0 0 0 0 0 0 0 0\n",
    )
    for disk in ("vda", "vdb", "loop0"):
        files.put(f"/sys/block/{disk}/size", "1")
    files.put(
        "/proc/self/net/dev",
        "Inter-| Receive | Transmit\n face |bytes packets\n"
        "    lo: 5 5 0 0 0 0 0 0 5 5 0 0 0 0 0 0\n  eth0: 1000 10 0 0 0 0 0 0 500 5 0 0 0 0 0 0\n"
        "  veth1: 7 7 0 0 0 0 0 0 7 7 0 0 0 0 0 0\n",
    )
    files.put("/sys/class/net/eth0/device/vendor", "0x1af4")
    rig.run(20)
    assert [key.name for key in rig.keys(Level.DISK)] == ["vda"]
    assert [key.name for key in rig.keys(Level.INTERFACE)] == ["eth0"]
    vda = rig.values(Level.DISK, name="vda")
    assert vda["read_bytes_total"] == 2000 * 512
    assert vda["read_bytes_per_s"] == 0.0
    assert rig.values(Level.INTERFACE, name="eth0")["received_bytes_total"] == 1000


def test_host_applications_are_measured_where_they_are() -> None:
    rig = MetricsRig()
    rig.apps = (host_app("web"), replace(host_app("lost"), cgroup=Missing("no such unit")))
    rig.make("web")
    rig.run_at({CgroupPath("web"): 0.75}, 3)
    assert [key.name for key in rig.keys(Level.APP)] == ["web"]
    web = rig.values(Level.APP, name="web")
    assert web["used_cpu_cores"] == pytest.approx(0.75)
    assert web["memory_anon_bytes"] == 35 * MIB
    rig.apps = ()
    rig.run()
    assert rig.keys(Level.APP) == []
    assert "/sys/fs/cgroup/cpuacct/web" in rig.host.files.dropped


def test_without_a_kubelet_there_are_no_tiers() -> None:
    rig = MetricsRig()
    rig.layout = Missing("no kubepods")
    rig.run(2)
    assert rig.keys(Level.TIER) == []


# -- what goes to the front ---------------------------------------------------------------------


def test_only_what_changed_is_sent() -> None:
    rig = MetricsRig()
    rig.add(pod("a", ("one", "two")))
    first = rig.run()
    assert len(first.keys) == len(rig.table.entities)
    rig.run(20)
    idle = rig.run()
    assert idle.keys == () and idle.gone == ()
    assert all(rig.table.entities[index].key.level is Level.NODE for index, _, _ in idle.changed)
    busy = rig.run(1, one=0.5)
    levels = Counter(rig.table.entities[index].key.level for index, _, _ in busy.changed)
    assert levels[Level.POD] == 1
    assert levels[Level.CONTAINER] == 1


def test_a_front_that_comes_late_gets_everything_once() -> None:
    rig = MetricsRig()
    rig.add(pod("a", ("one", "two")))
    rig.run(12, one=0.5)
    whole = rig.collector.readings(99, Scope.WHOLE)
    late = type(rig.table)()
    late.apply(whole)
    assert late.entities.keys() == rig.table.entities.keys()
    for index, entity in late.entities.items():
        assert entity.key == rig.table.entities[index].key
        assert entity.values() == rig.table.entities[index].values()


def test_OPS_03_ten_thousand_short_lived_containers_leave_nothing_behind() -> None:
    rig = MetricsRig()
    rig.run()
    sizes = []
    for batch in range(20):
        path = CgroupPath(f"kubepods/burstable/pod{batch}")
        names = [f"c{batch}-{n}" for n in range(500)]
        rig.pods = (pod(str(batch), names),)
        rig.collect()
        rig.now_s += 1
        rig.pods = ()
        rig.collect()
        assert any(str(path) in dropped for dropped in rig.host.files.dropped)
        sizes.append(len(rig.collector.readings(0, Scope.WHOLE).keys) + len(rig.table.entities))
    assert len(set(sizes)) == 1
