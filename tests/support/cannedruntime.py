"""A runtime that answers at once: ``python -m tests.support.cannedruntime SOCKET``.

A method named ``Reply`` gives as many bytes as its request says, ``Echo`` its request. Of CRI it
makes sandboxes and containers by name alone, and ``ListContainers`` of a pod named by a number
gives that many.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from koordpb import cri_v1_pb2 as pb

from tests.support.rawruntime import SERVICE, UNLIMITED

REPLY, ECHO = "/canned.Runtime/Reply", "/canned.Runtime/Echo"
_READY = b"ready\n"
_REPLIES: dict[int, bytes] = {}


def listed(count: int) -> bytes:
    """A reply of ListContainers with ``count`` containers, the same bytes in every process."""
    labels = {"io.kubernetes.pod.name": "p" * 40, "io.kubernetes.container.name": "c" * 40}
    reply = pb.ListContainersResponse(
        containers=[
            pb.Container(id=f"{number:064x}", pod_sandbox_id="0" * 64, labels=labels)
            for number in range(count)
        ]
    )
    return reply.SerializeToString(deterministic=True)


def _reply(request: bytes) -> bytes:
    size = int(request)
    return _REPLIES.setdefault(size, bytes(size))


def _list(request: bytes) -> bytes:
    pod = pb.ListContainersRequest.FromString(request).filter.pod_sandbox_id
    return listed(int(pod)) if pod else b""


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def __init__(self) -> None:
        numbers = itertools.count()
        ids = (f"{number:064x}" for number in numbers)
        version = pb.VersionResponse(
            version="0.1.0", runtime_name="canned", runtime_version="1", runtime_api_version="v1"
        )
        self._answers: dict[str, Callable[[bytes], bytes]] = {
            REPLY: _reply,
            ECHO: lambda request: request,
            SERVICE + "Version": lambda _: version.SerializeToString(),
            SERVICE + "ListContainers": _list,
            SERVICE + "ListPodSandbox": lambda _: b"",
            SERVICE + "RunPodSandbox": lambda _: pb.RunPodSandboxResponse(
                pod_sandbox_id=next(ids)
            ).SerializeToString(),
            SERVICE + "CreateContainer": lambda _: pb.CreateContainerResponse(
                container_id=next(ids)
            ).SerializeToString(),
        }

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        answer = self._answers.get(details.method)
        if answer is None:
            return None

        async def handle(request: bytes, context: object) -> bytes:
            return answer(request)

        made: Callable[[bytes, object], Awaitable[bytes]] = handle
        return grpc.unary_unary_rpc_method_handler(made)


async def _serve(path: str) -> None:
    server = grpc.aio.server(options=UNLIMITED)
    server.add_generic_rpc_handlers((_Handlers(),))
    server.add_insecure_port(f"unix://{path}")
    await server.start()
    os.write(1, _READY)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
