"""A hook server that changes one value: ``python -m tests.benchmarks.hookecho SOCKET``."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from tests.support.hookserver import HookServer, echo


def _answer(request: Any) -> Any:
    reply = echo(request)
    reply.container_resources.cpu_shares = 2
    return reply


if __name__ == "__main__":
    with HookServer(Path(sys.argv[1]), PreCreateContainer=_answer):
        os.write(1, b"ready\n")
        threading.Event().wait()
