"""The API on a unix socket: HTTP for root and for the daemon's own uid, and nobody else."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from koordlet import ipc
from koordlet.api.adopting import Adoptions
from koordlet.api.bounded import BoundedServer
from koordlet.api.routes import BODY_LIMIT_BYTES, Answer, Backend, Commands, Request, answer
from koordlet.api.views.common import envelope
from koordlet.history.query import RangeAnswer, RangeQuery
from koordlet.protocol.problem import Problem
from koordlet.report import NodeView
from koordlet.resexecutor.audit import AuditEvent, AuditQuery

REQUEST_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 16
DISCARD_LIMIT_BYTES = 1 << 20
BACKLOG = 32
_LENGTH = re.compile(r"[0-9]{1,20}")


class SocketTakenError(OSError):
    """Another process serves this socket."""


class ApiServer:
    """Serves ``socket_path``; ``start`` binds it and begins, ``stop`` ends and removes it.

    The socket is taken under a lock beside it, bound to a temporary name and renamed: a second
    server never takes clients over from a living one (hazard H19).
    """

    def __init__(
        self,
        socket_path: Path,
        view: Callable[[], NodeView],
        commands: Commands,
        audit: Callable[[AuditQuery], tuple[AuditEvent, ...]],
        history: Callable[[RangeQuery], RangeAnswer],
        adoptions: Adoptions,
    ) -> None:
        self._path = socket_path
        self._backend = Backend(view, commands, audit, history, adoptions)
        self._lock_fd = -1
        self._server: _UnixServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Bind and serve; raises SocketTakenError, or OSError where the directory refuses."""
        self._lock_fd = _take(self._path.with_name(f".{self._path.name}.lock"))
        try:
            self._server = _UnixServer(self._path, _handler(self._backend))
        except OSError:
            self._unlock()
            raise
        self._thread = threading.Thread(target=self._server.serve_forever, name="api", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and remove the socket; harmless where it never started."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)
        self._thread.join(timeout=REQUEST_TIMEOUT_S)
        self._server = None
        self._unlock()

    def _unlock(self) -> None:
        os.close(self._lock_fd)
        self._lock_fd = -1


def _take(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            what = f"{path}: held by another process; remedy: stop the other koordlet"
            raise SocketTakenError(error.errno, what) from None
        raise
    return fd


class _UnixServer(BoundedServer):
    address_family = socket.AF_UNIX

    def __init__(self, path: Path, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(
            str(path), handler, max_connections=MAX_CONNECTIONS, bind_and_activate=False
        )
        self.socket.close()
        self.socket = ipc.listen(path)
        self.socket.listen(BACKLOG)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Root or our own uid; the socket's mode says the same, this holds if it was changed."""
        return ipc.peer_uid(request) in (0, os.geteuid())


def _handler(backend: Backend) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S
        server_version = "koordlet"
        sys_version = ""

        def do_GET(self) -> None:
            body = self._body()
            if body is not None:
                uid = ipc.peer_uid(self.connection)
                self._send(answer(Request(self.command, self.path, body, uid), backend))

        do_POST = do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET

        def _body(self) -> bytes | None:
            """The request's body, bounded; None where it was already answered with an error."""
            length = self.headers.get("Content-Length", "0")
            if not _LENGTH.fullmatch(length) or "Transfer-Encoding" in self.headers:
                self.send_error(HTTPStatus.LENGTH_REQUIRED, "a body needs its Content-Length")
                return None
            if int(length) > BODY_LIMIT_BYTES:
                # An answer to a client that is still sending would be lost in its broken pipe.
                self.rfile.read(min(int(length), DISCARD_LIMIT_BYTES))
                what = f"a body above {BODY_LIMIT_BYTES} bytes"
                self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, what)
                return None
            return self.rfile.read(int(length))

        def _send(self, said: Answer) -> None:
            content = json.dumps(said.body, allow_nan=False).encode()
            self.send_response(said.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if said.allow:
                self.send_header("Allow", said.allow)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def send_error(
            self, code: int, message: str | None = None, explain: str | None = None
        ) -> None:
            """The error form of every answer, for requests that http.server itself refuses."""
            status = HTTPStatus(code)
            what = message or explain or status.phrase
            problem = Problem("api-bad-request", "request", what, status.description)
            view = backend.view()
            body = envelope(
                "error",
                None,
                node=view.node,
                taken_wall_s=view.taken_wall_s,
                problems=(problem,),
            )
            self._send(Answer(status, body))

        def log_message(self, format: str, *args: Any) -> None:
            """Questions are not worth a log line; orders are audited."""

    return Handler
