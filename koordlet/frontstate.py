"""The front's picture of the node: the newest part of every report, published as one NodeView."""

from __future__ import annotations

import threading
from collections import deque

from koordlet import __version__
from koordlet.clock import Clock
from koordlet.config import Config
from koordlet.host.cgroup import Cgroups
from koordlet.metrics.readings import ReadingsTable
from koordlet.model.actions import Outcome, Owned, Plan, Target
from koordlet.model.capabilities import Capabilities
from koordlet.model.pods import Workloads
from koordlet.model.readings import Missing
from koordlet.report import (
    CoreStatus,
    NodeView,
    SloStatus,
    SourceState,
    SourceStatus,
    TickReport,
    TickStats,
    whole_workloads,
)

TICKS_KEPT = 900
RECENT_OUTCOMES = 256
CORE_SILENT_S = 5.0  # the core reports every second; after this it is called silent


class FrontState:
    """Takes reports and source answers from several threads, hands out immutable NodeViews."""

    def __init__(self, config: Config, cgroups: Cgroups, clock: Clock) -> None:
        self._config = config
        self._cgroups = cgroups
        self._clock = clock
        self._lock = threading.Lock()
        self._ticks: deque[TickStats] = deque(maxlen=TICKS_KEPT)
        self._core: CoreStatus | Missing = Missing("the core has not reported yet")
        self._core_at_s = clock.now_s()
        self._plan: Plan | Missing = Missing("no tick has decided yet")
        self._workloads: Workloads | Missing = Missing("no tick has looked yet")
        self._capabilities: Capabilities | Missing = Missing("not probed yet")
        self._owned: tuple[Owned, ...] = ()
        self._outcomes: dict[Target, Outcome] = {}
        self._paths: dict[Target, str] = {}
        self._sources: dict[str, SourceStatus] = {}
        self._source_at_s: dict[str, float] = {}
        self._slo: SloStatus | Missing = Missing("not read yet")
        self._leftovers: tuple[str, ...] = ()
        self.readings = ReadingsTable()

    def apply(self, report: TickReport) -> None:
        """Put a report in; parts that it leaves out stay as they were."""
        with self._lock:
            self._core_at_s = self._clock.now_s()
            self._ticks.append(report.stats)
            self.readings.apply(report.readings)
            self._core = report.status or self._core
            self._plan = report.plan or self._plan
            self._workloads = whole_workloads(report, self._workloads)
            self._capabilities = report.capabilities or self._capabilities
            if report.owned is not None:
                self._owned = report.owned
            for outcome in report.outcomes:
                self._outcomes.pop(outcome.key, None)  # the newest stand last
                self._outcomes[outcome.key] = outcome
            if report.outcomes or report.plan or report.status or report.owned is not None:
                self._forget_gone()

    def _forget_gone(self) -> None:
        """Keep outcomes and paths only of what a plan or the journal still names (case OPS-03)."""
        named = {owned.key for owned in self._owned}
        if isinstance(self._plan, Plan):
            plan = self._plan
            named |= {write.key for write in plan.writes}
            named |= {restore.key for restore in plan.restores}
            named |= {hold.key for hold in plan.holds}
            named |= {struck.action.key for struck in plan.struck}
        if isinstance(self._core, CoreStatus):
            named |= {value.key for s in self._core.strategies for value in s.would}
        kept = named | set(list(self._outcomes)[-RECENT_OUTCOMES:])
        self._outcomes = {key: value for key, value in self._outcomes.items() if key in kept}
        self._paths = {key: self._path(key) for key in (*named, *self._outcomes)}

    def _path(self, target: Target) -> str:
        known = self._paths.get(target)
        if known is not None:
            return known
        path = self._cgroups.path_of(*target)
        return "" if isinstance(path, Missing) else path

    def source(self, status: SourceStatus) -> None:
        """Put in how a source is doing; its age counts from now less ``status.age_s``."""
        with self._lock:
            self._sources[status.name] = status
            self._source_at_s[status.name] = self._clock.now_s()

    def slo(self, status: SloStatus) -> None:
        """Put in the NodeSLO in force."""
        with self._lock:
            self._slo = status

    def leftovers(self, files: tuple[str, ...]) -> None:
        """Put in which of the tiers' files another agent left changed."""
        with self._lock:
            self._leftovers = files

    def core_lost(self) -> None:
        """The connection to the core broke; its last word stays, with its age."""
        with self._lock:
            self._sources["core"] = SourceStatus("core", SourceState.STALE, "not connected", 0.0)
            self._source_at_s.setdefault("core", self._clock.now_s())

    def view(self) -> NodeView:
        """Everything at this instant."""
        with self._lock:
            now_s = self._clock.now_s()
            return NodeView(
                node=self._config.node_name,
                taken_wall_s=self._clock.wall_s(),
                version=__version__,
                run_dir=str(self._config.run_dir),
                cgroup_root=self._config.cgroup_root,
                core=self._core,
                core_age_s=now_s - self._core_at_s,
                ticks=tuple(self._ticks),
                workloads=self._workloads,
                capabilities=self._capabilities,
                plan=self._plan,
                owned=self._owned,
                outcomes=dict(self._outcomes),
                paths=dict(self._paths),
                readings=self.readings,
                slo=self._slo,
                sources=self._aged_sources(now_s),
                leftovers=self._leftovers,
                taken_s=now_s,
            )

    def _aged_sources(self, now_s: float) -> tuple[SourceStatus, ...]:
        return tuple(
            status if status.age_s is None else _older(status, now_s - self._source_at_s[name])
            for name, status in sorted(self._sources.items())
            if name in self._source_at_s or status.age_s is None
        )


def _older(status: SourceStatus, by_s: float) -> SourceStatus:
    age_s = (status.age_s or 0.0) + by_s
    return SourceStatus(status.name, status.state, status.detail, age_s, status.problems)
