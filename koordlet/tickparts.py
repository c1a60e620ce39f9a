"""What the pipeline is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from koordlet.clock import Clock
from koordlet.config import Config
from koordlet.host.cgroup import Cgroups
from koordlet.host.tree import Tree
from koordlet.metrics.collector import Collector
from koordlet.metrics.hot import HotSampler
from koordlet.model.capabilities import Capabilities
from koordlet.nodefacts import NodeFactsReader
from koordlet.observer import Observer
from koordlet.protocol.problem import Problem
from koordlet.qosmanager.strategy import Strategy
from koordlet.resexecutor.executor import Executor
from koordlet.specoutbox import SpecOutbox


@dataclass(frozen=True, slots=True)
class TickParts:
    """What the composition root hands in. ``probe`` reads the host's capabilities without writing;
    ``prove`` also writes, in a cgroup of our own, and is called once something is enforced (H25).

    ``takeover`` says what an earlier run left in the journal; ``problems`` are those of the start.
    """

    config: Config
    clock: Clock
    files: Tree
    cgroups: Cgroups
    observer: Observer
    facts: NodeFactsReader
    hot: HotSampler
    collector: Collector
    executor: Executor
    spec: SpecOutbox
    strategies: tuple[Strategy, ...]
    probe: Callable[[], Capabilities]
    prove: Callable[[Capabilities], Capabilities]
    takeover: str
    journal_path: str
    problems: tuple[Problem, ...] = ()
