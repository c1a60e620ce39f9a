"""Requests and limits, read from the texts of pods."""

from __future__ import annotations

import json

import pytest

from koordlet.model.pods import Resources
from koordlet.pods.requests import InitWants, ResourceReader, Wants, pod_wants
from koordlet.protocol.problem import Severity


def test_native_resources() -> None:
    reader = ResourceReader()
    wants = reader.wants(
        {"requests": {"cpu": "300m", "memory": "64Mi"}, "limits": {"cpu": 1}}, "pod a/b"
    )
    assert wants == Wants(Resources(300, 64 << 20), Resources(1000, None))
    assert not reader.problems


def test_CFG_10_fractional_bytes_become_whole_ones() -> None:
    assert ResourceReader().resources({"memory": "0.1Gi"}, "x").memory_bytes == 107_374_183


def test_batch_resources_count_milli_cores_and_bytes() -> None:
    texts = {"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "1Gi"}
    reader = ResourceReader()
    assert reader.resources(texts, "x") == Resources(1500, 1 << 30)
    assert not reader.problems


def test_mid_resources_and_native_ones_first() -> None:
    assert ResourceReader().resources({"kubernetes.io/mid-cpu": 200}, "x").cpu_milli == 200
    both = {"cpu": "1", "kubernetes.io/batch-cpu": "10"}
    assert ResourceReader().resources(both, "x").cpu_milli == 1000


def test_CQ_21_batch_cpu_in_the_wrong_unit_is_kept_and_told() -> None:
    reader = ResourceReader()
    assert reader.resources({"kubernetes.io/batch-cpu": "200m"}, "pod a/b").cpu_milli == 1
    (problem,) = reader.problems
    assert problem.code == "batch-cpu-unit"
    assert problem.severity is Severity.WARNING
    assert "milli-core already" in problem.limit
    assert "write 200 " in problem.remedy


def test_zero_is_not_set() -> None:
    assert ResourceReader().resources({"cpu": "0", "memory": 0}, "x") == Resources()


@pytest.mark.parametrize("text", ["lots", "-1", "1e99", [], {}])
def test_unreadable_quantity_counts_as_not_set_and_is_told(text: object) -> None:
    reader = ResourceReader()
    assert reader.resources({"cpu": text, "memory": "1Mi"}, "pod a/b requests").cpu_milli is None
    (problem,) = reader.problems
    assert problem.where == "pod a/b requests"
    assert problem.severity is Severity.WARNING


@pytest.mark.parametrize("block", [None, [], "x", {"requests": []}])
def test_wrong_shape_is_nothing_asked_for(block: object) -> None:
    assert ResourceReader().wants(block, "x") == Wants()


def test_extended_spec_by_container() -> None:
    annotation = json.dumps(
        {
            "containers": {
                "worker": {
                    "requests": {"kubernetes.io/batch-cpu": 500},
                    "limits": {"kubernetes.io/batch-cpu": "1k"},
                }
            }
        }
    )
    reader = ResourceReader()
    assert reader.extended_spec(annotation, "pod a/b") == {
        "worker": Wants(Resources(cpu_milli=500), Resources(cpu_milli=1000))
    }


@pytest.mark.parametrize(
    "annotation", ["{", "[]", '{"containers": []}', '{"containers": {"a": 1}}']
)
def test_extended_spec_of_a_wrong_shape(annotation: str) -> None:
    reader = ResourceReader()
    assert all(wants == Wants() for wants in reader.extended_spec(annotation, "x").values())
    assert all(problem.severity is Severity.WARNING for problem in reader.problems)


def _cpu(request: int | None, limit: int | None = None) -> Wants:
    return Wants(Resources(cpu_milli=request), Resources(cpu_milli=limit))


def test_pod_is_the_sum_of_its_containers() -> None:
    wants = pod_wants([_cpu(100, 200), _cpu(None, 300)])
    assert wants.requests.cpu_milli == 100
    assert wants.limits.cpu_milli == 500


def test_one_unlimited_container_makes_the_pod_unlimited() -> None:
    assert pod_wants([_cpu(100, 200), _cpu(100)]).limits.cpu_milli is None
    unlimited_init = InitWants(_cpu(10), restartable=False)
    assert pod_wants([_cpu(100, 200)], [unlimited_init]).limits.cpu_milli is None


def test_init_containers_count_by_their_peak_only() -> None:
    small, big = (InitWants(_cpu(cpu, cpu), restartable=False) for cpu in (50, 500))
    assert pod_wants([_cpu(100, 100)], [small]).requests.cpu_milli == 100
    assert pod_wants([_cpu(100, 100)], [small, big]).requests.cpu_milli == 500


def test_sidecars_stay_beside_later_inits_and_the_rest() -> None:
    sidecar = InitWants(_cpu(100), restartable=True)
    init = InitWants(_cpu(250), restartable=False)
    assert pod_wants([_cpu(200)], [sidecar, init]).requests.cpu_milli == 350
    assert pod_wants([_cpu(400)], [sidecar, init]).requests.cpu_milli == 500
    assert pod_wants([_cpu(200)], [init, sidecar]).requests.cpu_milli == 300


def test_overhead_is_added() -> None:
    wants = pod_wants([_cpu(100, 200)], (), Resources(cpu_milli=50))
    assert (wants.requests.cpu_milli, wants.limits.cpu_milli) == (150, 250)


def test_pod_with_zero_containers_wants_nothing() -> None:
    assert pod_wants([]) == Wants()
