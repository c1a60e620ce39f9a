"""How many cores BE work may use now: Koordinator's formula with the use of one instant."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from koordlet.model.actions import Mode, Terms
from koordlet.model.pods import BeRoot
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import ResourceUsedThreshold
from koordlet.qosmanager.names import CPU_SUPPRESS
from koordlet.snapshot import CpuUse, Snapshot

SURGE_RATIO = 0.05
"""Of capacity: so much more use by non-BE workloads in the last 5 Hz interval counts at once
(hazard H28). System use never does: koordlet's own tick, whole in one interval, would be one."""

REST_RATIO = 0.01
"""Of capacity: the first interval of a surge is seldom whole; its rest counts from here on."""

SAFE_MIN_PERCENT = 10
"""Of capacity: what BE keeps at least when its budget cannot be known for too long."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Cores for all BE roots together, and the calculation behind them.

    ``governed_cores`` is what the writable roots may use: the budget without the present use of
    roots that are only observed (systemd units).
    """

    cores: float
    governed_cores: float
    capacity_cores: float
    terms: Terms


def be_budget(snapshot: Snapshot, threshold: ResourceUsedThreshold) -> Budget | Missing:
    """capacity x threshold % - non-BE pods - non-BE applications - max(system, reserved).

    Not below capacity x ``cpuSuppressMinPercent``. The use of every BE root is BE use, wherever
    it lies (hazard H12, a deviation from Koordinator). Capacity is the physical size (CQ-19).
    Missing where use or capacity is unknown or not a finite number: a NaN passes no comparison.
    """
    use = present_use(snapshot)
    if isinstance(use, Missing):
        return use
    capacity = snapshot.node.capacity_cores
    reserved = max(0.0, snapshot.node.reserved_cores)  # in this order NaN gives 0
    percent = threshold.cpu_suppress_threshold_percent
    spare = (
        capacity * percent / 100
        - use.nonbe_pods_cores
        - use.nonbe_apps_cores
        - max(use.system_cores, reserved, 0.0)
    )
    floor = capacity * (threshold.cpu_suppress_min_percent or 0) / 100
    cores = max(spare, floor, 0.0)
    observed = _observed_cores(use, snapshot.be_roots)
    governed = max(cores - observed, 0.0)
    terms: Terms = (
        ("capacity_cores", capacity),
        ("threshold_percent", percent),
        ("nonbe_pods_cores", use.nonbe_pods_cores),
        ("nonbe_apps_cores", use.nonbe_apps_cores),
        ("system_cores", use.system_cores),
        ("reserved_cores", reserved),
        ("use_window_s", use.window_s),
        ("min_cores", floor),
        ("budget_cores", cores),
    )
    if observed > 0:
        terms += (("observed_be_units_cores", observed), ("governed_budget_cores", governed))
    return Budget(cores, governed, capacity, terms)


@dataclass(frozen=True, slots=True)
class SurgeLine:
    """What the last decision rested on: tells whether a jump of use would change it for the
    worse, and so whether it cannot wait for the next regular tick (hazard H28).
    """

    capacity_cores: float
    workload_cores: float
    budget_cores: float
    floor_cores: float

    def is_crossed(self, surge: CpuUse, least_rise_ratio: float = SURGE_RATIO) -> bool:
        """True where use by non-BE workloads rose by more than that share of capacity, and BE work
        uses more than what that leaves it.
        """
        rise = surge.nonbe_workload_cores - self.workload_cores
        left = max(self.budget_cores - rise, self.floor_cores)
        used = sum(surge.be_roots_cores.values())
        return rise > least_rise_ratio * self.capacity_cores and left < min(self.budget_cores, used)


def surge_line(snapshot: Snapshot) -> SurgeLine | None:
    """The line of this decision; None where no budget is kept, or none could be worked out."""
    slo = snapshot.slo
    mode = snapshot.modes.get(CPU_SUPPRESS, Mode.ENFORCE)
    if isinstance(slo, Missing) or not slo.threshold.enable or mode is not Mode.ENFORCE:
        return None
    budget, use = be_budget(snapshot, slo.threshold), present_use(snapshot)
    if not snapshot.be_roots or isinstance(budget, Missing) or isinstance(use, Missing):
        return None
    floor = budget.capacity_cores * (slo.threshold.cpu_suppress_min_percent or 0) / 100
    return SurgeLine(budget.capacity_cores, use.nonbe_workload_cores, budget.cores, floor)


def safe_budget(snapshot: Snapshot) -> Budget | Missing:
    """max(cpuSuppressMinPercent, 10 %) of capacity: safe without knowing any use."""
    capacity = snapshot.node.capacity_cores
    if not _is_size(capacity):
        return Missing(f"the capacity of this node is {capacity} cores")
    slo = snapshot.slo
    told = None if isinstance(slo, Missing) else slo.threshold.cpu_suppress_min_percent
    percent = max(told or 0, SAFE_MIN_PERCENT)
    cores = capacity * percent / 100
    terms: Terms = (
        ("capacity_cores", capacity),
        ("safe_percent", percent),
        ("budget_cores", cores),
    )
    return Budget(cores, cores, capacity, terms)


def present_use(snapshot: Snapshot) -> CpuUse | Missing:
    """The use that counts: of the last second; of the last interval for workloads that surged.

    So BE shrinks within one 5 Hz interval, and grows only on a whole second's evidence.
    """
    capacity = snapshot.node.capacity_cores
    if not _is_size(capacity):
        return Missing(f"the capacity of this node is {capacity} cores")
    use = snapshot.cpu
    if isinstance(use, Missing):
        return use
    if not _is_finite(use):
        return Missing("the use of this node is not a finite number")
    surge = snapshot.cpu_surge
    if isinstance(surge, Missing) or not _is_finite(surge):
        return use
    if surge.nonbe_workload_cores - use.nonbe_workload_cores <= SURGE_RATIO * capacity:
        return use
    return replace(surge, system_cores=use.system_cores)


def _is_size(cores: float) -> bool:
    return math.isfinite(cores) and cores > 0


def _is_finite(use: CpuUse) -> bool:
    named = (use.nonbe_pods_cores, use.nonbe_apps_cores, use.system_cores)
    return all(math.isfinite(cores) for cores in (*named, *use.be_roots_cores.values()))


def _observed_cores(use: CpuUse, roots: tuple[BeRoot, ...]) -> float:
    return sum(
        max(use.be_roots_cores.get(root.path, 0.0), 0.0) for root in roots if not root.writable
    )
