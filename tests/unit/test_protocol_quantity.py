"""Kubernetes quantities, as users really write them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from koordlet.protocol.quantity import QuantityError, parse_bytes, parse_milli, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", Fraction(0)),
        ("2", Fraction(2)),
        ("+2", Fraction(2)),
        ("-1", Fraction(-1)),
        ("500m", Fraction(1, 2)),
        ("100n", Fraction(1, 10**7)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("1e3", Fraction(1000)),
        ("1E-3", Fraction(1, 1000)),
        ("1E", Fraction(10**18)),
        ("1Ei", Fraction(1 << 60)),
        ("12k", Fraction(12000)),
        ("1Ki", Fraction(1024)),
    ],
)
def test_quantities_are_exact(text: str, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "max",
        "-",
        "1K",
        "1 Gi",
        "1gi",
        "0x10",
        "1e",
        "1e999999999",
        "1_000",
        "nan",
        "inf",
        "\u0661",
        "1\n",
        "9" * 65,
        "10E",
        "1e60",
    ],
)
def test_other_texts_are_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(QuantityError, match=r"limit: .*remedy: "):
        parse_quantity(text)


def test_CFG_10_a_fraction_of_a_byte_rounds_up() -> None:
    assert parse_bytes("0.1Gi") == 107_374_183
    assert parse_bytes("1Gi") == 1 << 30


def test_milli_rounds_up_as_kubernetes_does() -> None:
    assert parse_milli("0.1m") == 1
    assert parse_milli("1.0001") == 1001
    assert parse_milli("2") == 2000


@pytest.mark.parametrize("read", [parse_bytes, parse_milli])
def test_amounts_are_never_negative(read: type[int]) -> None:
    with pytest.raises(QuantityError, match="negative"):
        read("-1")
