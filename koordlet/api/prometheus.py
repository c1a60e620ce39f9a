"""The Prometheus pages and the health checks, on a TCP port that is loopback unless configured."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from koordlet.api.bounded import BoundedServer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 32

Page = Callable[[], bytes]


class MetricsServer:
    """Serves ``pages`` by path, ``/healthz`` (this process answers) and ``/readyz``.

    ``ready`` returns "" or why the daemon is not ready. Raises OSError at construction where the
    address cannot be bound.
    """

    def __init__(
        self, address: tuple[str, int], pages: dict[str, Page], ready: Callable[[], str]
    ) -> None:
        self._server = _Server(address, _handler(pages, ready))
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )

    @property
    def port(self) -> int:
        """The port in use; the kernel's choice where 0 was asked for."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(BoundedServer):
    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler, max_connections=MAX_CONNECTIONS)


def _handler(pages: dict[str, Page], ready: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = REQUEST_TIMEOUT_S
        server_version = "koordlet"
        sys_version = ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path in pages:
                self._answer(HTTPStatus.OK, pages[path](), CONTENT_TYPE)
            elif path == "/healthz":
                self._answer(HTTPStatus.OK, b"ok\n", "text/plain")
            elif path == "/readyz":
                why = ready()
                status = HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK
                self._answer(status, f"{why or 'ok'}\n".encode(), "text/plain")
            else:
                known = ", ".join((*pages, "/healthz", "/readyz"))
                body = f"no page {path[:200]!r}; pages: {known}\n".encode()
                self._answer(HTTPStatus.NOT_FOUND, body, "text/plain")

        do_HEAD = do_GET

        def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Scrapes are not worth a log line."""

    return Handler
