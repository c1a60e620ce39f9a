"""Names of systemd's units, of their cgroups and of their D-Bus objects: texts in, texts out.

A unit's cgroup lies below the cgroups of its slices, each named as its unit. Where systemd is
PID 1, such a path therefore says by itself whose directory it is (hazard H6).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OBJECT_ROOT = "/org/freedesktop/systemd1/unit/"

_UNIT = re.compile(
    r"[A-Za-z0-9:_.@\\-]{1,247}\.(?:service|scope|slice|socket|mount|swap)", re.ASCII
)
_KUBELETS_SLICE = re.compile(r"(?:[^/]*-)?kubepods(?:-[^/]*)?\.slice")
_RESERVED = ("tasks", "notify_on_release", "release_agent")
_CONTROLLERS = ("cgroup", "cpu", "cpuacct", "cpuset", "io", "blkio", "memory", "devices", "pids")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a cgroup lies among systemd's: ``unit`` is the innermost unit that holds it, ``own``
    that unit's cgroup. ``is_own`` is False for a directory somewhere below that one.
    """

    unit: str
    own: str
    is_own: bool


def place_of(path: str) -> Place | None:
    """Where ``path``, counted from the root of its hierarchy, lies; None where it is nobody's.

    None, too, in the kubelet's slices: its tree is written by file, with either cgroup driver.
    """
    if "kubepods" in path and any(map(_KUBELETS_SLICE.fullmatch, path.split("/"))):
        return None
    parts = path.strip("/").split("/")
    found: Place | None = None
    for depth, part in enumerate(parts, start=1):
        unit = unit_of_directory(part)
        if not unit:
            break
        found = Place(unit, "/".join(parts[:depth]), is_own=depth == len(parts))
        if not unit.endswith(".slice"):
            break
    return found


def is_unit(name: str) -> bool:
    """Whether ``name`` may be that of a unit that has a cgroup."""
    return _UNIT.fullmatch(name) is not None


def unit_of_directory(name: str) -> str:
    """The unit whose cgroup directory is called ``name``; ``""`` for a name that no unit has."""
    unit = name.removeprefix("_")
    return unit if is_unit(unit) and directory_of_unit(unit) == name else ""


def directory_of_unit(unit: str) -> str:
    """The name of a unit's cgroup directory: a name that a cgroup file could have, or that starts
    with ``_`` or ``.``, gets a ``_`` before it.
    """
    stem = unit.split(".", 1)[0]
    clashes = unit[:1] in ("_", ".") or unit in _RESERVED or stem in _CONTROLLERS
    return f"_{unit}" if clashes else unit


def object_path(unit: str) -> str:
    """The D-Bus object of a unit: every byte that is no letter, and none but a later digit, is
    written as ``_`` and two hex digits.
    """
    escaped = "".join(
        chr(byte) if _is_plain(byte, at) else f"_{byte:02x}"
        for at, byte in enumerate(unit.encode())
    )
    return OBJECT_ROOT + (escaped or "_")


def _is_plain(byte: int, at: int) -> bool:
    char = chr(byte)
    return char.isascii() and (char.isalpha() or (char.isdigit() and at > 0))
