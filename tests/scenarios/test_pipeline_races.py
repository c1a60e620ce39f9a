"""Cgroups that come and go in the middle of a tick, and data that cannot be had."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from koordlet.model.knobs import Knob
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from koordlet.report import TickCause
from tests.scenarios.conftest import MakePipeline
from tests.support.pipeline import LAYOUTS, TIER, Pipeline, changed
from tests.support.snapshots import slo

QUOTA = slo(CpuSuppressPolicy.CFS_QUOTA)
CPUSET = slo(CpuSuppressPolicy.CPUSET)
ALL_ON = slo(CpuSuppressPolicy.CPUSET, priority=True, idle=1)
WIDE = frozenset(range(8))


class During:
    """Lets something happen in the middle of a tick: at the first read of a file whose path
    ends with ``suffix``, after ``reads_before`` others.
    """

    def __init__(
        self, pipe: Pipeline, suffix: str, happen: Callable[[], object], reads_before: int = 0
    ) -> None:
        self.happened = False
        self._suffix = suffix
        self._happen = happen
        self._left = reads_before
        self._files = pipe.host.files
        self._files.tap = self._on_read

    def _on_read(self, path: str, _answer: bytes | Missing) -> None:
        if self.happened or not path.endswith(self._suffix):
            return
        self._left -= 1
        if self._left < 0:
            self.happened = True
            self._files.tap = None
            self._happen()


# -- containers and pods that come and go ---------------------------------------------------------


@pytest.mark.parametrize("reads_before", [0, 1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_container_that_restarts_in_the_middle_of_a_tick_is_governed_in_the_next(
    pipeline: MakePipeline, layout: str, reads_before: int
) -> None:
    pipe = pipeline(layout, slo=ALL_ON)
    web, batch = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE, containers=2)
    pipe.load = {web.cgroup: 1.0}
    pipe.run_until_settled()
    pipe.load = {web.cgroup: 3.5}
    during = During(
        pipe,
        f"{batch.cgroup}/cpuset.cpus" if layout != "v2" else "besteffort/cpuset.cpus",
        lambda: pipe.restart_container("batch", told=False),
        reads_before,
    )
    pipe.run()
    pipe.tell_pods()
    pipe.run(3)
    assert during.happened or reads_before > 0
    assert len(pipe.cpus(TIER)) == 2
    if layout != "v2":
        again = pipe.told.pods["batch"]
        assert pipe.cpus(again.container(0)) == pipe.cpus(TIER) == pipe.cpus(again.container(1))
    assert not pipe.not_as_wanted()
    pipe.stop()
    assert pipe.tick.nothing_owned


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV])
@pytest.mark.parametrize("on", ["read", "write"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_is_gone_for_a_moment_is_written_again_soon(
    pipeline: MakePipeline, layout: str, on: str, number: int
) -> None:
    """ENOENT of a write to a cgroup that is there means "no such knob": tried once a minute."""
    pipe = pipeline(layout, slo=QUOTA)
    web, _ = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
    before = pipe.photo()
    pipe.load = {web.cgroup: 1.0}
    pipe.run_until_settled()
    pipe.load = {web.cgroup: 4.0}
    path = pipe.host.cgroups().path_of(TIER, Knob.CPU_QUOTA)
    assert not isinstance(path, Missing)
    pipe.host.files.fail(path, number, on=on, times=1)
    pipe.run(4 if (on, number) != ("write", errno.ENOENT) else 64)
    assert pipe.quota_us(TIER) == 120_000
    assert not pipe.not_as_wanted()
    pipe.stop()
    assert pipe.photo() == before


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_a_pod_that_vanishes_while_it_is_written_and_comes_back_is_another_one(
    pipeline: MakePipeline, layout: str
) -> None:
    """The same path with another inode: nothing of the old one is put into it (H7)."""
    pipe = pipeline(layout, slo=ALL_ON)
    web, batch = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
    pipe.add_pod("other", Qos.BE)
    pipe.load = {web.cgroup: 2.0}
    pipe.run_until_settled()
    pipe.load = {web.cgroup: 3.5}
    During(pipe, f"{batch.cgroup}/cpu.idle", lambda: pipe.host.remove(batch.cgroup))
    pipe.run()
    pipe.host.make(batch.cgroup)
    pipe.start_container(batch.container())
    pipe.run(3)
    assert pipe.host.text(batch.cgroup, "cpu.idle") == "1"
    pipe.stop()
    assert pipe.host.text(batch.cgroup, "cpu.idle") == "0"
    assert pipe.host.text(batch.cgroup, "cpu.weight" if layout == "v2" else "cpu.shares") in (
        "100",
        "1024",
    )
    if layout == "v1":
        assert pipe.cpus(batch.container()) == WIDE


def test_H05_a_pod_born_under_a_narrowed_tier_is_wide_after_the_stop(
    pipeline: MakePipeline,
) -> None:
    pipe = pipeline("v1", slo=CPUSET)
    web, _ = pipe.add_pod("web", Qos.LS), pipe.add_pod("first", Qos.BE)
    pipe.load = {web.cgroup: 3.5}
    pipe.run_until_settled()
    late = pipe.add_pod("late", Qos.BE, told=False)
    assert pipe.cpus(late.container()) == pipe.cpus(TIER)  # as runc leaves it
    pipe.run()
    pipe.tell_pods()
    pipe.load = {web.cgroup: 1.0}
    pipe.run(3)
    assert len(pipe.cpus(TIER)) > 2
    pipe.stop()
    for path in (TIER, late.cgroup, late.container()):
        assert pipe.cpus(path) == WIDE


def test_H05_one_born_just_before_the_stop_is_wide_as_well(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1", slo=CPUSET)
    web, _ = pipe.add_pod("web", Qos.LS), pipe.add_pod("first", Qos.BE)
    pipe.load = {web.cgroup: 3.5}
    pipe.run_until_settled()
    late = pipe.add_pod("late", Qos.BE, told=False)
    pipe.stop()
    assert pipe.cpus(late.container()) == WIDE


@pytest.mark.parametrize("layout", ["v1", "v1-together"])
def test_H18_a_cgroup_nested_in_a_container_never_keeps_the_tier_wide(
    pipeline: MakePipeline, layout: str
) -> None:
    pipe = pipeline(layout, slo=CPUSET)
    web, batch = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
    nested = pipe.host.make(f"{batch.container()}/docker/inner", {"tasks": 1})
    pipe.load = {web.cgroup: 3.5}
    pipe.run(3)
    assert len(pipe.cpus(TIER)) == 2
    assert pipe.cpus(nested) == pipe.cpus(TIER)
    pipe.load = {web.cgroup: 1.0}
    pipe.run(5)
    deeper = pipe.host.make(f"{nested}/deeper", {"tasks": 1})
    During(  # in the very tick that shrinks, after the tree was listed
        pipe,
        f"{batch.cgroup}/cpuset.cpus",
        lambda: pipe.host.make(f"{batch.container()}/buildkit", {"tasks": 1}),
    )
    pipe.load = {web.cgroup: 3.5}
    pipe.run(3)
    assert len(pipe.cpus(TIER)) == 2
    assert pipe.cpus(deeper) == pipe.cpus(TIER)
    pipe.stop()
    for path in (TIER, nested, deeper, f"{batch.container()}/buildkit"):
        assert pipe.cpus(path) == WIDE, path


# -- data that cannot be had ----------------------------------------------------------------------


def _break_counters(pipe: Pipeline, number: int = errno.EIO) -> None:
    """The node's and the tiers' CPU counters cannot be read any more."""
    for hierarchy in pipe.host.files.hierarchies:
        for each in hierarchy.root.walk():
            for name in ("cpuacct.usage", "cpu.stat"):
                pipe.host.files.fail(f"{each.path}/{name}", number)


def _mend(pipe: Pipeline) -> None:
    pipe.host.files._failures.clear()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_counters_hold_then_give_way_to_the_safe_value_then_all_recovers(
    pipeline: MakePipeline, layout: str
) -> None:
    pipe = pipeline(layout, slo=QUOTA)
    web, _ = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
    before = pipe.photo()
    pipe.load = {web.cgroup: 2.2}
    pipe.run_until_settled()
    assert pipe.quota_us(TIER) == 300_000
    _break_counters(pipe)
    pipe.run(29)
    assert pipe.quota_us(TIER) == 300_000  # held
    (suppress,) = (s for s in pipe.status().strategies if s.name == "cpu_suppress")
    assert suppress.hold_why
    assert 25 < suppress.hold_age_s < 31
    pipe.run(4)
    assert pipe.quota_us(TIER) == 80_000  # 10 % of the node
    assert "hold-expired" in pipe.problems()
    pipe.host.foreign_write(TIER, *_unlimited(layout))
    pipe.run()
    assert pipe.quota_us(TIER) == 80_000  # kept while it lasts
    _mend(pipe)
    pipe.run(8)
    assert pipe.quota_us(TIER) == 300_000
    assert "hold-expired" not in pipe.problems()
    pipe.stop()
    assert pipe.photo() == before


def _unlimited(layout: str) -> tuple[str, str]:
    return ("cpu.max", "max") if layout == "v2" else ("cpu.cfs_quota_us", "-1")


def test_missing_counters_hold_a_cpuset_too(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1", slo=CPUSET)
    web, batch = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
    pipe.load = {web.cgroup: 2.2}
    pipe.run_until_settled()
    _break_counters(pipe)
    pipe.run(29)
    assert len(pipe.cpus(TIER)) == 3
    pipe.run(4)
    assert len(pipe.cpus(TIER)) < 3
    assert pipe.cpus(batch.container()) == pipe.cpus(TIER)
    _mend(pipe)
    pipe.run(8)
    assert len(pipe.cpus(TIER)) == 3


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT, errno.ENODEV, errno.EACCES])
@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_no_unreadable_file_at_all_raises(pipeline: MakePipeline, layout: str, number: int) -> None:
    pipe = pipeline(layout, slo=ALL_ON)
    web, _ = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
    pipe.load = {web.cgroup: 2.0}
    pipe.run(3)
    for hierarchy in pipe.host.files.hierarchies:
        for each in hierarchy.root.walk():
            for name in each.files:
                pipe.host.files.fail(f"{each.path}/{name}", number)
    for path in list(pipe.host.files.texts):
        pipe.host.files.fail(path, number)
    pipe.run(3)
    pipe.run_tick(TickCause.PSI)
    pipe.run(35)
    _mend(pipe)
    pipe.run(65)  # what could not be read was taken for unsupported, for a minute
    assert len(pipe.cpus(TIER)) == 4
    assert not pipe.not_as_wanted()


def test_garbage_in_every_counter_is_missing_and_not_zero(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1", slo=QUOTA)
    web, batch = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
    pipe.load = {web.cgroup: 2.2}
    pipe.run_until_settled()
    pipe.load = {}
    for path in ("", "kubepods", TIER, web.cgroup, batch.cgroup):
        pipe.host.set_text(path, "cpuacct.usage", "not a number")
    pipe.run(5)
    assert pipe.quota_us(TIER) == 300_000


# -- sources --------------------------------------------------------------------------------------


def test_a_host_application_is_governed_while_no_source_knows_the_pods(
    pipeline: MakePipeline,
) -> None:
    pipe = pipeline("v2", slo=QUOTA)
    render = pipe.add_app("render", Qos.BE)
    pipe.lose_pods()
    pipe.load = {"system.slice": 3.0}
    pipe.run(4)
    assert pipe.quota_us(render) == 220_000
    assert {path for path, _ in pipe.owned()} == {str(render)}


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_journaled_values_of_pods_are_held_while_no_source_knows_the_pods(
    pipeline: MakePipeline, layout: str
) -> None:
    pipe = pipeline(layout, slo=ALL_ON)
    render = pipe.add_app("render", Qos.BE)
    web, batch = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
    pipe.load = {web.cgroup: 2.0}
    pipe.run_until_settled()
    in_force = pipe.photo()
    pipe.restart()
    pipe.lose_pods()
    count = len(pipe.writes)
    pipe.run(10)
    assert changed(in_force, pipe.photo()) == set()
    assert len(pipe.writes) == count
    assert len(pipe.cpus(render)) == 4
    pipe.tell_pods()
    pipe.load = {web.cgroup: 3.5}
    pipe.run(3)
    assert len(pipe.cpus(TIER)) == 2
    assert pipe.host.text(batch.cgroup, "cpu.idle") == "1"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_H18_a_nested_cgroup_whose_name_is_no_utf8_is_narrowed_and_given_back(
    pipeline: MakePipeline, layout: str
) -> None:
    """Whoever may make cgroups in a container chooses their names, byte for byte."""
    pipe = pipeline(layout, slo=CPUSET)
    web, batch = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
    nested = pipe.host.make(batch.container().child("a\udcffb"), {"tasks": 1})
    before = pipe.photo()
    pipe.load = {web.cgroup: 4.0}
    pipe.run_until_settled()
    if layout != "v2":
        assert pipe.cpus(nested) == pipe.cpus(TIER) != WIDE
    pipe.restart()
    pipe.run(3)
    pipe.stop()
    assert pipe.photo() == before


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("at_stop", [False, True])
@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_H07_a_file_that_cannot_be_read_for_a_while_has_not_left_and_is_still_given_back(
    pipeline: MakePipeline, layout: str, at_stop: bool, number: int
) -> None:
    pipe = pipeline(layout, slo=QUOTA)
    web, _ = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
    before = pipe.photo()
    pipe.load = {web.cgroup: 3.0}
    pipe.run_until_settled()
    path = pipe.host.cgroups().path_of(TIER, Knob.CPU_QUOTA)
    assert not isinstance(path, Missing)
    pipe.host.files.fail(path, number, on="read", times=30)
    if not at_stop:
        pipe.run(5)
    pipe.tick.restore_all("clean stop")
    assert (str(TIER), Knob.CPU_QUOTA) in pipe.owned()
    pipe.host.files.fail(path, number, on="read", times=0)
    pipe.restart()
    pipe.stop()
    assert pipe.photo() == before
    assert pipe.tick.nothing_owned


@pytest.mark.parametrize("text", ["garbage", "-5x", "9" * 5_000])
def test_V1_11_a_text_that_is_no_value_is_not_taken_for_a_cgroup_that_left(
    pipeline: MakePipeline, text: str
) -> None:
    pipe = pipeline("v1", slo=QUOTA)
    web, _ = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
    before = pipe.photo()
    pipe.load = {web.cgroup: 3.0}
    pipe.run_until_settled()
    group = pipe.host.group(TIER, "cpu.cfs_quota_us")
    mine = group.files["cpu.cfs_quota_us"]
    group.files["cpu.cfs_quota_us"] = text
    pipe.run(3)
    assert (str(TIER), Knob.CPU_QUOTA) in pipe.owned()
    group.files["cpu.cfs_quota_us"] = mine
    pipe.stop()
    assert pipe.photo() == before
