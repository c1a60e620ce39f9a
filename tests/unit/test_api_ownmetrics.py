"""What koordlet tells about itself: counted from reports, shown with the newest view."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from koordlet.api.ownmetrics import OWN_FAMILIES, ProcessMetrics
from koordlet.metrics.catalog import Page
from koordlet.metrics.readings import Readings
from koordlet.model.actions import Outcome, Status
from koordlet.model.knobs import Knob
from koordlet.model.readings import Missing
from koordlet.report import NodeView, TickCause, TickReport, TickStats
from koordlet.resexecutor.audit import AuditEvent
from tests.support.promlint import lint
from tests.support.views import BE_TIER, node_view


def values(metrics: ProcessMetrics, page: Page = Page.OURS) -> dict[tuple[str, ...], float]:
    """By name and label values, in the order of the table."""
    order = {family.name: family.labels for family in OWN_FAMILIES if family.page is page}
    return {
        (sample.name, *(sample.labels[name] for name in order.get(sample.name, sample.labels))): (
            sample.value
        )
        for family in text_string_to_metric_families(metrics.render(page).decode())
        for sample in family.samples
    }


def report(
    *,
    cause: TickCause = TickCause.REGULAR,
    duration_s: float = 0.004,
    overrun: bool = False,
    outcomes: tuple[Outcome, ...] = (),
    audit: tuple[AuditEvent, ...] = (),
) -> TickReport:
    stats = TickStats(1, 0.0, cause, duration_s, 0.006, 500, 3, 2, overrun)
    return TickReport(stats, Readings(1), outcomes=outcomes, audit=audit)


def metrics_of(view: NodeView) -> ProcessMetrics:
    return ProcessMetrics(lambda: view)


def test_ticks_are_counted_by_cause_with_their_cost() -> None:
    metrics = metrics_of(node_view())
    metrics.observe(report())
    metrics.observe(report(cause=TickCause.PSI, duration_s=0.04, overrun=True))
    found = values(metrics)
    assert found["koordlet_ticks_total", "regular"] == 1
    assert found["koordlet_ticks_total", "psi"] == 1
    assert found["koordlet_tick_overruns_total",] == 1
    assert found["koordlet_tick_duration_seconds_count",] == 2
    assert found["koordlet_tick_duration_seconds_sum",] == pytest.approx(0.044)
    assert found["koordlet_tick_duration_seconds_bucket", "0.005"] == 1
    assert found["koordlet_tick_duration_seconds_bucket", "0.05"] == 2
    assert found["koordlet_tick_duration_seconds_bucket", "+Inf"] == 2
    assert found["koordlet_tick_cpu_seconds_total",] == pytest.approx(0.012)
    assert found["koordlet_kernel_file_reads_total",] == 1_000


def test_a_tick_longer_than_every_bucket_is_still_counted() -> None:
    metrics = metrics_of(node_view())
    metrics.observe(report(duration_s=7.0))
    found = values(metrics)
    assert found["koordlet_tick_duration_seconds_bucket", "1.0"] == 0
    assert found["koordlet_tick_duration_seconds_bucket", "+Inf"] == 1


def test_writes_are_counted_by_what_came_of_them_and_foreign_changes_by_kind() -> None:
    metrics = metrics_of(node_view())
    applied = Outcome(BE_TIER, Knob.CPU_QUOTA, "cpu_suppress", Status.APPLIED)
    refused = replace(applied, status=Status.REFUSED)
    audit = (AuditEvent(0.0, "reset", "cpu_suppress"), AuditEvent(0.0, "rebased", "cpu_suppress"))
    metrics.observe(report(outcomes=(applied, applied, refused), audit=audit))
    metrics.observe(report(audit=audit[:1]))
    found = values(metrics)
    assert found["koordlet_outcomes_total", "cpu_suppress", "cpu.quota", "applied"] == 2
    assert found["koordlet_outcomes_total", "cpu_suppress", "cpu.quota", "refused"] == 1
    assert found["koordlet_audit_events_total", "reset"] == 2
    assert found["koordlet_audit_events_total", "rebased"] == 1


def test_strategies_sources_and_roots_as_the_view_has_them() -> None:
    view = node_view()
    assert not isinstance(view.core, Missing)
    found = values(metrics_of(view))
    for strategy in view.core.strategies:
        assert found["koordlet_strategy_mode", strategy.name, strategy.mode.value] == 1
        assert found["koordlet_strategy_owned_values", strategy.name] == strategy.owned
    for source in view.sources:
        assert found["koordlet_source_state", source.name, source.state.value] == 1
    assert found["koordlet_last_tick_age_seconds",] == view.core_age_s
    assert found["koordlet_start_time_seconds",] == view.core.started_wall_s
    assert found["koordlet_build_info", view.version] == 1


def test_a_hold_tells_its_age() -> None:
    view = node_view()
    assert not isinstance(view.core, Missing)
    first = replace(view.core.strategies[0], hold_why="no samples", hold_age_s=12.5)
    core = replace(view.core, strategies=(first, *view.core.strategies[1:]))
    found = values(metrics_of(replace(view, core=core)))
    assert found["koordlet_strategy_hold_age_seconds", first.name] == 12.5


def test_the_quota_of_a_be_root_is_in_cores() -> None:
    view = node_view()
    found = values(metrics_of(view))
    quotas = {
        key: value for key, value in found.items() if key[0] == "koordlet_be_root_quota_cores"
    }
    assert not isinstance(view.plan, Missing)
    expected = {
        str(write.target): write.value / 100_000
        for write in view.plan.writes
        if write.knob is Knob.CPU_QUOTA
        and isinstance(write.value, int)
        and dict(write.terms).get("period_us")
    }
    assert {key[1]: value for key, value in quotas.items()} == expected


def test_koordinators_budget_metric_has_its_node_label() -> None:
    view = node_view()
    found = values(metrics_of(view), Page.INTERNAL)
    assert not isinstance(view.core, Missing)
    assert found["koordlet_start_time", view.node] == view.core.started_wall_s
    budgets = [key for key in found if key[0] == "koordlet_be_suppress_cpu_cores"]
    assert [key[1] for key in budgets] == [view.node]
    assert budgets[0][2] in ("cpuset", "cfsQuota")
    assert found[budgets[0]] == pytest.approx(1.2)


def test_before_the_first_report_there_is_no_made_up_number() -> None:
    view = replace(node_view(), core=Missing("not reported yet"), plan=Missing("no tick yet"))
    found = values(metrics_of(view))
    assert not [key for key in found if key[0].startswith(("koordlet_be_", "koordlet_strategy_"))]


def test_the_third_page_has_nothing_about_koordlet() -> None:
    assert metrics_of(node_view()).render(Page.EXTERNAL) == b""


def test_own_metrics_pass_promtools_rules() -> None:
    faults = [
        fault
        for family in OWN_FAMILIES
        for fault in lint(family.name, family.kind, family.help, family.labels)
    ]
    assert faults == []
