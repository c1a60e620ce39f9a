"""Asking one hook server: within its own deadline, and not again at once where it fails."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runtimeproxy.hooks.stages import Stage
from runtimeproxy.relay.endpoint import Endpoint, Unreachable
from runtimeproxy.relay.unary import UnaryClient
from runtimeproxy.wire.status import Code, StatusError

FAILURES_TO_OPEN = 3
FIRST_REST_S = 0.5
LAST_REST_S = 4.0
_LAST_PAUSE_S = 0.05  # connecting to a dead unix socket costs nothing
_MAX_ANSWER_BYTES = 4 << 20


class HookFailed(Exception):
    """No usable answer; ``code`` is the server's own where it gave one."""

    def __init__(self, code: Code, why: str) -> None:
        super().__init__(why)
        self.code = code


class Breaker:
    """After some failures in a row, silence for a moment; then one call tries again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._rest_s = FIRST_REST_S
        self._until_s = 0.0

    @property
    def open(self) -> bool:
        return self._failures >= FAILURES_TO_OPEN and self._clock() < self._until_s

    def succeeded(self) -> None:
        self._failures, self._rest_s = 0, FIRST_REST_S

    def failed(self) -> None:
        self._failures += 1
        if self._failures < FAILURES_TO_OPEN:
            return
        if self._failures > FAILURES_TO_OPEN:
            self._rest_s = min(self._rest_s * 2, LAST_REST_S)
        self._until_s = self._clock() + self._rest_s


@dataclass
class AskCounts:
    """What became of the questions to one server."""

    asked: int = 0
    failed: int = 0
    skipped: int = 0
    changes: int = 0
    refused: int = 0
    last_error: str = ""
    last_s: float = 0.0


class HookClient:
    """One server's socket. A new server behind it is asked at once, whatever the old one did."""

    def __init__(self, socket: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts = AskCounts()
        self._socket = socket
        self._clock = clock
        self._breaker = Breaker(clock)
        self._identity = (0, 0)
        trusted = frozenset({0, os.geteuid()})
        endpoint = Endpoint(socket, trusted_uids=trusted, last_pause_s=_LAST_PAUSE_S, clock=clock)
        self._client = UnaryClient(endpoint, max_message_bytes=_MAX_ANSWER_BYTES)

    @property
    def resting(self) -> bool:
        """Whether it is left alone for now."""
        return self._breaker.open

    async def ask(self, stage: Stage, question: bytes, limit_s: float) -> bytes:
        """The answer within ``limit_s``. Raises HookFailed."""
        self._notice_new_server()
        if self._breaker.open:
            self.counts.skipped += 1
            raise HookFailed(
                Code.UNAVAILABLE, f"left alone after failures: {self.counts.last_error}"
            )
        began_s = self._clock()
        self.counts.asked += 1
        try:
            answer = await self._client.call(stage.path, question, limit_s)
        except Unreachable as error:
            raise self._failed(Code.UNAVAILABLE, str(error)) from error
        except StatusError as error:
            raise self._failed(error.code, error.details or error.code.name) from error
        self._breaker.succeeded()
        self.counts.last_s = self._clock() - began_s
        return answer

    def _notice_new_server(self) -> None:
        try:
            found = self._socket.stat()
            identity = (found.st_ino, found.st_ctime_ns)  # inode numbers are used again at once
        except OSError:
            identity = (0, 0)
        if identity != self._identity:
            self._identity = identity
            self._breaker.succeeded()
            self._client.close()

    def _failed(self, code: Code, why: str) -> HookFailed:
        if code is Code.UNIMPLEMENTED:  # a server without that rpc is well otherwise
            self._breaker.succeeded()
        else:
            self._breaker.failed()
        self.counts.failed += 1
        self.counts.last_error = why
        return HookFailed(code, why)

    def close(self) -> None:
        self._client.close()
