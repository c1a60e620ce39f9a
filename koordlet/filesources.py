"""The front's thread that reads files: the NodeSLO, host applications, and who the kubelet is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from koordlet import ipc
from koordlet.clock import Clock
from koordlet.config import Config
from koordlet.endpoints import NONE
from koordlet.frontstate import FrontState
from koordlet.host.mounts import Roots
from koordlet.host.tree import Files
from koordlet.model.readings import Missing
from koordlet.pods.hostapp import merge_apps
from koordlet.pods.kubeletfacts import KubeletFacts, find_kubelet
from koordlet.pods.static import HostAppsLoaded, load_dir
from koordlet.protocol.nodeslo import DEFAULT_NODESLO
from koordlet.protocol.nodeslo_schema import LoadedSlo
from koordlet.protocol.problem import Problem
from koordlet.report import SloStatus, SourceState, SourceStatus
from koordlet.slo.file import Refused, SloFile

POLL_S = 1.0
KUBELET_EVERY_S = 30.0


@dataclass(slots=True)
class _Newest:
    slo: SloStatus | None = None
    apps: ipc.AppsUpdate | None = None
    loaded: HostAppsLoaded | None = None
    kubelet: ipc.KubeletUpdate | None = None
    kubelet_facts: KubeletFacts | None = None
    kubelet_due_s: float = float("-inf")
    version: int = 0


class FileSources:
    """Polls files once a second and posts what changed; keeps the last good content."""

    def __init__(
        self,
        config: Config,
        files: Files,
        roots: Roots,
        clock: Clock,
        state: FrontState,
        post: Callable[[object], None],
        kubelet_found: Callable[[KubeletFacts], None],
        look_for_runtime: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._files = files
        self._roots = roots
        self._clock = clock
        self._state = state
        self._post = post
        self._kubelet_found = kubelet_found
        self._look_for_runtime = look_for_runtime
        self._slo_file = SloFile(config.node_slo)
        self._newest = _Newest()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="files", daemon=True)

    def start(self) -> None:
        """Read everything once, so that a first connection has it, then keep reading."""
        self.poll()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def messages(self) -> list[object]:
        """The newest word of every file, for a core that has just connected."""
        newest = self._newest
        slo = None if newest.slo is None else ipc.SloUpdate(newest.slo.slo, newest.slo.version)
        return [word for word in (newest.kubelet, slo, newest.apps) if word is not None]

    def _run(self) -> None:
        while not self._stopped.wait(POLL_S):
            try:
                self.poll()
            except Exception:  # noqa: BLE001 - a thread that died would never read a file again
                structlog.get_logger("files").exception("cannot look at the files")

    def poll(self) -> None:
        """One look at all files."""
        self._look_for_runtime()
        self._poll_kubelet()
        self._poll_slo()
        self._poll_apps()

    # -- NodeSLO ----------------------------------------------------------------------------------

    def _poll_slo(self) -> None:
        answer = self._slo_file.poll()
        newest = self._newest
        if isinstance(answer, LoadedSlo):
            newest.version += 1
            newest.slo = SloStatus(
                answer.slo,
                str(self._config.node_slo),
                newest.version,
                self._clock.wall_s(),
                answer.problems,
            )
            self._post(ipc.SloUpdate(answer.slo, newest.version))
            self._tell_slo(SourceState.OK, answer.problems)
        elif isinstance(answer, Refused):
            self._refused(answer.problems)

    def _refused(self, problems: tuple[Problem, ...]) -> None:
        """The last good NodeSLO stays; at the first start that is the built-in one, all off."""
        newest = self._newest
        if newest.slo is None:
            newest.slo = SloStatus(
                DEFAULT_NODESLO, "built-in defaults", 0, self._clock.wall_s(), ()
            )
            self._post(ipc.SloUpdate(newest.slo.slo, 0))
        newest.slo = SloStatus(
            newest.slo.slo,
            newest.slo.where,
            newest.slo.version,
            newest.slo.loaded_wall_s,
            newest.slo.problems,
            refused=problems,
        )
        self._tell_slo(SourceState.STALE, problems)
        log = structlog.get_logger("front")
        for problem in problems:
            log.warning("NodeSLO refused, the last good one stays", why=str(problem))

    def _tell_slo(self, state: SourceState, problems: tuple[Problem, ...]) -> None:
        if self._newest.slo is not None:
            self._state.slo(self._newest.slo)
        where = str(self._config.node_slo)
        self._state.source(SourceStatus("nodeslo", state, where, None, problems))

    # -- host applications ------------------------------------------------------------------------

    def _poll_apps(self) -> None:
        newest = self._newest
        loaded = load_dir(self._config.host_apps_dir, newest.loaded)
        told = () if newest.slo is None else newest.slo.slo.host_applications
        records, problems = merge_apps(loaded.records, told)
        update = ipc.AppsUpdate(records)
        changed = newest.apps != update
        if changed or newest.loaded is None or newest.loaded.problems != loaded.problems:
            problems = (*loaded.problems, *problems)
            state = SourceState.STALE if loaded.problems else SourceState.OK
            where = str(self._config.host_apps_dir)
            self._state.source(SourceStatus("hostapps", state, where, None, problems))
        newest.loaded, newest.apps = loaded, update
        if changed:
            self._post(update)

    # -- the kubelet ------------------------------------------------------------------------------

    def _poll_kubelet(self) -> None:
        newest = self._newest
        now_s = self._clock.now_s()
        if self._config.kubelet == NONE or now_s < newest.kubelet_due_s:
            return
        newest.kubelet_due_s = now_s + KUBELET_EVERY_S
        facts = find_kubelet(self._files, self._roots)
        if isinstance(facts, Missing):
            if newest.kubelet is None:
                status = SourceStatus("kubelet", SourceState.OFF, facts.why, None)
                self._state.source(status)
            return
        update = _kubelet_update(facts, self._config)
        if update != newest.kubelet:
            newest.kubelet = update
            self._post(update)
        same = replace(facts, pid=0)
        if same != newest.kubelet_facts:  # a restart alone changes nothing for us
            newest.kubelet_facts = same
            self._kubelet_found(facts)
            self._tell_kubelet_config(facts)

    def _tell_kubelet_config(self, facts: KubeletFacts) -> None:
        state = SourceState.STALE if facts.problems else SourceState.OK
        where = "command line and configuration of the kubelet"
        self._state.source(SourceStatus("kubelet-config", state, where, None, facts.problems))


def _below(path: str, managed: str) -> str:
    """``path`` of every hierarchy, counted from the root that we manage where it lies in there."""
    top = managed.rstrip("/")
    return path[len(top) :] or "/" if f"{path}/".startswith(f"{top}/") else path


def _kubelet_update(facts: KubeletFacts, config: Config) -> ipc.KubeletUpdate:
    return ipc.KubeletUpdate(
        cgroup_root=config.kubelet_cgroup_root or _below(facts.cgroup_root, config.cgroup_root),
        cgroup_driver=facts.cgroup_driver,
        cpu_manager=facts.cpu_manager,
        reserved_cpus=facts.reserved_cpus,
        reserved_milli=facts.reserved.cpu_milli or 0,
    )
