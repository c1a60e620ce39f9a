"""``koord-runtimeproxy run``: the parts put together, and how they stop without losing a call."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from koordlet.protocol.problem import Problem, RefusedError
from runtimeproxy import listener as listening
from runtimeproxy.config import Config
from runtimeproxy.cri.interceptions import Knowledge, SkipLabel, interceptor
from runtimeproxy.cri.recovery import Faults, Runtime
from runtimeproxy.docker.part import DockerPart
from runtimeproxy.hooks.hooks import Hooks
from runtimeproxy.metrics import MetricsPage
from runtimeproxy.notify import notify
from runtimeproxy.pages import TEXT, Page, PageServer, json_page
from runtimeproxy.relay.endpoint import Endpoint
from runtimeproxy.relay.front import Relay
from runtimeproxy.relay.unary import UnaryClient
from runtimeproxy.state import State
from runtimeproxy.store import Store

_LOOK_S = 0.02  # how often a stop looks whether calls have ended
_CONNECTED_LOOK_S = 0.25
_RETRY_S = 0.25
_HOOK_FILES_LOOK_S = 1.0
_WATCHDOG_SHARE = 0.4


class Daemon:
    """One proxy from its start to its end; ``run`` returns when it has stopped."""

    def __init__(self, config: Config, listener: listening.Listener) -> None:
        self._config = config
        self._listener = listener
        self._log = structlog.get_logger().bind(part="daemon")
        runtime = Endpoint(config.runtime_endpoint)
        images = Endpoint(config.image_endpoint) if config.image_endpoint else runtime
        self._store = Store(config.store_path)
        self._hooks = Hooks(config.hooks_dir, deadline_s=config.hook_deadline_ms / 1000)
        self._client = UnaryClient(
            Endpoint(config.runtime_endpoint), max_message_bytes=config.max_message_bytes
        )
        self._runtime = Runtime(self._client)
        skip = SkipLabel(config.skip_label, config.skip_value, config.skip_namespaces)
        knowledge = Knowledge(self._store, self._hooks, self._runtime, skip)
        self._relay = Relay(
            runtime,
            images,
            max_message_bytes=config.max_message_bytes,
            intercept=interceptor(knowledge),
        )
        self._docker = DockerPart(config, self._hooks, skip) if config.docker_socket else None
        self._state = State(config, self._relay, self._hooks, self._store)
        self._servers: list[PageServer] = []
        self._server: asyncio.Server | None = None
        self._recovering: asyncio.Task[None] | None = None
        self._done = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._note_fault)
        self._store.open()
        await self._serve_pages()
        self._copy_rights()
        self._server = await loop.create_server(self._relay.accept, sock=self._listener.socket)
        self._recovering = loop.create_task(self._keep_reconciled())
        if self._docker is not None:
            await self._docker.start()
        loop.add_signal_handler(signal.SIGTERM, self._stop, "SIGTERM")
        loop.add_signal_handler(signal.SIGINT, self._stop, "SIGINT")
        self._feed_watchdog()
        self._look_at_hook_files(())
        gc.collect()
        gc.freeze()  # what is there now stays: later collections need not look at it
        notify("READY=1", f"STATUS=serving {self._listener.path}")
        self._log.info("serving", socket=str(self._listener.path))
        await self._done.wait()
        self._store.close()
        if self._docker is not None:
            self._docker.store.close()

    # -- pages ---------------------------------------------------------------------------------

    async def _serve_pages(self) -> None:
        state = self._state
        answers: Mapping[str, Callable[[], dict[str, Any]]] = {
            "/v1/status": state.status,
            "/v1/hooks": state.hook_servers,
            "/v1/calls": state.calls,
        }
        api = PageServer({path: json_page(answer) for path, answer in answers.items()})
        pages: Mapping[str, Page] = {
            "/metrics": MetricsPage(state),
            "/healthz": lambda: (200, TEXT, b"ok\n"),
            "/readyz": self._ready_page,
        }
        metrics = PageServer(pages)
        # The proxy's work is calls: without these pages it goes on, and says so.
        try:
            self._config.run_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
            await api.listen_on(listening.bind(self._config.api_path))
        except (OSError, RefusedError) as error:
            self._log.warning("no answers for status", why=str(error))
        if self._config.metrics_address is not None:
            try:
                await metrics.listen_tcp(*self._config.metrics_address)
            except OSError as error:
                self._log.warning("no metrics", why=str(error))
        self._servers = [api, metrics]

    def _ready_page(self) -> tuple[int, str, bytes]:
        problem = self._state.recovery.problem
        return (503, TEXT, f"{problem}\n".encode()) if problem else (200, TEXT, b"ok\n")

    # -- the runtime ---------------------------------------------------------------------------

    async def _keep_reconciled(self) -> None:
        """At the start, after each restart of the runtime, and now and then."""
        recovery = self._state.recovery
        while True:
            try:
                done = await self._runtime.reconcile(self._store)
            except Faults as error:
                if str(error) != recovery.problem:
                    self._log.warning("the runtime does not answer", why=str(error))
                recovery.problem = str(error)
                await asyncio.sleep(_RETRY_S)
                continue
            recovery.problem, recovery.at_s = "", time.monotonic()
            recovery.rounds += 1
            if done.learned or done.gone:
                self._log.info("reconciled", learned=done.learned, gone=done.gone)
            self._copy_rights()
            await self._until_due()

    async def _until_due(self) -> None:
        due_s = time.monotonic() + self._config.reconcile_seconds
        while self._runtime.connected and time.monotonic() < due_s:
            await asyncio.sleep(_CONNECTED_LOOK_S)

    def _copy_rights(self) -> None:
        """The runtime may have come after us, with other rights than before."""
        if self._config.runtime_endpoint.exists():
            self._state.rights_problem = self._listener.copy_rights(self._config.runtime_endpoint)

    # -- the end -------------------------------------------------------------------------------

    def _stop(self, name: str) -> None:
        """Clients go to whoever listens next; calls under way end, here or in the background."""
        if self._server is None:
            return
        self._log.info("stopping", signal=name, in_flight=self._relay.counts.in_flight)
        notify("STOPPING=1")
        self._server.close()
        self._server = None
        self._listener.close()
        self._relay.say_goodbye()
        if self._docker is not None:
            self._docker.stop()
        limit_s = time.monotonic() + self._config.handover_seconds
        self._wait_for_calls(limit_s, self._hand_over if name == "SIGTERM" else self._done.set)

    def _wait_for_calls(self, limit_s: float, then: Callable[[], object]) -> None:
        if self._idle():
            self._close_parts()
            self._done.set()
        elif time.monotonic() >= limit_s:
            then()
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(_LOOK_S, self._wait_for_calls, limit_s, then)

    def _idle(self) -> bool:
        """Every client has left, knowing which of its calls were looked at."""
        if self._docker is not None and self._docker.relay.busy:
            return False
        return not self._hooks.telling and not self._relay.fronts

    def _hand_over(self) -> None:
        """Calls that take long end in a child; this process ends now, so the next one may serve.

        The child has the same connections. Neither process may use the other's database handle,
        so there is none while the two part.
        """
        self._close_parts()
        stores = [self._store, *([self._docker.store] if self._docker else [])]
        for store in stores:
            store.close()
        loop = asyncio.get_running_loop()
        in_flight = self._relay.counts.in_flight
        child = os.fork()
        if child:
            self._log.info("calls go on in the background", pid=child, in_flight=in_flight)
            os._exit(0)
        asyncio._set_running_loop(loop)  # it knows itself by the process id
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.environ.pop("NOTIFY_SOCKET", None)
        for store in stores:
            store.open()
        self._wait_for_calls(time.monotonic() + self._config.drain_seconds, self._done.set)

    def _close_parts(self) -> None:
        for server in self._servers:
            server.close()
        self._servers = []
        if self._recovering is not None:
            self._recovering.cancel()

    # -- small things --------------------------------------------------------------------------

    def _look_at_hook_files(self, told: tuple[Problem, ...]) -> None:
        """Files are read when they matter; this is for what they said before they broke."""
        self._hooks.directory.servers()
        problems = self._hooks.directory.problems
        for problem in problems:
            if problem not in told:
                self._log.warning("hook server file", problem=str(problem))
        loop = asyncio.get_running_loop()
        loop.call_later(_HOOK_FILES_LOOK_S, self._look_at_hook_files, problems)

    def _feed_watchdog(self) -> None:
        limit_us = os.environ.get("WATCHDOG_USEC", "")
        if limit_us.isdigit() and int(limit_us) > 0:
            notify("WATCHDOG=1")
            pause_s = int(limit_us) / 1e6 * _WATCHDOG_SHARE
            asyncio.get_running_loop().call_later(pause_s, self._feed_watchdog)

    def _note_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A fault in one call or page is told, and ends nothing else."""
        self._log.error("fault", what=context.get("message"), exc_info=context.get("exception"))


def run(config: Config) -> None:
    """Serve until SIGTERM or SIGINT. Raises RefusedError where the socket cannot be had."""
    environ = dict(os.environ)
    listener = listening.inherited(environ, os.getpid())
    for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    if listener is None:
        listener = listening.bind(config.listen_path)
    with contextlib.closing(listener):
        asyncio.run(_run(config, listener))


async def _run(config: Config, listener: listening.Listener) -> None:
    await Daemon(config, listener).run()
