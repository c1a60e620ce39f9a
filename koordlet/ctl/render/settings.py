"""Kernel files with their values and reasons, for people: plan and explain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from koordlet.ctl.render.status import deferred, strategies
from koordlet.ctl.render.tables import facts, heading, section, show
from koordlet.ctl.text import (
    clean,
    duration,
    known,
    milli,
    missing_why,
    reasoned,
    size,
    terms,
    wanted,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Data = Mapping[str, Any]


def draw_plan(data: Data, console: Console) -> None:
    """Every file of the plan, grouped by how it stands."""
    show(console, _plan_parts(data))


def _plan_parts(data: Data) -> Iterable[RenderableType]:
    why = missing_why(data["decided"])
    if why is not None:
        yield f"nothing was decided yet: {clean(why)}"
    if data["waiting_for"]:
        yield f"waiting for: {clean(', '.join(data['waiting_for']))}"
    if data["deferred_writes"]:
        yield deferred(data["deferred_writes"])
    if data["released"]:
        yield f"released: {clean(', '.join(data['released']))}"
    if data["dry_run"] is True:
        yield "nothing is written (dry run): this is what would be"
    if not data["settings"]:
        yield "no kernel file would be written now"
    for setting in data["settings"]:
        yield from ("", *setting_brief(setting))
    yield from section("Strategies", strategies(data["strategies"]))


def setting_brief(setting: Data) -> Iterable[RenderableType]:
    """One file in three lines: what, value and state, why."""
    yield heading(where(setting))
    yield facts(
        (
            ("value", f"{value_text(setting)} ({clean(setting['owner'])})"),
            ("state", _state(setting)),
            ("why", clean(setting["reason"])),
        )
    )


def where(setting: Data) -> str:
    """The file of a setting, or its meaning where the file is gone."""
    if missing_why(setting["file"]) is None:
        return str(setting["file"])
    return f"{setting['cgroup'] or '/'} {setting['knob']}"


def value_text(setting: Data) -> str:
    """The value that is wanted, else the one that is there."""
    if missing_why(setting["value"]) is None:
        return wanted(setting["value"], setting["unit"])
    return known(setting["present"])


def _state(setting: Data) -> str:
    """How it stands, with what the kernel said where it said no."""
    state = clean(setting["state"])
    outcome = setting["outcome"]
    if outcome and outcome["status"] not in ("applied", "unchanged", "restored", "dry-run"):
        errno = f" (errno {outcome['errno']})" if outcome["errno"] else ""
        told = "" if outcome["status"] == state else f", {clean(outcome['status'])}"
        state += f"{told}{errno}: {clean(outcome['why'])}"
    if missing_why(setting["hold_age_s"]) is None:
        state += f" for {duration(setting['hold_age_s'])}"
    if missing_why(setting["age_s"]) is None:
        state += f"; ours since {duration(setting['age_s'])}"
    return state


def draw_explain(data: Data, console: Console) -> None:
    """Every subject with everything behind it."""
    for number, subject in enumerate(data["subjects"]):
        show(console, ("",) if number else ())
        show(console, _subject_parts(subject))


def _subject_parts(subject: Data) -> Iterable[RenderableType]:
    yield heading(f"{subject['kind']} {subject['name']}")
    yield facts(_subject_rows(subject))
    if not subject["settings"] and not subject["above"]:
        yield "koordlet writes, holds and restores nothing here"
    for title, entries in (("", subject["settings"]), ("From above", subject["above"])):
        if title and entries:
            yield from ("", heading(title))
        for setting in entries:
            yield from ("", *setting_full(setting))


def _subject_rows(subject: Data) -> Iterable[tuple[str, str]]:
    yield "", clean(subject["sentence"])
    for workload in (subject["pod"], subject["host_application"]):
        if workload is not None:
            yield from _workload_rows(workload)
    strategy = subject["strategy"]
    if strategy is not None:
        yield "mode", clean(strategy["mode"])
        yield "NodeSLO", "on" if strategy["enabled"] else "off"
        yield "held", clean(strategy["hold_why"])
        yield "numbers", ", ".join(terms(strategy["terms"]))


def _workload_rows(workload: Data) -> Iterable[tuple[str, str]]:
    yield "uid", clean(workload.get("uid", ""))
    yield "cgroup", reasoned(workload["cgroup"])
    yield "governed by", "" if workload["governed_by"] is None else clean(workload["governed_by"])
    requests, limits = workload["requests"], workload["limits"]
    source = workload.get("resources_source")
    yield "requests", _resources(requests) + (f" (from {clean(source)})" if source else "")
    yield "limits", _resources(limits)
    band = known(workload["priority_class"])
    yield "priority", f"{known(workload['priority'])}, class {band}"


def _resources(resources: Data) -> str:
    memory = resources["memory_bytes"]
    return f"{milli(resources['cpu_milli'])} CPUs, {'-' if memory is None else size(memory)}"


def _original(setting: Data) -> str:
    """What comes back at the end, and who knows it where it was not read from the file."""
    source = clean(setting["original_source"])
    return reasoned(setting["original"]) + (f" (adopted: {source})" if source else "")


def setting_full(setting: Data) -> Iterable[RenderableType]:
    """One file with every value of it, the reason and the numbers in order."""
    yield heading(where(setting))
    yield facts(
        (
            ("meaning", f"{clean(setting['knob'])} of {clean(setting['cgroup']) or '/'}"),
            ("owner", f"{clean(setting['owner'])}, written by {clean(setting['channel'])}"),
            ("state", _state(setting)),
            ("wanted", wanted(setting["value"], setting["unit"])),
            ("present", reasoned(setting["present"])),
            ("original", _original(setting)),
            ("we wrote", reasoned(setting["last_written"])),
            ("why", clean(setting["reason"])),
            ("numbers", "\n".join(terms(setting["terms"]))),
            ("conflict", "\n".join(clean(text) for text in setting["conflicts"])),
        )
    )
