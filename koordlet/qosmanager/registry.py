"""All strategies, and the supervisor that runs them: whatever fails in one is held, not lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from koordlet.model.actions import Decision, Hold, Mode, SetValue, Target, target_order
from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem, Severity
from koordlet.qosmanager.be_priority import BePriority
from koordlet.qosmanager.cpu_suppress import CpuSuppress
from koordlet.qosmanager.holds import HeldSince, aged
from koordlet.qosmanager.strategy import NeedsContext, Numbers, Strategy
from koordlet.snapshot import Snapshot

STRATEGIES: tuple[Strategy, ...] = (BePriority(), CpuSuppress())
"""In the order of the rungs (hazard H30). The plan does not depend on it."""

T = TypeVar("T")

HOLD_MAX_S = 30.0
"""A hold older than this turns into the strategy's safe value."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What survives from tick to tick; plain JSON in dictionaries.

    ``strategies``: the numbers of each strategy, by its name. ``held_since_s``: monotonic seconds,
    by owner and target.
    """

    strategies: dict[str, Numbers] = field(default_factory=dict)
    held_since_s: HeldSince = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StrategyReport:
    """What one strategy did in this tick. ``would`` is set where nothing of it is written: in
    observe mode, and while another agent manages the node.

    ``hold_why`` is set while it holds all that it owns, ``hold_age_s`` for how long.
    """

    name: str
    mode: Mode
    enabled: bool
    decision: Decision
    would: tuple[SetValue, ...] = ()
    hold_why: str = ""
    hold_age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Proposals:
    """What all strategies want now, before the arbiter; ``silent`` says by owner why nothing."""

    actions: tuple[SetValue, ...] = ()
    holds: tuple[Hold, ...] = ()
    silent: dict[str, str] = field(default_factory=dict)
    reports: tuple[StrategyReport, ...] = ()
    problems: tuple[Problem, ...] = ()
    memory: Memory = field(default_factory=Memory)


def needs_all(
    context: NeedsContext, strategies: tuple[Strategy, ...] = STRATEGIES
) -> tuple[frozenset[Target], tuple[Problem, ...]]:
    """The kernel files that any strategy wants to see; a failing strategy sees none."""
    targets: set[Target] = set()
    problems: list[Problem] = []
    for strategy in strategies:
        found, problem = _supervised(strategy.name, partial(_needs, strategy, context))
        targets.update(found or ())
        problems += [problem] if problem else []
    return frozenset(targets), tuple(problems)


def _needs(strategy: Strategy, context: NeedsContext) -> tuple[Target, ...]:
    return tuple(strategy.needs(context))


def decide_all(
    snapshot: Snapshot,
    memory: Memory,
    hold_max_s: float = HOLD_MAX_S,
    strategies: tuple[Strategy, ...] = STRATEGIES,
) -> Proposals:
    """Run every strategy in its mode.

    OFF proposes nothing, so what it owns is restored. OBSERVE decides too and reports what it
    would write, but nothing of it is in force: what it owned is restored. ENFORCE is the default;
    the NodeSLO is the switch. An exception is a hold of all that the strategy owns.
    """
    runs = [_run(strategy, snapshot, memory, hold_max_s) for strategy in strategies]
    return Proposals(
        actions=tuple(action for run in runs for action in run.actions),
        holds=tuple(hold for run in runs for hold in run.holds),
        silent={run.report.name: run.silent for run in runs if run.silent},
        reports=tuple(run.report for run in runs),
        problems=tuple(dict.fromkeys(problem for run in runs for problem in run.problems)),
        memory=Memory(
            {run.report.name: run.numbers for run in runs if run.numbers},
            {key: since for run in runs for key, since in run.since.items()},
        ),
    )


@dataclass(frozen=True, slots=True)
class _Run:
    report: StrategyReport
    actions: tuple[SetValue, ...] = ()
    holds: tuple[Hold, ...] = ()
    silent: str = ""
    problems: tuple[Problem, ...] = ()
    numbers: Numbers = field(default_factory=dict)
    since: HeldSince = field(default_factory=dict)


def _run(strategy: Strategy, snapshot: Snapshot, memory: Memory, hold_max_s: float) -> _Run:
    name = strategy.name
    mode = snapshot.modes.get(name, Mode.ENFORCE)
    slo = snapshot.slo
    enabled = not isinstance(slo, Missing) and strategy.enabled(slo)
    before = memory.strategies.get(name, {})
    if mode is Mode.OFF:
        report = StrategyReport(name, mode, enabled, Decision())
        return _Run(report, silent=f"{name} is switched off")
    decided, failed = _supervised(name, lambda: strategy.decide(snapshot, before))
    decision, numbers = decided or (Decision(hold_all=_first_line(failed)), before)
    problems = (*decision.notes, *((failed,) if failed else ()))
    if mode is Mode.OBSERVE:
        report = StrategyReport(name, mode, enabled, decision, would=decision.actions)
        return _Run(report, silent=f"{name} only observes", problems=problems, numbers=numbers)
    holds, since = aged(name, decision, snapshot, memory.held_since_s)
    actions, holds, told = _expire(strategy, snapshot, holds, hold_max_s)
    report = StrategyReport(
        name,
        mode,
        enabled,
        decision,
        hold_why=decision.hold_all,
        hold_age_s=snapshot.now_s - since[name] if decision.hold_all else 0.0,
    )
    return _Run(
        report,
        actions=(*decision.actions, *actions),
        holds=holds,
        silent=_why_silent(name, enabled=enabled),
        problems=(*problems, *told),
        numbers=numbers,
        since=since,
    )


def _expire(
    strategy: Strategy, snapshot: Snapshot, holds: tuple[Hold, ...], hold_max_s: float
) -> tuple[tuple[SetValue, ...], tuple[Hold, ...], tuple[Problem, ...]]:
    """Turn holds that are too old into safe values; where there is none they stay holds."""
    old = {hold.key for hold in holds if hold.age_s > hold_max_s and hold.key in snapshot.owned}
    if not old:
        return (), holds, ()
    rows = tuple(snapshot.owned[key] for key in sorted(old, key=target_order))
    found, failed = _supervised(strategy.name, lambda: strategy.safe(snapshot, rows))
    safe = found or ()
    replaced = {action.key for action in safe}
    why = next(hold.why for hold in holds if hold.key in old)
    told = Problem(
        code="hold-expired",
        where=strategy.name,
        what=f"safe values are in force in {len(safe)} of its files: {why}",
        limit=f"a hold lasts {hold_max_s:g} s",
        remedy="see what is missing with koordletctl status",
        severity=Severity.WARNING,
    )
    kept = tuple(hold for hold in holds if hold.key not in replaced)
    return safe, kept, (told, *((failed,) if failed else ()))


def _why_silent(name: str, *, enabled: bool) -> str:
    return f"{name} no longer asks for it" if enabled else f"{name} is not enabled by the NodeSLO"


def _first_line(problem: Problem | None) -> str:
    return problem.what if problem else ""


def _supervised(name: str, call: Callable[[], T]) -> tuple[T | None, Problem | None]:
    """Run code of a strategy; whatever it raises becomes a Problem. The one broad ``except``."""
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001 - one strategy must never stop the others
        return None, Problem(
            code="strategy-failed",
            where=name,
            what=f"{name} failed: {type(error).__name__}: {error}",
            remedy="what it owns is held, then set to safe values; please report this tick",
        )
