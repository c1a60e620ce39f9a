"""HTTP servers with a bound on connections: a crowd of slow clients must cost no memory."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class BoundedServer(ThreadingHTTPServer):
    """One daemon thread a connection, up to ``max_connections``; what comes above is closed."""

    daemon_threads = True
    allow_reuse_address = True
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
