"""Koordlet's own metrics: ticks, writes, holds, sources; counted in the front, from reports."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from koordlet.metrics.catalog import Page
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.report import (
    CoreStatus,
    NodeView,
    TickReport,
    be_budget_cores,
    be_quotas_cores,
)

TICK_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0)

Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class OwnFamily:
    """One metric about koordlet itself. ``kind`` is counter, gauge or histogram."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    page: Page = Page.OURS


OWN_FAMILIES: tuple[OwnFamily, ...] = (
    OwnFamily("koordlet_build_info", "gauge", "1, with the version as a label.", ("version",)),
    OwnFamily("koordlet_start_time_seconds", "gauge", "When the core started, Unix time."),
    OwnFamily("koordlet_ticks_total", "counter", "Ticks by what called for them.", ("cause",)),
    OwnFamily("koordlet_tick_overruns_total", "counter", "Ticks that started late."),
    OwnFamily("koordlet_tick_duration_seconds", "histogram", "Wall time of a tick."),
    OwnFamily(
        "koordlet_tick_cpu_seconds_total",
        "counter",
        "CPU time of the tick thread, samples included.",
    ),
    OwnFamily("koordlet_kernel_file_reads_total", "counter", "Reads of kernel files by the core."),
    OwnFamily("koordlet_kernel_file_opens_total", "counter", "Opens of kernel files by the core."),
    OwnFamily(
        "koordlet_kernel_file_writes_total", "counter", "Writes to kernel files by the core."
    ),
    OwnFamily("koordlet_last_tick_age_seconds", "gauge", "Time since the core last reported."),
    OwnFamily(
        "koordlet_outcomes_total",
        "counter",
        "What came of planned writes and restores.",
        ("owner", "knob", "status"),
    ),
    OwnFamily(
        "koordlet_audit_events_total",
        "counter",
        "Audit events by kind; reset and rebased are changes that others made.",
        ("kind",),
    ),
    OwnFamily("koordlet_strategy_mode", "gauge", "1 for the mode in force.", ("strategy", "mode")),
    OwnFamily(
        "koordlet_strategy_owned_values",
        "gauge",
        "Journaled kernel values that the strategy holds.",
        ("strategy",),
    ),
    OwnFamily(
        "koordlet_strategy_hold_age_seconds",
        "gauge",
        "How long the strategy has held what it owns for lack of data; 0 while it decides.",
        ("strategy",),
    ),
    OwnFamily("koordlet_problems", "gauge", "Problems that stand now.", ("severity",)),
    OwnFamily(
        "koordlet_source_age_seconds",
        "gauge",
        "Age of the last answer of a source of workloads or configuration.",
        ("source",),
    ),
    OwnFamily("koordlet_source_state", "gauge", "1 for the state it is in.", ("source", "state")),
    OwnFamily(
        "koordlet_be_root_quota_cores",
        "gauge",
        "cfs quota that the plan gives to a root of best-effort work.",
        ("root",),
    ),
    OwnFamily(
        "koordlet_be_floor_bound",
        "gauge",
        "1 while the least quotas of the BE roots exceed the budget.",
    ),
    OwnFamily(
        "koordlet_be_suppress_cpu_cores",
        "gauge",
        "Cores that best-effort work may use, by the policy in force.",
        ("type",),
    ),
    OwnFamily(
        "koordlet_start_time",
        "gauge",
        "When koordlet started, Unix time.",
        ("node",),
        Page.INTERNAL,
    ),
    OwnFamily(
        "koordlet_be_suppress_cpu_cores",
        "gauge",
        "Cores that best-effort work may use, by the policy in force.",
        ("node", "type"),
        Page.INTERNAL,
    ),
)


class ProcessMetrics:
    """Counts what reports tell and shows it with the newest ``view``. Any thread may call."""

    def __init__(self, view: Callable[[], NodeView]) -> None:
        self._view = view
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, tuple[str, ...]], float] = {}
        self._buckets = [0] * (len(TICK_BUCKETS_S) + 1)
        self._tick_sum_s = 0.0
        self._registries = {page: _registry(self, page) for page in (Page.OURS, Page.INTERNAL)}

    def observe(self, report: TickReport) -> None:
        """Count one tick and what came of it."""
        stats = report.stats
        with self._lock:
            self._add("koordlet_ticks_total", (stats.cause.value,))
            self._add("koordlet_tick_overruns_total", (), float(stats.overrun))
            self._add("koordlet_tick_cpu_seconds_total", (), stats.run_s)
            self._add("koordlet_kernel_file_reads_total", (), stats.reads)
            self._add("koordlet_kernel_file_opens_total", (), stats.opens)
            self._add("koordlet_kernel_file_writes_total", (), stats.writes)
            for outcome in report.outcomes:
                labels = (outcome.owner, outcome.knob.value, outcome.status.value)
                self._add("koordlet_outcomes_total", labels)
            for event in report.audit:
                self._add("koordlet_audit_events_total", (event.kind,))
            self._tick_sum_s += stats.duration_s
            self._buckets[_bucket(stats.duration_s)] += 1

    def _add(self, name: str, labels: tuple[str, ...], amount: float = 1) -> None:
        self._counts[name, labels] = self._counts.get((name, labels), 0.0) + amount

    def render(self, page: Page) -> bytes:
        """The lines about koordlet itself on ``page``."""
        registry = self._registries.get(page)
        return b"" if registry is None else generate_latest(registry)

    def collect(self, page: Page) -> Iterator[Metric]:
        """Every family of ``page`` that has a sample."""
        view = self._view()
        gauges = _gauges(view)
        with self._lock:
            counts = dict(self._counts)
            histogram = _histogram(self._buckets), self._tick_sum_s
        for family in OWN_FAMILIES:
            if family.page is not page:
                continue
            if family.kind == "histogram":
                metric = HistogramMetricFamily(family.name, family.help)
                metric.add_metric((), *histogram)
                yield metric
            elif family.kind == "counter":
                yield _counter(family, counts)
            elif family.name in gauges:
                yield _gauge(family, gauges[family.name], view.node)


class _PageCollector(Collector):
    def __init__(self, metrics: ProcessMetrics, page: Page) -> None:
        self._metrics = metrics
        self._page = page

    def collect(self) -> Iterator[Metric]:
        return self._metrics.collect(self._page)


def _registry(metrics: ProcessMetrics, page: Page) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_PageCollector(metrics, page))
    return registry


def _bucket(duration_s: float) -> int:
    for number, limit_s in enumerate(TICK_BUCKETS_S):
        if duration_s <= limit_s:
            return number
    return len(TICK_BUCKETS_S)


def _histogram(counts: list[int]) -> list[tuple[str, float]]:
    """Cumulative buckets by their upper limit."""
    limits = (*(str(limit_s) for limit_s in TICK_BUCKETS_S), "+Inf")
    return [(limit, float(sum(counts[: n + 1]))) for n, limit in enumerate(limits)]


def _counter(
    family: OwnFamily, counts: Mapping[tuple[str, tuple[str, ...]], float]
) -> CounterMetricFamily:
    metric = CounterMetricFamily(family.name, family.help, labels=family.labels)
    for (name, labels), value in counts.items():
        if name == family.name:
            metric.add_metric(labels, value)
    return metric


def _gauge(family: OwnFamily, samples: list[Sample], node: str) -> GaugeMetricFamily:
    metric = GaugeMetricFamily(family.name, family.help, labels=family.labels)
    first = (node,) if family.labels[:1] == ("node",) else ()
    for labels, value in samples:
        metric.add_metric((*first, *labels), value)
    return metric


def _gauges(view: NodeView) -> dict[str, list[Sample]]:
    """The samples of every gauge, without the ``node`` label."""
    found: dict[str, list[Sample]] = {
        "koordlet_build_info": [((view.version,), 1.0)],
        "koordlet_last_tick_age_seconds": [((), view.core_age_s)],
        "koordlet_source_age_seconds": [
            ((source.name,), source.age_s) for source in view.sources if source.age_s is not None
        ],
        "koordlet_source_state": [
            ((source.name, source.state.value), 1.0) for source in view.sources
        ],
    }
    if not isinstance(view.core, Missing):
        found |= _core_gauges(view.core)
        found["koordlet_be_suppress_cpu_cores"] = _budget(view, view.core)
        found["koordlet_be_root_quota_cores"] = _quotas(view, view.core)
    return found


def _core_gauges(core: CoreStatus) -> dict[str, list[Sample]]:
    severities = Counter(problem.severity.value for problem in core.problems)
    started: list[Sample] = [((), core.started_wall_s)]
    return {
        "koordlet_start_time": started,
        "koordlet_start_time_seconds": started,
        "koordlet_problems": [((name,), float(count)) for name, count in severities.items()],
        "koordlet_be_floor_bound": [((), float(core.floor_bound))],
        "koordlet_strategy_mode": [((s.name, s.mode.value), 1.0) for s in core.strategies],
        "koordlet_strategy_owned_values": [((s.name,), float(s.owned)) for s in core.strategies],
        "koordlet_strategy_hold_age_seconds": [
            ((s.name,), s.hold_age_s if s.hold_why else 0.0) for s in core.strategies
        ],
    }


def _budget(view: NodeView, core: CoreStatus) -> list[Sample]:
    """The budget that the strategy last worked out; nothing while it is off or holds."""
    policy = CpuSuppressPolicy.CPUSET
    if not isinstance(view.slo, Missing):
        policy = view.slo.slo.threshold.cpu_suppress_policy
    cores = be_budget_cores(core)
    return [] if cores is None else [((policy.value,), cores)]


def _quotas(view: NodeView, core: CoreStatus) -> list[Sample]:
    if isinstance(view.plan, Missing):
        return []
    return [((str(path),), cores) for path, cores in be_quotas_cores(core, view.plan).items()]
