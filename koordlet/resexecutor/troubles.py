"""What stands in the executor's way, told to a person."""

from __future__ import annotations

from collections.abc import Iterable

from koordlet.host.cgroup import Cgroups
from koordlet.model.actions import Outcome, Status, Target
from koordlet.protocol.problem import Problem, Severity
from koordlet.resexecutor.journal import BadRow

MOST_TOLD = 20


def journal(error: str) -> Problem:
    """The journal takes nothing: no new value is written, restores go on (hazard H15)."""
    return Problem(
        "journal-unwritable",
        "journal",
        error,
        limit="nothing is written that cannot be undone",
        remedy="free space on the journal's file system",
    )


def bad_row(row: BadRow) -> Problem:
    """A journal row that cannot be trusted; the file that it names is left alone (hazard H27)."""
    return Problem(
        "journal-row-refused",
        f"journal row {row.path!r} {row.knob!r}",
        row.why,
        limit="only knobs of the table below the managed root are restored",
        remedy="look at that file by hand",
    )


def stuck(cgroups: Cgroups, key: Target, text: str) -> Problem:
    """A write has not come back from the kernel (hazard H11)."""
    return Problem(
        "write-stuck",
        str(cgroups.path_of(*key)),
        f"writing {text!r} has not come back from the kernel",
        limit="a process cannot be stopped in such a write",
        remedy="wait, or free memory in that cgroup",
        severity=Severity.WARNING,
    )


def systemd_silent(busy_s: float) -> Problem:
    """systemd has not answered for long (hazard H11)."""
    return Problem(
        "systemd-silent",
        "systemd",
        f"has not answered for {busy_s:.0f} s; values of its units stay as they are",
        limit="a call may take as long as a daemon-reload",
        remedy="see what systemd does: systemctl list-jobs",
        severity=Severity.WARNING,
    )


def not_reloaded(error: str) -> Problem:
    """Everything is given back, but systemd still lists drop-ins that are gone."""
    return Problem(
        "systemd-not-reloaded",
        "systemd",
        f"{error}; it lists drop-ins that are gone until the next daemon-reload",
        remedy="systemctl daemon-reload",
        severity=Severity.WARNING,
    )


def refusals(cgroups: Cgroups, outcomes: Iterable[Outcome]) -> tuple[Problem, ...]:
    """Refused writes one by one, what is unsupported once for each knob and reason (OPS-01)."""
    found: dict[tuple[str, str], Problem] = {}
    for outcome in outcomes:
        if outcome.status is Status.UNSUPPORTED:
            problem = _unsupported(outcome)
            found.setdefault((problem.code, outcome.knob.value), problem)
        elif outcome.status is Status.REFUSED:
            found[outcome.target, outcome.knob.value] = _refused(cgroups, outcome)
    return tuple(found.values())[:MOST_TOLD]


def _unsupported(outcome: Outcome) -> Problem:
    return Problem(
        "knob-unsupported",
        outcome.knob.value,
        f"cannot be written on this host: {outcome.why}",
        limit="tried again once a minute",
        remedy="koordletctl doctor tells what works here",
        severity=Severity.WARNING,
    )


def _refused(cgroups: Cgroups, outcome: Outcome) -> Problem:
    unit = cgroups.unit_of(outcome.target)
    if unit:
        return Problem(
            "unit-refused",
            unit,
            outcome.why,
            limit=f"{outcome.knob.value} of a unit is set by systemd alone",
            remedy="see what systemd says: systemctl status, journalctl -u",
            severity=Severity.WARNING,
        )
    return Problem(
        "write-refused",
        str(cgroups.path_of(outcome.target, outcome.knob)),
        outcome.why,
        limit="the kernel's own rules between a cgroup and its relatives",
        remedy="the cgroup named above holds the value that is in the way",
        severity=Severity.WARNING,
    )
