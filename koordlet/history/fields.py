"""Which readings have a history: all but the kernel's own counters, whose rates have one."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Final, Literal, get_args

from koordlet.metrics.readings import FIELDS, Group, Level, Values

NODE_BUDGET: Final = len(Group)
ROOT_QUOTA: Final = len(Group) + 1
"""Groups of history's own: what suppression decided, for the node and for each BE root."""
GROUP_COUNT: Final = len(Group) + 2

_COUNTER: Final = "_total"


def _positions(group: Group) -> tuple[int, ...]:
    return tuple(n for n, name in enumerate(FIELDS[group]) if not name.endswith(_COUNTER))


SERIES: Final[Mapping[int, tuple[str, ...]]] = {
    **{int(group): tuple(FIELDS[group][at] for at in _positions(group)) for group in Group},
    NODE_BUDGET: ("be_budget_cores",),
    ROOT_QUOTA: ("be_quota_cores",),
}
"""The series of each group, in the order of its values."""

ALL_SERIES: Final = tuple(dict.fromkeys(name for names in SERIES.values() for name in names))

_PICKERS: Final = {
    int(group): itemgetter(*_positions(group)) for group in Group if len(_positions(group)) > 1
}
_FIRST: Final = {int(group): _positions(group)[0] for group in Group if int(group) not in _PICKERS}


def pick(group: int, values: Values) -> Values:
    """Of a group's values those that have a history."""
    picker = _PICKERS.get(group)
    if picker is not None:
        return picker(values)  # type: ignore[no-any-return]
    return (values[_FIRST[group]],)


_PRESSURE: Final = tuple(
    f"{what}_{how}_ratio" for what in ("cpu", "memory", "io") for how in ("some", "full")
)

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "all": ALL_SERIES,
    "cpu": tuple(name for name in ALL_SERIES if name.endswith("_cores")),
    "memory": tuple(name for name in ALL_SERIES if "memory" in name and name.endswith("_bytes")),
    "throttling": ("throttled_ratio",),
    "pressure": _PRESSURE,
    "io": tuple(name for name in ALL_SERIES if name.endswith("_per_s")),
}
"""Words that stand for several series."""

MAIN_SERIES: Final[Mapping[Level, tuple[str, ...]]] = {
    Level.NODE: (
        "used_cpu_cores",
        "nonbe_pods_cores",
        "nonbe_apps_cores",
        "be_cores",
        "system_cores",
        "be_budget_cores",
        "used_memory_bytes",
        "cpu_some_ratio",
        "memory_some_ratio",
        "io_some_ratio",
    ),
    Level.DISK: ("read_bytes_per_s", "written_bytes_per_s"),
    Level.INTERFACE: ("received_bytes_per_s", "sent_bytes_per_s"),
    **{
        level: (
            "used_cpu_cores",
            "be_quota_cores",
            "throttled_ratio",
            "memory_working_set_bytes",
            "cpu_some_ratio",
        )
        for level in (Level.TIER, Level.POD, Level.CONTAINER, Level.APP)
    },
}
"""What is shown where nobody names a series."""


SeriesUnit = Literal["bytes_per_s", "per_s", "cores", "bytes", "ratio"]


def unit_of(series: str) -> SeriesUnit:
    """The end of the name."""
    units: tuple[SeriesUnit, ...] = get_args(SeriesUnit)
    return next(unit for unit in units if series.endswith(unit))
