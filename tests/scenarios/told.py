"""One tick of a scenario, and how a story goes on from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from koordlet.model.knobs import Knob
from koordlet.snapshot import Snapshot
from tests.support.snapshots import Bench, Tick, decide, reset


@dataclass(frozen=True, slots=True)
class Told:
    """What happened before this tick, and the tick."""

    caption: str
    tick: Tick

    def then(self, caption: str, seconds: float = 1.0, **changes: Any) -> Told:
        """The plan was carried out; ``seconds`` later the snapshot differs by ``changes``."""
        return Told(caption, self._decide(self.tick.after(seconds=seconds, **changes)))

    def then_reset(self, caption: str, path: str, knob: Knob, seconds: float = 1.0) -> Told:
        """As ``then``, and somebody put the original of one file back."""
        return Told(caption, self._decide(reset(self.tick.after(seconds=seconds), path, knob)))

    def _decide(self, snapshot: Snapshot) -> Tick:
        return decide(snapshot, self.tick.proposals.memory)


def begin(caption: str, bench: Bench) -> Told:
    return Told(caption, decide(bench.snapshot()))
