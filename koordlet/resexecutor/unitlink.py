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


RELOAD_S = 5.0
"""How long a stop waits for the end of the daemon-reload that it asked for."""

_SETTING_S = 5.0


def unit_thread(machine: Machine, reload_s: float = RELOAD_S) -> UnitThread | None:
    """The thread that talks to systemd, not begun yet; None where systemd is not PID 1."""
    if machine.cgroups.no_systemd:
        return None
    own = open_machine(machine.roots, keeps_fds=False)
    return UnitThread(Systemd(reload_s=reload_s), own.cgroups, reload_s + _SETTING_S)


def greet(units: UnitThread | None) -> None:
    """Begin, and wait a moment for the first answer."""
    if units is not None:
        units.begin()
        units.wait_idle(FIRST_ANSWER_S)


def unit_capability(machine: Machine, units: UnitThread | None) -> Capability:
    """``systemd-units`` by systemd's last answer; one that did not answer is asked again."""
    version = Missing("systemd is not asked here") if units is None else units.version
    if units is not None and isinstance(version, Missing):
        units.ask_version()
    return capability(machine.cgroups.no_systemd, version)
