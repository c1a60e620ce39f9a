"""The hook servers of this node, asked one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import structlog
from google.protobuf.message import DecodeError

from runtimeproxy.hooks.answers import Change, Judged
from runtimeproxy.hooks.client import HookClient, HookFailed
from runtimeproxy.hooks.files import HookDirectory, HookServer
from runtimeproxy.hooks.stages import Policy, Stage
from runtimeproxy.wire.status import Code, StatusError

_LEAST_LIMIT_S = 0.01
_SHARE_OF_DEADLINE = 0.25
"""Of what the caller has left; the runtime's own work needs the rest."""


class Question(Protocol):
    """What one stage asks. Each server sees what the earlier ones changed."""

    def message(self) -> bytes: ...
    def judge(self, answer: bytes) -> Judged: ...  # raises DecodeError
    def apply(self, change: Change) -> None: ...


class Hooks:
    """``deadline_s`` is each server's own."""

    def __init__(
        self,
        directory: Path,
        *,
        deadline_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = HookDirectory(directory)
        self._deadline_s = deadline_s
        self._clock = clock
        self._clients: dict[Path, HookClient] = {}
        self._log = structlog.get_logger().bind(part="hooks")
        self._later: set[asyncio.Task[None]] = set()

    def servers(self, stage: Stage) -> tuple[HookServer, ...]:
        """Those that want this stage, in their order, as the directory says now."""
        return tuple(server for server in self.directory.servers() if stage in server.stages)

    def client(self, server: HookServer) -> HookClient:
        client = self._clients.get(server.socket)
        if client is None:
            client = self._clients[server.socket] = HookClient(server.socket, clock=self._clock)
        return client

    async def ask(
        self,
        stage: Stage,
        question: Question,
        left_s: float | None,
        servers: tuple[HookServer, ...] | None = None,
    ) -> None:
        """Ask every server of the stage and apply what is accepted.

        ``left_s`` is the caller's deadline; ``servers`` is what ``servers(stage)`` has just told.
        Raises StatusError where a server with policy Fail gives no good answer.
        """
        began_s = self._clock()
        for server in self.servers(stage) if servers is None else servers:
            spent_s = self._clock() - began_s
            limit_s = self._limit_s(None if left_s is None else left_s - spent_s)
            try:
                await self._ask_one(stage, server, question, limit_s)
            except HookFailed as failure:
                self._log.warning(
                    "hook failed", server=server.name, stage=stage.value, why=str(failure)
                )
                if server.policy is Policy.FAIL:
                    raise StatusError(
                        failure.code, _refusal(stage, server, str(failure))
                    ) from failure

    def tell_later(self, stage: Stage, question: Question) -> None:
        """Tell the servers of a stage that something has happened; nobody waits for it."""
        if not self.servers(stage):
            return
        task = asyncio.get_running_loop().create_task(self._tell(stage, question))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    @property
    def telling(self) -> bool:
        """Whether servers are still being told of something."""
        return bool(self._later)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    async def _tell(self, stage: Stage, question: Question) -> None:
        for server in self.servers(stage):
            try:
                await self.client(server).ask(stage, question.message(), self._deadline_s)
            except HookFailed as failure:
                self._log.warning(
                    "hook failed", server=server.name, stage=stage.value, why=str(failure)
                )

    def _limit_s(self, left_s: float | None) -> float:
        if left_s is None:
            return self._deadline_s
        return max(_LEAST_LIMIT_S, min(self._deadline_s, left_s * _SHARE_OF_DEADLINE))

    async def _ask_one(
        self, stage: Stage, server: HookServer, question: Question, limit_s: float
    ) -> None:
        client = self.client(server)
        raw = await client.ask(stage, question.message(), limit_s)
        try:
            judged = question.judge(raw)
        except DecodeError as error:
            client.counts.failed += 1
            client.counts.last_error = f"its answer is no message: {error}"
            raise HookFailed(Code.INTERNAL, client.counts.last_error) from error
        client.counts.changes += len(judged.accepted)
        client.counts.refused += len(judged.refused)
        self._note(stage, server, question, judged)
        if judged.refused and server.policy is Policy.FAIL:
            change, why = judged.refused[0]
            raise HookFailed(Code.FAILED_PRECONDITION, f"its answer sets {change}: {why}")

    def _note(self, stage: Stage, server: HookServer, question: Question, judged: Judged) -> None:
        """Every change goes into the log: it is done in somebody's name, to somebody's pod."""
        for change, why in judged.refused:
            self._log.warning(
                "hook change refused",
                server=server.name,
                stage=stage.value,
                change=str(change),
                why=why,
            )
        if judged.refused and server.policy is Policy.FAIL:
            return
        for change in judged.accepted:
            question.apply(change)
            self._log.info("hook change", server=server.name, stage=stage.value, change=str(change))


def _refusal(stage: Stage, server: HookServer, why: str) -> str:
    return (
        f"runtimeproxy: hook server {server.name} ({server.socket}) failed at {stage.value}: {why};"
        " policy Fail keeps the call from the runtime; remedy: start the hook server,"
        " or set its failure-policy to Ignore"
    )
