"""What strategies have to say to a person about this host."""

from __future__ import annotations

from koordlet.model.capabilities import Capabilities
from koordlet.model.knobs import Knob
from koordlet.model.pods import BeRoot
from koordlet.protocol.problem import Problem, Severity


def unit_notes(roots: tuple[BeRoot, ...]) -> tuple[Problem, ...]:
    """One note for each BE root that cannot be written, and why (hazard H6)."""
    return tuple(
        Problem(
            code="be-root-systemd-unit",
            where=root.path,
            what=f"host application {root.claimed_by} is observed but not governed:"
            f" {root.unwritable}",
            limit="the cgroups of systemd's units are written through systemd alone",
            remedy="declare a cgroup that is nobody's by cgroupPath, or the unit itself where"
            " systemd is PID 1",
            severity=Severity.WARNING,
        )
        for root in roots
        if not root.writable
    )


def unsupported(capabilities: Capabilities, knob: Knob, owner: str) -> Problem:
    """``owner`` wants ``knob``, which this host does not have."""
    capability = capabilities.knob(knob)
    return Problem(
        code=f"{knob.value.replace('.', '-')}-unsupported",
        where=owner,
        what=f"{knob.value} cannot be used on this host: {capability.why or 'not there'}",
        remedy=capability.remedy or "the other rungs of BE suppression stay in force",
        severity=Severity.WARNING,
    )
