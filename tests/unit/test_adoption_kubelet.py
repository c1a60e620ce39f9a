"""H14: the kubelet's arithmetic, by values that it wrote itself."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from koordpb import cri_v1_pb2 as pb

from koordlet.adoption.kubelet import (
    WeightFormula,
    by_systemd,
    milli_to_quota_us,
    milli_to_shares,
    weight_of,
)
from koordlet.model.pods import PodRecord
from koordlet.pods.podlist import parse_pod_list


@pytest.mark.parametrize(
    ("milli", "shares"),
    [(None, 2), (0, 2), (1, 2), (2, 2), (100, 102), (250, 256), (1000, 1024), (300_000, 262_144)],
)
def test_H14_shares_are_rounded_down_between_the_kernels_limits(
    milli: int | None, shares: int
) -> None:
    assert milli_to_shares(milli) == shares


@pytest.mark.parametrize(
    ("milli", "quota_us"),
    [(None, None), (0, None), (1, 1_000), (9, 1_000), (250, 25_000), (1_234, 123_400)],
)
def test_H14_a_quota_is_at_least_a_millisecond(milli: int | None, quota_us: int | None) -> None:
    assert milli_to_quota_us(milli, 100_000) == quota_us


def test_H14_a_quota_counts_in_the_period_of_its_cgroup() -> None:
    assert milli_to_quota_us(1_500, 50_000) == 75_000


def test_H14_systemd_rounds_a_quota_up_to_ten_milliseconds_a_second() -> None:
    assert by_systemd(123_400, 100_000) == 124_000
    assert by_systemd(124_000, 100_000) == 124_000
    assert by_systemd(61_700, 50_000) == 62_000


@pytest.mark.parametrize(
    ("shares", "linear", "quadratic"),
    [(2, 1, 1), (102, 4, 17), (512, 20, 59), (1024, 39, 100), (262_144, 10_000, 10_000)],
)
def test_H14_two_formulas_make_a_weight_of_shares(shares: int, linear: int, quadratic: int) -> None:
    assert weight_of(shares, WeightFormula.LINEAR) == linear
    assert weight_of(shares, WeightFormula.QUADRATIC) == quadratic


# -- against what a real kubelet asked its runtime for --------------------------------------------

CAPTURED = Path(__file__).parents[1] / "fixtures/captured"


def captured(method: str, request: Callable[[], Any]) -> Iterator[Any]:
    """The requests of one method that a kubelet 1.36 made."""
    for line in (CAPTURED / "kubelet-1.36-cri-calls.jsonl").read_text().splitlines():
        call = json.loads(line)
        if call["method"].endswith(f"/{method}"):
            found = request()
            found.ParseFromString(base64.b64decode(call["request"]))
            yield found


def pods() -> dict[str, PodRecord]:
    body = (CAPTURED / "kubelet-pods-v1-cgroupfs.json").read_bytes()
    return {record.name: record for record in parse_pod_list(body).records}


def test_H14_containers_of_a_real_kubelet_have_what_the_formula_says() -> None:
    compared = set()
    records = pods()
    for call in captured("CreateContainer", pb.CreateContainerRequest):
        pod = records.get(call.sandbox_config.metadata.name)
        if pod is None:
            continue
        name = call.config.metadata.name
        natives = {each.name: each.native for each in pod.containers}
        asked, linux = natives[name], call.config.linux.resources
        assert asked is not None
        assert linux.cpu_shares == milli_to_shares(asked.requests.cpu_milli), name
        quota_us = milli_to_quota_us(asked.limits.cpu_milli, linux.cpu_period)
        assert linux.cpu_quota == (quota_us or 0), name
        assert linux.memory_limit_in_bytes == (asked.limits.memory_bytes or 0), name
        compared.add((pod.name, name))
    assert {name for _, name in compared} >= {"web", "sidecar", "warm", "db", "c"}


def test_H14_pods_of_a_real_kubelet_have_what_the_formula_says() -> None:
    """The sandbox's configuration tells the pod's sums; of limits it leaves undeclared ones out,
    so those are compared where every container has one.
    """
    compared = set()
    records = pods()
    for call in captured("RunPodSandbox", pb.RunPodSandboxRequest):
        pod, linux = records.get(call.config.metadata.name), call.config.linux.resources
        if pod is None or pod.native is None:
            continue
        assert linux.cpu_shares == milli_to_shares(pod.native.requests.cpu_milli), pod.name
        compared.add(pod.name)
        if pod.native.limits.cpu_milli is None:
            continue
        quota_us = milli_to_quota_us(pod.native.limits.cpu_milli, 100_000)
        assert linux.cpu_quota == quota_us, pod.name
        assert linux.memory_limit_in_bytes == pod.native.limits.memory_bytes, pod.name
    assert compared >= {"ls-web-n1", "lsr-db-n1", "be-n1"}
