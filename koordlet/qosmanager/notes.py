"""What strategies have to say to a person about this host."""

from __future__ import annotations

from koordlet.model.capabilities import Capabilities
from koordlet.model.knobs import Knob
from koordlet.model.pods import BeRoot
from koordlet.protocol.problem import Problem, Severity

UNIT_REASON = (
    "the cgroup belongs to a systemd unit: values written by file vanish at its next daemon-reload,"
    " and koordlet cannot yet write them through systemd"
)


def unit_notes(roots: tuple[BeRoot, ...]) -> tuple[Problem, ...]:
    """One note for each BE root that cannot be written because it is a unit (hazard H6)."""
    return tuple(
        Problem(
            code="be-root-systemd-unit",
            where=root.path,
            what=f"host application {root.claimed_by} is observed but not governed: {UNIT_REASON}",
            limit="values of systemd units are unsupported",
            remedy="declare it by cgroupPath instead of systemdUnit, or limit the unit with"
            " systemctl set-property",
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
