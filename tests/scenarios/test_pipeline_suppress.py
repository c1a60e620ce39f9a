"""How fast BE work gives way and gets CPU back, and what others' writes change in that."""

from __future__ import annotations

from itertools import pairwise

import pytest

from koordlet.model.knobs import Knob
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from koordlet.report import TickCause
from tests.scenarios.conftest import MakePipeline
from tests.support.pipeline import LAYOUTS, TIER, FakePod, Pipeline, changed
from tests.support.snapshots import slo

QUOTA = slo(CpuSuppressPolicy.CFS_QUOTA)
CPUSET = slo(CpuSuppressPolicy.CPUSET)
NODE_US = 800_000  # eight CPUs
STEP_US = NODE_US // 10
DEAD_BAND_US = NODE_US // 100


def _busy(pipe: Pipeline, cores: float) -> tuple[FakePod, FakePod]:
    """A marked LS pod that uses ``cores``, a marked BE pod, and the tier settled around them."""
    web, batch = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
    pipe.load = {web.cgroup: cores, batch.container(): 1.0}
    pipe.run_until_settled()
    return web, batch


def _surge(pipe: Pipeline, cgroup: str, cores: float) -> None:
    """One 5 Hz interval with another use, and the early tick that it calls for."""
    pipe.load[cgroup] = cores
    pipe.sample()
    pipe.run_tick(TickCause.SURGE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_H28_a_surge_shrinks_the_quota_within_one_early_tick(
    pipeline: MakePipeline, layout: str
) -> None:
    pipe = pipeline(layout, slo=QUOTA)
    web, _ = _busy(pipe, 1.0)
    assert pipe.quota_us(TIER) == 420_000
    _surge(pipe, web.cgroup, 4.0)
    assert pipe.quota_us(TIER) == 120_000


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_H28_a_surge_shrinks_the_cpuset_within_one_early_tick(
    pipeline: MakePipeline, layout: str
) -> None:
    pipe = pipeline(layout, slo=CPUSET)
    web, batch = _busy(pipe, 1.0)
    assert len(pipe.cpus(TIER)) == 5
    _surge(pipe, web.cgroup, 3.0)
    assert len(pipe.cpus(TIER)) == 3
    if layout == "v1":
        assert pipe.cpus(batch.container()) == pipe.cpus(TIER)


def test_the_quota_grows_by_a_tenth_of_the_node_a_second_whatever_early_ticks_come(
    pipeline: MakePipeline,
) -> None:
    pipe = pipeline("v2", slo=QUOTA)
    web, _ = _busy(pipe, 5.0)
    pipe.load[web.cgroup] = 0.2
    quotas = [pipe.quota_us(TIER)]
    for _ in range(8):
        for _ in range(5):
            pipe.sample()
            pipe.run_tick(TickCause.PSI)
        quotas.append(pipe.quota_us(TIER))
    steps = [after - before for before, after in pairwise(quotas)]
    assert max(steps) == STEP_US
    assert min(steps) >= 0
    assert quotas[-1] == 500_000


def test_the_cpuset_grows_by_one_of_eight_cpus_a_second(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1", slo=CPUSET)
    web, _ = _busy(pipe, 3.5)
    pipe.load[web.cgroup] = 0.2
    sizes = [len(pipe.cpus(TIER))]
    for _ in range(6):
        pipe.run()
        sizes.append(len(pipe.cpus(TIER)))
    assert max(b - a for a, b in pairwise(sizes)) == 1
    assert sizes[-1] == 5


# -- other writers --------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_CQ_01_a_foreign_reset_is_put_back_in_the_next_tick_at_once(
    pipeline: MakePipeline, layout: str
) -> None:
    pipe = pipeline(layout, slo=QUOTA)
    _busy(pipe, 4.0)
    assert pipe.quota_us(TIER) == 120_000
    file, unlimited = ("cpu.max", "max") if layout == "v2" else ("cpu.cfs_quota_us", "-1")
    pipe.host.foreign_write(TIER, file, unlimited)
    pipe.run()
    assert pipe.quota_us(TIER) == 120_000  # no ramp of 10 % a tick
    kinds = {event.kind for report in pipe.reports for event in report.audit}
    assert "reset" in kinds
    pipe.stop()
    assert pipe.quota_us(TIER) is None


def test_H17_a_writer_who_fights_never_wins_over_a_restriction(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1", slo=QUOTA)
    _busy(pipe, 4.0)
    for _ in range(20):
        pipe.host.foreign_write(TIER, "cpu.cfs_quota_us", "-1")
        pipe.run()
        assert pipe.quota_us(TIER) == 120_000


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_H07_a_third_value_becomes_the_original_and_bounds_what_we_give(
    pipeline: MakePipeline, layout: str
) -> None:
    pipe = pipeline(layout, slo=QUOTA)
    _busy(pipe, 1.0)
    file = "cpu.max" if layout == "v2" else "cpu.cfs_quota_us"
    pipe.host.foreign_write(TIER, file, "200000")
    pipe.run()
    assert pipe.quota_us(TIER) == 200_000  # 4.2 cores would be ours to give
    assert "rebased" in {event.kind for event in pipe.reports[-1].audit}
    pipe.load = {"": 4.5}
    pipe.run(2)
    assert pipe.quota_us(TIER) < 200_000
    pipe.stop()
    assert pipe.quota_us(TIER) == 200_000


def test_H07_a_cpuset_that_its_owner_narrows_stays_narrow(pipeline: MakePipeline) -> None:
    pipe = pipeline("v2", slo=CPUSET)
    _busy(pipe, 1.0)
    pipe.host.foreign_write(TIER, "cpuset.cpus", "0-1")
    pipe.run(3)
    assert pipe.cpus(TIER) <= {0, 1}
    pipe.stop()
    assert pipe.cpus(TIER) == {0, 1}


# -- several roots, host applications -------------------------------------------------------------


def test_H12_one_budget_is_split_over_all_roots_and_their_use_is_BE_use(
    pipeline: MakePipeline,
) -> None:
    pipe = pipeline("v2", slo=QUOTA)
    render = pipe.add_app("render", Qos.BE)
    web, batch = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
    pipe.load = {web.cgroup: 2.0, batch.container(): 1.0, render: 2.0}
    pipe.run_until_settled()
    pipe.run(3)
    tier_us, render_us = pipe.quota_us(TIER) or 0, pipe.quota_us(render) or 0
    assert abs(tier_us + render_us - 320_000) <= 2 * DEAD_BAND_US  # 5.2 - 2.0 cores
    assert render_us > tier_us  # it uses more
    assert {root.claimed_by for root in pipe.status().be_roots} == {"tier", "render"}
    pipe.stop()
    assert (pipe.quota_us(TIER), pipe.quota_us(render)) == (None, None)


# -- switching ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["v1", "v1-together", "v2"])
def test_each_switch_restores_exactly_what_the_other_setting_does_not_want(
    pipeline: MakePipeline, layout: str
) -> None:
    pipe = pipeline(layout)
    web, batch = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE, containers=2)
    pipe.load = {web.cgroup: 2.0}
    pipe.run(3)
    original = pipe.photo()
    by_quota = slo(CpuSuppressPolicy.CFS_QUOTA, priority=True, idle=1)
    by_cpuset = slo(CpuSuppressPolicy.CPUSET, priority=True, idle=1)

    def files() -> set[str]:
        return {name for _, name in changed(original, pipe.photo())}

    quota_file = "cpu.max" if layout == "v2" else "cpu.cfs_quota_us"
    for wanted, expected in (
        (by_quota, {quota_file, "cpu.idle"}),
        (by_cpuset, {"cpuset.cpus", "cpu.idle"}),
        (by_quota, {quota_file, "cpu.idle"}),
        (slo(CpuSuppressPolicy.CFS_QUOTA, priority=True, idle=0), {quota_file}),
        (slo(CpuSuppressPolicy.CPUSET), {"cpuset.cpus"}),
        (slo(None, priority=True, idle=1), {"cpu.idle"}),
        (slo(None), set()),
    ):
        pipe.tell_slo(wanted)
        pipe.run(2)
        assert files() == expected, wanted
    assert pipe.owned() == set()
    assert pipe.host.text(batch.cgroup, "cpu.weight" if layout == "v2" else "cpu.shares") in (
        "100",
        "1024",
    )


def test_H02_the_weight_of_a_pod_survives_idle_on_and_off(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1", slo=slo(None, priority=True, idle=1))
    batch = pipe.add_pod("batch", Qos.BE)
    pipe.host.foreign_write(batch.cgroup, "cpu.shares", "2")
    pipe.run(4)
    assert pipe.host.text(batch.cgroup, "cpu.idle") == "1"
    pipe.tell_slo(slo(None, priority=True, idle=0))
    pipe.run()
    assert pipe.host.text(batch.cgroup, "cpu.idle") == "0"
    assert pipe.host.text(batch.cgroup, "cpu.shares") == "2"


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_a_pod_that_leaves_is_forgotten_and_the_last_one_frees_the_tier(
    pipeline: MakePipeline, layout: str
) -> None:
    pipe = pipeline(layout, slo=slo(CpuSuppressPolicy.CFS_QUOTA, priority=True, idle=1))
    web = pipe.add_pod("web", Qos.LS)
    before = pipe.photo()
    pipe.add_pod("one", Qos.BE), pipe.add_pod("two", Qos.BE)
    pipe.load = {web.cgroup: 3.0}
    pipe.run_until_settled()
    pipe.remove_pod("one")
    pipe.run(2)
    assert {path for path, _ in pipe.owned()} == {str(TIER), f"{TIER}/podtwo"}
    pipe.remove_pod("two")
    pipe.run(2)
    assert pipe.owned() == set()
    assert pipe.photo() == before
    assert not pipe.not_as_wanted()


def test_H04_v1_a_limited_child_is_lifted_by_the_runtime_before_the_tier_goes_below_it(
    pipeline: MakePipeline,
) -> None:
    pipe = pipeline("v1", slo=QUOTA)
    web = pipe.add_pod("web", Qos.LS)
    batch = pipe.add_pod("batch", Qos.BE, quota_us=200_000)
    pipe.load = {web.cgroup: 4.0}
    pipe.run(2)
    assert pipe.quota_us(TIER) == 200_000  # not below what its container still has
    assert "v1-child-quota" in pipe.problems()
    (request,) = pipe.tick.take_spec_requests()
    assert (request.container_id, request.knob, request.value) == (
        batch.record.containers[0].id,
        Knob.CPU_QUOTA,
        None,
    )
    pipe.host.foreign_write(batch.container(), "cpu.cfs_quota_us", "-1")
    pipe.answer(request)
    pipe.run(2)
    assert pipe.quota_us(TIER) == 120_000
    assert pipe.host.files.refused == []
