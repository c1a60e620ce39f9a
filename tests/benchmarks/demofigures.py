"""What the measured slices of the demo say: figures, and the table of the four arms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rich.table import Table

from tests.benchmarks.common import quantile
from tests.support.openloop import Played

Figures = dict[str, Any]
_QUANTILES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}


class Arm(StrEnum):
    """Who governs the batch work beside the service."""

    ALONE = "alone"
    UNMANAGED = "unmanaged"
    K8S_DEFAULT = "k8s_default"
    MANAGED = "managed"


@dataclass(frozen=True)
class Phase:
    """A part of the day: where it begins and ends, as shares of the day from midnight on."""

    name: str
    begins: float
    ends: float


DAY = (
    Phase("night", -0.125, 0.125),
    Phase("morning", 0.125, 0.375),
    Phase("noon", 0.375, 0.625),
    Phase("evening", 0.625, 0.875),
)
NIGHT_CORES, NOON_CORES = 0.15, 0.7


def demand_cores(day: float) -> float:
    """What the service needs at this share of the day: least at midnight, most at noon."""
    return NIGHT_CORES + (NOON_CORES - NIGHT_CORES) * (1 - math.cos(2 * math.pi * day)) / 2


@dataclass(frozen=True)
class Slice:
    """One arm in one phase: the counted requests, and what was used and done meanwhile."""

    arm: Arm
    phase: Phase
    wall_s: float
    played: Played
    service_s: float  # CPU
    batch_s: float  # CPU
    units: float
    switch_s: float
    in_force: dict[str, str]  # the batch cgroup's settings at the end

    def raw(self) -> Figures:
        """Its own values, for the object's ``runs``."""
        return {
            "arm": self.arm,
            "phase": self.phase.name,
            **of_slices([self], 1),
            "wall_s": round(self.wall_s, 3),
            "requests": len(self.played.offsets),
            "service_cpu_s": round(self.service_s, 3),
            "batch_cpu_s": round(self.batch_s, 3),
            "units": self.units,
            "switch_s": round(self.switch_s, 2),
            "in_force": self.in_force,
        }


def of_slices(slices: Sequence[Slice], cores: int) -> Figures:
    """Latency over all requests of these slices; rates over their time."""
    latencies_ms = [1000 * each for one in slices for each in one.played.latencies_s()]
    wall_s = sum(one.wall_s for one in slices)
    used_s = sum(one.service_s + one.batch_s for one in slices)
    return {
        **{name: _rounded(quantile(latencies_ms, share)) for name, share in _QUANTILES.items()},
        "units_per_s": _rounded(sum(one.units for one in slices) / wall_s),
        "cpu_utilization": _rounded(used_s / (cores * wall_s)),
    }


def of_arm(slices: Sequence[Slice], cores: int) -> Figures:
    """All figures of one arm: over its day, by phase, and how good the load was."""
    late_ms = [1000 * each for one in slices for each in one.played.late_s()]
    sent = [each for one in slices for each in one.played.sent]
    wall_s = sum(one.wall_s for one in slices)
    return {
        **of_slices(slices, cores),
        "service_cores": _rounded(sum(one.service_s for one in slices) / wall_s),
        "batch_cores": _rounded(sum(one.batch_s for one in slices) / wall_s),
        "seconds": round(wall_s, 1),
        "requests": len(sent),
        "unanswered": sum(one.played.unanswered for one in slices),
        "sent_ratio": sum(each is not None for each in sent) / len(sent),
        "sent_late_ms_p99": _rounded(quantile(late_ms, 0.99)),
        "switch_s": round(statistics.fmean(one.switch_s for one in slices), 2),
        "phases": {
            phase.name: of_slices([one for one in slices if one.phase is phase], cores)
            for phase in dict.fromkeys(one.phase for one in slices)
        },
    }


def of_all(slices: Sequence[Slice], cores: int) -> Figures:
    """The four arms beside one another, and how they compare."""
    arms = {arm: of_arm([one for one in slices if one.arm is arm], cores) for arm in Arm}
    alone, unmanaged, default, managed = (arms[arm] for arm in Arm)
    return {
        "arms": arms,
        "ls_p99_ratio_unmanaged": _ratio(unmanaged["p99_ms"], alone["p99_ms"]),
        "ls_p99_ratio_k8s_default": _ratio(default["p99_ms"], alone["p99_ms"]),
        "ls_p99_ratio_managed": _ratio(managed["p99_ms"], alone["p99_ms"]),
        "ls_p99_managed_to_k8s_default": _ratio(managed["p99_ms"], default["p99_ms"]),
        "batch_kept_ratio": _ratio(managed["units_per_s"], unmanaged["units_per_s"]),
        "batch_kept_ratio_k8s_default": _ratio(default["units_per_s"], unmanaged["units_per_s"]),
        "sent_ratio": min(arm["sent_ratio"] for arm in arms.values()),
        "sent_late_ms_p99": max(arm["sent_late_ms_p99"] for arm in arms.values()),
    }


def _ratio(value: float, base: float) -> float:
    return _rounded(value / base) if base else math.nan


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def table(figures: Figures) -> Table:
    """The four arms, for people."""
    arms = figures["arms"]
    shown = Table(title="one day, the same requests in each arm", title_justify="left")
    shown.add_column("")
    for arm in Arm:
        shown.add_column(arm, justify="right")

    def row(name: str, *cells: str, last: bool = False) -> None:
        shown.add_row(name, *cells, end_section=last)

    for name, key in (("latency p50", "p50_ms"), ("p99", "p99_ms"), ("p99.9", "p999_ms")):
        row(f"{name}, ms", *(f"{arms[arm][key]:.2f}" for arm in Arm))
    row("p99 to alone", "1.00", *(f"{figures[f'ls_p99_ratio_{arm}']:.2f}" for arm in _governed()))
    shown.add_section()
    for phase in arms[Arm.ALONE]["phases"]:
        row(f"p99 {phase}, ms", *(f"{arms[arm]['phases'][phase]['p99_ms']:.2f}" for arm in Arm))
    shown.add_section()
    row("batch units/s", "-", *(f"{arms[arm]['units_per_s']:.1f}" for arm in _governed()))
    kept = ("-", "1.00", *(f"{figures[key]:.2f}" for key in _KEPT))
    row("batch kept", *kept)
    row("CPU used", *(f"{arms[arm]['cpu_utilization']:.0%}" for arm in Arm))
    return shown


_KEPT = ("batch_kept_ratio_k8s_default", "batch_kept_ratio")


def _governed() -> tuple[Arm, ...]:
    return tuple(arm for arm in Arm if arm is not Arm.ALONE)
