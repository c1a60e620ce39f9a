"""The Prometheus page."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from runtimeproxy.relay.calls import BUCKETS_S, MethodCount
from runtimeproxy.state import State

_PREFIX = "koord_runtimeproxy"


class _Collector(Collector):
    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        yield from self._calls()
        yield from self._hooks()
        yield from self._gauges()

    def _calls(self) -> Iterator[Metric]:
        calls = CounterMetricFamily(
            f"{_PREFIX}_calls", "Calls that ended.", labels=("method", "code")
        )
        hooked = CounterMetricFamily(
            f"{_PREFIX}_intercepted_calls", "Calls that were looked at.", labels=("method",)
        )
        took = HistogramMetricFamily(
            f"{_PREFIX}_call_duration_seconds",
            "From the first byte of a call to its end, hooks and runtime included.",
            labels=("method",),
        )
        for method, count in self._state.relay.counts.methods.items():
            for code, number in count.codes.items():
                calls.add_metric((method, code.name), number)
            hooked.add_metric((method,), count.hooked)
            took.add_metric((method,), buckets=_buckets(count), sum_value=count.total_s)
        yield from (calls, hooked, took)

    def _hooks(self) -> Iterator[Metric]:
        families = {
            "asked": "Questions to a hook server.",
            "failed": "Questions without a usable answer.",
            "skipped": "Questions not asked, since the server failed just before.",
            "changes": "Values that a hook server changed.",
            "refused": "Values that a hook server wanted and must not have.",
        }
        told = self._state.hook_servers()["servers"]
        for key, text in families.items():
            family = CounterMetricFamily(f"{_PREFIX}_hook_{key}", text, labels=("server",))
            for server in told:
                family.add_metric((server["name"],), server[key])
            yield family

    def _gauges(self) -> Iterator[Metric]:
        state = self._state
        values = {
            "calls_in_flight": ("Calls under way.", state.relay.counts.in_flight),
            "clients": ("Connections of clients.", len(state.relay.fronts)),
            "sandboxes": ("Pod sandboxes known.", len(state.store.sandboxes)),
            "containers": ("Containers known.", len(state.store.containers)),
            "ready": ("1 where the runtime answers and was compared.", int(state.ready())),
            "problems": ("Problems as in status.", len(state.problems())),
        }
        for name, (text, value) in values.items():
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)


def _buckets(count: MethodCount) -> list[tuple[str, float]]:
    total = 0
    cumulated: list[tuple[str, float]] = []
    for limit_s, number in zip(BUCKETS_S, count.buckets, strict=True):
        total += number
        cumulated.append(("+Inf" if limit_s == float("inf") else str(limit_s), total))
    return cumulated


class MetricsPage:
    """Renders what ``state`` tells."""

    def __init__(self, state: State) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(state))

    def __call__(self) -> tuple[int, str, bytes]:
        return 200, "text/plain; version=0.0.4; charset=utf-8", generate_latest(self._registry)
