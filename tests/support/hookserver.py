"""A hook server of Koordinator's protocol that answers what a test tells it to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from google.protobuf import message_factory
from koordpb import hooks_v1alpha1_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["RuntimeHookService"]
STAGES = tuple(method.name.removesuffix("Hook") for method in _SERVICE.methods)
Answer = Callable[[Any], Any]


def echo(request: Any) -> Any:
    """What koordlet answers where it changes nothing: the request again."""
    if isinstance(request, pb.PodSandboxHookRequest):
        return pb.PodSandboxHookResponse(
            labels=request.labels,
            annotations=request.annotations,
            cgroup_parent=request.cgroup_parent,
            resources=request.resources,
        )
    return pb.ContainerResourceHookResponse(
        container_annotations=request.container_annotations,
        container_resources=request.container_resources,
        pod_cgroup_parent=request.pod_cgroup_parent,
        container_envs=request.container_envs,
    )


class HookServer:
    """Serves on ``socket`` while the context lasts; ``answers`` by stage, echo for the others.

    ``asked`` is what it was asked, in order. ``delay_s`` and ``refuse`` hold for every stage;
    ``raw`` is sent instead of any answer.
    """

    def __init__(self, socket: Path, **answers: Answer) -> None:
        self.socket = socket
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []
        self.delay_s = 0.0
        self.refuse: tuple[grpc.StatusCode, str] | None = None
        self.raw: bytes | None = None
        self._heard = threading.Condition()
        self._server: grpc.Server | None = None

    def __enter__(self) -> HookServer:
        self._server = grpc.server(ThreadPoolExecutor(max_workers=4))
        handlers = {
            method.name: grpc.unary_unary_rpc_method_handler(
                self._handler(method.name.removesuffix("Hook")),
                request_deserializer=message_factory.GetMessageClass(method.input_type).FromString,
            )
            for method in _SERVICE.methods
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers),)
        )
        self._server.add_insecure_port(f"unix://{self.socket}")
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.stop(grace=None).wait()
        self.socket.unlink(missing_ok=True)

    def stages_asked(self) -> list[str]:
        return [stage for stage, _ in self.asked]

    def wait_for(self, stage: str, limit_s: float = 5.0) -> Any:
        """The first request of ``stage``, which may still be on its way."""
        with self._heard:
            found = self._heard.wait_for(
                lambda: next((one for name, one in self.asked if name == stage), None), limit_s
            )
        assert found is not None, f"{stage} was not asked: {self.stages_asked()}"
        return found

    def _handler(self, stage: str) -> Callable[[Any, grpc.ServicerContext], bytes]:
        def handle(request: Any, context: grpc.ServicerContext) -> bytes:
            with self._heard:
                self.asked.append((stage, request))
                self._heard.notify_all()
            time.sleep(self.delay_s)
            if self.refuse is not None:
                context.abort(*self.refuse)
            if self.raw is not None:
                return self.raw
            return bytes(self.answers.get(stage, echo)(request).SerializeToString())

        return handle


def write_server(
    directory: Path,
    name: str,
    socket: Path,
    policy: str = "Ignore",
    stages: tuple[str, ...] = STAGES,
) -> Path:
    """A file for ``hookserver.d``, put there whole."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    text = json.dumps(
        {"remote-endpoint": str(socket), "failure-policy": policy, "runtime-hooks": list(stages)}
    )
    temporary = directory / f".{name}.new"
    temporary.write_text(text)
    temporary.chmod(0o644)
    temporary.rename(path)
    return path
