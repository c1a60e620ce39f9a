"""Units to try things on: of the fake systemd, or of the one that runs this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from koordlet.host.systemd import Systemd
from koordlet.host.unitnames import directory_of_unit
from koordlet.host.unitprops import PROPERTIES
from tests.support.fakehost import fake_host
from tests.support.fakesystemd import FakeSystemd, parsed

CONTROL = Path("/run/systemd")
_OWN_FILES = Path("/run/systemd/system")
_SLICE = Path("/sys/fs/cgroup/system.slice")
_COMMAND_S = 60
# What time or a daemon-reload alone changes: counters, and the order of dependencies.
_VOLATILE = (
    *("CPUUsageNSec=", "MemoryCurrent=", "TasksCurrent=", "ExecStart"),
    *("After=", "Before=", "Conflicts=", "Requires=", "Wants="),
)


class UnitGround(Protocol):
    """One systemd, and units of a test's own."""

    def client(self, *, call_s: float = 10.0) -> Systemd:
        """A client of it."""
        ...

    def service(self, name: str, settings: Mapping[str, str] | None = None) -> str:
        """Start a service with a unit file of its own; gives back its name."""
        ...

    def transient(self, name: str) -> str:
        """Start a transient service."""
        ...

    def stop(self, unit: str) -> None:
        """Stop it."""
        ...

    def start(self, unit: str) -> None:
        """Start it again."""
        ...

    def set_property(self, unit: str, key: str, value: str, *, lasting: bool = False) -> None:
        """What an administrator does."""
        ...

    def daemon_reload(self) -> None:
        """Let systemd read its files again."""
        ...

    def show(self, unit: str) -> list[str]:
        """Everything that an exact undo brings back: properties, and the drop-ins on disk."""
        ...

    def text(self, unit: str, file: str) -> str | None:
        """A file of its cgroup; None where there is none."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...


class FakeUnits:
    """The fake's."""

    def __init__(self, directory: Path) -> None:
        self._host = fake_host("v2", systemd=True)
        self._fake = FakeSystemd(directory, self._host)

    def client(self, *, call_s: float = 10.0) -> Systemd:
        return Systemd(**self._fake.client_options(), call_s=call_s)

    def service(self, name: str, settings: Mapping[str, str] | None = None) -> str:
        unit = f"{name}.service"
        values = {_name(key): parsed(_name(key), text) for key, text in (settings or {}).items()}
        self._fake.add(unit, fragment=values)
        return unit

    def transient(self, name: str) -> str:
        self._fake.add(f"{name}.service", transient=True)
        return f"{name}.service"

    def stop(self, unit: str) -> None:
        self._fake.stop(unit)

    def start(self, unit: str) -> None:
        self._fake.start(unit)

    def set_property(self, unit: str, key: str, value: str, *, lasting: bool = False) -> None:
        name = _name(key)
        if lasting:
            self._fake.set_for_good(unit, name, int(parsed(name, value)))
        else:
            self._fake.set_property(unit, {name: parsed(name, value)})

    def daemon_reload(self) -> None:
        self._fake.daemon_reload()

    def show(self, unit: str) -> list[str]:
        found = self._fake.show()
        return [str(found.get(unit)), str(found["files"])]

    def text(self, unit: str, file: str) -> str | None:
        files = self._host.group(f"system.slice/{directory_of_unit(unit)}", "cgroup.procs").files
        return files.get(file)

    def close(self) -> None:
        self._fake.close()


class RealUnits:
    """Of the systemd that is PID 1 here: for a machine that is thrown away afterwards."""

    def __init__(self) -> None:
        self._units: list[str] = []

    def client(self, *, call_s: float = 10.0) -> Systemd:
        return Systemd(call_s=call_s, reload_s=call_s)

    def service(self, name: str, settings: Mapping[str, str] | None = None) -> str:
        unit = f"{name}.service"
        lines = [f"{key}={value}" for key, value in (settings or {}).items()]
        text = "\n".join(["[Service]", "ExecStart=/bin/sleep infinity", *lines, ""])
        (_OWN_FILES / unit).write_text(text)  # systemd looks for files of units it has not loaded
        self.start(unit)
        self._units.append(unit)
        return unit

    def transient(self, name: str) -> str:
        systemctl("reset-failed", f"{name}.service", may_fail=True)
        run("systemd-run", "--quiet", f"--unit={name}", "sleep", "infinity")
        self.daemon_reload()  # of itself it changes how systemd shows a transient unit
        self._units.append(f"{name}.service")
        return f"{name}.service"

    def stop(self, unit: str) -> None:
        systemctl("stop", unit)

    def start(self, unit: str) -> None:
        systemctl("start", unit)

    def set_property(self, unit: str, key: str, value: str, *, lasting: bool = False) -> None:
        systemctl("set-property", *(() if lasting else ("--runtime",)), unit, f"{key}={value}")

    def daemon_reload(self) -> None:
        systemctl("daemon-reload")

    def show(self, unit: str) -> list[str]:
        shown = systemctl("show", unit).splitlines()
        kept = [line for line in shown if not line.startswith(_VOLATILE)]
        return [*kept, *(f"{path}: {path.read_text()}" for path in drop_ins())]

    def text(self, unit: str, file: str) -> str | None:
        path = _SLICE / directory_of_unit(unit) / file
        return path.read_text().rstrip("\n") if path.exists() else None

    def close(self) -> None:
        for unit in self._units:
            systemctl("stop", unit, may_fail=True)
            (_OWN_FILES / unit).unlink(missing_ok=True)
            run("rm", "-rf", *(f"{place}/{unit}.d" for place in _PLACES))


_PLACES = (CONTROL / "system.control", CONTROL / "transient", Path("/etc/systemd/system.control"))


def drop_ins() -> list[Path]:
    """Every drop-in that systemd wrote for a property."""
    return sorted(path for place in _PLACES for path in place.glob("*.d/*.conf"))


def systemctl(*words: str, may_fail: bool = False) -> str:
    return run("systemctl", *words, may_fail=may_fail)


def run(*words: str, may_fail: bool = False) -> str:
    """What a command printed; AssertionError with all of it where it failed."""
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_COMMAND_S,
    )
    assert done.returncode == 0 or may_fail, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def _name(key: str) -> str:
    return next(name for name, prop in PROPERTIES.items() if prop.key == key)
