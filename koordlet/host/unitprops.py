"""Which properties of a systemd unit stand behind a knob, and what systemd makes of their values.

Pure. Facts from systemd 252, held by tests against a real one: a property that is set is in force
at once and also written to a drop-in, from which the next daemon-reload takes it. CPUQuota= there
has whole percents only, so a quota is rounded up to them before (hazard H2). CPUWeight=idle is
cpu.idle 1, and hides the weight (hazard H1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from koordlet.model.knobs import Knob
from koordlet.protocol.cpuset import format_cpuset, parse_cpuset
from koordlet.units import BASE_PERIOD_US, QUOTA_MIN_US, US_PER_S

PropertyValue = int | frozenset[int]
"""A number, or a set of CPUs or memory nodes."""

UNSET = (1 << 64) - 1
"""What a number reads that nobody set; of a limit: none."""

IDLE_WEIGHT = 0
"""CPUWeight=idle."""

IDLE_SINCE = 252
"""The first systemd that knows CPUWeight=idle."""

QUOTA_STEP_US = 10_000
"""One percent of a CPU, in microseconds of each second."""

PERIOD = "CPUQuotaPeriodUSec"
"""Read, never set: how long the owner wants a cfs period to be."""

WEIGHT = "CPUWeight"
SHARES = "CPUShares"
QUOTA = "CPUQuotaPerSecUSec"


@dataclass(frozen=True, slots=True)
class Property:
    """One property: its name and type on D-Bus, and its key in unit files."""

    name: str
    signature: str  # "t" or "ay"
    key: str

    @property
    def drop_in(self) -> str:
        """The file that systemd writes when the property is set."""
        return f"50-{self.key}.conf"


PROPERTIES: Mapping[str, Property] = {
    each.name: each
    for each in (
        Property(WEIGHT, "t", "CPUWeight"),
        Property(SHARES, "t", "CPUShares"),
        Property(QUOTA, "t", "CPUQuota"),
        Property("AllowedCPUs", "ay", "AllowedCPUs"),
        Property("MemoryMin", "t", "MemoryMin"),
        Property("MemoryLow", "t", "MemoryLow"),
        Property("MemoryHigh", "t", "MemoryHigh"),
        Property("MemoryMax", "t", "MemoryMax"),
        Property("MemoryLimit", "t", "MemoryLimit"),
    )
}

_BY_KNOB: Mapping[tuple[Knob, int], str] = {
    (Knob.CPU_SHARES, 1): SHARES,
    (Knob.CPU_SHARES, 2): WEIGHT,
    (Knob.CPU_IDLE, 2): WEIGHT,
    (Knob.CPU_QUOTA, 1): QUOTA,
    (Knob.CPU_QUOTA, 2): QUOTA,
    (Knob.CPUSET_CPUS, 2): "AllowedCPUs",
    (Knob.MEMORY_MIN, 2): "MemoryMin",
    (Knob.MEMORY_LOW, 2): "MemoryLow",
    (Knob.MEMORY_HIGH, 2): "MemoryHigh",
    (Knob.MEMORY_LIMIT, 2): "MemoryMax",
    (Knob.MEMORY_LIMIT, 1): "MemoryLimit",
}
_FACTS: Mapping[str, tuple[str, ...]] = {QUOTA: (PERIOD,), SHARES: (WEIGHT,)}


def knows_idle(version: object) -> bool:
    """Whether a systemd of ``version`` (``252.39-1~deb12u1``) takes CPUWeight=idle; an unknown one
    may.
    """
    digits = re.match(r"\d+", str(version))
    return digits is None or int(digits[0]) >= IDLE_SINCE


def property_of(knob: Knob, version: int | None) -> Property | None:
    """The property behind ``knob`` on cgroup ``version``; None where systemd has none."""
    name = _BY_KNOB.get((knob, version or 0))
    return None if name is None else PROPERTIES[name]


def facts_of(knob: Knob, version: int | None) -> tuple[str, ...]:
    """Every property that has to be known before ``knob`` is set, its own first."""
    found = property_of(knob, version)
    return () if found is None else (found.name, *_FACTS.get(found.name, ()))


def values_of(
    knob: Knob, version: int | None, text: str, originals: Mapping[str, PropertyValue]
) -> dict[str, PropertyValue]:
    """The properties to set so that the knob's file reads ``text``, which is canonical.

    ``originals`` are the owner's values of the knob's facts. Empty where no property asks for
    ``text``: cpu.idle 0 is whatever the weight says. Raises ValueError for text that is none.
    """
    prop = property_of(knob, version)
    if prop is None or (knob is Knob.CPU_IDLE and text != "1"):
        return {}
    found: dict[str, PropertyValue] = {prop.name: _value(knob, text, _number(originals, PERIOD))}
    if prop.name == SHARES and _number(originals, WEIGHT) != UNSET:
        found[WEIGHT] = UNSET  # on v1, too, the weight outranks the shares
    return found


def _value(knob: Knob, text: str, period_us: int) -> PropertyValue:
    if knob is Knob.CPU_QUOTA:
        return UNSET if _is_unlimited(text) else quota_per_s(int(text), _period(period_us))
    if knob is Knob.CPU_IDLE:
        return IDLE_WEIGHT
    if knob is Knob.CPUSET_CPUS:
        return parse_cpuset(text)
    return UNSET if _is_unlimited(text) else int(text)


def quota_per_s(quota_us: int, period_us: int) -> int:
    """Microseconds of CPU time a second for ``quota_us`` in each ``period_us``, in whole percents
    of a CPU, rounded up, and as many as the kernel's least quota needs.
    """
    least = _up(QUOTA_MIN_US * US_PER_S, period_us)
    return max(_up(quota_us * US_PER_S, period_us), least)


def quota_text(quota_us: int, file_period_us: int, period_us: int = UNSET) -> str:
    """What the file will read once systemd has been given ``quota_us`` in ``file_period_us``.

    An unlimited unit's file shows the kernel's period, whatever the owner's ``period_us`` is.
    """
    per_s = quota_per_s(quota_us, file_period_us)
    return str(max(per_s * _period(period_us) // US_PER_S, QUOTA_MIN_US))


def setting_text(prop: Property, value: PropertyValue) -> str:
    """What systemd writes after ``Key=`` for ``value``; ``""`` where it is as nobody set it."""
    if isinstance(value, frozenset):
        return format_cpuset(value).replace(",", " ")
    if prop.name in (WEIGHT, SHARES, QUOTA) and value == UNSET:
        return ""
    if value == UNSET:
        return "infinity"
    if prop.name == WEIGHT and value == IDLE_WEIGHT:
        return "idle"
    return f"{value // QUOTA_STEP_US}%" if prop.name == QUOTA else str(value)


def to_bitmap(ids: Iterable[int]) -> bytes:
    """A set of CPUs as D-Bus carries it: bit n of byte m is CPU 8 m + n."""
    wanted = frozenset(ids)
    size = max(wanted) // 8 + 1 if wanted else 0
    return bytes(sum(1 << bit for bit in range(8) if 8 * at + bit in wanted) for at in range(size))


def from_bitmap(bitmap: bytes) -> frozenset[int]:
    """The set of CPUs in such a bitmap."""
    return frozenset(
        8 * at + bit for at, byte in enumerate(bitmap) for bit in range(8) if byte >> bit & 1
    )


def _number(originals: Mapping[str, PropertyValue], name: str) -> int:
    """A fact that is a number; as nobody set it where an older systemd does not know it."""
    value = originals.get(name, UNSET)
    return value if isinstance(value, int) else UNSET


def _period(period_us: int) -> int:
    return BASE_PERIOD_US if period_us == UNSET else period_us


def _up(dividend: int, period_us: int) -> int:
    """``dividend / period_us``, rounded up to whole percents of a CPU."""
    return -(-dividend // (period_us * QUOTA_STEP_US)) * QUOTA_STEP_US


def _is_unlimited(text: str) -> bool:
    return text in ("max", "-1")
