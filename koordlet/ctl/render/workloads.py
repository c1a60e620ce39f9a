"""Pods and host applications for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from koordlet.ctl.render.tables import section, show, table
from koordlet.ctl.text import clean, cores, duration, milli, missing_why, ratio, size

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Data = Mapping[str, Any]
_NUMBERS = ("cpu", "request", "limit", "memory", "throttled", "files")


def draw_pods(data: Data, console: Console) -> None:
    """All workloads."""
    show(console, _parts(data))


def _parts(data: Data) -> Iterable[RenderableType]:
    why = missing_why(data["pods"])
    if why is not None:
        yield f"pods unknown: {clean(why)}"
    elif not data["pods"]:
        yield "no pods"
    else:
        yield pods_table(data["pods"])
        yield f"{len(data['pods'])} pods, as of {duration(data['pods_age_s'])} ago"
    apps = data["host_applications"]
    if apps and missing_why(apps) is None:
        yield from section("Host applications", apps_table(apps))


def pods_table(pods: list[Data]) -> RenderableType:
    """One row a pod; ``files`` are the kernel files that koordlet has to do with."""
    made = table("pod", "qos", *_NUMBERS, right=_NUMBERS)
    for pod in pods:
        made.add_row(
            clean(f"{pod['namespace']}/{pod['name']}"),
            qos_word(pod["qos"]),
            *_numbers(pod),
        )
    return made


def apps_table(apps: list[Data]) -> RenderableType:
    """One row an application."""
    made = table("application", "qos", *_NUMBERS, right=_NUMBERS)
    for app in apps:
        made.add_row(
            clean(app["name"]),
            clean(app["qos"]),
            *_numbers(app),
        )
    return made


def qos_word(qos: Data) -> str:
    """The effective class; ``*`` unmarked, ``!`` a claim was refused."""
    mark = "!" if qos["refused"] else "" if qos["marked"] else "*"
    return clean(qos["effective"]) + mark


def _numbers(workload: Data) -> tuple[str, ...]:
    usage, limits = workload["usage"], workload["limits"]
    return (
        cores(usage["used_cpu_cores"]),
        milli(workload["requests"]["cpu_milli"]),
        milli(limits["cpu_milli"]),
        size(usage["memory_working_set_bytes"]),
        ratio(usage["throttled_ratio"]),
        str(len(workload["settings"])),
    )
