"""The way to the systemd of this host."""

from __future__ import annotations

from koordlet.host.machine import Machine, open_machine
from koordlet.host.systemd import Systemd
from koordlet.host.unitowner import capability
from koordlet.model.capabilities import Capability
from koordlet.model.readings import Missing
from koordlet.resexecutor.unitthread import UnitThread

FIRST_ANSWER_S = 2.0
"""How long a start waits for systemd's version."""


def unit_thread(machine: Machine) -> UnitThread | None:
    """The thread that talks to systemd, not begun yet; None where systemd is not PID 1."""
    if machine.cgroups.no_systemd:
        return None
    own = open_machine(machine.roots, keeps_fds=False)
    return UnitThread(Systemd(), own.cgroups)


def greet(units: UnitThread | None) -> None:
    """Begin, and wait a moment for the first answer."""
    if units is not None:
        units.begin()
        units.wait_idle(FIRST_ANSWER_S)


def unit_capability(machine: Machine, units: UnitThread | None) -> Capability:
    """``systemd-units`` by systemd's last answer."""
    version = Missing("systemd is not asked here") if units is None else units.version
    return capability(machine.cgroups.no_systemd, version)
