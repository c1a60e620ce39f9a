"""What a strategy is: facts in, everything that it wants now out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from koordlet.model.actions import Decision, Owned, SetValue, Target
from koordlet.model.capabilities import Capabilities
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import BeRoot, Workloads
from koordlet.model.readings import Missing
from koordlet.model.topology import NodeFacts
from koordlet.protocol.nodeslo import NodeSlo
from koordlet.snapshot import Snapshot

Numbers = Mapping[str, float]
"""What one strategy remembers from tick to tick, by a name of its own; plain JSON. Nothing that the
journal already says belongs in here: memory may be lost in a restart, the journal is not."""


@dataclass(frozen=True, slots=True)
class NeedsContext:
    """What is known in a tick before any kernel setting was read."""

    node: NodeFacts
    workloads: Workloads
    be_roots: tuple[BeRoot, ...]
    be_tree: Mapping[CgroupPath, tuple[CgroupPath, ...]]
    capabilities: Capabilities
    slo: NodeSlo | Missing


class Strategy(Protocol):
    """One policy. It owns what it proposes; what it stops proposing is restored."""

    @property
    def name(self) -> str:
        """The owner's name in journal, audit and commands."""
        ...

    def enabled(self, slo: NodeSlo) -> bool:
        """True when the NodeSLO switches this strategy on."""
        ...

    def needs(self, context: NeedsContext) -> Iterable[Target]:
        """The kernel files whose values ``decide`` wants to see."""
        ...

    def decide(self, snapshot: Snapshot, memory: Numbers) -> tuple[Decision, Numbers]:
        """All that this strategy wants now, and what it wants to remember."""
        ...

    def safe(self, snapshot: Snapshot, held: tuple[Owned, ...]) -> tuple[SetValue, ...]:
        """Values that are safe without knowing the present, for rows held for too long."""
        ...
