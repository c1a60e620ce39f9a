"""Questions of our own to dockerd."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from runtimeproxy.cri.records import Container, Sandbox
from runtimeproxy.docker import records
from runtimeproxy.docker.http1 import (
    MAX_HEAD_BYTES,
    HttpError,
    read_head,
    response_framing,
    whole_body,
)
from runtimeproxy.relay.endpoint import Endpoint, Unreachable
from runtimeproxy.store import Store

_LIMIT_S = 10.0
_MAX_BODY_BYTES = 64 << 20
Faults = (Unreachable, HttpError, OSError, TimeoutError, ValueError)
"""Why dockerd could not be asked."""


class Dockerd:
    """Asks with a version that every dockerd since 2018 knows."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def inspect(self, id_: str) -> Sandbox | Container | None:
        """None for what dockerd does not have, what is not kubelet's, or where it does not tell."""
        try:
            document = await self._get(f"/v1.39/containers/{id_}/json")
        except Faults:
            return None
        return records.inspected(document) if isinstance(document, dict) else None

    async def reconcile(self, store: Store) -> None:
        """Make the store hold what dockerd has. Raises one of Faults."""
        known = store.sandboxes.keys() | store.containers.keys()
        listed = await self._get("/v1.39/containers/json?all=1")
        ids = {one["Id"] for one in listed if isinstance(one, dict) and "Id" in one}
        for id_ in known - ids:
            store.drop_sandbox(id_)
            store.drop_container(id_)
        for id_ in ids - known:
            found = await self.inspect(id_)
            if isinstance(found, Sandbox):
                store.put_sandbox(found)
            elif found is not None:
                store.put_container(found)

    async def _get(self, path: str) -> Any:
        """The JSON of a page, None where there is none."""
        async with asyncio.timeout(_LIMIT_S):
            sock = self._endpoint.connect()
            reader, writer = await asyncio.open_unix_connection(sock=sock, limit=MAX_HEAD_BYTES)
            try:
                ask = f"GET {path} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n"
                writer.write(ask.encode())
                head = await read_head(reader)
                if head is None:
                    raise HttpError("dockerd closed before it answered")
                body = await whole_body(reader, response_framing(head, "GET"), _MAX_BODY_BYTES)
                return json.loads(body) if head.status == 200 else None
            finally:
                writer.close()
