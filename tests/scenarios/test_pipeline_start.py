"""What koordlet leaves alone, and how it begins."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from koordlet.model.actions import Target
from koordlet.model.knobs import Knob
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from koordlet.qosmanager.be_priority import BePriority
from koordlet.qosmanager.strategy import NeedsContext
from koordlet.resexecutor.executor import START_WRITES
from koordlet.standing import Standing
from tests.scenarios.conftest import MakePipeline
from tests.support.pipeline import LAYOUTS, TIER, Photo, Pipeline, changed
from tests.support.snapshots import slo

EVERYTHING = {
    policy: slo(policy, priority=True, idle=1)
    for policy in (CpuSuppressPolicy.CFS_QUOTA, CpuSuppressPolicy.CPUSET)
}
POLICIES = list(EVERYTHING)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_host_where_nothing_is_marked_is_never_written_to(
    pipeline: MakePipeline, layout: str, policy: CpuSuppressPolicy
) -> None:
    pipe = pipeline(layout, slo=EVERYTHING[policy])
    web = pipe.add_pod("web", Qos.LS, marked=False)
    batch = pipe.add_pod("batch", Qos.BE, marked=False)
    pipe.load = {web.cgroup: 3.0, batch.container(): 4.0}
    pipe.run(8)
    assert pipe.writes == []
    assert pipe.owned() == set()
    assert pipe.stop() == ()
    assert pipe.writes == []


def test_a_strategy_that_cannot_say_what_it_needs_is_told(
    pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: BePriority, context: NeedsContext) -> Iterable[Target]:
        raise KeyError("needs")

    monkeypatch.setattr(BePriority, "needs", fails)
    pipe = pipeline("v2", slo=EVERYTHING[CpuSuppressPolicy.CFS_QUOTA])
    pipe.add_pod("batch", Qos.BE)
    pipe.run(3)
    problems = [one for report in pipe.reports if report.status for one in report.status.problems]
    assert {one.where for one in problems if one.code == "strategy-failed"} == {"be_priority"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_marked_LS_pod_alone_changes_nothing_either(pipeline: MakePipeline, layout: str) -> None:
    pipe = pipeline(layout, slo=EVERYTHING[CpuSuppressPolicy.CFS_QUOTA])
    web = pipe.add_pod("web", Qos.LS)
    pipe.add_pod("batch", Qos.BE, marked=False)
    pipe.load = {web.cgroup: 5.0}
    pipe.run(8)
    assert pipe.writes == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_marked_BE_pod_has_the_tier_governed_and_a_stop_restores_it_byte_for_byte(
    pipeline: MakePipeline, layout: str, policy: CpuSuppressPolicy
) -> None:
    pipe = pipeline(layout, slo=EVERYTHING[policy])
    batch = pipe.add_pod("batch", Qos.BE)
    other = pipe.add_pod("other", Qos.BE, marked=False)
    web = pipe.add_pod("web", Qos.LS)
    before = pipe.photo()
    pipe.load = {web.cgroup: 2.2, batch.container(): 1.0}
    pipe.run_until_settled()
    if policy is CpuSuppressPolicy.CFS_QUOTA:
        assert pipe.quota_us(TIER) == 300_000
    else:
        assert len(pipe.cpus(TIER)) == 3
    assert pipe.host.text(batch.cgroup, "cpu.idle") == "1"
    assert pipe.host.text(other.cgroup, "cpu.idle") == "1"  # governed with the marked one
    assert all("besteffort" in path for path, _ in pipe.writes)
    pipe.stop()
    assert pipe.photo() == before
    assert pipe.tick.nothing_owned


def test_the_weight_of_the_tier_is_put_down_where_it_is_not_the_least(
    pipeline: MakePipeline,
) -> None:
    pipe = pipeline("v2", slo=slo(priority=True))
    pipe.host.set_text(TIER, "cpu.weight", "39")
    pipe.add_pod("batch", Qos.BE)
    pipe.run(3)
    assert pipe.writes == [("/sys/fs/cgroup/kubepods/besteffort/cpu.weight", "1")]
    pipe.stop()
    assert pipe.host.text(TIER, "cpu.weight") == "39"


# -- H14: first start -----------------------------------------------------------------------------


def test_H14_nothing_is_written_before_every_source_has_spoken(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1", slo=EVERYTHING[CpuSuppressPolicy.CPUSET], hushed=True)
    pipe.add_pod("batch", Qos.BE, told=False)
    pipe.add_app("render", Qos.BE, told=False)
    words = [
        ("the operator's standing orders", lambda: pipe.order(Standing())),
        ("the NodeSLO", lambda: pipe.tell_slo(EVERYTHING[CpuSuppressPolicy.CPUSET])),
        ("the host application files", pipe.tell_apps),
        ("the first pod list", pipe.tell_pods),
    ]
    for missing, speak in words:
        pipe.run(3)
        assert missing in pipe.status().waiting_for
        assert pipe.writes == []
        speak()
    pipe.run_tick()
    assert pipe.writes != []
    assert pipe.status().waiting_for == ()


def test_H14_the_first_tick_only_reads_and_two_samples_are_waited_for(
    pipeline: MakePipeline,
) -> None:
    pipe = pipeline("v2", slo=EVERYTHING[CpuSuppressPolicy.CFS_QUOTA])
    pipe.add_pod("batch", Qos.BE)
    pipe.run_tick()
    assert pipe.writes == []
    assert pipe.status().waiting_for == ("two valid samples",)
    pipe.sample()
    pipe.run_tick()
    assert pipe.writes == []
    for _ in range(5):
        pipe.sample()
    pipe.run_tick()
    assert pipe.writes != []


def test_H14_a_node_of_500_pods_is_written_in_portions_tiers_first(
    pipeline: MakePipeline,
) -> None:
    pipe = pipeline("v2", slo=EVERYTHING[CpuSuppressPolicy.CFS_QUOTA])
    before = _500_pods(pipe)
    deferred, written = [], []
    for _ in range(6):
        written += _written_each_second(pipe, 1)
        deferred.append(pipe.view().core.deferred_writes)  # type: ignore[union-attr]
    assert deferred == [401, 301, 201, 101, 1, 0]
    assert pipe.writes[0][0].endswith("kubepods/besteffort/cpu.max")
    assert max(written) == START_WRITES
    assert sum(written) == 501  # cpu.idle of each pod, and the tier
    assert not pipe.not_as_wanted()
    pipe.stop()
    assert changed(before, pipe.photo()) == set()


def test_H14_portions_of_v1_cpusets_are_never_refused(pipeline: MakePipeline) -> None:
    """There the tier can only come last: it is never narrower than a container."""
    pipe = pipeline("v1", slo=slo(CpuSuppressPolicy.CPUSET))
    before = _500_pods(pipe)
    written = _written_each_second(pipe, 12)
    assert max(written) == START_WRITES
    assert sum(written) == 1001  # each container, each pod, the tier
    assert pipe.host.files.refused == []
    pipe.stop()
    assert changed(before, pipe.photo()) == set()


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_H14_a_crash_in_the_middle_of_a_start_is_taken_over_or_restored(
    pipeline: MakePipeline, layout: str
) -> None:
    pipe = pipeline(layout, slo=EVERYTHING[CpuSuppressPolicy.CPUSET])
    before = _500_pods(pipe)
    written = _written_each_second(pipe, 2)
    assert sum(written) == 2 * START_WRITES
    pipe.restart()  # SIGKILL between two portions
    pipe.run(1)
    assert len(pipe.writes) == 2 * START_WRITES  # another start only reads, too
    more = _written_each_second(pipe, 1)
    assert 0 < sum(more) <= START_WRITES
    pipe.restart()
    pipe.stop()  # before its first decision: all of the journal is restored
    emptied = [each for each in pipe.host.files.refused if each[1] == "\n"]
    assert pipe.host.files.refused == emptied  # no v2 cpuset is emptied: it is widened instead
    assert changed(before, pipe.photo()) == set()


def _500_pods(pipe: Pipeline) -> Photo:
    for number in range(500):
        pipe.add_pod(f"batch{number}", Qos.BE, told=False)
    pipe.tell_pods()
    pipe.run()
    assert pipe.writes == []
    return pipe.photo()


def _written_each_second(pipe: Pipeline, seconds: int) -> list[int]:
    written = []
    for _ in range(seconds):
        count = len(pipe.writes)
        pipe.run()
        written.append(len(pipe.writes) - count)
    return written


# -- dry run --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_H25_a_dry_run_decides_all_and_writes_nothing_not_even_a_journal(
    pipeline: MakePipeline, layout: str, tmp_path: Path
) -> None:
    pipe = pipeline(layout, slo=EVERYTHING[CpuSuppressPolicy.CPUSET], dry_run=True)
    web, _ = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
    before = pipe.photo()
    pipe.load = {web.cgroup: 3.0}
    pipe.run(3)
    assert pipe.writes == []
    assert pipe.host.files.refused == []
    assert pipe.photo() == before
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []
    status = pipe.status()
    assert status.dry_run
    assert status.journal_path == ""
    plan = pipe.view().plan
    assert {(str(write.target), write.knob) for write in plan.writes} >= {
        (str(TIER), Knob.CPUSET_CPUS)
    }
    pipe.stop()
    assert pipe.writes == []
