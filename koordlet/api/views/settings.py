"""All that is known about one kernel file: wanted, held, written before, present, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from koordlet.api.views.common import (
    Term,
    Unit,
    Unknown,
    number,
    terms_data,
    unit_of,
    unknown,
    value_data,
)
from koordlet.model.actions import (
    Conflict,
    Hold,
    Outcome,
    Owned,
    Plan,
    Restore,
    SetValue,
    Status,
    Struck,
    Target,
    Terms,
    target_order,
)
from koordlet.model.knobs import Channel
from koordlet.report import CoreStatus, NodeView, StrategyStatus

SettingState = Literal[
    "in-force", "planned", "held", "restoring", "struck", "refused", "pending", "would", "past"
]


class OutcomeData(TypedDict):
    """What came of the newest write to a file; ``before`` and ``after`` are file texts."""

    status: str
    before: str
    after: str
    errno: int
    why: str


class SettingData(TypedDict):
    """One kernel file that koordlet writes, holds, restores or would write.

    ``value`` is what is wanted now in ``unit`` (unlimited is null); ``original``, ``last_written``
    and ``present`` are texts as the file holds them. ``original_source`` says who told an original
    that was adopted; "" is the file itself, before the first write. ``age_s`` counts from that.
    """

    file: str | Unknown
    cgroup: str
    knob: str
    unit: Unit
    state: SettingState
    owner: str
    channel: str
    value: int | str | Unknown | None
    original: str | Unknown
    original_source: str
    last_written: str | Unknown
    present: str | Unknown
    age_s: float | Unknown
    reason: str
    terms: list[Term]
    hold_why: str
    hold_age_s: float | Unknown
    side_effect: bool
    conflicts: list[str]
    outcome: OutcomeData | None


@dataclass(slots=True)
class Setting:
    """The parts of one target, gathered from plan, journal, outcomes and strategies."""

    write: SetValue | None = None
    would: SetValue | None = None
    hold: Hold | None = None
    restore: Restore | None = None
    struck: Struck | None = None
    owned: Owned | None = None
    outcome: Outcome | None = None
    conflicts: list[Conflict] = field(default_factory=list)


def gather(view: NodeView) -> Mapping[Target, Setting]:
    """Every target that koordlet has anything to do with, parents first."""
    table: dict[Target, Setting] = {}

    def at(key: Target) -> Setting:
        return table.setdefault(key, Setting())

    if isinstance(view.plan, Plan):
        for write in view.plan.writes:
            at(write.key).write = write
        for restore in view.plan.restores:
            at(restore.key).restore = restore
        for hold in view.plan.holds:
            at(hold.key).hold = hold
        for struck in view.plan.struck:
            at(struck.action.key).struck = struck
        for conflict in view.plan.conflicts:
            at(conflict.winner.key).conflicts.append(conflict)
    for owned in view.owned:
        at(owned.key).owned = owned
    for key, outcome in view.outcomes.items():
        at(key).outcome = outcome
    for strategy in strategies(view):
        for would in strategy.would:
            at(would.key).would = would
    return {key: table[key] for key in sorted(table, key=target_order)}


def strategies(view: NodeView) -> tuple[StrategyStatus, ...]:
    """The strategies as last reported; none while the core has said nothing."""
    return view.core.strategies if isinstance(view.core, CoreStatus) else ()


def setting_data(view: NodeView, key: Target, setting: Setting) -> SettingData:
    """The JSON form of one setting."""
    cgroup, knob = key
    wanted = setting.write or (setting.struck.action if setting.struck else setting.would)
    owner = owner_of(setting)
    reason, terms = _why(setting, wanted)
    owned = setting.owned
    return {
        "file": file_of(view, key),
        "cgroup": cgroup,
        "knob": knob.value,
        "unit": unit_of(knob),
        "state": state_of(setting),
        "owner": owner,
        "channel": _channel(owned or wanted or setting.restore).value,
        "value": value_data(wanted.value) if wanted else unknown("no value is wanted here now"),
        "original": owned.original if owned else unknown("nothing was journaled"),
        "original_source": owned.source if owned else "",
        "last_written": owned.last_written if owned else unknown("nothing was written"),
        "present": present_text(setting),
        "age_s": _age_s(view, owned),
        "reason": reason,
        "terms": terms_data(terms),
        "hold_why": setting.hold.why if setting.hold else "",
        "hold_age_s": _hold_age_s(view, setting.hold),
        "side_effect": bool(owned and owned.side_effect),
        "conflicts": [conflict_text(conflict) for conflict in setting.conflicts],
        "outcome": outcome_data(setting.outcome),
    }


def settings_data(view: NodeView, table: Mapping[Target, Setting]) -> list[SettingData]:
    """The JSON form of several settings, in the order of the table."""
    return [setting_data(view, key, setting) for key, setting in table.items()]


def file_of(view: NodeView, key: Target) -> str | Unknown:
    """The kernel file of a target, absolute in the host's namespace."""
    return view.paths.get(key) or unknown(f"no file for {key[1].value} of {key[0] or '/'}")


def owner_of(setting: Setting) -> str:
    """The strategy behind a setting: who wants it, else who journaled it."""
    for part in (setting.write, setting.hold, setting.restore, setting.owned, setting.would):
        if part is not None:
            return part.owner
    if setting.struck is not None:
        return setting.struck.action.owner
    return setting.outcome.owner if setting.outcome else ""


_BAD = (Status.REFUSED, Status.UNSUPPORTED, Status.FOREIGN)


def state_of(setting: Setting) -> SettingState:
    """One word for where a setting stands; what failed outranks what was meant."""
    status = setting.outcome.status if setting.outcome else None
    if setting.hold is not None:
        return "held"
    if setting.struck is not None:
        return "struck"
    if (setting.write or setting.restore) and status in _BAD:
        return "refused"
    if (setting.write or setting.restore) and status is Status.PENDING:
        return "pending"
    if setting.restore is not None:
        return "restoring"
    if setting.write is not None:
        return "in-force" if setting.owned else "planned"
    if setting.owned is not None:
        return "in-force"
    return "would" if setting.would else "past"


def present_text(setting: Setting) -> str | Unknown:
    """What the file holds, as far as the newest outcome or the journal tells."""
    outcome = setting.outcome
    if outcome is not None:
        if outcome.status is Status.GONE:
            return unknown("the cgroup is gone")
        text = outcome.after or outcome.before
        if text:
            return text
    if setting.owned is not None and setting.restore is None:
        return setting.owned.last_written
    return unknown("not read")


def outcome_data(outcome: Outcome | None) -> OutcomeData | None:
    """The JSON form of an outcome."""
    if outcome is None:
        return None
    return {
        "status": outcome.status.value,
        "before": outcome.before,
        "after": outcome.after,
        "errno": outcome.errno,
        "why": outcome.why,
    }


def conflict_text(conflict: Conflict) -> str:
    """Who won over whom, and by which rule."""
    return (
        f"{conflict.winner.owner} wants {value_text(conflict.winner)} and wins over "
        f"{conflict.loser.owner} with {value_text(conflict.loser)}: {conflict.rule}"
    )


def value_text(action: SetValue) -> str:
    """A wanted value as words: unlimited is spelled out."""
    data = value_data(action.value)
    unit = unit_of(action.knob)
    if data is None:
        return "unlimited"
    return f"{data} {unit}" if unit in ("us", "bytes") else str(data)


def _channel(part: Owned | SetValue | Restore | None) -> Channel:
    return Channel.FILE if part is None else part.channel


def _why(setting: Setting, wanted: SetValue | None) -> tuple[str, Terms]:
    if setting.hold is not None:
        return setting.hold.why, ()
    if setting.struck is not None:
        return setting.struck.why, setting.struck.action.terms
    if wanted is not None:
        return wanted.reason, wanted.terms
    if setting.restore is not None:
        return setting.restore.why, ()
    if setting.outcome is not None:
        return setting.outcome.reason or setting.outcome.why, setting.outcome.terms
    if setting.owned is not None and setting.owned.side_effect:
        return "another value's write changes this file", ()
    return "", ()


def _age_s(view: NodeView, owned: Owned | None) -> float | Unknown:
    if owned is None:
        return unknown("nothing was written")
    if view.taken_s is None:
        return unknown("no clock came with this view")
    if owned.since_s < 0:
        return unknown("an earlier run wrote it")
    return number(max(0.0, view.taken_s - owned.since_s))


def _hold_age_s(view: NodeView, hold: Hold | None) -> float | Unknown:
    """Strategies keep one age for all they hold; a single held file has none of its own."""
    if hold is None:
        return unknown("not held")
    for strategy in strategies(view):
        if strategy.name == hold.owner and strategy.hold_why:
            return number(strategy.hold_age_s)
    return unknown("only this file is held")
