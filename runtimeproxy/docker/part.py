"""Docker's API, put together: its socket, its store, its recovery."""

from __future__ import annotations

import asyncio

import structlog

from runtimeproxy import listener as listening
from runtimeproxy.config import Config
from runtimeproxy.cri.interceptions import SkipLabel
from runtimeproxy.docker.http1 import MAX_HEAD_BYTES
from runtimeproxy.docker.interceptions import Interceptor
from runtimeproxy.docker.relay import DockerRelay
from runtimeproxy.docker.runtime import Dockerd, Faults
from runtimeproxy.hooks.hooks import Hooks
from runtimeproxy.relay.endpoint import Endpoint
from runtimeproxy.store import Store


class DockerPart:
    """Serves ``config.docker_socket`` from ``start`` to ``stop``."""

    def __init__(self, config: Config, hooks: Hooks, skip: SkipLabel) -> None:
        assert config.docker_socket is not None
        self._config = config
        self._path = config.docker_socket
        self._dockerd = Dockerd(Endpoint(config.docker_endpoint))
        self.store = Store(config.state_dir / "docker.db")
        interceptor = Interceptor(self.store, hooks, skip, self._dockerd.inspect)
        self.relay = DockerRelay(Endpoint(config.docker_endpoint), interceptor)
        self._listener: listening.Listener | None = None
        self._server: asyncio.Server | None = None
        self._recovering: asyncio.Task[None] | None = None
        self._log = structlog.get_logger().bind(part="docker")

    async def start(self) -> None:
        """Raises RefusedError where the socket cannot be had."""
        self.store.open()
        self._listener = listening.bind(self._path)
        if self._config.docker_endpoint.exists():
            self._listener.copy_rights(self._config.docker_endpoint)
        self._server = await asyncio.start_server(
            self.relay.serve, sock=self._listener.socket, limit=MAX_HEAD_BYTES
        )
        self._recovering = asyncio.get_running_loop().create_task(self._keep_reconciled())

    def stop(self) -> None:
        """Listen no more; requests under way end when they end."""
        if self._server is not None and self._listener is not None:
            self._server.close()
            self._listener.close()
        if self._recovering is not None:
            self._recovering.cancel()

    async def _keep_reconciled(self) -> None:
        told = ""
        while True:
            try:
                await self._dockerd.reconcile(self.store)
                told = ""
            except Faults as error:
                if str(error) != told:
                    told = str(error)
                    self._log.warning("dockerd does not answer", why=told)
            await asyncio.sleep(self._config.reconcile_seconds if not told else 1.0)
