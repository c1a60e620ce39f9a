"""The status for people: in full, and in the few lines of the live summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from koordlet.ctl.render.tables import facts, problems, section, show, table, word
from koordlet.ctl.text import (
    clean,
    cores,
    duration,
    known,
    missing_why,
    moment,
    ratio,
    reasoned,
    size,
    terms,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Data = Mapping[str, Any]


def draw_status(data: Data, console: Console) -> None:
    """The whole status."""
    show(console, status_parts(data))


def status_parts(data: Data) -> Iterable[RenderableType]:
    """The whole status, what matters most first."""
    yield from head_parts(data)
    yield from tail_parts(data)


def head_parts(data: Data) -> Iterable[RenderableType]:
    """What has to fit on the first screen: node, hints, BE roots."""
    yield facts(node_rows(data))
    yield from section("What to do next", problems(data["hints"]))
    yield from section("BE roots", be_roots(data["be_roots"]))


def tail_parts(data: Data) -> Iterable[RenderableType]:
    """The rest: strategies and sources."""
    yield from section("Strategies", strategies(data["strategies"]))
    yield from section("Sources", sources(data["sources"]))


def deferred(count: int) -> str:
    """How far a start with many values is (hazard H14); "" where nothing waits."""
    return f"{count} files wait for their turn: so many are written at once" if count else ""


def node_rows(data: Data) -> Iterable[tuple[str, str]]:
    """Facts about the node and about koordlet on it, by name; an empty text is nothing to say."""
    node, use = data["node"], data["usage"]
    yield "core", _core(data)
    yield "waiting for", clean(", ".join(data["waiting_for"]))
    yield "starting", deferred(data["deferred_writes"])
    yield "released", clean(", ".join(data["released"]))
    yield "modes", "; ".join(_unenforced(data["strategies"]))
    if missing_why(node) is None:
        yield (
            "node",
            (
                f"{node['capacity_cores']:g} CPUs ({known(node['cpus'])}),"
                f" {size(node['memory_bytes'])}, reserved {cores(node['reserved_cores'])} cores"
                f" and {size(node['reserved_memory_bytes'])}"
                f"{_listed(', exclusive CPUs', node['exclusive_cpus'])}"
            ),
        )
    yield (
        "cpu",
        (
            f"{cores(use['used_cpu_cores'])} cores used: pods {cores(use['nonbe_pods_cores'])},"
            f" apps {cores(use['nonbe_apps_cores'])}, BE {cores(use['be_cores'])},"
            f" system {cores(use['system_cores'])}; stalled {ratio(use['cpu_some_ratio'])}"
        ),
    )
    yield (
        "memory",
        (
            f"{size(use['used_memory_bytes'])} used,"
            f" {size(use['memory_available_bytes'])} available;"
            f" stalled {ratio(use['memory_some_ratio'])}"
        ),
    )
    yield "marked", _marked(data["marked"])
    yield "NodeSLO", reasoned(data["slo"])
    yield "BE budget", budget(data)
    yield (
        "held",
        "; ".join(
            f"{clean(hold['owner'])} for {duration(hold['age_s'])}: {clean(hold['why'])}"
            for hold in data["held"]
        ),
    )
    yield "in force", f"{data['owned_files']} kernel files"


def budget(data: Data) -> str:
    """The BE budget with the calculation behind it."""
    found = {term["name"]: term["value"] for term in data["budget"]}
    if not found:
        return "nothing calculates one"
    text = ", ".join(terms(data["budget"]))
    if found.keys() >= _FORMULA:
        text = (
            f"{cores(found['budget_cores'])} cores = {found['capacity_cores']:g} x"
            f" {found['threshold_percent']} % - {cores(found['nonbe_pods_cores'])} pods -"
            f" {cores(found['nonbe_apps_cores'])} apps - max({cores(found['system_cores'])} system,"
            f" {cores(found['reserved_cores'])} reserved), at least"
            f" {cores(found.get('min_cores', 0))}"
        )
    return text + ("; floor-bound" if data["floor_bound"] is True else "")


_FORMULA = frozenset(
    {
        "budget_cores",
        "capacity_cores",
        "threshold_percent",
        "nonbe_pods_cores",
        "nonbe_apps_cores",
        "system_cores",
        "reserved_cores",
    }
)


def _core(data: Data) -> str:
    core = data["core"]
    why = missing_why(core)
    if why is not None:
        return f"unknown: {clean(why)}"
    tick = data["last_tick"]
    parts = [
        f"pid {core['pid']}, version {known(data['version'])}, last word {duration(core['age_s'])}"
        " ago",
        "SILENT" if core["silent"] else "",
        "dry run: nothing is written" if core["dry_run"] else "",
        clean(core["takeover"]),
        "" if missing_why(tick) else f"tick {tick['tick']} took {_ms(tick['duration_s'])}",
    ]
    return ", ".join(part for part in parts if part)


def _unenforced(entries: list[Data]) -> Iterable[str]:
    """Strategies that somebody keeps from writing; the table of all may be off the screen."""
    for entry in entries:
        if entry["mode"] != "enforce":
            until = f" until {moment(entry['mode_until'])}" if entry["mode_until"] else ""
            yield f"{clean(entry['name'])} {clean(entry['mode'])}{until}"


def _ms(seconds: object) -> str:
    return f"{seconds * 1000:.1f} ms" if isinstance(seconds, int | float) else "?"


def _listed(name: str, cpus: str) -> str:
    return f"{name} {clean(cpus)}" if cpus else ""


def _marked(marked: Data) -> str:
    why = missing_why(marked)
    if why is not None:
        return f"unknown: {clean(why)}"
    by_qos = ", ".join(f"{clean(qos)} {count}" for qos, count in marked["pods_by_qos"].items())
    refused = marked["pods_refused"]
    parts = [
        f"{known(marked['pods_marked'])} of {known(marked['pods'])} pods",
        f"host applications: {marked['host_applications']}",
        by_qos and f"pods by QoS: {by_qos}",
        f"claims refused: {refused}" if isinstance(refused, int) and refused else "",
    ]
    return "; ".join(part for part in parts if part)


def be_roots(roots: list[Data]) -> RenderableType | None:
    """BE roots with use, limits and how those stand."""
    if not roots:
        return None
    made = table("root", "of", "used", "quota", "share", "cpus", "weight", "state", right=_NUMBERS)
    for root in roots:
        by_knob = {touch["knob"]: touch for touch in root["settings"]}
        states = {touch["state"] for touch in root["settings"]} - {"in-force"}
        made.add_row(
            clean(root["cgroup"]),
            clean(root["claimed_by"]),
            cores(root["used_cpu_cores"]),
            _quota(root["quota_cores"]),
            cores(root["share_cores"]),
            known(root["cpuset"]),
            known(by_knob["cpu.shares"]["value"]) if "cpu.shares" in by_knob else "-",
            word(", ".join(sorted(states)) or _governed(root)),
        )
    return made


_NUMBERS = ("used", "quota", "share", "weight")


def _quota(quota_cores: object) -> str:
    return "-" if quota_cores is None else cores(quota_cores)


def _governed(root: Data) -> str:
    if not root["writable"]:
        return "observed"
    return "in force" if root["settings"] else "untouched"


def strategies(entries: list[Data]) -> RenderableType | None:
    """Strategies with mode, files and holds."""
    if not entries:
        return None
    made = table("strategy", "NodeSLO", "mode", "files", "would", "held", right=("files", "would"))
    for entry in entries:
        until = entry["mode_until"]
        made.add_row(
            clean(entry["name"]),
            "on" if entry["enabled"] else "off",
            clean(entry["mode"]) + (f" until {moment(until)}" if until else ""),
            str(entry["owned_files"]),
            str(entry["would"]),
            f"{duration(entry['hold_age_s'])}: {clean(entry['hold_why'])}"
            if entry["hold_why"]
            else "",
        )
    return made


def sources(entries: list[Data]) -> RenderableType | None:
    """Sources with state and age."""
    if not entries:
        return None
    made = table("source", "state", "age", "detail", right=("age",))
    for entry in entries:
        age = "-" if entry["age_s"] is None else duration(entry["age_s"])
        detail = clean(entry["detail"])
        made.add_row(clean(entry["name"]), word(entry["state"]), age, detail)
    return made
