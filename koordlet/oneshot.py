"""The node's picture with no daemon: two samples, one decision, nothing written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from koordlet.api.adopting import Adoptions
from koordlet.clock import SystemClock
from koordlet.config import Config
from koordlet.corewiring import observer_of, tick_parts
from koordlet.endpoints import configured_kubelet, find_runtime
from koordlet.filesources import FileSources
from koordlet.front import PodLists
from koordlet.frontstate import FrontState
from koordlet.host.machine import Machine, open_machine
from koordlet.host.otheragent import find_other_agent
from koordlet.leftovers import Witnesses, find_leftovers
from koordlet.metrics.hot import HotSampler
from koordlet.model.actions import Owned
from koordlet.model.pods import PodRecord
from koordlet.model.readings import Missing
from koordlet.observer import Observer, Word
from koordlet.pods.cri import CriClient
from koordlet.pods.kubelet import KubeletClient, endpoint_of
from koordlet.pods.kubeletfacts import KubeletFacts
from koordlet.pods.source import SourceError
from koordlet.report import NodeView, SourceState, SourceStatus, TickCause
from koordlet.resexecutor.journal import Journal, JournalError, journal_path
from koordlet.resexecutor.ledger import Ledger
from koordlet.resexecutor.unitlink import greet, unit_thread
from koordlet.standing import Standing
from koordlet.state import StateStore, load_standing
from koordlet.tick import Tick

SAMPLES_S = 1.2


def look(config: Config, *, samples_s: float = SAMPLES_S) -> NodeView:
    """Everything that ``koordletctl doctor`` and ``plan`` show, taken in this process.

    Takes ``samples_s`` seconds. Raises RefusedError where there are no cgroups to look at.
    """
    return _Look(replace(config, dry_run=True)).take(samples_s)


def survey(config: Config, *, samples_s: float = SAMPLES_S) -> tuple[NodeView, Adoptions]:
    """The view, and a desk that lists what another agent left on this host; both taken now."""
    return _Look(replace(config, dry_run=True)).surveyed(samples_s)


class _Look:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._clock = SystemClock()
        self._machine: Machine = open_machine(config.roots, keeps_fds=False)
        self._observer: Observer = observer_of(self._machine)
        self._hot = HotSampler(self._machine.cgroups, online_cpus=self._machine.possible_cpus)
        units = unit_thread(self._machine)
        greet(units)
        parts = tick_parts(
            config, self._clock, self._machine, self._observer, self._hot, None, units
        )
        self._tick = Tick(parts)
        self._state = FrontState(config, self._machine.cgroups, self._clock)
        self._pods = PodLists(self._clock, self._take)
        self._kubelet: KubeletFacts | None = None

    def take(self, samples_s: float) -> NodeView:
        try:
            return self._taken(samples_s)
        finally:
            self._close()

    def surveyed(self, samples_s: float) -> tuple[NodeView, Adoptions]:
        """What an earlier daemon journaled counts as governed: a rollback restores it."""
        client = self._client()
        spec_of = _spec_untold if client is None else client.runtime_spec
        try:
            view = replace(self._taken(samples_s), owned=self._journaled())
            found = find_leftovers(
                self._config,
                self._machine.cgroups,
                view.workloads,
                view.owned,
                Witnesses(self._kubelet, spec_of),
            )
        finally:
            self._close()
            if client is not None:
                client.close()
        agent = find_other_agent(self._config.proc_root, str(self._config.run_dir), _pods(view))
        return view, Adoptions(lambda view: found, lambda: agent)

    def _close(self) -> None:
        self._observer.close()
        self._machine.files.close()

    def _journaled(self) -> tuple[Owned, ...]:
        path = journal_path(self._config.run_dir)
        if not path.exists():
            return ()
        try:
            journal = Journal.read_only(path, boot_id=self._machine.boot_id)
        except JournalError:
            return ()
        try:
            ledger = Ledger(self._machine.cgroups, journal, read_only=True)
            ledger.load()
        except JournalError:
            return ()
        finally:
            journal.close()
        return tuple(ledger.owned().values())

    def _client(self) -> CriClient | None:
        endpoint = find_runtime(self._config)
        return None if endpoint is None else CriClient(endpoint)

    def _taken(self, samples_s: float) -> NodeView:
        self._tick.standing = self._standing()
        self._ask_sources()
        self._state.apply(self._tick.run(TickCause.REGULAR, overrun=False, whole=True))
        deadline_s = self._clock.now_s() + samples_s
        self._hot.sample(self._clock.now_s())
        while self._clock.now_s() < deadline_s:
            time.sleep(self._config.hot_sample_seconds)
            self._hot.sample(self._clock.now_s())
        self._state.apply(self._tick.run(TickCause.REGULAR, overrun=False, whole=False))
        return self._state.view()

    def _standing(self) -> Standing:
        """Orders that an earlier daemon was given; a missing store is not made."""
        path = self._config.state_dir / "state.db"
        if not path.exists():
            return Standing()
        store = StateStore(path)
        try:
            return load_standing(store)
        finally:
            store.close()

    # -- sources, asked once ----------------------------------------------------------------------

    def _ask_sources(self) -> None:
        files = FileSources(
            self._config,
            self._machine.files,
            self._machine.roots,
            self._clock,
            self._state,
            self._take,
            self._kubelet_found,
        )
        files.poll()
        asked = [*self._ask_runtime(), *self._ask_kubelet()]
        if not asked:
            self._pods.no_sources()

    def _kubelet_found(self, facts: KubeletFacts) -> None:
        self._kubelet = facts

    def _ask_runtime(self) -> list[str]:
        endpoint = find_runtime(self._config)
        if endpoint is None:
            self._state.source(SourceStatus("cri", SourceState.OFF, "no runtime's socket", None))
            return []
        client = CriClient(endpoint)
        try:
            self._ask("cri", endpoint, client)
        finally:
            client.close()
        return ["cri"]

    def _ask_kubelet(self) -> list[str]:
        endpoint = configured_kubelet(self._config)
        if endpoint is None and self._kubelet is not None:
            endpoint = endpoint_of(self._kubelet, self._config.node_name)
        if endpoint is None:
            return []
        self._ask("kubelet", endpoint.url, KubeletClient(endpoint))
        return ["kubelet"]

    def _ask(self, name: str, detail: str, client: CriClient | KubeletClient) -> None:
        try:
            self._pods.publish(name, client.list_records())
        except SourceError as error:
            self._pods.publish(name, error.problem)
            failed = SourceStatus(name, SourceState.FAILED, detail, None, (error.problem,))
            self._state.source(failed)
        else:
            self._state.source(SourceStatus(name, SourceState.OK, detail, 0.0))

    def _take(self, message: object) -> None:
        if isinstance(message, Word):
            self._observer.hear(message, self._clock.now_s())


def _spec_untold(container_id: str) -> Missing:
    return Missing("no container runtime's socket on this host")


def _pods(view: NodeView) -> Iterator[PodRecord]:
    if not isinstance(view.workloads, Missing):
        for pod in view.workloads.known_pods():
            yield pod.record
