"""The other end of the API: what koordletctl and the live summary ask with."""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from koordlet.protocol.problem import Problem, Severity

ANSWER_LIMIT_BYTES = 64 << 20
NOT_ALLOWED = "daemon-not-allowed"
"""A daemon may well be there: what can be done without one is then not done."""


class UnreachableError(Exception):
    """No daemon answers on the socket; ``problem`` says why and what to do."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class AnswerError(Exception):
    """The daemon answered that it cannot: an HTTP status and the problems it named."""

    def __init__(self, status: int, envelope: dict[str, Any]) -> None:
        self.status = status
        self.envelope = envelope
        self.problems = tuple(problem_from(entry) for entry in envelope.get("problems", ()))
        super().__init__("; ".join(str(problem) for problem in self.problems) or f"HTTP {status}")


class Client:
    """Asks one daemon; a connection for each question, so it may be kept for ever."""

    def __init__(self, socket_path: Path, *, timeout_s: float = 15.0) -> None:
        self.socket_path = socket_path
        self._timeout_s = timeout_s

    def get(self, endpoint: str, **params: str) -> dict[str, Any]:
        """The envelope of ``GET /v1/ENDPOINT``; raises UnreachableError and AnswerError."""
        query = f"?{urlencode(params)}" if params else ""
        return self._ask("GET", f"/v1/{endpoint}{query}", None)

    def post(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        """The envelope of ``POST /v1/ENDPOINT``; raises UnreachableError and AnswerError."""
        return self._ask("POST", f"/v1/{endpoint}", json.dumps(body).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        connection = _UnixConnection(self.socket_path, self._timeout_s)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            with connection.getresponse() as response:
                content = response.read(ANSWER_LIMIT_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(_why_unreachable(self.socket_path, error)) from error
        finally:
            connection.close()
        envelope = self._decode(content)
        if response.status != http.HTTPStatus.OK:
            raise AnswerError(response.status, envelope)
        return envelope

    def _decode(self, content: bytes) -> dict[str, Any]:
        where = str(self.socket_path)
        if len(content) > ANSWER_LIMIT_BYTES:
            what = f"an answer above {ANSWER_LIMIT_BYTES} bytes"
            raise UnreachableError(Problem("api-answer-too-big", where, what))
        try:
            envelope = json.loads(content)
        except ValueError as error:
            problem = Problem(
                "api-answer-malformed",
                where,
                f"the answer is no JSON: {error}",
                remedy="check that koordlet, and nothing else, listens there",
            )
            raise UnreachableError(problem) from error
        if not isinstance(envelope, dict):
            what = f"the answer is a JSON {type(envelope).__name__}, not an object"
            raise UnreachableError(Problem("api-answer-malformed", where, what))
        return envelope


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, socket_path: Path, timeout_s: float) -> None:
        super().__init__("koordlet", timeout=timeout_s)
        self._socket_path = socket_path
        self._socket_timeout_s = timeout_s

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self._socket_timeout_s)
        self.sock.connect(str(self._socket_path))


def problem_from(entry: dict[str, str]) -> Problem:
    """A Problem from its JSON form; fields that a newer daemon added are ignored."""
    try:
        severity = Severity(entry.get("severity", Severity.ERROR.value))
    except ValueError:
        severity = Severity.ERROR
    return Problem(
        code=entry.get("code", ""),
        where=entry.get("where", ""),
        what=entry.get("what", ""),
        limit=entry.get("limit", ""),
        remedy=entry.get("remedy", ""),
        severity=severity,
    )


def _why_unreachable(socket_path: Path, error: Exception) -> Problem:
    where = str(socket_path)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOENT, errno.ENOTDIR):
        return Problem(
            "daemon-not-running",
            where,
            "no such socket: koordlet does not run, or runs with another --run-dir",
            remedy="start koordlet, or name its run directory with --run-dir",
        )
    if number == errno.ECONNREFUSED:
        return Problem(
            "daemon-not-running",
            where,
            "nobody listens on the socket: koordlet has ended, or its front is starting",
            remedy="look at koordlet's log; try again in a few seconds; where it was killed,"
            " koordletctl rollback restores what it left",
        )
    if number in (errno.EACCES, errno.EPERM):
        return Problem(
            NOT_ALLOWED,
            where,
            f"uid {os.geteuid()} may not connect",
            limit="root, or the uid that koordlet runs as",
            remedy="run the command as root",
        )
    if isinstance(error, TimeoutError):
        return Problem(
            "daemon-silent",
            where,
            "connected, but no answer came in time",
            remedy="look at koordlet's log",
        )
    if isinstance(error, http.client.RemoteDisconnected | ConnectionResetError | BrokenPipeError):
        return Problem(
            "daemon-hung-up",
            where,
            "the daemon closed the connection without an answer",
            limit="root, or the uid that koordlet runs as; a bounded number of connections",
            remedy="run the command as root; try again",
        )
    return Problem("daemon-unreachable", where, str(error) or type(error).__name__)
