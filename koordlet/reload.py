"""Reading koordlet's configuration again while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from koordlet.config import Config, key_of, load_config
from koordlet.protocol.problem import Problem, RefusedError, Severity

LIVE = frozenset(
    {
        "reserved_cpus",
        "system_reserved_cpu_milli",
        "system_reserved_memory_bytes",
        "tick_seconds",
        "hot_sample_seconds",
        "hold_max_seconds",
        "other_agent",
        "audit_retention_days",
        "history_retention_days",
        "history_max_mib",
        "log_level",
        "log_format",
    }
)
"""Fields that a reload changes; every other one is read once, at the start."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload came to: the configuration in force from now on, the keys of it that changed,
    and why others did not.
    """

    config: Config
    changed: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def __str__(self) -> str:
        changed = "changed " + ", ".join(self.changed) if self.changed else "nothing changed"
        return "; ".join((changed, *(f"not taken: {problem}" for problem in self.problems)))


def reload_config(current: Config, argv: Sequence[str]) -> Reloaded:
    """Read the file of ``current`` again, under the options that koordlet was started with.

    A file that is refused changes nothing. Of one that is accepted the LIVE fields are taken, and
    each other field that differs is told.
    """
    try:
        wanted = load_config(argv, default_file=current.config)
    except RefusedError as refused:
        return Reloaded(current, problems=refused.problems)
    differing = [
        field.name
        for field in fields(Config)
        if getattr(wanted, field.name) != getattr(current, field.name)
    ]
    live = {name: getattr(wanted, name) for name in differing if name in LIVE}
    fixed = tuple(_needs_restart(current, name) for name in differing if name not in LIVE)
    return Reloaded(replace(current, **live), tuple(map(key_of, live)), fixed)


def _needs_restart(current: Config, name: str) -> Problem:
    return Problem(
        "config-needs-restart",
        f"{current.config}: {key_of(name)}",
        "is read at a start only; the value that koordlet was started with stays in force",
        remedy="restart koordlet: values in force stay as they are over a restart",
        severity=Severity.WARNING,
    )
