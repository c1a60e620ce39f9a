"""Strategies of other installed packages: off unless the configuration names them.

A package offers one as an entry point of the group ``koordlet.strategies`` whose object is called
without arguments and gives a ``koordlet.qosmanager.strategy.Strategy``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from koordlet.model.capabilities import Capability, Proof
from koordlet.protocol.problem import Problem
from koordlet.qosmanager.registry import STRATEGIES
from koordlet.qosmanager.strategy import Strategy

GROUP = "koordlet.strategies"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the configuration asked for and got, and what it did not get."""

    strategies: tuple[Strategy, ...] = ()
    problems: tuple[Problem, ...] = ()


def installed() -> tuple[EntryPoint, ...]:
    """What installed packages offer, by name."""
    return tuple(sorted(entry_points(group=GROUP), key=lambda entry: entry.name))


def load_strategies(names: Iterable[str]) -> Loaded:
    """The named strategies; one that cannot be had is a problem, and the others still load."""
    offered = {entry.name: entry for entry in installed()}
    taken = {strategy.name for strategy in STRATEGIES}
    strategies: list[Strategy] = []
    problems: list[Problem] = []
    for name in names:
        found = _load(name, offered)
        if isinstance(found, Problem):
            problems.append(found)
        elif found.name in taken:
            problems.append(_problem(name, f"there is already a strategy {found.name!r}"))
        else:
            taken.add(found.name)
            strategies.append(found)
    return Loaded(tuple(strategies), tuple(problems))


def _load(name: str, offered: dict[str, EntryPoint]) -> Strategy | Problem:
    entry = offered.get(name)
    if entry is None:
        known = ", ".join(offered) or "none"
        return _problem(name, f"no installed package offers it; offered: {known}")
    try:
        strategy: Strategy = entry.load()()
    except Exception as error:  # noqa: BLE001 - foreign code; its fault must not stop the daemon
        return _problem(name, f"{entry.value} failed: {type(error).__name__}: {error}")
    return strategy


def _problem(name: str, what: str) -> Problem:
    return Problem(
        "extension",
        f"extensions: {name}",
        what,
        limit=f"an entry point of the group {GROUP}",
        remedy="install the package, or take the name out of the configuration",
    )


def as_capabilities(names: Iterable[str]) -> tuple[Capability, ...]:
    """One line of ``koordletctl doctor`` for each strategy that is installed."""
    wanted = set(names)
    return tuple(
        Capability(
            f"extension {entry.name}",
            Proof.UNPROVEN if entry.name in wanted else Proof.ABSENT,
            why="" if entry.name in wanted else "the configuration does not name it",
            remedy="" if entry.name in wanted else f"add {entry.name} to extensions",
            detail=entry.value,
        )
        for entry in installed()
    )
