"""koordlet beside a real kubelet, whose binary KUBELET names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.managed import BE_TIER, SPIN, SPIN_TWICE, Managed, ctl_json
from tests.support import machine
from tests.support.containerd import Containerd
from tests.support.kubelet import Kubelet
from tests.support.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(machine.why_no_kubelet_tests()), reason=machine.why_no_kubelet_tests()),
    pytest.mark.timeout(240),
]

RESTRICTED_CORES = 0.6
SOON_S = 15.0
POD_S = 60.0


@pytest.fixture
def managed(containerd: Containerd, tmp_path: Path) -> Iterator[Managed]:
    made = Managed(containerd, tmp_path)
    yield made
    made.close()


@pytest.fixture
def kubelet(managed: Managed, tmp_path: Path) -> Iterator[Kubelet]:
    with Kubelet(managed.runtime, tmp_path / "kubelet") as made:
        made.add_pod("batch", "BE", SPIN_TWICE)
        made.add_pod("service", "LS", SPIN, cpu_request="500m")
        until(lambda: made.is_running("batch") and made.is_running("service"), POD_S, "both pods")
        yield made


def idle_pods(managed: Managed) -> list[str]:
    tier = managed.cgroups.dir(BE_TIER)
    return [str(path) for path in tier.glob("pod*/cpu.idle") if path.read_text().strip() == "1"]


def test_H01_a_kubelet_restarts_while_everything_is_in_force(
    managed: Managed, kubelet: Kubelet
) -> None:
    daemon = managed.daemon(kubelet=kubelet.url)
    with daemon:
        until(lambda: managed.limited_below(RESTRICTED_CORES), SOON_S, "a low BE quota")
        until(lambda: idle_pods(managed), SOON_S, "an idle BE pod")
        kubelet.stop()
        kubelet.start()
        assert kubelet.lives_for(5.0), kubelet.log_tail()
        assert "Failed to start ContainerManager" not in kubelet.log_path.read_text()
        assert managed.cgroups.weight(BE_TIER) == managed.cgroups.weight_of(2)
        assert managed.limited_below(RESTRICTED_CORES)
        assert idle_pods(managed)
    assert managed.quota() == -1
    assert idle_pods(managed) == []


def test_H14_a_kubelets_own_values_are_no_leftovers_and_what_differs_is(
    managed: Managed, kubelet: Kubelet, tmp_path: Path
) -> None:
    kubelet.add_pod("db", "LSR", SPIN, limits={"cpu": "251m", "memory": "64Mi"})
    kubelet.add_pod("api", "LS", SPIN, "33m", limits={"cpu": "125m", "memory": "33Mi"})
    until(lambda: kubelet.is_running("db") and kubelet.is_running("api"), POD_S, "more pods")
    off = tmp_path / "absent.yaml"  # the built-in NodeSLO
    with managed.daemon(kubelet=kubelet.url, node_slo=off) as daemon:

        def leftovers() -> list[dict[str, object]]:
            data = json.loads(daemon.ctl("-o", "json", "adopt", "--dry-run").stdout)["data"]
            assert data["compared"]
            files: list[dict[str, object]] = data["files"]
            return files

        until(lambda: not daemon.status()["waiting_for"], SOON_S, "a decision")
        until(lambda: leftovers() == [], SOON_S, f"no leftovers: {leftovers()}")
        managed.cgroups.set_quota_us(BE_TIER, 50_000)
        (only,) = leftovers()
        assert (only["cgroup"], only["found"]) == (BE_TIER, "50000")
        assert daemon.ctl("adopt", "--yes").returncode == 0
        until(lambda: managed.quota() == -1, SOON_S, "the tier's own value")


def test_H13_the_kubelet_tells_what_the_runtime_does_not(
    managed: Managed, kubelet: Kubelet
) -> None:
    with managed.daemon(kubelet=kubelet.url) as daemon:

        def service() -> dict[str, object]:
            pods = ctl_json(daemon, "pods")["data"]["pods"]
            return next((pod for pod in pods if pod["name"].startswith("service")), {})

        until(lambda: service().get("resources_source") == "kubelet", SOON_S, "kubelet's word")
        assert service()["requests"] == {"cpu_milli": 500, "memory_bytes": None}
