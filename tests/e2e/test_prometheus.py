"""A real Prometheus in front of koordlet, and promtool's opinion of its page and its rules."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import debian, prometheus
from tests.support.fakenode import FakeNode
from tests.support.koordletd import Koordlet
from tests.support.prometheus import Prometheus, promtool
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

ALERTS = Path(__file__).resolve().parents[2] / "systemd/examples/alerts.yaml"
SOON_S = 20.0
SCRAPE_S = 1.0
NODE_SLO = """
spec:
  resourceUsedThresholdWithBE: {enable: true, cpuSuppressPolicy: cfsQuota}
  resourceQOSStrategy: {beClass: {cpuQOS: {enable: true, schedIdle: 1}}}
"""


@pytest.fixture(autouse=True, scope="module")
def _installed() -> None:
    try:
        debian.ensure(prometheus.PACKAGE)
    except debian.PackagesError as error:
        pytest.skip(str(error))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    with FakeNode(tmp_path) as made:
        for name, qos in (("service", "LS"), ("batch", "BE")):
            (cgroup,) = made.add_pod(name, qos, 1).containers.values()
            made.burner(cgroup, 0.1)
        yield made


@pytest.fixture
def koordlet(node: FakeNode, tmp_path: Path) -> Iterator[Koordlet]:
    slo = tmp_path / "nodeslo.yaml"
    slo.write_text(NODE_SLO)
    with Koordlet(
        tmp_path / "koordlet", node.root.root, cri_endpoint=node.cri.endpoint, node_slo=slo
    ) as daemon:
        yield daemon


def page(koordlet: Koordlet) -> str:
    url = f"http://127.0.0.1:{koordlet.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=10.0) as answer:
        return str(answer.read().decode())


def test_prometheus_scrapes_koordlet_and_gone_containers_leave(
    node: FakeNode, koordlet: Koordlet, tmp_path: Path
) -> None:
    rules = (ALERTS,) if ALERTS.exists() else ()
    used = 'koordlet_container_used_cpu_cores{pod="batch"}'
    with Prometheus(tmp_path / "prometheus", koordlet.metrics_port, *rules) as server:
        until(lambda: server.values("up") == [1.0], SOON_S, "a first good scrape")
        until(
            lambda: any(cores > 0 for cores in server.values(used)),
            SOON_S,
            "the use of the batch container",
        )
        others = 'koordlet_container_used_cpu_cores{pod="service"}'
        assert len(server.values(others)) == 1

        batch = next(pod for pod in node.pods if pod.record.name == "batch")
        node.remove_pod(batch)
        until(lambda: "batch" not in page(koordlet), SOON_S, "koordlet to forget the pod")
        until(lambda: not server.values(used), 3 * SCRAPE_S, "its series to leave with a scrape")
        assert len(server.values(others)) == 1
        assert server.values("up") == [1.0]
        health = server.alerts()
        assert set(health.values()) <= {"ok"}, health
        assert len(health) > 0 or not rules


def test_promtool_finds_no_fault_with_the_page(koordlet: Koordlet) -> None:
    until(lambda: 'pod="batch"' in page(koordlet), SOON_S, "the pods' series")
    assert promtool("check", "metrics", text=page(koordlet)) == ""


def test_promtool_finds_the_faults_that_there_are() -> None:
    """Else the test above could not fail."""
    assert "counter metrics should have" in promtool(
        "check",
        "metrics",
        text="# HELP some_things Things.\n# TYPE some_things counter\nsome_things 1\n",
    )


@pytest.mark.skipif(not ALERTS.exists(), reason="no example alerts")
def test_promtool_accepts_the_example_alerts() -> None:
    assert promtool("check", "rules", str(ALERTS)) == ""
