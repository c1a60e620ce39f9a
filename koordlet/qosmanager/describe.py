"""A plan as prose: what would be written now, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from koordlet.model.actions import Hold, Plan, SetValue, Target, Terms
from koordlet.model.knobs import Channel, Knob, Value
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.protocol.cpuset import format_cpuset
from koordlet.units import MIB

_UNITS = {
    Knob.CPU_QUOTA: "us",
    Knob.CPU_PERIOD: "us",
    Knob.CPU_BURST: "us",
}
_BYTES = frozenset(
    {
        Knob.MEMORY_LIMIT,
        Knob.MEMORY_SWAP_LIMIT,
        Knob.MEMORY_MIN,
        Knob.MEMORY_LOW,
        Knob.MEMORY_HIGH,
    }
)
_SHARED_TERMS_LEAST = 2
"""Calculations that so many writes share are told once."""

Values = Mapping[Target, Value | Missing]


def describe(plan: Plan, values: Values, would: Iterable[SetValue] = ()) -> tuple[str, ...]:
    """The plan, one line a fact, in the order in which it matters to a reader.

    ``values`` is what the kernel holds now; ``would`` are the writes of strategies that only
    observe. An empty plan says so.
    """
    lines = [
        *_writes(plan.writes, values, "write"),
        *(f"restore {_where(r.target, r.knob)}: {r.why} [{r.owner}]" for r in plan.restores),
        *(_hold(hold) for hold in plan.holds),
        *_writes(tuple(would), values, "would write"),
        *(
            f"lost    {_where(c.loser.target, c.loser.knob)} = "
            f"{format_value(c.loser.knob, c.loser.value)} [{c.loser.owner}] to [{c.winner.owner}]:"
            f" {c.rule}"
            for c in plan.conflicts
        ),
        *(
            f"struck  {_where(s.action.target, s.action.knob)} = "
            f"{format_value(s.action.knob, s.action.value)} [{s.action.owner}]: {s.why}"
            for s in plan.struck
        ),
    ]
    return tuple(lines) or ("nothing to write, restore or hold",)


def format_value(knob: Knob, value: Value | Missing) -> str:
    """A value for a person: its unit, ``unlimited`` for None, CPUs as the kernel lists them."""
    if isinstance(value, Missing):
        return f"unknown ({value.why})"
    if value is None:
        return "unlimited"
    if isinstance(value, frozenset):
        return f"CPUs {format_cpuset(value)}" if value else "CPUs of the parent"
    if knob in _BYTES and isinstance(value, int):
        return f"{value / MIB:.1f} MiB"
    unit = _UNITS.get(knob)
    return f"{value} {unit}" if unit else str(value)


def format_terms(terms: Terms) -> str:
    """The numbers of a calculation in its order: ``capacity_cores 4, threshold_percent 65``."""
    return ", ".join(f"{name} {_number(number)}" for name, number in terms)


def _writes(writes: tuple[SetValue, ...], values: Values, verb: str) -> Iterator[str]:
    """Each write with its reason; the terms that a whole reason's writes share come once."""
    told: Terms = ()
    for write in writes:
        before = values.get(write.key, Missing("not read"))
        channel = " through the container runtime" if write.channel is Channel.SPEC else ""
        change = (
            f"{verb:<7} {_where(write.target, write.knob)}: {format_value(write.knob, before)} ->"
            f" {format_value(write.knob, write.value)}{channel} [{write.owner}]"
        )
        if before == write.value:
            change = (
                f"{'keep' if verb == 'write' else 'would keep':<7}"
                f" {_where(write.target, write.knob)}: {format_value(write.knob, write.value)}"
                f"{channel} [{write.owner}]"
            )
        yield change
        yield f"        because {write.reason}"
        shared = _common_start(told, write.terms)
        if len(shared) < _SHARED_TERMS_LEAST:
            shared = ()
        if write.terms[len(shared) :]:
            lead = "..., " if shared else ""
            yield f"        {lead}{format_terms(write.terms[len(shared) :])}"
        told = write.terms or told


def _common_start(left: Terms, right: Terms) -> Terms:
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        length += 1
    return right[:length]


def _hold(hold: Hold) -> str:
    age = f" for {hold.age_s:.0f} s" if hold.age_s else ""
    return f"hold{age:<4} {_where(hold.target, hold.knob)}: {hold.why} [{hold.owner}]"


def _where(target: CgroupPath, knob: Knob) -> str:
    return f"/{target} {knob.value}"


def _number(number: float | int | str) -> str:
    return f"{number:.4g}" if isinstance(number, float) else str(number)
