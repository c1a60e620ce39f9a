"""Kubernetes quantities (``500m``, ``0.1Gi``, ``1e3``), read exactly."""

from __future__ import annotations

import math
import re
from fractions import Fraction

_SUFFIXES: dict[str, Fraction] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(1 << 10),
    "Mi": Fraction(1 << 20),
    "Gi": Fraction(1 << 30),
    "Ti": Fraction(1 << 40),
    "Pi": Fraction(1 << 50),
    "Ei": Fraction(1 << 60),
}
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,2})|(?P<suffix>[numkMGTPE]|[KMGTPE]i)?)"
)
_MAX_TEXT = 64
_MAX_VALUE = 2**63 - 1
_REMEDY = "remedy: write e.g. 500m, 2, 1.5 or 0.1Gi"


class QuantityError(ValueError):
    """A text that is no quantity we take; the message names the limit and the remedy."""


def parse_quantity(text: str) -> Fraction:
    """The exact value of ``text`` in its base unit (cores, bytes, bit/s).

    Raises QuantityError for other texts than Kubernetes allows and beyond +-(2**63 - 1).
    """
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise QuantityError(
            f"quantity {text[:_MAX_TEXT]!r} is not readable;"
            f" limit: a decimal number with n, u, m, k, M, G, T, P, E, Ki .. Ei or an exponent;"
            f" {_REMEDY}"
        )
    value = Fraction(match["number"])
    if match["exponent"] is not None:
        value *= Fraction(10) ** int(match["exponent"])
    else:
        value *= _SUFFIXES[match["suffix"] or ""]
    if abs(value) > _MAX_VALUE:
        raise QuantityError(f"quantity {text!r} is too large; limit: 2^63-1; {_REMEDY}")
    return value


def parse_milli(text: str) -> int:
    """Milli-units, rounded up as Kubernetes does (``0.1m`` is 1); for CPU, milli-cores.

    Raises QuantityError, also for negative values and beyond 2**63 - 1.
    """
    milli = math.ceil(_not_negative(text) * 1000)
    if milli > _MAX_VALUE:
        raise QuantityError(f"quantity {text!r} is too large; limit: 2^63-1 thousandths; {_REMEDY}")
    return milli


def parse_bytes(text: str) -> int:
    """Whole base units, rounded up: ``0.1Gi`` is 107374183 (case CFG-10).

    Raises QuantityError, also for negative values.
    """
    return math.ceil(_not_negative(text))


def _not_negative(text: str) -> Fraction:
    value = parse_quantity(text)
    if value < 0:
        raise QuantityError(f"quantity {text!r} is negative; limit: 0 or more; {_REMEDY}")
    return value
