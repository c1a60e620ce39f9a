"""CPU lists as kernels, runtimes and people write them."""

from __future__ import annotations

import pytest

from koordlet.protocol.cpuset import MAX_CPU_ID, CpuSetError, format_cpuset, parse_cpuset


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3", {0, 1, 2, 3}),
        ("0-3\n", {0, 1, 2, 3}),
        ("0,2,4", {0, 2, 4}),
        ("5,0-1,1-2", {0, 1, 2, 5}),
        ("0, 2", {0, 2}),
        ("007", {7}),
    ],
)
def test_lists_and_ranges(text: str, cpus: set[int]) -> None:
    assert parse_cpuset(text) == cpus


@pytest.mark.parametrize("text", ["", "\n", "  \n"])
def test_CS_02_an_empty_text_is_the_empty_set(text: str) -> None:
    assert parse_cpuset(text) == frozenset()


def test_CS_04_the_wide_set_that_a_runtime_asks_for() -> None:
    cpus = parse_cpuset("0,3-52,55-103")
    assert len(cpus) == 1 + 50 + 49
    assert {1, 2, 53, 54}.isdisjoint(cpus)
    assert format_cpuset(cpus) == "0,3-52,55-103"


@pytest.mark.parametrize(
    "text",
    [
        "max",
        "-",
        "(unknown)",
        "0-",
        "-3",
        "0--3",
        "3-0",
        "0,,1",
        "0,",
        "0x3",
        "1.0",
        "+1",
        "0-3:1/2",
        "0\n1",
        "\u0663",
        "0-4000000000",
        "99999",
        str(MAX_CPU_ID + 1),
        "0," * 40_000,
    ],
)
def test_other_texts_are_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(CpuSetError, match="remedy: "):
        parse_cpuset(text)


def test_the_kernels_own_form() -> None:
    assert format_cpuset([2, 1, 0, 5, 5]) == "0-2,5"
    assert format_cpuset([0, 1]) == "0-1"
    assert format_cpuset([]) == ""
