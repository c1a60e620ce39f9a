"""The 5 Hz sampler: terms of one instant, newcomers, resets, gaps, files that cannot be read."""

from __future__ import annotations

import errno

import pytest

from koordlet.host.cgroup import Cgroups
from koordlet.host.mounts import Hierarchies
from koordlet.metrics.hot import HotSampler
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import AppBackend, BeRoot, CgroupDriver, HostApp, KubeLayout
from koordlet.model.readings import Missing
from koordlet.protocol.qos import PriorityClass, Qos
from koordlet.snapshot import CpuUse
from tests.support.fakehost import CgroupTree, FakeHost, fake_host

KUBEPODS = CgroupPath("kubepods")
TIER = CgroupPath("kubepods/besteffort")
LAYOUT = KubeLayout(CgroupDriver.CGROUPFS, KUBEPODS, CgroupPath("kubepods/burstable"), TIER)
TREE: CgroupTree = {
    "kubepods": {"burstable": {"pod1": {}}, "besteffort": {"pod2": {}}},
    "web": {},
    "batch": {},
}
MS = 1_000_000


PLACES = {
    "ls": "kubepods/burstable/pod1",
    "be": "kubepods/besteffort/pod2",
    "web": "web",
    "batch": "batch",
    "system": "",
}


def be_root(path: str) -> BeRoot:
    return BeRoot(CgroupPath(path), "tier")


def app(path: str, qos: Qos = Qos.LS) -> HostApp:
    name = path.replace("/", "-")
    return HostApp(name, qos, None, PriorityClass.PROD, CgroupPath(path), AppBackend.FILE)


class Rig:
    """A fake host with a sampler, moved 200 ms at a time."""

    def __init__(self, layout: str = "v1", *, root: str = "/", cpus: str = "0-3") -> None:
        self.host: FakeHost = fake_host(layout, cpus=cpus, cgroups=TREE, root=root)
        self.hot = HotSampler(self.host.cgroups(), online_cpus=4)
        self.now_s = 100.0
        self.hot.set_roots(LAYOUT, (be_root(TIER),), (app("web"),))

    def run(self, steps: int = 6, step_s: float = 0.2, **cores: float) -> None:
        """Sample ``steps`` more times; each cgroup uses so many cores meanwhile."""
        for _ in range(steps):
            for name, used in cores.items():
                self.host.use_cpu(PLACES[name], round(used * step_s * 1e9))
            self.now_s += step_s
            self.hot.sample(self.now_s)

    def use(self) -> CpuUse:
        found = self.hot.cpu_use(0.95, self.now_s)
        assert isinstance(found, CpuUse), found
        return found


@pytest.mark.parametrize("layout", ["v1", "v1-together", "hybrid", "v2"])
def test_terms_divide_the_node(layout: str) -> None:
    rig = Rig(layout)
    rig.hot.sample(rig.now_s)
    rig.run(ls=0.5, be=1.0, web=0.25, system=0.1)
    use = rig.use()
    assert use.window_s == pytest.approx(1.0)
    assert use.node_cores == pytest.approx(1.85, abs=1e-3)
    assert use.nonbe_pods_cores == pytest.approx(0.5, abs=1e-3)
    assert use.nonbe_apps_cores == pytest.approx(0.25, abs=1e-3)
    assert use.system_cores == pytest.approx(0.1, abs=1e-3)
    assert use.be_roots_cores == {TIER: pytest.approx(1.0, abs=1e-3)}


def test_the_node_is_the_whole_host_whatever_the_managed_root() -> None:
    """``--cgroup-root`` moves what we manage, not what the node is."""
    rig = Rig(root="/koordtest-1")
    rig.hot.sample(rig.now_s)
    outside = rig.host.files.cgroup_at("/sys/fs/cgroup/cpuacct")
    assert outside is not None and outside[1] is not None
    for _ in range(6):
        group = outside[1]
        group.files["cpuacct.usage"] = str(int(group.files["cpuacct.usage"]) + 100 * MS)
        rig.run(1, ls=0.5)
    assert rig.use().node_cores == pytest.approx(1.0)
    assert rig.use().system_cores == pytest.approx(0.5)


def test_H12_use_of_a_be_root_outside_kubepods_is_be_use() -> None:
    rig = Rig()
    rig.hot.set_roots(LAYOUT, (be_root(TIER), be_root("batch")), (app("web"), app("batch", Qos.BE)))
    rig.hot.sample(rig.now_s)
    rig.run(batch=1.5, web=0.5)
    use = rig.use()
    assert use.be_roots_cores[CgroupPath("batch")] == pytest.approx(1.5)
    assert use.nonbe_apps_cores == pytest.approx(0.5)
    assert use.system_cores == pytest.approx(0.0)


def test_nested_applications_are_counted_once() -> None:
    """One below kubepods is part of the pods, one below a BE root part of that."""
    rig = Rig()
    rig.host.make("batch/inner")
    apps = (app("web"), app("kubepods/burstable/pod1"), app("batch/inner"), app("batch", Qos.BE))
    rig.hot.set_roots(LAYOUT, (be_root("batch"),), apps)
    rig.hot.sample(rig.now_s)
    rig.run(ls=0.5, batch=1.0, web=0.25)
    use = rig.use()
    assert use.nonbe_pods_cores == pytest.approx(0.5)
    assert use.nonbe_apps_cores == pytest.approx(0.25)
    assert use.system_cores == pytest.approx(0.0)


def test_without_a_kubelet_there_are_applications_only() -> None:
    rig = Rig()
    rig.hot.set_roots(
        Missing("no kubelet"), (be_root("batch"),), (app("web"), app("batch", Qos.BE))
    )
    rig.hot.sample(rig.now_s)
    rig.run(batch=1.0, web=0.5, system=0.2)
    use = rig.use()
    assert use.nonbe_pods_cores == 0.0
    assert use.nonbe_apps_cores == pytest.approx(0.5)
    assert use.system_cores == pytest.approx(0.2)


def test_nothing_is_known_before_two_samples_that_reach_back_far_enough() -> None:
    rig = Rig()
    assert isinstance(rig.hot.cpu_use(1.0, rig.now_s), Missing)
    rig.hot.sample(rig.now_s)
    assert isinstance(rig.hot.surge(rig.now_s), Missing)
    rig.run(1, ls=1.0)
    assert isinstance(rig.hot.surge(rig.now_s), CpuUse)
    assert isinstance(rig.hot.cpu_use(0.95, rig.now_s), Missing)
    rig.run(4, ls=1.0)
    assert rig.use().nonbe_pods_cores == pytest.approx(1.0)


def test_H28_a_surge_shows_in_the_last_interval_first() -> None:
    rig = Rig()
    rig.hot.sample(rig.now_s)
    rig.run(10, ls=0.1)
    rig.run(1, ls=2.0)
    surge = rig.hot.surge(rig.now_s)
    assert isinstance(surge, CpuUse)
    assert surge.nonbe_pods_cores == pytest.approx(2.0)
    assert rig.use().nonbe_pods_cores == pytest.approx(0.48)


def test_stale_samples_are_no_present_use() -> None:
    rig = Rig()
    rig.hot.sample(rig.now_s)
    rig.run(10, ls=1.0)
    found = rig.hot.cpu_use(0.95, rig.now_s + 2.5)
    assert isinstance(found, Missing)
    assert "2.5 s old" in found.why


def test_after_a_gap_there_is_a_new_baseline() -> None:
    """A suspended machine: use before and after are two different times."""
    rig = Rig()
    rig.hot.sample(rig.now_s)
    rig.run(10, ls=1.0)
    rig.host.use_cpu(PLACES["ls"], 3_600 * 10**9)
    rig.now_s += 3_600
    rig.hot.sample(rig.now_s)
    assert isinstance(rig.hot.surge(rig.now_s), Missing)
    rig.run(5, ls=0.5)
    assert rig.use().nonbe_pods_cores == pytest.approx(0.5)


def test_PP_15_a_recreated_application_gives_no_absurd_use() -> None:
    rig = Rig()
    rig.host.use_cpu("web", 500 * 10**9)
    rig.hot.sample(rig.now_s)
    rig.run(5, web=1.0)
    rig.host.remove("web")
    rig.run(1, ls=0.5)
    rig.host.make("web")
    rig.run(4, web=1.0, ls=0.5)
    use = rig.use()
    assert 0.0 < use.nonbe_apps_cores <= 1.0
    assert use.system_cores >= 0.0
    assert use.node_cores <= 4.0


def test_PP_15_a_counter_reset_by_hand_gives_no_negative_use() -> None:
    rig = Rig()
    rig.host.use_cpu("web", 500 * 10**9)
    rig.hot.sample(rig.now_s)
    rig.run(3, web=1.0)
    rig.host.set_text("web", "cpuacct.usage", "0")
    rig.run(3, web=1.0)
    assert rig.use().nonbe_apps_cores == pytest.approx(0.8)


def test_mixed_samples_of_a_pod_that_ends_make_no_system_use() -> None:
    """Computed value of koordinator #1427: node 2.5 then 1.5 cores, system is 0.5 throughout.

    The tree's counter keeps what its dead children used, so the pod that ended is not missing.
    """
    rig = Rig()
    rig.hot.sample(rig.now_s)
    rig.run(5, ls=1.0, be=1.0, system=0.5)
    rig.host.use_cpu(PLACES["ls"], 100 * MS)
    rig.host.use_cpu(PLACES["be"], 200 * MS)
    rig.host.use_cpu("", 100 * MS)
    rig.host.remove(PLACES["ls"])
    rig.now_s += 0.2
    rig.hot.sample(rig.now_s)
    surge = rig.hot.surge(rig.now_s)
    assert isinstance(surge, CpuUse)
    assert surge.system_cores == pytest.approx(0.5)
    rig.run(5, be=1.0, system=0.5)
    assert rig.use().node_cores == pytest.approx(1.5)
    assert rig.use().system_cores == pytest.approx(0.5)


def test_a_newcomer_counts_from_its_first_sight() -> None:
    """An application declared after hours of work does not bring them along."""
    rig = Rig()
    rig.host.use_cpu("batch", 9_000 * 10**9)
    rig.hot.sample(rig.now_s)
    rig.run(6, batch=1.0, ls=0.5)
    assert rig.use().system_cores == pytest.approx(1.0)
    rig.hot.set_roots(LAYOUT, (be_root(TIER), be_root("batch")), (app("web"), app("batch", Qos.BE)))
    rig.run(1, batch=1.0, ls=0.5)
    first = rig.use()
    assert first.be_roots_cores[CgroupPath("batch")] == pytest.approx(0.0)
    assert first.system_cores == pytest.approx(1.0)
    assert first.nonbe_pods_cores == pytest.approx(0.5)
    rig.run(6, batch=1.0, ls=0.5)
    assert rig.use().be_roots_cores[CgroupPath("batch")] == pytest.approx(1.0)
    assert rig.use().system_cores == pytest.approx(0.0)


def test_the_tier_has_a_past_when_it_becomes_a_be_root() -> None:
    """Else what its unmarked pods used would count as non-BE in the first decision."""
    rig = Rig()
    rig.hot.set_roots(LAYOUT, (), ())
    rig.hot.sample(rig.now_s)
    rig.run(6, be=1.0, ls=0.5)
    assert rig.use().nonbe_pods_cores == pytest.approx(1.5)
    rig.hot.set_roots(LAYOUT, (be_root(TIER),), ())
    assert rig.use().nonbe_pods_cores == pytest.approx(0.5)
    assert rig.use().be_roots_cores[TIER] == pytest.approx(1.0)


def test_what_is_no_root_any_more_is_not_told() -> None:
    rig = Rig()
    rig.hot.sample(rig.now_s)
    rig.run(6, be=1.0)
    rig.hot.set_roots(LAYOUT, (), ())
    assert rig.use().be_roots_cores == {}
    assert rig.use().nonbe_pods_cores == pytest.approx(1.0)


def test_a_counter_that_exists_and_cannot_be_read_is_missing_not_zero() -> None:
    rig = Rig()
    rig.hot.sample(rig.now_s)
    rig.run(6, be=1.0)
    path = "/sys/fs/cgroup/cpuacct/kubepods/besteffort/cpuacct.usage"
    rig.host.files.fail(path, errno.EIO)
    rig.run(1, be=1.0)
    found = rig.hot.cpu_use(0.95, rig.now_s)
    assert isinstance(found, Missing)
    assert found.errno == errno.EIO


def test_the_node_counter_that_cannot_be_read_is_missing_not_zero() -> None:
    rig = Rig()
    rig.hot.sample(rig.now_s)
    rig.run(6, be=1.0)
    rig.host.files.fail("/sys/fs/cgroup/cpuacct/cpuacct.usage", errno.EACCES, times=1)
    rig.run(1, be=1.0)
    assert isinstance(rig.hot.cpu_use(0.95, rig.now_s), Missing)
    rig.run(1, be=1.0)
    assert rig.use().be_roots_cores[TIER] == pytest.approx(1.0)


def test_without_a_cgroup_that_counts_cpu_time_the_reason_is_told() -> None:
    host = fake_host("v1", cgroups=TREE)
    hot = HotSampler(Cgroups(host.files, Hierarchies()), online_cpus=4)
    hot.sample(1.0)
    found = hot.cpu_use(1.0, 1.0)
    assert isinstance(found, Missing)
    assert "counts CPU time" in found.why


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_demand_is_the_mean_of_ten_seconds_with_its_throttling(layout: str) -> None:
    rig = Rig(layout)
    rig.hot.sample(rig.now_s)
    for _ in range(15):
        rig.host.throttle(TIER, periods=10, throttled=4)
        rig.run(5, be=0.75)
    demand = rig.hot.demand(rig.now_s)[TIER]
    assert demand.used_cores == pytest.approx(0.75, abs=1e-3)
    assert demand.throttled_ratio == pytest.approx(0.4)


def test_demand_without_a_quota_is_not_throttled() -> None:
    rig = Rig()
    rig.hot.sample(rig.now_s)
    rig.run(20, be=0.5)
    assert rig.hot.demand(rig.now_s)[TIER].throttled_ratio == 0.0


def test_demand_of_a_root_of_which_nothing_is_known_is_left_out() -> None:
    rig = Rig()
    assert rig.hot.demand(rig.now_s) == {}
    rig.hot.sample(rig.now_s)
    assert rig.hot.demand(rig.now_s) == {}
    rig.run(10, be=0.5)
    assert TIER in rig.hot.demand(rig.now_s)
    assert rig.hot.demand(rig.now_s + 3.0) == {}


def test_one_sample_reads_about_ten_files() -> None:
    rig = Rig()
    rig.hot.sample(rig.now_s)
    before = rig.host.files.reads
    rig.run(5)
    assert (rig.host.files.reads - before) / 5 <= 10
