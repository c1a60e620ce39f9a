"""An open-loop load generator: Poisson arrivals that wait for nothing.

Requests are sent when they are due, never when the previous reply allows it, and latency counts
from the intended start. Who waits for replies before sending on leaves out the very requests that
a slow server would have hurt; who counts from the actual send leaves out its own delay.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support import openloopworker
from tests.support.cgroot import hierarchies

UNANSWERED_S = 10.0
"""The latency of a request that got no good reply in that time, or could not even be sent."""


def arrivals(
    rng: random.Random,
    rate_per_s: Callable[[float], float],
    most_per_s: float,
    seconds: float,
) -> list[float]:
    """Offsets of a Poisson process whose rate changes, none above ``most_per_s`` (by thinning)."""
    offsets: list[float] = []
    at_s = 0.0
    while True:
        at_s += rng.expovariate(most_per_s)
        if at_s >= seconds:
            return offsets
        if rng.random() * most_per_s < rate_per_s(at_s):
            offsets.append(at_s)


@dataclass(frozen=True)
class Played:
    """What became of each request, all as seconds after the start; None for what never was."""

    offsets: tuple[float, ...]
    sent: tuple[float | None, ...]
    done: tuple[float | None, ...]

    def between(self, from_s: float, to_s: float) -> Played:
        """Only those that were due in this part."""
        kept = [
            each
            for each in zip(self.offsets, self.sent, self.done, strict=True)
            if from_s <= each[0] < to_s
        ]
        offsets, sent, done = zip(*kept, strict=True) if kept else ((), (), ())
        return Played(tuple(offsets), tuple(sent), tuple(done))

    def latencies_s(self) -> list[float]:
        """From the intended start to the end of the reply, UNANSWERED_S at most."""
        return [
            UNANSWERED_S if done is None else min(done - due, UNANSWERED_S)
            for due, done in zip(self.offsets, self.done, strict=True)
        ]

    def late_s(self) -> list[float]:
        """How much later than intended each one was sent: the generator's own fault."""
        return [
            sent - due
            for due, sent in zip(self.offsets, self.sent, strict=True)
            if sent is not None
        ]

    @property
    def sent_ratio(self) -> float:
        """The share of requests that were sent at all; 1 of none."""
        if not self.sent:
            return 1.0
        return sum(each is not None for each in self.sent) / len(self.sent)

    @property
    def unanswered(self) -> int:
        """Requests without a good reply in UNANSWERED_S."""
        return sum(latency_s >= UNANSWERED_S for latency_s in self.latencies_s())


class OpenLoop:
    """The generator's process while the context lasts, in the root cgroup.

    It connects to the unix socket ``address`` for each request; a reply is good where it begins
    with ``reply_start``, and ends with the connection.
    """

    def __init__(
        self,
        address: Path,
        request: str,
        reply_start: str,
        *,
        patience_s: float = UNANSWERED_S,
    ) -> None:
        self._settings = {
            "address": str(address),
            "request": request,
            "reply_start": reply_start,
            "patience_s": patience_s,
        }
        self._process: subprocess.Popen[str] | None = None
        self._offsets: tuple[float, ...] = ()
        self.priority = ""

    def __enter__(self) -> OpenLoop:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(openloopworker.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for whoever started it
        )
        _into_root_cgroup(self._process.pid)
        self._tell(self._settings)
        self.priority = str(self._hear()["priority"])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._running()
        process.kill()
        process.communicate()

    @property
    def pid(self) -> int:
        return self._running().pid

    def begin(self, offsets: Sequence[float], start_s: float) -> None:
        """Send at these offsets (ascending) from the monotonic time ``start_s`` on."""
        self._offsets = tuple(offsets)
        self._tell({"start_s": start_s, "offsets": self._offsets})

    def result(self) -> Played:
        """Wait until all are answered or given up."""
        told = self._hear()
        return Played(self._offsets, tuple(told["sent"]), tuple(told["done"]))

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def _tell(self, what: object) -> None:
        stdin = self._running().stdin
        assert stdin is not None
        stdin.write(json.dumps(what) + "\n")
        stdin.flush()

    def _hear(self) -> dict[str, Any]:
        stdout = self._running().stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"the load generator ended with {self._running().wait()}")
        told: dict[str, Any] = json.loads(line)
        return told


def _into_root_cgroup(pid: int) -> None:
    """As a client on another machine would, it takes part in no cgroup's share of the CPU."""
    if os.geteuid() != 0:
        return
    mounts = hierarchies()
    mount = mounts.get("cpu") or mounts.get("unified")
    if mount is not None:
        with contextlib.suppress(OSError):  # not allowed in a container: it stays where it is
            (mount / "cgroup.procs").write_text(str(pid))
