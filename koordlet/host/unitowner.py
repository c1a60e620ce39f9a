"""What is asked of systemd about its units, and what it may answer; and whether it is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from koordlet.host.mounts import Roots
from koordlet.host.tree import Files
from koordlet.host.unitprops import PropertyValue
from koordlet.model.capabilities import Capability, Proof
from koordlet.model.readings import Missing

PRIVATE_SOCKET = "/run/systemd/private"
BUS_SOCKET = "/run/dbus/system_bus_socket"


class Fault(Enum):
    """Why systemd did not do as asked."""

    NO_UNIT = "no such unit"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


class SystemdError(Exception):
    """systemd did not do as asked; the text says what and where."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class UnitState:
    """A unit now. ``drop_ins`` has for each property what its drop-in of this boot says, None
    where there is no such file. A property that this systemd does not know is not in ``values``.
    """

    unit: str
    control_group: str
    values: Mapping[str, PropertyValue]
    drop_ins: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class TakeBack:
    """How one property is to be given back: ``original`` is what it was, ``had_drop_in`` whether
    it had a drop-in of this boot then, ``ours`` every value that we may have set. Without an
    ``original`` it holds what its owner wants now.
    """

    name: str
    original: PropertyValue | None
    had_drop_in: bool
    ours: frozenset[PropertyValue]


@dataclass(frozen=True, slots=True)
class Taken:
    """What was given back. ``foreign`` are the properties that were left alone, because they hold
    what somebody else set. ``wants_reload``: systemd still lists a drop-in that is gone.
    ``is_gone``: there is no such unit any more.
    """

    foreign: frozenset[str] = frozenset()
    wants_reload: bool = False
    is_gone: bool = False


class UnitOwner(Protocol):
    """systemd, or what stands for it in a test. Each method raises SystemdError, and may block."""

    def version(self) -> str:
        """systemd's version, e.g. ``252.39-1~deb12u1``."""
        ...

    def state(self, unit: str, names: Iterable[str]) -> UnitState:
        """What is said of ``unit``, loaded or not, and of its drop-ins for ``names``."""
        ...

    def set(self, unit: str, values: Mapping[str, PropertyValue]) -> None:
        """Give ``unit`` these properties for this boot, all or none."""
        ...

    def take_back(self, unit: str, wanted: Sequence[TakeBack]) -> Taken:
        """Give properties back, with every trace but the one that ``reload`` removes."""
        ...

    def reload(self) -> None:
        """Let systemd read all of its files again."""
        ...

    def hang_up(self) -> None:
        """Close the connection; the next call makes another."""
        ...


def no_systemd(files: Files, roots: Roots) -> str:
    """Why the cgroups here are not systemd's; ``""`` where it is PID 1 and can be asked."""
    comm = files.read(f"{roots.proc}/1/comm")
    name = comm.why if isinstance(comm, Missing) else comm.decode(errors="replace").strip()
    if name != "systemd":
        return f"PID 1 is not systemd ({name})"
    if files.exists(PRIVATE_SOCKET) or files.exists(BUS_SOCKET):
        return ""
    return f"systemd is PID 1, but neither {PRIVATE_SOCKET} nor {BUS_SOCKET} is to be seen here"


def capability(why: str, version: str | Missing) -> Capability:
    """``systemd-units``: whether values of units can be set. ``why``: as of ``no_systemd``."""
    name = "systemd-units"
    if why:
        return Capability(name, Proof.ABSENT, why, "no unit can be governed on such a host")
    if isinstance(version, Missing):
        remedy = "koordlet needs root, and /run/systemd of the host"
        return Capability(name, Proof.REFUSED, version.why, remedy)
    return Capability(name, Proof.UNPROVEN, detail=f"systemd {version}")
