"""Watches for another agent that manages this node while we run (hazard H14)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from koordlet import ipc
from koordlet.protocol.problem import Problem

FIRST_S = 5.0  # the core has told what it sees by then
CHECK_S = 20.0


class AgentWatch:
    """A thread that looks every CHECK_S; the core hears of it when the answer is another one.

    ``look`` finds another agent, or None; ``post`` reaches the core. ``survey`` looks at what an
    agent left and says it.
    """

    def __init__(
        self,
        look: Callable[[], Problem | None],
        post: Callable[[object], None],
        survey: Callable[[], None],
    ) -> None:
        self._look = look
        self._post = post
        self._survey = survey
        self._lock = threading.Lock()
        self._found: Problem | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agentwatch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def check(self) -> Problem | None:
        """Look now."""
        with self._lock:
            found = self._look()
            is_news, self._found = found != self._found, found
        if is_news:
            self._post(ipc.OtherAgentUpdate(found))
        return found

    def message(self) -> ipc.OtherAgentUpdate:
        """What a core that has just connected is to know."""
        return ipc.OtherAgentUpdate(self._found)

    def _run(self) -> None:
        wait_s = FIRST_S
        while not self._stopped.wait(wait_s):
            wait_s = CHECK_S
            self.check()
            self._survey()
