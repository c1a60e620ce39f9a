"""systemd in memory, behind a real D-Bus socket, that says no where systemd does.

What it knows is how systemd 252 treats properties of units: set ones are in force at once and in a
drop-in, from which a daemon-reload takes them. The contract suite holds it against a real one.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jeepney import (
    DBusAddress,
    HeaderFields,
    Message,
    Parser,
    new_error,
    new_method_return,
    new_signal,
)

from koordlet.host.unitnames import directory_of_unit, object_path
from koordlet.host.unitprops import PROPERTIES, UNSET, from_bitmap, to_bitmap
from koordlet.protocol.cpuset import format_cpuset, parse_cpuset
from tests.support.fakehost import FakeHost

HEADER = (
    '# This is a drop-in unit file extension, created via "systemctl set-property"\n'
    "# or an equivalent operation. Do not edit.\n"
)
CPUS = "AllowedCPUs"
PER_S = "CPUQuotaPerSecUSec"
_NOT_AT_FIRST = {"cpu.weight", "cpu.idle", "cpu.max", "cpu.max.burst", "cpuset.cpus"}
PERIOD = "CPUQuotaPeriodUSec"
_DEFAULTS: dict[str, int | bytes] = {
    **{name: UNSET if p.signature == "t" else b"" for name, p in PROPERTIES.items()},
    "MemoryMin": 0,
    "MemoryLow": 0,
    PERIOD: UNSET,
    "AllowedMemoryNodes": b"",
}
_ANSWER_S = 5.0


class Refused(Exception):
    """A D-Bus error: its name, and what it says."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


@dataclass
class FakeUnit:
    """One unit. ``fragment`` is what its own files say; ``values`` what is in force."""

    name: str
    slice: str = "system.slice"
    transient: bool = False
    running: bool = True
    fragment: dict[str, int | bytes] = field(default_factory=dict)
    values: dict[str, int | bytes] = field(default_factory=dict)
    drop_ins: dict[str, Path] = field(default_factory=dict)  # as they were loaded

    @property
    def cgroup(self) -> str:
        return f"{self.slice}/{directory_of_unit(self.name)}".strip("/")


class FakeSystemd:
    """The manager. Serves D-Bus at ``socket_path`` until ``close``.

    ``host`` is a fake one whose cgroup files follow the units. ``calls`` are the methods called.
    """

    def __init__(self, directory: Path, host: FakeHost | None = None) -> None:
        self.host = host
        self.units: dict[str, FakeUnit] = {}
        self.units_dir = directory / "systemd"
        self.units_dir.mkdir(parents=True)
        self.socket_path = str(directory / "private")
        self.calls: list[str] = []
        self.reloads = 0
        self.refusals: dict[str, Refused] = {}
        self.odd: dict[str, tuple[str, Any]] = {}  # what a property reads instead
        self.delays_s: dict[str, float] = {}
        self.instead: dict[str, Callable[[socket.socket], None]] = {}
        self._server = _Server(self.socket_path, self)

    def client_options(self) -> dict[str, Any]:
        """What ``Systemd`` is to be given to talk to this one."""
        return {
            "private_socket": self.socket_path,
            "bus_socket": f"{self.socket_path}-none",
            "units_dir": str(self.units_dir),
        }

    def close(self) -> None:
        self._server.close()

    # -- what an owner does -----------------------------------------------------------------------

    def add(self, name: str, **options: Any) -> FakeUnit:
        """Start a unit."""
        unit = FakeUnit(name, **options)
        unit.values = {**_DEFAULTS, **unit.fragment}
        self.units[name] = unit
        self._load_drop_ins(unit)
        if unit.running:
            self._start(unit)
        return unit

    def stop(self, name: str) -> None:
        """Stop a unit; one that is transient is forgotten, with its drop-ins."""
        unit = self.units[name]
        unit.running = False
        if self.host is not None:
            self.host.remove(unit.cgroup)
        if unit.transient:
            shutil.rmtree(self.drop_in_dir(unit), ignore_errors=True)
            del self.units[name]

    def start(self, name: str) -> None:
        """Start a unit that was stopped."""
        self.units[name].running = True
        self._start(self.units[name])

    def set_property(self, name: str, values: dict[str, int | bytes]) -> None:
        """``systemctl set-property --runtime``."""
        unit = self.units[name]
        for key, value in values.items():
            self._set(unit, key, value)
        self._realize(unit)

    def set_for_good(self, name: str, key: str, value: int) -> None:
        """``systemctl set-property``: its drop-in hides one of this boot, of the same name."""
        unit = self.units[name]
        unit.values[key] = unit.fragment[key] = value
        self._realize(unit)

    def daemon_reload(self) -> None:
        """Read all files again."""
        self.reloads += 1
        for unit in self.units.values():
            unit.values = {**_DEFAULTS, **unit.fragment}
            self._load_drop_ins(unit)
            self._realize(unit)

    def drop_in_dir(self, unit: FakeUnit) -> Path:
        kind = "transient" if unit.transient else "system.control"
        return self.units_dir / kind / f"{unit.name}.d"

    def show(self) -> dict[str, tuple[dict[str, int | bytes], list[str]]]:
        """Everything that a rollback has to bring back: properties and drop-ins of all units."""
        files = sorted(
            f"{path.relative_to(self.units_dir)}: {path.read_text()}"
            for path in self.units_dir.rglob("*.conf")
        )
        found = {
            name: (dict(unit.values), [str(each) for each in unit.drop_ins.values()])
            for name, unit in self.units.items()
        }
        return {**found, "files": ({}, files)}

    # -- D-Bus ------------------------------------------------------------------------------------

    def answer(self, member: str, path: str, body: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        """Signature and body of the answer. Raises Refused."""
        self.calls.append(member)
        if member in self.refusals:
            raise self.refusals[member]
        if member == "LoadUnit":
            return "o", (object_path(body[0]),)
        if member == "Get":
            return "v", (self._property(path, body[1]),)
        if member == "SetUnitProperties":
            self._set_unit_properties(*body)
            return "", ()
        if member == "Reload":
            self.daemon_reload()
            return "", ()
        raise Refused("org.freedesktop.DBus.Error.UnknownMethod", f"Unknown method {member}")

    def _property(self, path: str, name: str) -> tuple[str, Any]:
        if name == "Version":
            return ("s", "252.39-1~deb12u1")
        unit = next((u for u in self.units.values() if object_path(u.name) == path), None)
        if name == "LoadState":
            return ("s", "not-found" if unit is None else "loaded")
        if unit is None:
            raise Refused("org.freedesktop.DBus.Error.UnknownObject", f"Unknown object '{path}'.")
        if name in self.odd:
            return self.odd[name]
        if name in unit.values:
            value = unit.values[name]
            return ("ay" if isinstance(value, bytes) else "t", value)
        known = {
            "ControlGroup": ("s", f"/{unit.cgroup}" if unit.running else ""),
            "Transient": ("b", unit.transient),
        }
        if name not in known:
            raise Refused("org.freedesktop.DBus.Error.UnknownProperty", "Unknown property")
        return known[name]

    def _set_unit_properties(self, name: str, runtime: bool, values: list[Any]) -> None:
        assert runtime
        unit = self.units.get(name)
        if unit is None:
            raise Refused("org.freedesktop.systemd1.NoSuchUnit", f"Unit {name} not found.")
        for key, (signature, value) in values:
            if key not in PROPERTIES:
                text = f"Cannot set property {key}, or unknown property."
                raise Refused("org.freedesktop.DBus.Error.PropertyReadOnly", text)
            if signature != PROPERTIES[key].signature:
                raise Refused("org.freedesktop.DBus.Error.InvalidArgs", "Invalid argument")
            _check(key, value)
        self.set_property(name, {key: value for key, (_, value) in values})

    def _set(self, unit: FakeUnit, key: str, value: int | bytes) -> None:
        unit.values[key] = value
        directory = self.drop_in_dir(unit)
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"50-{PROPERTIES[key].key}.conf"
        section = unit.name.rpartition(".")[2].capitalize()
        line = f"{PROPERTIES[key].key}={_spelled(key, value)}"
        path.write_text(f"{HEADER}[{section}]\n{line}\n")
        unit.drop_ins[key] = path

    # -- files ------------------------------------------------------------------------------------

    def _load_drop_ins(self, unit: FakeUnit) -> None:
        unit.drop_ins = {}
        for key, prop in PROPERTIES.items():
            path = self.drop_in_dir(unit) / prop.drop_in
            if path.exists():
                unit.drop_ins[key] = path
                if key not in unit.fragment or unit.transient:
                    said = path.read_text().rpartition("=")[2].strip()
                    unit.values[key] = parsed(key, said)

    def _start(self, unit: FakeUnit) -> None:
        """A cgroup with the controllers that every service has, and no more."""
        if self.host is None:
            return
        self.host.make(unit.cgroup)
        for hierarchy in self.host.files.hierarchies:
            parent = hierarchy.root.find(unit.slice)
            if hierarchy.version == 1 and not {"memory", "pids"} & set(hierarchy.controllers):
                assert parent is not None
                parent.children.clear()
        for file in self._on_v2(unit) & _NOT_AT_FIRST:
            self.host.delete_file(unit.cgroup, file)
        self._realize(unit)

    def _realize(self, unit: FakeUnit) -> None:
        """What systemd writes for a unit: all files of a controller that it needs, or none."""
        if self.host is None or not unit.running:
            return
        if "cpu" in self.host.hierarchies.v1:
            self._realize_v1(unit)
        else:
            self._realize_v2(unit)

    def _realize_v2(self, unit: FakeUnit) -> None:
        weight, per_s, period = (self._number(unit, name) for name in ("CPUWeight", PER_S, PERIOD))
        cpus, files = unit.values[CPUS], self._on_v2(unit)
        assert isinstance(cpus, bytes)
        if (weight, per_s) != (UNSET, UNSET) or "cpu.max" in files:
            shown = 100_000 if UNSET in (per_s, period) else period
            quota = "max" if per_s == UNSET else max(per_s * shown // 1_000_000, 1_000)
            self._write(unit, "cpu.idle", str(int(weight == 0)))
            shown_weight = "0" if weight == 0 else str(100 if weight == UNSET else weight)
            self._write(unit, "cpu.weight", shown_weight)
            self._write(unit, "cpu.max", f"{quota} {shown}")
        if cpus or "cpuset.cpus" in files:
            self._write(unit, "cpuset.cpus", format_cpuset(from_bitmap(cpus)))

    def _realize_v1(self, unit: FakeUnit) -> None:
        """The weight outranks the shares, and neither cpusets nor idle are known there."""
        assert self.host is not None
        weight, shares, per_s = (
            self._number(unit, name) for name in ("CPUWeight", "CPUShares", PER_S)
        )
        if (weight, shares, per_s) == (UNSET, UNSET, UNSET):
            return
        for controller in ("cpu", "cpuacct"):
            for hierarchy in self.host.files.hierarchies:
                parent = hierarchy.root.find(unit.slice)
                name = directory_of_unit(unit.name)
                wanted = controller in hierarchy.controllers and parent is not None
                if wanted and parent is not None and name not in parent.children:
                    parent.make_child(name)
        if weight != UNSET:
            shares = max(weight * 1024 // 100, 2)
        self._write(unit, "cpu.shares", str(1024 if shares == UNSET else shares))
        quota = -1 if per_s == UNSET else max(per_s // 10, 1_000)
        self._write(unit, "cpu.cfs_quota_us", str(quota))

    def _number(self, unit: FakeUnit, name: str) -> int:
        value = unit.values[name]
        assert isinstance(value, int)
        return value

    def _on_v2(self, unit: FakeUnit) -> set[str]:
        """Its files in the v2 hierarchy."""
        assert self.host is not None
        v2 = [each for each in self.host.files.hierarchies if each.version == 2]
        found = [each.root.find(unit.cgroup) for each in v2]
        return {file for cgroup in found if cgroup is not None for file in cgroup.files}

    def _write(self, unit: FakeUnit, file: str, text: str) -> None:
        assert self.host is not None
        self.host.set_text(unit.cgroup, file, text)


def _check(key: str, value: Any) -> None:
    if key == "CPUWeight" and value != UNSET and not 0 <= value <= 10_000:
        text = "Value specified in CPUWeight is out of range"
        raise Refused("org.freedesktop.DBus.Error.InvalidArgs", text)
    if key == "CPUQuotaPerSecUSec" and value == 0:
        text = "CPUQuotaPerSecUSec= value out of range"
        raise Refused("org.freedesktop.DBus.Error.InvalidArgs", text)


def _spelled(key: str, value: int | bytes) -> str:
    if isinstance(value, bytes):
        return format_cpuset(from_bitmap(value)).replace(",", " ")
    if value == UNSET:
        return "" if key.startswith("CPU") else "infinity"
    if key == "CPUWeight" and value == 0:
        return "idle"
    return f"{value // 10_000}%" if key == "CPUQuotaPerSecUSec" else str(value)


def parsed(key: str, text: str) -> int | bytes:
    """A setting of a unit file as the property that it makes."""
    if key == CPUS:
        return to_bitmap(parse_cpuset(text.replace(" ", ",")))
    if text in ("", "infinity"):
        return UNSET
    if text == "idle":
        return 0
    return round(float(text[:-1]) * 10_000) if text.endswith("%") else int(text)


class _Server:
    """The socket: one thread for each connection."""

    def __init__(self, path: str, systemd: FakeSystemd) -> None:
        self._systemd = systemd
        self._serials = iter(range(1, 1 << 30))
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):  # closed before
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(_ANSWER_S)
            try:
                self._let_in(connection)
                self._talk(connection)
            except OSError:
                return

    def _let_in(self, connection: socket.socket) -> None:
        said = b""
        while b"BEGIN\r\n" not in said:
            said += connection.recv(512)
        uid = str(os.geteuid()).encode().hex().encode()
        wanted = b"\0AUTH EXTERNAL " + uid + b"\r\nBEGIN\r\n"
        assert said == wanted, "systemd would not look at what comes with BEGIN"
        connection.sendall(b"OK 0123456789abcdef0123456789abcdef\r\n")

    def _talk(self, connection: socket.socket) -> None:
        parser = Parser()
        while True:
            message = parser.get_next_message()
            if message is None:
                data = connection.recv(1 << 16)
                if not data:
                    return
                parser.add_data(data)
                continue
            member = message.header.fields[HeaderFields.member]
            time.sleep(self._systemd.delays_s.get(member, 0.0))
            if member in self._systemd.instead:
                self._systemd.instead[member](connection)
                return
            self._send(connection, _SIGNAL)
            self._send(connection, self._reply(message, member))

    def _reply(self, message: Message, member: str) -> Message:
        path = message.header.fields.get(HeaderFields.path, "")
        try:
            with self._lock:
                signature, body = self._systemd.answer(member, path, message.body)
        except Refused as error:
            return new_error(message, error.name, "s", (str(error),))
        return new_method_return(message, signature or None, body)

    def _send(self, connection: socket.socket, message: Message) -> None:
        connection.sendall(message.serialise(next(self._serials)))


_SIGNAL = new_signal(
    DBusAddress("/org/freedesktop/systemd1", interface="org.freedesktop.systemd1.Manager"),
    "UnitNew",
    "so",
    ("some.service", "/org/freedesktop/systemd1/unit/some_2eservice"),
)
