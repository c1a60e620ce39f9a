"""Round trips of the small texts of the protocol."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.protocol.cpuset import MAX_CPU_ID, CpuSetError, format_cpuset, parse_cpuset
from koordlet.protocol.quantity import QuantityError, parse_bytes, parse_milli, parse_quantity


@given(st.frozensets(st.integers(0, MAX_CPU_ID), max_size=50))
def test_a_cpuset_survives_its_text(cpus: frozenset[int]) -> None:
    assert parse_cpuset(format_cpuset(cpus)) == cpus


@given(st.text(alphabet="0123456789,- \n", max_size=20))
def test_a_text_is_a_cpuset_or_refused(text: str) -> None:
    try:
        cpus = parse_cpuset(text)
    except CpuSetError:
        return
    assert parse_cpuset(format_cpuset(cpus)) == cpus


@given(st.integers(0, 10**6), st.sampled_from(["m", "", "k", "Ki", "Mi", "G"]))
def test_a_whole_number_with_a_suffix_scales_exactly(number: int, suffix: str) -> None:
    one = parse_quantity("1" + suffix)
    assert parse_quantity(f"{number}{suffix}") == number * one


@given(st.text(alphabet="0123456789.+-eEnumkKMGTPi", max_size=12))
def test_a_text_is_a_quantity_or_refused(text: str) -> None:
    try:
        value = parse_quantity(text)
    except QuantityError:
        return
    assert isinstance(value, Fraction)
    if value >= 0:
        assert value <= parse_bytes(text) < value + 1
        if value * 1000 > 2**63 - 1:
            with pytest.raises(QuantityError, match="too large"):
                parse_milli(text)
        else:
            assert value * 1000 <= parse_milli(text) < value * 1000 + 1
