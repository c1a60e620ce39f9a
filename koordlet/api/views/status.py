"""The node at a glance: what koordlet sees, decides, holds and cannot do."""

from __future__ import annotations

from typing import TypedDict

from koordlet.api.views.common import (
    ProblemData,
    Term,
    Unknown,
    iso_time,
    number,
    problems_data,
    terms_data,
    unknown,
    value_data,
)
from koordlet.api.views.hints import hints
from koordlet.api.views.picture import Picture, picture
from koordlet.api.views.pods import TouchData, touch_data
from koordlet.api.views.settings import state_of, strategies
from koordlet.api.views.sources import SourceData, sources_data
from koordlet.api.views.strategies import StrategyData, strategy_data
from koordlet.api.views.ticks import TickData, tick_data
from koordlet.api.views.usage import NodeUsageData, node_usage_data
from koordlet.metrics.readings import Level
from koordlet.model.knobs import Knob, Value
from koordlet.model.pods import BeRoot
from koordlet.model.readings import Missing
from koordlet.model.topology import NodeFacts
from koordlet.protocol.cpuset import format_cpuset
from koordlet.protocol.problem import Problem
from koordlet.protocol.qos import Qos
from koordlet.qosmanager.names import CPU_SUPPRESS
from koordlet.report import CoreStatus, NodeView, measured_as

CORE_SILENT_S = 5.0
"""The core reports every second; after this long it is called silent."""


class CoreData(TypedDict):
    """The deciding process. ``takeover`` says what it found in the journal at its start."""

    pid: int
    started_at: str
    age_s: float | Unknown
    silent: bool
    dry_run: bool
    takeover: str
    journal_file: str


class NodeData(TypedDict):
    """The node's physical size and what is kept back from BE work; CPU lists as ``0-2,5``."""

    capacity_cores: float | Unknown
    memory_bytes: int
    cpus: str
    isolated_cpus: str
    reserved_cores: float | Unknown
    reserved_memory_bytes: int
    reserved_cpus: str
    exclusive_cpus: str
    cpu_manager: str


class MarkedData(TypedDict):
    """What carries a QoS label or is declared. Only marked work and its tiers are ever written."""

    pods: int | Unknown
    pods_marked: int | Unknown
    pods_refused: int | Unknown
    pods_by_qos: dict[str, int]
    host_applications: int


class BeRootData(TypedDict):
    """One cgroup that holds only BE work, with the limits that koordlet keeps on it.

    ``quota_cores`` is null for unlimited or none of ours, ``share_cores`` its part of the budget.
    """

    cgroup: str
    claimed_by: str
    writable: bool
    used_cpu_cores: float | Unknown
    quota_cores: float | Unknown | None
    share_cores: float | Unknown
    cpuset: str | None
    settings: list[TouchData]


class HeldData(TypedDict):
    """A strategy that leaves all it owns as it is, and for how long already."""

    owner: str
    why: str
    age_s: float | Unknown


class StatusData(TypedDict):
    """``budget`` is the calculation of what BE work may use, in its order; empty where no
    strategy calculates one. ``deferred_writes`` counts values of a start that wait for their turn.
    """

    version: str
    run_dir: str
    cgroup_root: str
    core: CoreData | Unknown
    last_tick: TickData | Unknown
    waiting_for: list[str]
    deferred_writes: int
    released: list[str]
    node: NodeData | Unknown
    usage: NodeUsageData
    marked: MarkedData | Unknown
    budget: list[Term]
    floor_bound: bool | Unknown
    be_roots: list[BeRootData]
    strategies: list[StrategyData]
    held: list[HeldData]
    owned_files: int
    slo: str | Unknown
    sources: list[SourceData]
    hints: list[ProblemData]


def status_data(view: NodeView) -> StatusData:
    """The whole status."""
    core = view.core
    whole = picture(view)
    known = isinstance(core, CoreStatus)
    return {
        "version": view.version,
        "run_dir": view.run_dir,
        "cgroup_root": view.cgroup_root,
        "core": core_data(view),
        "last_tick": tick_data(view.ticks[-1]) if view.ticks else unknown("no tick yet"),
        "waiting_for": list(core.waiting_for) if isinstance(core, CoreStatus) else [],
        "deferred_writes": core.deferred_writes if isinstance(core, CoreStatus) else 0,
        "released": list(core.released) if isinstance(core, CoreStatus) else [],
        "node": node_data(core.node) if isinstance(core, CoreStatus) else unknown(core),
        "usage": node_usage_data(whole.usages.of(Level.NODE)),
        "marked": marked_data(whole),
        "budget": budget_terms(view),
        "floor_bound": core.floor_bound if isinstance(core, CoreStatus) else unknown(core),
        "be_roots": [be_root_data(whole, root) for root in whole.be_roots],
        "strategies": [strategy_data(strategy) for strategy in strategies(view)],
        "held": held_data(view),
        "owned_files": len(view.owned),
        "slo": unknown(view.slo) if isinstance(view.slo, Missing) else view.slo.where,
        "sources": sources_data(view),
        "hints": problems_data(hints(view)) if known else [],
    }


def core_data(view: NodeView) -> CoreData | Unknown:
    """The core, with the age of its last word."""
    core = view.core
    if isinstance(core, Missing):
        return unknown(core)
    return {
        "pid": core.pid,
        "started_at": iso_time(core.started_wall_s),
        "age_s": number(view.core_age_s),
        "silent": view.core_age_s > CORE_SILENT_S,
        "dry_run": core.dry_run,
        "takeover": core.takeover,
        "journal_file": core.journal_path,
    }


def node_data(node: NodeFacts) -> NodeData:
    """The node's size."""
    return {
        "capacity_cores": number(node.capacity_cores),
        "memory_bytes": node.memory_bytes,
        "cpus": format_cpuset(node.topology.online),
        "isolated_cpus": format_cpuset(node.topology.isolated),
        "reserved_cores": number(node.reserved_cores),
        "reserved_memory_bytes": node.reserved_memory_bytes,
        "reserved_cpus": format_cpuset(node.reserved_cpus),
        "exclusive_cpus": format_cpuset(node.exclusive_cpus),
        "cpu_manager": node.cpu_manager.value,
    }


def marked_data(whole: Picture) -> MarkedData | Unknown:
    """How many workloads carry a mark, and how many claims were refused."""
    workloads = whole.view.workloads
    if isinstance(workloads, Missing):
        return unknown(workloads)
    pods = workloads.pods
    why = unknown(pods) if isinstance(pods, Missing) else None
    known = whole.pods
    counts = {qos.value: sum(pod.qos is qos for pod in known) for qos in Qos}
    return {
        "pods": why or len(known),
        "pods_marked": why or sum(pod.marked for pod in known),
        "pods_refused": why or sum(bool(pod.refused) for pod in known),
        "pods_by_qos": {qos: count for qos, count in counts.items() if count},
        "host_applications": len(whole.apps),
    }


def budget_terms(view: NodeView) -> list[Term]:
    """The numbers behind the BE budget."""
    for strategy in strategies(view):
        if strategy.name == CPU_SUPPRESS:
            return terms_data(strategy.terms)
    return []


def held_data(view: NodeView) -> list[HeldData]:
    """Strategies that hold all they own."""
    return [
        {
            "owner": strategy.name,
            "why": strategy.hold_why,
            "age_s": number(strategy.hold_age_s),
        }
        for strategy in strategies(view)
        if strategy.hold_why
    ]


def be_root_data(whole: Picture, root: BeRoot) -> BeRootData:
    """One BE root with its use and its limits."""
    here = {key: part for key, part in whole.at_or_below(root.path).items() if key[0] == root.path}
    quota = here.get((root.path, Knob.CPU_QUOTA))
    cpuset = here.get((root.path, Knob.CPUSET_CPUS))
    wanted = quota.write if quota else None
    terms = dict(wanted.terms) if wanted else {}
    return {
        "cgroup": root.path,
        "claimed_by": root.claimed_by,
        "writable": root.writable,
        "used_cpu_cores": _root_use(whole, root),
        "quota_cores": _quota_cores(wanted.value, terms.get("period_us")) if wanted else None,
        "share_cores": _term(terms.get("share_cores")),
        "cpuset": str(value_data(cpuset.write.value)) if cpuset and cpuset.write else None,
        "settings": [
            touch_data(whole.view, key, part)
            for key, part in here.items()
            if state_of(part) != "past"
        ],
    }


def view_problems(view: NodeView) -> tuple[Problem, ...]:
    """Everything that is not as it should be, each once: core, strategies, sources, NodeSLO."""
    found: list[Problem] = []
    core = view.core
    if isinstance(core, CoreStatus):
        found += core.problems
        for strategy in core.strategies:
            found += strategy.notes
    for source in view.sources:
        found += source.problems
    if not isinstance(view.slo, Missing):
        found += (*view.slo.refused, *view.slo.problems)
    if isinstance(core, Missing) or view.core_age_s > CORE_SILENT_S:
        found.insert(0, _silent(view))
    return tuple(dict.fromkeys(found))


def _silent(view: NodeView) -> Problem:
    what = f"the core has not reported for {view.core_age_s:.0f} s"
    if isinstance(view.core, Missing):
        what = f"nothing is known of the core: {view.core.why}"
    return Problem(
        "core-silent",
        "koordlet core",
        what,
        limit=f"a report at least every {CORE_SILENT_S:.0f} s",
        remedy="values in force stay as they are; the supervisor starts the core again: see its"
        " log",
    )


def _root_use(whole: Picture, root: BeRoot) -> float | Unknown:
    values = whole.usages.of(*measured_as(root))
    used = (values or {}).get("used_cpu_cores")
    return unknown("not measured yet") if used is None else number(used)


def _quota_cores(quota_us: Value, period_us: float | int | str | None) -> float | Unknown | None:
    if quota_us is None:
        return None
    if not isinstance(quota_us, int) or not isinstance(period_us, int | float) or period_us <= 0:
        return unknown("the cfs period is not known")
    return number(quota_us / period_us)


def _term(value: float | int | str | None) -> float | Unknown:
    if isinstance(value, int | float):
        return number(value)
    return unknown("no strategy calculated it")
