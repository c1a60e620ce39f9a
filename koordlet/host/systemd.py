"""systemd as the owner of cgroups: what its units' properties are, and setting them (hazard H6).

Root talks to systemd directly, by its private socket; the message bus is used where that is not to
be had. A property that is set for this boot (runtime) is also in a drop-in, so a daemon-reload
keeps it. Taking it back is more than setting the old value: see ``Systemd.take_back``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jeepney import DBusAddress, new_method_call

from koordlet.host.dbus import Bus, BusError, CallError
from koordlet.host.unitnames import object_path
from koordlet.host.unitowner import (
    BUS_SOCKET,
    PRIVATE_SOCKET,
    Fault,
    SystemdError,
    TakeBack,
    Taken,
    UnitState,
)
from koordlet.host.unitprops import (
    PROPERTIES,
    Property,
    PropertyValue,
    from_bitmap,
    setting_text,
    to_bitmap,
)
from koordlet.model.readings import Missing

UNITS_DIR = "/run/systemd"
CALL_S = 10.0
RELOAD_S = 15.0  # all units are read again; that happens also where its end is not waited for

_NAME = "org.freedesktop.systemd1"
_PROPERTIES = "org.freedesktop.DBus.Properties"
_MANAGER = DBusAddress("/org/freedesktop/systemd1", bus_name=_NAME, interface=f"{_NAME}.Manager")
_NO_UNIT = (f"{_NAME}.NoSuchUnit", f"{_NAME}.LoadFailed")
_NO_PROPERTY = "org.freedesktop.DBus.Error.UnknownProperty"
_DIRECTORIES = {True: "transient", False: "system.control"}


class Systemd:
    """The system's systemd. Blocks; every call has a time limit. One thread uses one instance.

    Each method raises SystemdError. ``units_dir`` is where systemd keeps drop-ins of this boot.
    """

    def __init__(
        self,
        private_socket: str = PRIVATE_SOCKET,
        bus_socket: str = BUS_SOCKET,
        units_dir: str = UNITS_DIR,
        call_s: float = CALL_S,
        reload_s: float = RELOAD_S,
    ) -> None:
        self._sockets = ((private_socket, True), (bus_socket, False))
        self._units_dir = Path(units_dir)
        self._call_s, self._reload_s = call_s, reload_s
        self._bus: Bus | None = None

    def hang_up(self) -> None:
        """Close the connection; the next call makes another. systemd sends signals to each direct
        connection, so none is kept for long.
        """
        if self._bus is not None:
            self._bus.close()
            self._bus = None

    def version(self) -> str:
        """systemd's version, e.g. ``252.39-1~deb12u1``."""
        return str(self._get(_MANAGER.object_path, _MANAGER.interface, "Version"))

    def state(self, unit: str, names: Iterable[str]) -> UnitState:
        """What systemd says of ``unit``, loaded or not, and its drop-ins for ``names``."""
        path = self._loaded(unit)
        if isinstance(path, Missing):
            raise SystemdError(Fault.NO_UNIT, path.why)
        kind = _interface(unit)
        values = self._values(path, kind, names)
        directory = self._directory(unit, is_transient=self._is_transient(path))
        return UnitState(
            unit=unit,
            control_group=str(self._get(path, kind, "ControlGroup")),
            values=values,
            drop_ins={
                name: _setting(directory / PROPERTIES[name].drop_in, PROPERTIES[name])
                for name in values
                if name in PROPERTIES
            },
        )

    def set(self, unit: str, values: Mapping[str, PropertyValue]) -> None:
        """Give ``unit`` these properties for this boot, all or none."""
        # In the order of the drop-ins' names; in another one it takes them for changed on disk.
        body = [(name, _variant(value)) for name, value in sorted(values.items(), key=_drop_in)]
        call = new_method_call(_MANAGER, "SetUnitProperties", "sba(sv)", (unit, True, body))
        self._call(call, f"{unit}: {', '.join(values)}")

    def take_back(self, unit: str, wanted: Sequence[TakeBack]) -> Taken:
        """Give properties back. Setting the old value writes a drop-in, too; one that was not there
        before is removed, and systemd goes on to list it until ``reload``.
        """
        path = self._loaded(unit)
        if isinstance(path, Missing):
            return Taken(is_gone=True, wants_reload=self._forget_unit(unit, wanted))
        now = self._values(path, _interface(unit), [each.name for each in wanted])
        mine = {
            each.name: each.original
            for each in wanted
            if each.original is not None and now.get(each.name) in (each.original, *each.ours)
        }
        changed = {name: value for name, value in mine.items() if now.get(name) != value}
        if changed:
            self.set(unit, changed)
        foreign = frozenset(each.name for each in wanted if each.name not in mine)
        directory = self._directory(unit, is_transient=self._is_transient(path))
        removed = self._remove_drop_ins(directory, wanted, foreign)
        return Taken(foreign, wants_reload=removed)

    def reload(self) -> None:
        """systemctl daemon-reload. It happens also where its end is not waited for."""
        self._call(new_method_call(_MANAGER, "Reload"), "daemon-reload", self._reload_s)

    # -- drop-ins ---------------------------------------------------------------------------------

    def _directory(self, unit: str, *, is_transient: bool) -> Path:
        return self._units_dir / _DIRECTORIES[is_transient] / f"{unit}.d"

    def _remove_drop_ins(
        self, directory: Path, wanted: Iterable[TakeBack], foreign: frozenset[str]
    ) -> bool:
        """Remove what was not there before us; of a foreign property only what says a value of
        ours: its owner's file lies elsewhere and hides it.
        """
        removed = False
        for each in wanted:
            prop = PROPERTIES[each.name]
            path = directory / prop.drop_in
            says = _setting(path, prop)
            if each.had_drop_in or says is None:
                continue
            if each.name in foreign and says not in {setting_text(prop, v) for v in each.ours}:
                continue
            removed = _remove(path) or removed
        return removed

    def _forget_unit(self, unit: str, wanted: Sequence[TakeBack]) -> bool:
        """The unit's own files are gone: no drop-in of ours may wait for another of that name."""
        everything = frozenset(each.name for each in wanted)
        found = [
            self._remove_drop_ins(self._directory(unit, is_transient=each), wanted, everything)
            for each in _DIRECTORIES
        ]
        return any(found)

    # -- calls ------------------------------------------------------------------------------------

    def _loaded(self, unit: str) -> str | Missing:
        """The D-Bus object of a unit, which systemd loads where it has not yet; Missing where it
        knows no such unit.
        """
        call = new_method_call(_MANAGER, "LoadUnit", "s", (unit,))
        path = str(self._call(call, unit)[0])
        if self._get(path, f"{_NAME}.Unit", "LoadState") == "not-found":
            return Missing(f"{unit}: systemd knows no such unit")
        if path != object_path(unit):
            raise SystemdError(Fault.REFUSED, f"{unit}: is another unit's alias ({path})")
        return path

    def _is_transient(self, path: str) -> bool:
        return bool(self._get(path, f"{_NAME}.Unit", "Transient"))

    def _values(self, path: str, kind: str, names: Iterable[str]) -> dict[str, PropertyValue]:
        found: dict[str, PropertyValue] = {}
        for name in names:
            value = self._get(path, kind, name, missing=None)
            if isinstance(value, bytes | list):
                found[name] = from_bitmap(bytes(value))
            elif isinstance(value, int):
                found[name] = value
            elif value is not None:
                raise SystemdError(Fault.REFUSED, f"{path}: {name} is {value!r:.80}")
        return found

    def _get(self, path: str, interface: str | None, name: str, **unknown: None) -> Any:
        """One property; with ``missing=None`` that is what one of an older systemd reads."""
        address = DBusAddress(path, bus_name=_NAME, interface=_PROPERTIES)
        call = new_method_call(address, "Get", "ss", (interface, name))
        try:
            body = self._call(call, f"{path}: {name}")
        except _UnknownPropertyError:
            if unknown:
                return None
            raise
        return body[0][1]

    def _call(self, message: Any, what: str, timeout_s: float | None = None) -> tuple[Any, ...]:
        try:
            return self._connected().call(message, timeout_s or self._call_s)
        except CallError as error:
            if error.name in _NO_UNIT:
                raise SystemdError(Fault.NO_UNIT, f"{what}: {error}") from error
            if error.name == _NO_PROPERTY:
                raise _UnknownPropertyError(Fault.REFUSED, f"{what}: {error}") from error
            raise SystemdError(Fault.REFUSED, f"{what}: {error}") from error
        except BusError as error:
            self.hang_up()
            raise SystemdError(Fault.UNREACHABLE, f"{what}: systemd: {error}") from error

    def _connected(self) -> Bus:
        reasons: list[str] = []
        for path, is_direct in self._sockets:
            if self._bus is not None:
                break
            try:
                self._bus = Bus(path, is_direct=is_direct, timeout_s=self._call_s)
            except BusError as error:
                reasons.append(str(error))
        if self._bus is None:
            raise BusError("; ".join(reasons))
        return self._bus


class _UnknownPropertyError(SystemdError):
    """This systemd does not know the property."""


def _interface(unit: str) -> str:
    return f"{_NAME}.{unit.rpartition('.')[2].capitalize()}"


def _drop_in(pair: tuple[str, PropertyValue]) -> str:
    return PROPERTIES[pair[0]].drop_in


def _variant(value: PropertyValue) -> tuple[str, int | bytes]:
    return ("ay", to_bitmap(value)) if isinstance(value, frozenset) else ("t", value)


def _setting(path: Path, prop: Property) -> str | None:
    """What a drop-in says of its property; None where there is no file.

    Raises SystemdError where it says more than that: it was not made by systemd.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SystemdError(Fault.REFUSED, f"{path}: {error.strerror}") from error
    found = ""
    for line in lines:
        key, separator, text = line.partition("=")
        if not separator or line.lstrip()[:1] in ("#", ";"):
            continue
        if key.strip() != prop.key:
            raise SystemdError(Fault.REFUSED, f"{path}: also sets {key.strip()!r:.80}")
        found = text.strip()
    return found


def _remove(path: Path) -> bool:
    """Remove a drop-in, and its directory where it was the last one."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SystemdError(Fault.REFUSED, f"{path}: {error.strerror}") from error
    with suppress(OSError):  # others have drop-ins there
        path.parent.rmdir()
    return True
