"""What the core tells the front, and the whole picture that the front answers from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from koordlet.metrics.readings import Level
from koordlet.model.actions import Mode, Outcome, Owned, Plan, SetValue, Target, Terms
from koordlet.model.capabilities import Capabilities
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import BeRoot, Workloads
from koordlet.model.readings import Missing
from koordlet.model.sharing import share_pod
from koordlet.model.topology import NodeFacts
from koordlet.protocol.nodeslo import NodeSlo
from koordlet.protocol.problem import Problem
from koordlet.qosmanager.names import CPU_SUPPRESS

if TYPE_CHECKING:
    from koordlet.metrics.readings import Readings, ReadingsTable
    from koordlet.resexecutor.audit import AuditEvent


class TickCause(Enum):
    """Why a tick ran."""

    REGULAR = "regular"
    SURGE = "surge"  # use by latency-sensitive work jumped between two 5 Hz samples
    PSI = "psi"  # a pressure trigger of a latency-sensitive cgroup fired
    WORKLOADS = "workloads"  # pods, host applications or the NodeSLO changed
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class TickStats:
    """One tick, in seconds of the core's own clock. ``run_s`` is CPU time of the tick thread since
    the last tick, 5 Hz samples included; ``reads``, ``opens`` and ``writes`` count kernel files.
    """

    tick: int
    at_wall_s: float
    cause: TickCause
    duration_s: float
    run_s: float
    reads: int
    opens: int
    writes: int
    overrun: bool


@dataclass(frozen=True, slots=True)
class StrategyStatus:
    """One strategy now. ``hold_why`` is set while it holds all it owns, ``hold_age_s`` how long."""

    name: str
    mode: Mode
    mode_until_wall_s: float | None
    enabled: bool
    owned: int
    hold_why: str
    hold_age_s: float
    terms: Terms
    notes: tuple[Problem, ...]
    would: tuple[SetValue, ...] = ()  # observe mode: what it would write


@dataclass(frozen=True, slots=True)
class CoreStatus:
    """The core's standing facts; sent when they change and at least every 2 s."""

    pid: int
    started_wall_s: float
    dry_run: bool
    released: tuple[str, ...]  # "all", or "owner:NAME", "pod:UID", "file:PATH"
    takeover: str  # what was found in the journal at start, "" nothing
    journal_path: str
    node: NodeFacts
    be_roots: tuple[BeRoot, ...]
    floor_bound: bool
    strategies: tuple[StrategyStatus, ...]
    problems: tuple[Problem, ...]
    waiting_for: tuple[str, ...]  # what the first decision still waits for
    deferred_writes: int = 0  # of the first plan: so many values wait for a later tick (H14)


@dataclass(frozen=True, slots=True)
class TickReport:
    """Core to front, once a tick. A part that did not change since the last report is None."""

    stats: TickStats
    readings: Readings
    status: CoreStatus | None = None
    plan: Plan | None = None
    workloads: Workloads | None = None  # of its pods only those that changed, see pod_uids
    pod_uids: tuple[str, ...] | None = None  # all pods now, in order; None: workloads has them all
    owned: tuple[Owned, ...] | None = None
    capabilities: Capabilities | None = None
    outcomes: tuple[Outcome, ...] = ()
    audit: tuple[AuditEvent, ...] = ()


def whole_workloads(report: TickReport, before: Workloads | Missing) -> Workloads | Missing:
    """The workloads after ``report``, with the pods that it left out taken from ``before``."""
    told = report.workloads
    if told is None:
        return before
    if report.pod_uids is None:
        return told
    known = {} if isinstance(before, Missing) else {pod.uid: pod for pod in before.known_pods()}
    known.update((pod.uid, share_pod(pod, known.get(pod.uid))) for pod in told.known_pods())
    return replace(told, pods=tuple(known[uid] for uid in report.pod_uids if uid in known))


def be_budget_cores(core: CoreStatus) -> float | None:
    """The budget that the strategy last worked out; None while it is off or holds."""
    for strategy in core.strategies:
        cores = dict(strategy.terms).get("budget_cores")
        if strategy.name == CPU_SUPPRESS and isinstance(cores, (int, float)):
            return float(cores)
    return None


def be_quotas_cores(core: CoreStatus, plan: Plan) -> dict[CgroupPath, float]:
    """The cfs quota that the plan gives to each BE root; one without a limit is not in it."""
    roots = {root.path for root in core.be_roots}
    found: dict[CgroupPath, float] = {}
    for write in plan.writes:
        if write.knob is Knob.CPU_QUOTA and write.target in roots and isinstance(write.value, int):
            period_us = dict(write.terms).get("period_us")
            if isinstance(period_us, int) and period_us > 0:
                found[write.target] = write.value / period_us
    return found


def measured_as(root: BeRoot) -> tuple[Level, str]:
    """Level and name of the readings of a BE root."""
    if root.claimed_by == "tier":
        return Level.TIER, "besteffort"
    return Level.APP, root.claimed_by


class SourceState(Enum):
    """How a source of workloads or configuration is doing."""

    OK = "ok"
    OFF = "off"  # not configured, or not there
    STALE = "stale"  # the last good answer is in use
    FAILED = "failed"  # never answered


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One source: ``cri``, ``kubelet``, ``hostapps``, ``nodeslo``, ``core``."""

    name: str
    state: SourceState
    detail: str
    age_s: float | None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class SloStatus:
    """The NodeSLO in force: where it came from, its document, and what was said about it."""

    slo: NodeSlo
    where: str
    version: int
    loaded_wall_s: float
    problems: tuple[Problem, ...]
    refused: tuple[Problem, ...] = ()  # of a newer text that was not put in force


@dataclass(frozen=True, slots=True)
class NodeView:
    """Everything that the API answers from, at one instant. Parts are Missing before their first
    report or, for the core, while it is not there (``core_age_s`` then grows).
    """

    node: str
    taken_wall_s: float
    version: str
    run_dir: str
    cgroup_root: str
    core: CoreStatus | Missing
    core_age_s: float
    ticks: tuple[TickStats, ...]
    workloads: Workloads | Missing
    capabilities: Capabilities | Missing
    plan: Plan | Missing
    owned: tuple[Owned, ...]
    outcomes: Mapping[Target, Outcome]  # the newest of each target
    paths: Mapping[Target, str]  # kernel file of each target in plan, owned and outcomes
    readings: ReadingsTable
    slo: SloStatus | Missing
    sources: tuple[SourceStatus, ...]
    leftovers: tuple[str, ...] = ()  # files of the kubelet's tiers that hold another agent's value
    extra: Mapping[str, Any] = field(default_factory=dict)
    taken_s: float | None = None  # monotonic, the clock of ``Owned.since_s``; None: unknown
