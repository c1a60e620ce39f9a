"""What a front is told of a tick: numbers always, each other part only when it changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.metrics.readings import Scope
from koordlet.model.actions import Status
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from koordlet.report import TickCause, TickReport, whole_workloads
from koordlet.tick import AUDIT_KEPT
from tests.support.pipeline import TIER, Pipeline
from tests.support.snapshots import slo


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipeline]:
    with Pipeline(tmp_path, "v2", slo=slo(CpuSuppressPolicy.CFS_QUOTA)) as made:
        made.add_pod("web", Qos.LS), made.add_pod("batch", Qos.BE)
        made.load = {"kubepods/burstable/podweb": 2.0}
        made.run_until_settled()
        yield made


def _run(pipe: Pipeline, *, whole: bool = False) -> TickReport:
    for _ in range(5):
        pipe.sample()
    return pipe.tick.run(TickCause.REGULAR, overrun=False, whole=whole)


def test_parts_that_did_not_change_are_left_out(pipe: Pipeline) -> None:
    pipe.run(2)
    report = _run(pipe)
    assert report.workloads is None
    assert report.owned is None
    assert report.capabilities is None
    assert report.outcomes == ()
    assert report.audit == ()
    assert report.readings.scope is Scope.DELTA
    assert report.stats.reads > 10
    assert report.stats.writes == 0


def test_a_whole_report_has_every_part(pipe: Pipeline) -> None:
    report = _run(pipe, whole=True)
    assert report.workloads is not None
    assert report.status is not None
    assert report.plan is not None
    assert report.capabilities is not None
    assert report.owned is not None
    assert {str(row.target) for row in report.owned} == {str(TIER)}
    assert report.readings.scope is Scope.WHOLE


def test_what_changed_is_told(pipe: Pipeline) -> None:
    pipe.add_pod("late", Qos.BE)
    pipe.load = {"kubepods/burstable/podweb": 4.0}
    report = _run(pipe)
    assert report.workloads is not None
    assert report.pod_uids is not None and len(report.pod_uids) == 3
    assert len(report.workloads.known_pods()) == 1  # the others are as they were
    assert report.owned is not None
    assert [outcome.status for outcome in report.outcomes] == [Status.APPLIED]
    assert [event.kind for event in report.audit] == ["write"]
    assert report.stats.writes == 1


def test_the_status_comes_at_least_every_two_seconds(pipe: Pipeline) -> None:
    told = "".join("x" if _run(pipe).status is not None else "." for _ in range(12))
    assert ".." not in told


def test_pods_that_are_the_same_stay_the_same_object(pipe: Pipeline) -> None:
    before = pipe.observer.seen.workloads.pods
    pipe.tell_pods()
    _run(pipe)
    assert pipe.observer.seen.workloads.pods is before


def test_a_refusal_is_followed_by_the_word_that_all_is_well(pipe: Pipeline) -> None:
    path = f"/sys/fs/cgroup/{TIER}/cpu.max"
    pipe.load = {"kubepods/burstable/podweb": 4.0}
    pipe.host.files.fail(path, 5, on="write", times=1)
    (refused,) = _run(pipe).outcomes
    assert refused.status is Status.REFUSED
    pipe.host.foreign_write(TIER, "cpu.max", "120000")  # it is as wanted, by whomever
    outcomes = _run(pipe).outcomes + _run(pipe).outcomes
    assert [outcome.status for outcome in outcomes] == [Status.UNCHANGED]


def test_audit_of_a_report_that_reached_nobody_goes_with_the_next(pipe: Pipeline) -> None:
    pipe.load = {"kubepods/burstable/podweb": 4.0}
    lost = _run(pipe)
    assert [event.kind for event in lost.audit] == ["write"]
    pipe.tick.keep_audit(lost)
    pipe.load = {"kubepods/burstable/podweb": 4.5}
    later = _run(pipe)
    assert [event.kind for event in later.audit] == ["write", "write"]
    assert later.audit[0] == lost.audit[0]


def test_without_a_front_for_ever_only_so_much_audit_is_kept(pipe: Pipeline) -> None:
    report = _run(pipe)
    pipe.load = {"kubepods/burstable/podweb": 4.0}
    event = _run(pipe).audit[0]
    for _ in range(3):
        many = TickReport(report.stats, report.readings, audit=(event,) * (AUDIT_KEPT // 2))
        pipe.tick.keep_audit(many)
    assert len(_run(pipe).audit) == AUDIT_KEPT


def test_a_host_that_cannot_be_read_yet_decides_nothing_and_reports_what_it_has(
    tmp_path: Path,
) -> None:
    with Pipeline(tmp_path, "v1", slo=slo(CpuSuppressPolicy.CFS_QUOTA)) as pipe:
        pipe.add_pod("batch", Qos.BE)
        pipe.host.files.fail("/proc/meminfo", 5, times=100)
        pipe.run(3)
        assert pipe.writes == []
        report = _run(pipe)
        assert report.status is None
        assert report.stats.reads > 0
        pipe.host.files.fail("/proc/meminfo", 5, times=0)
        pipe.run(12)
        assert pipe.quota_us(TIER) is not None


def test_a_plan_whose_numbers_alone_moved_is_told_every_two_seconds(pipe: Pipeline) -> None:
    """The use of the node moves a little in each tick, the quota stays in its dead band."""
    pipe.run(2)
    told = 0
    for tick in range(10):
        pipe.load = {"kubepods/burstable/podweb": 1.0 + 0.001 * (tick % 2)}
        told += _run(pipe).plan is not None
    assert 4 <= told <= 6


def test_OPS_03_what_a_front_puts_together_is_what_the_core_sees(pipe: Pipeline) -> None:
    """Pods come, go and change; only changed ones are told, and the picture stays whole."""
    seen = whole_workloads(_run(pipe, whole=True), Missing("nothing yet"))
    for number in range(6):
        pipe.add_pod(f"job{number}", Qos.BE)
        if number > 2:
            pipe.remove_pod(f"job{number - 2}")
        report = _run(pipe)
        seen = whole_workloads(report, seen)
        assert seen == pipe.observer.seen.workloads
        assert report.workloads is not None
        assert len(report.workloads.known_pods()) <= 2
