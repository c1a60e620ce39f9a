"""Telling systemd how the service is doing (sd_notify)."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(*words: str) -> None:
    """Send e.g. ``READY=1``; does nothing where nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
    ):
        sock.sendto("\n".join(words).encode(), address)
