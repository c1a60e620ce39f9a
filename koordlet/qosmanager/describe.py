"""A plan as prose: what would be written now, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile

from koordlet.model.actions import Conflict, Hold, Plan, SetValue, Struck, Target, Terms
from koordlet.model.knobs import Channel, Knob, Value
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.protocol.cpuset import format_cpuset
from koordlet.units import MIB

_INDENT = " " * 8
_MICROSECONDS = frozenset({Knob.CPU_QUOTA, Knob.CPU_PERIOD, Knob.CPU_BURST})
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

Values = Mapping[Target, Value | Missing]


def describe(plan: Plan, values: Values, would: Iterable[SetValue] = ()) -> tuple[str, ...]:
    """The plan, one line a fact, in the order in which it matters to a reader.

    ``values`` is what the kernel holds now; ``would`` are the writes of strategies that only
    observe. An empty plan says so.
    """
    lines = [
        *_writes(plan.writes, values, "write"),
        *(_line("restore", r.target, r.knob, f"{r.why} [{r.owner}]") for r in plan.restores),
        *map(_hold, plan.holds),
        *_writes(would, values, "would"),
        *map(_lost, plan.conflicts),
        *map(_struck, plan.struck),
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
    return f"{value} us" if knob in _MICROSECONDS else str(value)


def format_terms(terms: Terms) -> str:
    """The numbers of a calculation in its order: ``capacity_cores 4, threshold_percent 65``."""
    return ", ".join(f"{name} {_number(number)}" for name, number in terms)


def _writes(writes: Iterable[SetValue], values: Values, verb: str) -> Iterator[str]:
    """Each write with its reason; numbers shared with the write above are not told again."""
    told: Terms = ()
    for write in writes:
        yield _change(write, values, verb)
        yield f"{_INDENT}because {write.reason}"
        same = _common_start(told, write.terms)
        own = write.terms[same:]
        if own:
            yield f"{_INDENT}{'..., ' if same else ''}{format_terms(own)}"
        told = write.terms or told


def _change(write: SetValue, values: Values, verb: str) -> str:
    before = values.get(write.key, Missing("not read"))
    channel = " through the container runtime" if write.channel is Channel.SPEC else ""
    wanted = f"{format_value(write.knob, write.value)}{channel} [{write.owner}]"
    keep = "keep" if verb == "write" else verb
    if write.knob is Knob.CPU_SHARES and values.get((write.target, Knob.CPU_IDLE)) == 1:
        return _line(keep, write.target, write.knob, f"{wanted}, masked while cpu.idle is 1")
    if before == write.value:
        return _line(keep, write.target, write.knob, wanted)
    text = f"{format_value(write.knob, before)} -> {wanted}"
    return _line(verb, write.target, write.knob, text)


def _common_start(left: Terms, right: Terms) -> int:
    """How many terms both start with; 0 for fewer than two, which are not worth an ellipsis."""
    pairs = zip(left, right, strict=False)
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return length if length >= _SHARED_TERMS_LEAST else 0


def _line(verb: str, target: CgroupPath, knob: Knob, text: str) -> str:
    return f"{verb:<{len(_INDENT)}}/{target} {knob.value}: {text}"


def _hold(hold: Hold) -> str:
    age = f", for {hold.age_s:.0f} s" if hold.age_s else ""
    return _line("hold", hold.target, hold.knob, f"{hold.why} [{hold.owner}]{age}")


def _lost(conflict: Conflict) -> str:
    lost, won = conflict.loser, conflict.winner
    value = f"{format_value(lost.knob, lost.value)} [{lost.owner}]"
    return _line("lost", lost.target, lost.knob, f"{value} to [{won.owner}]: {conflict.rule}")


def _struck(struck: Struck) -> str:
    action = struck.action
    value = f"{format_value(action.knob, action.value)} [{action.owner}]"
    return _line("struck", action.target, action.knob, f"{value}: {struck.why}")


def _number(number: float | int | str) -> str:
    return f"{number:.4g}" if isinstance(number, float) else str(number)
