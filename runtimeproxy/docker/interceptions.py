"""What is done around the calls of Docker's API that make, start, change and end containers."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from koordpb import cri_v1_pb2 as pb

from runtimeproxy.cri.interceptions import SkipLabel
from runtimeproxy.cri.questions import (
    ContainerQuestion,
    CreateQuestion,
    PodQuestion,
    UpdateQuestion,
)
from runtimeproxy.cri.records import (
    Container,
    Sandbox,
    kept_of_container,
    kept_of_pod,
    with_resources,
)
from runtimeproxy.docker import records
from runtimeproxy.hooks.hooks import Hooks
from runtimeproxy.hooks.stages import Stage
from runtimeproxy.store import Store

_PATH = re.compile(r"(?:/v\d+\.\d+)?/containers/(?P<id>[A-Za-z0-9_.-]+)(?:/(?P<verb>[a-z]+))?")
After = Callable[[int, bytes], None]
Inspect = Callable[[str], Awaitable[Sandbox | Container | None]]


@dataclass(frozen=True, slots=True)
class Changed:
    """What goes on instead of the request's body, and what to do with the answer's status and body.

    ``body`` None leaves the body as it is.
    """

    body: bytes | None = None
    after: After | None = None


NOTHING = Changed()


def wants_body(method: str, target: str) -> bool:
    """Whether the body of such a request has to be read before it goes on."""
    match = _PATH.fullmatch(urlsplit(target).path)
    if match is None or method != "POST":
        return False
    return match["verb"] == "update" or (match["id"], match["verb"]) == ("create", None)


class Interceptor:
    """Raises StatusError where a hook server with policy Fail refuses."""

    def __init__(self, store: Store, hooks: Hooks, skip: SkipLabel, inspect: Inspect) -> None:
        self._store = store
        self._hooks = hooks
        self._skip = skip
        self._inspect = inspect

    async def before(self, method: str, target: str, body: bytes) -> Changed:
        """``body`` is empty where ``wants_body`` says so."""
        url = urlsplit(target)
        match = _PATH.fullmatch(url.path)
        if match is None:
            return NOTHING
        id_, verb = match["id"], match["verb"]
        if method == "DELETE" and verb is None:
            return Changed(after=lambda status, _: self._removed(id_, status))
        if method != "POST":
            return NOTHING
        if (id_, verb) == ("create", None):
            return await self._create(parse_qs(url.query).get("name", [""])[0], body)
        if verb == "start":
            return await self._start(id_)
        if verb == "stop":
            return await self._stop(id_)
        return await self._update(id_, body) if verb == "update" else NOTHING

    # -- create --------------------------------------------------------------------------------

    async def _create(self, name: str, body: bytes) -> Changed:
        document = _object(body)
        if document is None:
            return NOTHING
        if records.kind(document) == "podsandbox":
            return await self._create_sandbox(name, document)
        if records.kind(document) == "container":
            return await self._create_container(name, document)
        return NOTHING  # somebody's own: not ours to look at

    async def _create_sandbox(self, name: str, document: dict[str, Any]) -> Changed:
        request = records.pod_request(name, document)
        if request is None:
            return NOTHING
        new_body = None
        if not self._skip.marks(request.config):
            question = PodQuestion(request.config, "")
            await self._hooks.ask(Stage.PRE_RUN_POD_SANDBOX, question, None)
            if question.changed:
                records.put_pod(document, request.config)
                new_body = json.dumps(document).encode()

        def after(status: int, reply: bytes) -> None:
            if id_ := _new_id(status, reply):
                self._store.put_sandbox(Sandbox(id_, kept_of_pod(request.config), ""))

        return Changed(new_body, after)

    async def _create_container(self, name: str, document: dict[str, Any]) -> Changed:
        request = records.container_request(name, document)
        if request is None:
            return NOTHING
        sandbox = await self._sandbox(request.pod_sandbox_id)
        if sandbox is None:
            sandbox = Sandbox(request.pod_sandbox_id, kept_of_pod(request.sandbox_config), "")
        new_body = None
        if not self._skip.marks(sandbox.config):
            question = CreateQuestion(sandbox, request)
            await self._hooks.ask(Stage.PRE_CREATE_CONTAINER, question, None)
            if question.changed:
                records.put_container(document, request)
                new_body = json.dumps(document).encode()

        def after(status: int, reply: bytes) -> None:
            if id_ := _new_id(status, reply):
                config = kept_of_container(request.config)
                self._store.put_container(Container(id_, request.pod_sandbox_id, config))

        return Changed(new_body, after)

    # -- the others ----------------------------------------------------------------------------

    async def _start(self, id_: str) -> Changed:
        found = await self._container(id_)
        if found is None:
            return NOTHING
        question = ContainerQuestion(*found)
        await self._hooks.ask(Stage.PRE_START_CONTAINER, question, None)

        def after(status: int, _: bytes) -> None:
            if status < 300:
                self._hooks.tell_later(Stage.POST_START_CONTAINER, question)

        return Changed(after=after)

    async def _stop(self, id_: str) -> Changed:
        sandbox = self._store.sandboxes.get(id_)
        question: PodQuestion | ContainerQuestion
        if sandbox is not None:
            question = PodQuestion(kept_of_pod(sandbox.config), sandbox.runtime_handler)
            stage = Stage.POST_STOP_POD_SANDBOX
        else:
            found = await self._container(id_)
            if found is None:
                return NOTHING
            question, stage = ContainerQuestion(*found), Stage.POST_STOP_CONTAINER

        def after(status: int, _: bytes) -> None:
            if status < 400:  # 304: it had stopped already
                self._hooks.tell_later(stage, question)

        return Changed(after=after)

    async def _update(self, id_: str, body: bytes) -> Changed:
        document = _object(body)
        found = await self._container(id_)
        if document is None or found is None:
            return NOTHING
        sandbox, container = found
        request = pb.UpdateContainerResourcesRequest(
            container_id=id_, linux=records.resources(document)
        )
        question = UpdateQuestion(sandbox, container, request)
        await self._hooks.ask(Stage.PRE_UPDATE_CONTAINER_RESOURCES, question, None)
        new_body = None
        if question.changed:
            records.put_resources(document, request.linux)
            new_body = json.dumps(document).encode()

        def after(status: int, _: bytes) -> None:
            if status < 300:
                self._store.put_container(with_resources(container, request.linux))

        return Changed(new_body, after)

    def _removed(self, id_: str, status: int) -> None:
        if status < 300 or status == 404:
            self._store.drop_container(id_)
            self._store.drop_sandbox(id_)

    async def _sandbox(self, id_: str) -> Sandbox | None:
        known = self._store.sandboxes.get(id_)
        if known is None and id_:
            found = await self._inspect(id_)
            if isinstance(found, Sandbox):
                self._store.put_sandbox(found)
                return found
        return known

    async def _container(self, id_: str) -> tuple[Sandbox | None, Container] | None:
        """A container of kubelet's that hook servers are to be asked about."""
        known = self._store.containers.get(id_)
        if known is None and id_ not in self._store.sandboxes:
            found = await self._inspect(id_)
            if isinstance(found, Container):
                self._store.put_container(found)
                known = found
        if known is None:
            return None
        sandbox = await self._sandbox(known.sandbox_id)
        if sandbox is not None and self._skip.marks(sandbox.config):
            return None
        return sandbox, known


def _object(body: bytes) -> dict[str, Any] | None:
    """dockerd is the judge of what is no JSON object."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _new_id(status: int, reply: bytes) -> str:
    document = _object(reply) if status == 201 else None
    id_ = document.get("Id") if document is not None else None
    return id_ if isinstance(id_, str) else ""
