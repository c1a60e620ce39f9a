"""The text of cgroup files to values and back: pure functions, one per form.

Parsers take bytes as the kernel gives them and raise ValueError for what is none of theirs; whoever
reads a file turns that into Missing. Unlimited is ``None``, whatever its spelling.
"""

from __future__ import annotations

from collections.abc import Iterable

from koordlet.model.knobs import Value
from koordlet.protocol.cpuset import format_cpuset, parse_cpuset
from koordlet.units import (
    SHARES_MAX,
    SHARES_MIN,
    WEIGHT_MAX,
    WEIGHT_MIN,
    shares_to_weight,
    weight_to_shares,
)

V1_UNLIMITED_FROM_BYTES = 9_223_372_036_854_710_272
"""The smallest "no limit" of a v1 memory file: LONG_MAX rounded down to a 64 KiB page. With 16 and
4 KiB pages the kernel shows ...4759424 and ...4771712 (case V1-04)."""

Text = bytes | str

_MOST_DIGITS = 20
"""What a 64-bit counter needs; longer texts are no counter, and cost time to convert."""


def parse_int(text: Text) -> int:
    """One integer."""
    return int(text)


def parse_counter(text: bytes) -> int:
    """A counter or a size: digits, with blanks or NULs around them, and never negative."""
    digits = text.strip(b" \t\r\n\0")
    if not _is_uint(digits):
        raise ValueError(f"{text[:80]!r} is no counter")
    return int(digits)


def parse_int_or_max(text: Text) -> int | None:
    """One integer, or ``max``."""
    return None if text.strip() in (b"max", "max") else int(text)


def parse_bytes(text: Text) -> int | None:
    """A memory limit. v2 says ``max`` (case V2-01); v1 reads a huge number (case V1-04), and
    ``-1`` is only ever written.
    """
    number = parse_int_or_max(text)
    unlimited = number is None or number < 0 or number >= V1_UNLIMITED_FROM_BYTES
    return None if unlimited else number


def parse_v1_quota(text: Text) -> int | None:
    """cpu.cfs_quota_us; any negative number is unlimited (case CQ-11)."""
    number = int(text)
    return None if number < 0 else number


def parse_cpu_max_quota(text: Text) -> int | None:
    """The quota in cpu.max; vendor kernels add a third field (case V2-02), a write may leave the
    period out.
    """
    return parse_int_or_max(_field(text, 0))


def parse_cpu_max_period(text: Text) -> int:
    """The period in cpu.max."""
    return int(_field(text, 1))


def parse_weight(text: Text) -> int:
    """cpu.weight as v1 shares, by the linear formula, which is not the only one in use: runtimes
    may have computed the weight by another one, so the result is nominal.
    """
    return weight_to_shares(int(text))


def parse_io_weight(text: Text) -> int:
    """The default in io.weight (``default 100``, then one line per device)."""
    for line in _text(text).splitlines():
        name, _, number = line.partition(" ")
        if name == "default":
            return int(number)
        if name.isdigit():
            return int(name)
    raise ValueError(f"no default weight in {_text(text)!r}")


def parse_cpus(text: Text) -> frozenset[int]:
    """A list of CPUs or memory nodes; empty is the empty set (case CS-02)."""
    return parse_cpuset(_text(text).strip())


def parse_lines(text: Text) -> str:
    """Text kept as it is, stripped."""
    return _text(text).strip()


def format_int(value: Value) -> str:
    """An integer."""
    return str(_integer(value))


def format_int_or_max(value: Value) -> str:
    """An integer, or ``max`` for unlimited."""
    return "max" if value is None else str(_integer(value))


def format_int_or_minus_one(value: Value) -> str:
    """An integer, or ``-1`` for unlimited: the one spelling every v1 kernel takes (case V1-05)."""
    return "-1" if value is None else str(_integer(value))


def format_shares(value: Value) -> str:
    """v1 shares, clamped to the kernel's range."""
    return str(min(max(_integer(value), SHARES_MIN), SHARES_MAX))


def format_weight(value: Value) -> str:
    """v1 shares as a v2 weight."""
    return str(shares_to_weight(_integer(value)))


def format_io_weight(value: Value) -> str:
    """The default weight of io.weight."""
    return f"default {min(max(_integer(value), WEIGHT_MIN), WEIGHT_MAX)}"


def format_cpus_v1(value: Value) -> str:
    """A cpuset. Raises ValueError for the empty set: with tasks v1 answers ENOSPC (case CS-01)."""
    if value == frozenset():
        raise ValueError("an empty cpuset is never written on cgroup v1: tasks need a CPU")
    return format_cpus_v2(value)


def format_cpus_v2(value: Value) -> str:
    """A cpuset; the empty set, which means "as the parent", is one newline: an empty text would
    never reach the kernel (hazard H2).
    """
    if not isinstance(value, frozenset):
        raise ValueError(f"{value!r} is not a set of CPUs")
    return format_cpuset(value) or "\n"


def format_text(value: Value) -> str:
    """Text as it is."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    return value


def normalise_int(text: Text) -> str:
    """An integer without the spaces around it."""
    return str(int(text))


def normalise_cpus(text: Text) -> str:
    """A cpuset as the kernel prints it; the empty one stays empty."""
    return format_cpuset(parse_cpus(text))


def parse_flat_keyed(text: bytes) -> dict[bytes, int]:
    """``key number`` lines (cpu.stat, memory.stat); other lines are skipped (case V1-11)."""
    found: dict[bytes, int] = {}
    for line in text.split(b"\n"):
        key, _, number = line.partition(b" ")
        if number.isdigit() and len(number) <= _MOST_DIGITS:
            found[key] = int(number)
    return found


def pick_flat_keyed(text: bytes, keys: Iterable[bytes]) -> dict[bytes, int]:
    """Only these keys of such a text: of the sixty lines of memory.stat four count."""
    found: dict[bytes, int] = {}
    whole = b"\n" + text + b"\n"
    for key in keys:
        at = whole.find(b"\n" + key + b" ")
        if at >= 0:
            start = at + len(key) + 2
            number = whole[start : whole.index(b"\n", start)]
            if _is_uint(number):
                found[key] = int(number)
    return found


def _is_uint(digits: bytes) -> bool:
    return digits.isdigit() and len(digits) <= _MOST_DIGITS


def _field(text: Text, at: int) -> str:
    fields = _text(text).split()
    if len(fields) <= at:
        raise ValueError(f"{_text(text)!r} is not 'quota period'")
    return fields[at]


def _text(text: Text) -> str:
    return text.decode() if isinstance(text, bytes) else text


def _integer(value: Value) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r} is not an integer")
    return value
