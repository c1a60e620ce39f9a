"""koordletctl in this process, against a daemon of paper."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from koordlet import ipc
from koordlet.api.adopting import Adoptions
from koordlet.api.server import ApiServer
from koordlet.ctl.app import build
from koordlet.history.query import RangeAnswer, RangeQuery
from koordlet.leftovers import Found
from koordlet.protocol.problem import Problem
from koordlet.resexecutor.audit import AuditEvent, AuditQuery
from tests.support import views


@dataclass(frozen=True)
class Said:
    """What one run of koordletctl printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def body(self) -> dict[str, Any]:
        """The one object of ``-o json``."""
        found: dict[str, Any] = json.loads(self.out)
        return found


class PaperDaemon:
    """The API over a fixed view; orders and audit queries are remembered."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.reset()

    def reset(self) -> None:
        """As new: the realistic view, nothing asked, nothing ordered."""
        self.view = views.node_view()
        self.reply = ipc.CommandReply(1)
        self.orders: list[object] = []
        self.queries: list[AuditQuery] = []
        self.ranges: list[RangeQuery] = []
        self.events: tuple[AuditEvent, ...] = ()
        self.leftovers = Found()
        self.other_agent: Problem | None = None

    def send(self, order: ipc.Order, uid: int) -> ipc.CommandReply:
        self.orders.append(order)
        return self.reply

    def audit(self, query: AuditQuery) -> tuple[AuditEvent, ...]:
        self.queries.append(query)
        return self.events

    def history(self, query: RangeQuery) -> RangeAnswer:
        self.ranges.append(query)
        return views.history_answer(query)

    def ctl(self, *words: str) -> Said:
        """koordletctl asked about this daemon."""
        return ctl(*words, "--run-dir", str(self.run_dir))


@contextmanager
def paper_daemon(run_dir: Path) -> Iterator[PaperDaemon]:
    """A daemon that answers below ``run_dir`` while the block runs."""
    daemon = PaperDaemon(run_dir)
    server = ApiServer(
        run_dir / "api.sock",
        lambda: daemon.view,
        daemon,
        daemon.audit,
        daemon.history,
        Adoptions(lambda view: daemon.leftovers, lambda: daemon.other_agent),
    )
    server.start()
    try:
        yield daemon
    finally:
        server.stop()


def ctl(*words: str, stdin: str | None = None) -> Said:
    """Run koordletctl with these words; an exception that escapes is the test's failure."""
    result = CliRunner().invoke(build(), list(words), input=stdin, prog_name="koordletctl")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Said(result.exit_code, result.stdout, result.stderr)
