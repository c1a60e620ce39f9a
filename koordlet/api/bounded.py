"""HTTP servers with a bound on connections: a crowd of slow clients must cost no memory."""

from __future__ import annotations

import socketserver
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import structlog


class BoundedServer(ThreadingHTTPServer):
    """One daemon thread a connection, up to ``max_connections``; what comes above is closed."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64  # a burst above the backlog would wait for a second, or three
    block_on_close = False

    def __init__(
        self,
        address: Any,
        handler: type[BaseHTTPRequestHandler],
        *,
        max_connections: int,
        bind_and_activate: bool = True,
    ) -> None:
        self._slots = threading.BoundedSemaphore(max_connections)
        super().__init__(address, handler, bind_and_activate)

    def server_bind(self) -> None:
        """Without the look-up of our own name, which a broken resolver makes last for seconds."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the connection's thread, or close it where all are taken."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection and give its place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news; anything else is a fault of ours, and is logged."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            structlog.get_logger("api").error("a request failed", exc_info=error)
