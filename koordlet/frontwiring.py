"""The front process put together: imported after the fork, since only the front pays for it."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable
from functools import partial

import structlog

from koordlet import ipc, logs
from koordlet.agentwatch import AgentWatch
from koordlet.api.adopting import Adoptions
from koordlet.api.ownmetrics import ProcessMetrics
from koordlet.api.prometheus import MetricsServer
from koordlet.api.server import ApiServer
from koordlet.auditwriter import AuditWriter, open_audit
from koordlet.clock import Clock
from koordlet.config import Config
from koordlet.endpoints import NONE, configured_kubelet, find_runtime
from koordlet.eventloop import EventLoop
from koordlet.filesources import FileSources
from koordlet.front import (
    CRI,
    KUBELET,
    Commands,
    Front,
    FrontParts,
    Outbox,
    PodLists,
)
from koordlet.frontstate import FrontState
from koordlet.history.query import HistoryReader
from koordlet.history.recorder import Recorder
from koordlet.history.store import Limits
from koordlet.history.writer import HistoryWriter
from koordlet.host.machine import Machine, open_machine
from koordlet.host.otheragent import find_other_agent
from koordlet.leftovers import Found, Witnesses, find_leftovers, find_on_tiers
from koordlet.metrics.catalog import Page
from koordlet.metrics.export import MetricsPage
from koordlet.model.adoption import RuntimeSpec
from koordlet.model.readings import Missing
from koordlet.pods.cri import CriClient
from koordlet.pods.kubelet import KubeletClient, endpoint_of
from koordlet.pods.kubeletfacts import KubeletFacts
from koordlet.pods.specchange import change_spec
from koordlet.protocol.problem import Problem, RefusedError
from koordlet.reload import Reloaded
from koordlet.report import NodeView, SourceState, SourceStatus, TickReport
from koordlet.resexecutor.audit import AuditEvent
from koordlet.sources import ListSource
from koordlet.state import StateStore
from koordlet.supervisor import STOPS, Signals

MIB = 1 << 20
HISTORY_BREATH_S = 0.002
"""A long answer about the past waits so long now and then, for others of this process."""
RUNTIME_SCHEMES = {"containerd": "containerd://", "crio": "cri-o://"}


Reload = Callable[[Config], Reloaded]
"""Reads the configuration again over the one in force."""


class FrontProcess:
    """Every thread of the front; ``run`` returns when it is told to stop."""

    def __init__(self, config: Config, clock: Clock, reload: Reload) -> None:
        self._config = config
        self._clock = clock
        self._reload = reload
        self._log = structlog.get_logger("front")
        self._machine: Machine = open_machine(config.roots, keeps_fds=False)
        self._state = FrontState(config, self._machine.cgroups, clock)
        self._metrics = ProcessMetrics(self._state.view)
        self._outbox = Outbox()
        self._store = StateStore(config.state_dir / "state.db")
        self._commands = Commands(self._store, clock, self._outbox.post)
        trouble = self._store.lost or self._store.unstored
        if trouble is not None:
            status = SourceStatus("orders", SourceState.FAILED, "state.db", None, (trouble,))
            self._state.source(status)
        self._audit_store, problem = open_audit(
            config.state_dir / "audit.db", config.audit_retention_days
        )
        self._audit = AuditWriter(self._audit_store, clock, problem)
        self._sources: dict[str, ListSource] = {}
        self._cri_endpoint = NONE
        self._cri: CriClient | None = None
        self._pods = PodLists(clock, self._outbox.post)
        self._files = FileSources(
            config,
            self._machine.files,
            self._machine.roots,
            clock,
            self._state,
            self._outbox.post,
            self._kubelet_found,
            self._look_for_runtime,
        )
        self._agents = AgentWatch(self._other_agent, self._outbox.post, self._look_at_tiers)
        self._kubelet_facts: KubeletFacts | None = None
        history = config.state_dir / "history.db"
        self._history = HistoryWriter(history, _history_limits(config))
        self._history_trouble: SourceStatus | None = None
        self._recorder = Recorder(clock, self._history.put, tick_s=config.tick_seconds)
        self._api = ApiServer(
            config.run_dir / "api.sock",
            self._state.view,
            self._commands,
            self._audit_store.query,
            HistoryReader(history, breathe=partial(time.sleep, HISTORY_BREATH_S)).query,
            Adoptions(self._leftovers, self._agents.check),
        )

    # -- sources ----------------------------------------------------------------------------------

    def _look_for_runtime(self) -> None:
        """Connect to the runtime once there is one; it may be started after us."""
        if self._cri is not None:
            return
        endpoint = find_runtime(self._config)
        if endpoint is None:
            why = "no container runtime's socket on this host"
            self._state.source(SourceStatus(CRI, SourceState.OFF, why, None))
            return
        self._cri, self._cri_endpoint = CriClient(endpoint), endpoint
        self._start_source(CRI, endpoint, self._cri)

    def _kubelet_found(self, facts: KubeletFacts) -> None:
        """Ask the kubelet that runs here, unless the configuration names one."""
        self._kubelet_facts = facts
        if configured_kubelet(self._config) is None:
            endpoint = endpoint_of(facts, self._config.node_name)
            self._start_source(KUBELET, endpoint.url, KubeletClient(endpoint))

    def _start_source(self, name: str, detail: str, client: CriClient | KubeletClient) -> None:
        previous = self._sources.get(name)
        if previous is not None:
            previous.stop()
        self._pods.expect(name)
        source = ListSource(
            name,
            detail,
            client,
            self._clock,
            self._pods.publish,
            self._state.source,
        )
        self._sources[name] = source
        source.start()

    def _start_sources(self) -> None:
        self._files.start()
        configured = configured_kubelet(self._config)
        if configured is not None:
            self._start_source(KUBELET, configured.url, KubeletClient(configured))
        if not self._sources:
            self._pods.no_sources()

    def _relist(self) -> None:
        for source in list(self._sources.values()):
            source.relist()

    def _carry_out(self, request: ipc.SpecRequest) -> str:
        """One change of the runtime's spec; "" on success."""
        return change_spec(self._cri, request.container_id, request.knob, request.value)

    # -- another agent ----------------------------------------------------------------------------

    def _other_agent(self) -> Problem | None:
        """Another agent at work on this node; nobody is looked for where that is to be ignored."""
        config, workloads = self._config, self._state.view().workloads
        if config.other_agent == "ignore":
            return None
        pods = () if isinstance(workloads, Missing) else workloads.known_pods()
        records = (pod.record for pod in pods)
        return find_other_agent(config.proc_root, str(config.run_dir), records)

    def _look_at_tiers(self) -> None:
        """Whether another agent left something; on AgentWatch's thread, by its own view."""
        view = self._state.view()
        try:
            machine = open_machine(self._config.roots, keeps_fds=False)
        except RefusedError:
            return  # the managed root is gone: the core says so
        try:
            files = find_on_tiers(self._config, machine.cgroups, view.workloads, view.owned)
        finally:
            machine.files.close()
        self._state.leftovers(files)

    def _leftovers(self, view: NodeView) -> Found:
        """What another agent left, by a view of the host of this thread's own."""
        machine = open_machine(self._config.roots, keeps_fds=False)
        witnesses = Witnesses(self._kubelet_facts, self._spec_of)
        try:
            return find_leftovers(
                self._config, machine.cgroups, view.workloads, view.owned, witnesses
            )
        finally:
            machine.files.close()

    def _spec_of(self, container_id: str) -> RuntimeSpec | Missing:
        client = self._cri
        if client is None:
            return Missing("no container runtime is configured")
        return client.runtime_spec(container_id)

    # -- running ----------------------------------------------------------------------------------

    def run(self, signals: Signals) -> int:
        loop = EventLoop()
        parts = FrontParts(
            state=self._state,
            commands=self._commands,
            audit=self._audit,
            pods=self._pods,
            observe=self._observe,
            spec=self._carry_out,
            relist=self._relist,
            standing_messages=self._standing_messages,
        )
        front = Front(self._config.run_dir / "core.sock", self._outbox, loop, self._clock, parts)

        def on_signal(_events: int) -> None:
            came = signals.take()
            if signal.SIGHUP in came:
                self._read_again()
            if came.intersection(STOPS):
                front.stop()

        loop.watch(signals.fd, select.POLLIN, on_signal)
        self._audit.start()
        self._history.start()
        self._start_sources()
        self._agents.start()
        self._api.start()
        metrics_server = self._serve_metrics()
        front.run()
        if metrics_server is not None:
            metrics_server.stop()
        self._close()
        return 0

    def _standing_messages(self) -> list[object]:
        """What a core that has just connected is to know, before its first decision."""
        return [ipc.ConfigUpdate(self._config), self._agents.message(), *self._files.messages()]

    def _observe(self, report: TickReport) -> None:
        """Count a report, and put it into the history."""
        self._metrics.observe(report)
        self._recorder.observe(report)
        trouble = self._history.trouble()
        if trouble != self._history_trouble:
            self._history_trouble = trouble
            well = SourceStatus("history", SourceState.OK, "history.db", None)
            self._state.source(trouble or well)

    def _read_again(self) -> None:
        """Take what a reload may change, tell the core, and show what it may not (the supervisor
        logs it).
        """
        reloaded = self._reload(self._config)
        config = self._config = reloaded.config
        logs.change(config.log_level, config.log_format)
        self._audit_store.keep(config.audit_retention_days)
        self._history.limits = _history_limits(config)
        self._recorder.tick_s = config.tick_seconds
        self._outbox.post(ipc.ConfigUpdate(config))
        state = SourceState.STALE if reloaded.problems else SourceState.OK
        where = str(config.config)
        self._state.source(SourceStatus("config", state, where, None, reloaded.problems))
        event = AuditEvent(
            at_wall_s=self._clock.wall_s(), kind="order", owner="reload", reason=str(reloaded)
        )
        self._audit.put((event,))

    def _serve_metrics(self) -> MetricsServer | None:
        address = self._config.metrics_address
        if address is None:
            return None
        try:
            server = MetricsServer(address, self._pages(), self._why_not_ready)
        except OSError as error:
            host, port = address
            problem = Problem(
                "metrics-address",
                f"{host}:{port}",
                f"cannot be listened on: {error.strerror}",
                remedy="free it, or set metricsAddress (--metrics-address) to another one or none",
            )
            self._log.error("no metrics pages", problem=str(problem))
            self._state.source(
                SourceStatus("metrics", SourceState.FAILED, f"{host}:{port}", None, (problem,))
            )
            return None
        server.start()
        return server

    def _pages(self) -> dict[str, Callable[[], bytes]]:
        pages: dict[str, Callable[[], bytes]] = {}
        for page, path in (
            (Page.OURS, "/metrics"),
            (Page.INTERNAL, "/internal-metrics"),
            (Page.EXTERNAL, "/external-metrics"),
        ):
            shown = MetricsPage(
                self._state.readings,
                page,
                node=self._config.node_name,
                container_metrics=self._config.container_metrics,
                container_id_prefix=self._scheme,
                process=partial(self._metrics.render, page),
            )
            pages[path] = shown.render
        return pages

    def _scheme(self) -> str:
        """What Kubernetes puts before a container's id; "" while there is no runtime."""
        if self._cri is None:
            return ""
        kind = next((kind for kind in RUNTIME_SCHEMES if kind in self._cri_endpoint), "")
        return RUNTIME_SCHEMES.get(kind, "")

    def _why_not_ready(self) -> str:
        core = self._state.view().core
        if isinstance(core, Missing):
            return core.why
        return "waiting for " + ", ".join(core.waiting_for) if core.waiting_for else ""

    def _close(self) -> None:
        for source in self._sources.values():
            source.stop()
        self._agents.stop()
        self._files.stop()
        self._api.stop()
        self._recorder.finish()
        self._history.stop()
        self._audit.stop()
        self._audit_store.close()
        self._store.close()
        if self._cri is not None:
            self._cri.close()


def _history_limits(config: Config) -> Limits:
    return Limits(config.history_retention_days, config.history_max_mib * MIB)


def run_front(config: Config, clock: Clock, signals: Signals, reload: Reload) -> int:
    """The front process, from fork to exit."""
    return FrontProcess(config, clock, reload).run(signals)
