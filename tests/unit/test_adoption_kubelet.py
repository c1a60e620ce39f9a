"""H14: the kubelet's arithmetic, by values that it wrote itself."""

from __future__ import annotations

import pytest

from koordlet.adoption.kubelet import (
    WeightFormula,
    by_systemd,
    milli_to_quota_us,
    milli_to_shares,
    weight_of,
)


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
