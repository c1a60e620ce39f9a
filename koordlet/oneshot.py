"""The node's picture with no daemon: two samples, one decision, nothing written."""

from __future__ import annotations

import time
from dataclasses import replace

from koordlet.clock import SystemClock
from koordlet.config import Config
from koordlet.corewiring import observer_of, tick_parts
from koordlet.endpoints import configured_kubelet, find_runtime
from koordlet.filesources import FileSources
from koordlet.front import PodLists
from koordlet.frontstate import FrontState
from koordlet.host.machine import Machine, open_machine
from koordlet.metrics.hot import HotSampler
from koordlet.observer import Observer, Word
from koordlet.pods.cri import CriClient
from koordlet.pods.kubelet import KubeletClient, endpoint_of
from koordlet.pods.kubeletfacts import KubeletFacts
from koordlet.pods.source import SourceError
from koordlet.report import NodeView, SourceState, SourceStatus, TickCause
from koordlet.standing import Standing
from koordlet.state import StateStore, load_standing
from koordlet.tick import Tick

SAMPLES_S = 1.2


def look(config: Config, *, samples_s: float = SAMPLES_S) -> NodeView:
    """Everything that ``koordletctl doctor`` and ``plan`` show, taken in this process.

    Takes ``samples_s`` seconds. Raises RefusedError where there are no cgroups to look at.
    """
    return _Look(replace(config, dry_run=True)).take(samples_s)


class _Look:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._clock = SystemClock()
        self._machine: Machine = open_machine(config.roots, keeps_fds=False)
        self._observer: Observer = observer_of(self._machine)
        self._hot = HotSampler(self._machine.cgroups, online_cpus=self._machine.possible_cpus)
        parts = tick_parts(config, self._clock, self._machine, self._observer, self._hot, None)
        self._tick = Tick(parts)
        self._state = FrontState(config, self._machine.cgroups, self._clock)
        self._pods = PodLists(self._clock, self._take)
        self._kubelet: KubeletFacts | None = None

    def take(self, samples_s: float) -> NodeView:
        try:
            return self._taken(samples_s)
        finally:
            self._observer.close()
            self._machine.files.close()

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
