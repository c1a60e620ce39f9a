"""What uses the node, what is done to it and why: a line for each tier and workload.

Everything here is made from three answers and the size of the screen.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from koordlet.ctl.output import console
from koordlet.ctl.render.status import node_rows
from koordlet.ctl.render.tables import facts, show
from koordlet.ctl.render.workloads import qos_word
from koordlet.ctl.text import clean, cores, duration, missing_why, moment, ratio, size, wanted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Data = Mapping[str, Any]
HEAD_ROWS = ("released", "modes", "cpu", "memory", "BE budget", "held")
"""Of the status' facts those that matter while one watches."""
NUMBER_COLUMNS = {"cpu": 6, "memory": 9, "throttled": 9}
QOS_COLUMNS, GAP_COLUMNS = 6, 2
LEAST_NAME, LEAST_TEXT = 12, 16
"""Columns below which a name is cut, and a text is left out."""
LEAST_ROWS = 3


@dataclass(frozen=True, slots=True)
class Look:
    """Three answers of about one moment."""

    status: Data
    pods: Data
    plan: Data


@dataclass(frozen=True, slots=True)
class TopOptions:
    """``sort``: cpu, memory, throttled or name. ``qos``: only these classes, empty is all.
    ``rows``: so many workloads, None is what fits.
    """

    sort: str = "cpu"
    qos: frozenset[str] = frozenset()
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of the list. ``qos`` is the effective class, ``mark`` how it is shown."""

    name: str
    qos: str
    mark: str
    usage: Data
    done: str
    why: str


def top_parts(
    seen: Look | str, options: TopOptions, columns: int, lines: int | None = None
) -> list[RenderableType]:
    """The screen from top to bottom, no wider than ``columns``; with ``lines`` no higher, as far
    as a few workloads have room. A text in place of a look is shown as it is.
    """
    if isinstance(seen, str):
        return [seen]
    head = list(_head(seen))
    reasons = _Reasons(seen.plan["data"]["settings"])
    tiers = list(_tier_rows(seen.pods["data"], reasons))
    rows = _sorted(_workload_rows(seen.pods["data"], reasons, options.qos), options.sort)
    room = options.rows
    if room is None and lines is not None:
        # One line for the table's head, one for the count below it, one for the cursor.
        room = max(LEAST_ROWS, lines - _height(head, columns) - len(tiers) - 3)
    shown = rows if room is None else rows[:room]
    return [*head, _table([*tiers, *shown], columns), _count(rows, shown, seen.pods["data"])]


def _head(seen: Look) -> Iterator[RenderableType]:
    said = seen.status
    errors = sum(problem["severity"] == "error" for problem in said["problems"])
    troubles = f"; errors: {errors}, see koordletctl status" if errors else ""
    yield f"koordlet on {clean(said['node'])}, {moment(said['taken_at'])}{troubles}"
    rows = [(name, text) for name, text in node_rows(said["data"]) if name in HEAD_ROWS]
    yield facts(rows)
    yield ""


def _count(rows: Sequence[_Row], shown: Sequence[_Row], data: Data) -> str:
    why = missing_why(data["pods"])
    if why is not None:
        return f"pods unknown: {clean(why)}"
    more = f", {len(rows) - len(shown)} more below" if len(rows) > len(shown) else ""
    age = duration(data["pods_age_s"])
    return f"{len(rows)} pods and host applications{more}; pods as of {age} ago"


# -- rows -----------------------------------------------------------------------------------------


class _Reasons:
    """What the plan does at or below each cgroup, and why."""

    def __init__(self, settings: Iterable[Data]) -> None:
        self._at: dict[str, list[Data]] = {}
        self._below: dict[str, list[Data]] = {}
        for setting in settings:
            self._at.setdefault(setting["cgroup"], []).append(setting)
            for above in _upwards(setting["cgroup"]):
                self._below.setdefault(above, []).append(setting)

    def at(self, cgroup: str) -> tuple[str, str]:
        """For a directory that others lie in: only its own files."""
        return _told(self._at.get(cgroup, ()))

    def at_or_below(self, workload: Data) -> tuple[str, str]:
        """For a workload: its own files and its containers', else the root that binds it."""
        cgroup, root = workload["cgroup"], workload["governed_by"]
        found = self._below.get(cgroup, ()) if isinstance(cgroup, str) else ()
        if found or root in (None, cgroup):
            return _told(found)
        return (f"within {clean(root)}", _told(self._at.get(root, ()))[1])


def _upwards(cgroup: str) -> Iterator[str]:
    yield cgroup
    while cgroup:
        cgroup = cgroup.rpartition("/")[0]
        yield cgroup


def _told(settings: Iterable[Data]) -> tuple[str, str]:
    """What is done and why, each text once."""
    found = [setting for setting in settings if not setting["side_effect"]]
    done = dict.fromkeys(_done(setting) for setting in found)
    why = dict.fromkeys(clean(setting["reason"]) for setting in found if setting["reason"])
    return "; ".join(done), "; ".join(why)


def _done(setting: Data) -> str:
    value, state = wanted(setting["value"], setting["unit"]), clean(setting["state"])
    text = clean(setting["knob"]) if value == "-" else f"{clean(setting['knob'])} {value}"
    return text if state == "in-force" else f"{text} ({state})"


def _tier_rows(data: Data, reasons: _Reasons) -> Iterator[_Row]:
    tiers = data["tiers"]
    for tier in tiers if missing_why(tiers) is None else ():
        done, why = reasons.at(tier["cgroup"])
        yield _Row(f"tier {clean(tier['name'])}", "", "", tier["usage"], done, why)


def _workload_rows(data: Data, reasons: _Reasons, qos: frozenset[str]) -> Iterator[_Row]:
    pods, apps = data["pods"], data["host_applications"]
    for pod in pods if missing_why(pods) is None else ():
        if not qos or pod["qos"]["effective"] in qos:
            name = clean(f"{pod['namespace']}/{pod['name']}")
            told = reasons.at_or_below(pod)
            yield _Row(name, pod["qos"]["effective"], qos_word(pod["qos"]), pod["usage"], *told)
    for app in apps if missing_why(apps) is None else ():
        if not qos or app["qos"] in qos:
            told = reasons.at_or_below(app)
            yield _Row(clean(app["name"]), app["qos"], clean(app["qos"]), app["usage"], *told)


_SORTED_BY: Mapping[str, str] = {
    "cpu": "used_cpu_cores",
    "memory": "memory_working_set_bytes",
    "throttled": "throttled_ratio",
}


def _sorted(rows: Iterable[_Row], by: str) -> list[_Row]:
    """By name, or by use, the most first and what is unknown last."""
    named = sorted(rows, key=lambda row: row.name)
    if by == "name":
        return named
    return sorted(named, key=_use(_SORTED_BY[by]), reverse=True)


def _use(field: str) -> Callable[[_Row], float]:
    def used(row: _Row) -> float:
        value = row.usage[field]
        return float(value) if isinstance(value, int | float) else -1.0

    return used


# -- the table ------------------------------------------------------------------------------------


def _table(rows: Sequence[_Row], columns: int) -> Table:
    """A line each: texts are cut, numbers never."""
    from rich.table import Table

    longest_name = max((len(row.name) for row in rows), default=LEAST_NAME)
    longest_done = max((len(row.done) for row in rows), default=0)
    widths = column_widths(columns, longest_name, longest_done)
    made = Table(box=None, pad_edge=False, padding=(0, GAP_COLUMNS, 0, 0), header_style="bold")
    for name, width in widths.items():
        justify: Any = "right" if name in NUMBER_COLUMNS else "left"
        made.add_column(name, width=width, justify=justify, no_wrap=True, overflow="ellipsis")
    for row in rows:
        made.add_row(*(_CELLS[name](row) for name in widths))
    return made


_CELLS: Mapping[str, Callable[[_Row], str]] = {
    "of": lambda row: row.name,
    "qos": lambda row: row.mark,
    "cpu": lambda row: cores(row.usage["used_cpu_cores"]),
    "memory": lambda row: size(row.usage["memory_working_set_bytes"]),
    "throttled": lambda row: ratio(row.usage["throttled_ratio"]),
    "done": lambda row: row.done,
    "why": lambda row: row.why,
}


def column_widths(columns: int, longest_name: int, longest_done: int) -> dict[str, int]:
    """The columns that have room, from left to right, with their widths. What does not fit is left
    out, the last one first; only the name is always there.
    """
    left = columns - 1
    widths = {"of": max(1, min(longest_name, max(LEAST_NAME, left // 3), left))}
    left -= widths["of"]
    for name, width in (("cpu", NUMBER_COLUMNS["cpu"]), ("qos", QOS_COLUMNS)):
        left = _take(widths, name, width, left)
    for name in ("memory", "throttled"):
        left = _take(widths, name, NUMBER_COLUMNS[name], left)
    both = left - 2 * GAP_COLUMNS
    if both >= 2 * LEAST_TEXT:
        widths["done"] = max(LEAST_TEXT, min(longest_done, both * 2 // 5))
        widths["why"] = both - widths["done"]
    elif left - GAP_COLUMNS >= LEAST_TEXT:
        widths["done"] = left - GAP_COLUMNS
    return {name: widths[name] for name in _CELLS if name in widths}


def _take(widths: dict[str, int], name: str, width: int, left: int) -> int:
    if left < width + GAP_COLUMNS:
        return 0
    widths[name] = width
    return left - width - GAP_COLUMNS


def _height(parts: Sequence[RenderableType], columns: int) -> int:
    drawn = io.StringIO()
    show(console(drawn, width=columns), parts)
    return drawn.getvalue().count("\n")
