"""Knobs as properties of units: values, roundings, and what systemd writes of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.unitprops import (
    IDLE_WEIGHT,
    PERIOD,
    PROPERTIES,
    UNSET,
    PropertyValue,
    facts_of,
    from_bitmap,
    knows_idle,
    property_of,
    quota_per_s,
    quota_text,
    setting_text,
    to_bitmap,
    values_of,
)
from koordlet.model.knobs import Knob

IDLE_2 = (Knob.CPU_IDLE, 2)


@pytest.mark.parametrize(
    ("knob", "version", "text", "wanted"),
    [
        (Knob.CPU_SHARES, 2, "1", {"CPUWeight": 1}),
        (Knob.CPU_SHARES, 1, "2", {"CPUShares": 2}),
        (Knob.CPU_IDLE, 2, "1", {"CPUWeight": IDLE_WEIGHT}),
        (Knob.CPU_IDLE, 2, "0", {}),
        (Knob.CPU_QUOTA, 2, "30000", {"CPUQuotaPerSecUSec": 300_000}),
        (Knob.CPU_QUOTA, 2, "max", {"CPUQuotaPerSecUSec": UNSET}),
        (Knob.CPU_QUOTA, 1, "-1", {"CPUQuotaPerSecUSec": UNSET}),
        (Knob.CPUSET_CPUS, 2, "0,2-3", {"AllowedCPUs": frozenset({0, 2, 3})}),
        (Knob.CPUSET_CPUS, 2, "", {"AllowedCPUs": frozenset()}),
        (Knob.MEMORY_LIMIT, 2, "104857600", {"MemoryMax": 100 << 20}),
        (Knob.MEMORY_LIMIT, 2, "max", {"MemoryMax": UNSET}),
        (Knob.MEMORY_HIGH, 2, "max", {"MemoryHigh": UNSET}),
        (Knob.MEMORY_LOW, 2, "4096", {"MemoryLow": 4096}),
        (Knob.MEMORY_MIN, 2, "0", {"MemoryMin": 0}),
        (Knob.MEMORY_LIMIT, 1, "-1", {"MemoryLimit": UNSET}),
        (Knob.CPU_BURST, 2, "1000", {}),
        (Knob.CPU_IDLE, 1, "1", {}),
        (Knob.CPUSET_CPUS, 1, "0", {}),
    ],
)
def test_H06_the_properties_behind_a_knob(
    knob: Knob, version: int, text: str, wanted: dict[str, PropertyValue]
) -> None:
    assert values_of(knob, version, text, {}) == wanted
    assert (property_of(knob, version) is None) == (not wanted and (knob, version) != IDLE_2)


def test_on_v1_a_weight_that_the_owner_set_would_outrank_the_shares() -> None:
    assert facts_of(Knob.CPU_SHARES, 1) == ("CPUShares", "CPUWeight")
    owners = {"CPUShares": UNSET, "CPUWeight": 50}
    wanted = {"CPUShares": 2, "CPUWeight": UNSET}
    assert values_of(Knob.CPU_SHARES, 1, "2", owners) == wanted


@pytest.mark.parametrize(
    ("quota_us", "period_us", "per_s_us", "text"),
    [
        (30_000, 100_000, 300_000, "30000"),
        (30_001, 100_000, 310_000, "31000"),
        (123_456, 100_000, 1_240_000, "124000"),
        (5_100, 100_000, 60_000, "6000"),
        (1, 100_000, 10_000, "1000"),
        (2_000, 100_000, 20_000, "2000"),
        (2_500, 50_000, 50_000, "5000"),
    ],
)
def test_H02_a_quota_is_rounded_up_to_whole_percents_before_it_is_set(
    quota_us: int, period_us: int, per_s_us: int, text: str
) -> None:
    assert quota_per_s(quota_us, period_us) == per_s_us
    assert quota_text(quota_us, period_us) == text


def test_an_owners_period_shows_once_there_is_a_quota() -> None:
    assert quota_text(30_000, 100_000, 10_000) == "3000"
    assert values_of(Knob.CPU_QUOTA, 2, "3000", {PERIOD: 10_000}) == {"CPUQuotaPerSecUSec": 300_000}


@given(
    quota_us=st.integers(1_000, 100_000_000),
    file_period_us=st.integers(1_000, 1_000_000),
    period_us=st.one_of(st.just(UNSET), st.integers(1_000, 1_000_000)),
)
def test_H02_what_a_file_will_read_stands_for_what_was_set(
    quota_us: int, file_period_us: int, period_us: int
) -> None:
    """The journal keeps texts: each has to lead back to the property that it came from."""
    per_s_us = quota_per_s(quota_us, file_period_us)
    text = quota_text(quota_us, file_period_us, period_us)
    assert per_s_us % 10_000 == 0
    assert per_s_us * file_period_us >= quota_us * 1_000_000
    shown_us = 100_000 if period_us == UNSET else period_us
    if per_s_us * shown_us >= 1_000 * 1_000_000:  # else systemd makes the period longer
        originals: dict[str, PropertyValue] = {PERIOD: period_us}
        again = values_of(Knob.CPU_QUOTA, 2, text, originals)["CPUQuotaPerSecUSec"]
        assert isinstance(again, int)
        assert per_s_us <= again <= per_s_us + 10_000 or again == quota_per_s(1, shown_us)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("CPUQuotaPerSecUSec", 300_000, "30%"),
        ("CPUQuotaPerSecUSec", 1_250_000, "125%"),
        ("CPUQuotaPerSecUSec", UNSET, ""),
        ("CPUWeight", 1, "1"),
        ("CPUWeight", IDLE_WEIGHT, "idle"),
        ("CPUWeight", UNSET, ""),
        ("AllowedCPUs", frozenset({0, 1, 3}), "0-1 3"),
        ("MemoryMax", UNSET, "infinity"),
        ("MemoryMax", 4096, "4096"),
    ],
)
def test_what_systemd_writes_into_a_drop_in(name: str, value: PropertyValue, text: str) -> None:
    assert setting_text(PROPERTIES[name], value) == text
    assert PROPERTIES[name].drop_in == f"50-{PROPERTIES[name].key}.conf"


@given(st.frozensets(st.integers(0, 4_095)))
def test_a_set_of_cpus_survives_d_bus(cpus: frozenset[int]) -> None:
    assert from_bitmap(to_bitmap(cpus)) == cpus


def test_the_bitmap_of_cpus() -> None:
    assert to_bitmap({0, 1, 9}) == b"\x03\x02"
    assert from_bitmap(b"\x03\x02\x00") == {0, 1, 9}


@pytest.mark.parametrize(
    ("version", "knows"),
    [("252.39-1~deb12u1", True), ("v251", True), ("247.3-7", False), ("249", False), ("", True)],
)
def test_weight_idle_came_with_252(version: str, knows: bool) -> None:
    assert knows_idle(version) is knows
