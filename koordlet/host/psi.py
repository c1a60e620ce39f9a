"""Pressure stall information: of the node from procfs, of cgroups from their own files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from koordlet.host.mounts import Roots
from koordlet.host.tree import Files
from koordlet.model.readings import Missing

_USUAL_ROW = re.compile(
    rb"^(some|full) avg10=(\d+\.\d+) avg60=(\d+\.\d+) avg300=(\d+\.\d+) total=(\d+)$", re.MULTILINE
)

_NUMBER = re.compile(rb"\d{1,20}(?:\.\d{1,20})?")


class PsiResource(Enum):
    """What tasks wait for."""

    CPU = "cpu"
    MEMORY = "memory"
    IO = "io"
    IRQ = "irq"


@dataclass(frozen=True, slots=True)
class PsiLine:
    """Share of time stalled, in percent over three windows, and the total stall in microseconds."""

    avg10: float
    avg60: float
    avg300: float
    total_us: int


@dataclass(frozen=True, slots=True)
class Psi:
    """One pressure file. ``some`` is None for irq, ``full`` None where an old kernel has no such
    line for cpu (case PP-04). Of the node's cpu only ``some`` means anything (case PP-06).
    """

    some: PsiLine | None
    full: PsiLine | None


def parse_psi(text: bytes) -> Psi:
    """The text of a pressure file. Raises ValueError where it holds neither line.

    A line that cannot be read is left out and takes no other with it.
    """
    usual = _USUAL_ROW.findall(text)
    if usual and len(usual) == text.strip().count(b"\n") + 1:  # read for each container: be quick
        rows = {
            kind: PsiLine(float(avg10), float(avg60), float(avg300), int(total))
            for kind, avg10, avg60, avg300, total in usual
        }
        return Psi(rows.get(b"some"), rows.get(b"full"))
    lines: dict[bytes, PsiLine] = {}
    for row in text.replace(b"\0", b"").splitlines():
        kind, _, pairs = row.partition(b" ")
        line = _parse_line(pairs.split()) if kind in (b"some", b"full") else None
        if line is not None:
            lines[kind] = line
    if not lines:
        raise ValueError(f"no pressure line in {text[:80]!r}")
    return Psi(lines.get(b"some"), lines.get(b"full"))


def read_psi(files: Files, path: str) -> Psi | Missing:
    """The pressure file at ``path``; a kernel without ``psi=1`` answers EOPNOTSUPP (case PP-02)."""
    text = files.read(path)
    if isinstance(text, Missing):
        return text
    try:
        return parse_psi(text)
    except ValueError as error:
        return Missing(f"{path}: {error}")


def node_psi(files: Files, roots: Roots, resource: PsiResource) -> Psi | Missing:
    """Pressure of the whole node from ``<proc>/pressure``."""
    return read_psi(files, f"{roots.proc}/pressure/{resource.value}")


def _parse_line(pairs: list[bytes]) -> PsiLine | None:
    """None where a number is missing or none of the kernel's (negative, nan): no such line."""
    values = {key: number for key, _, number in (pair.partition(b"=") for pair in pairs)}
    numbers = [values.get(key, b"") for key in (b"avg10", b"avg60", b"avg300", b"total")]
    if not all(_NUMBER.fullmatch(number) for number in numbers) or b"." in numbers[3]:
        return None
    avg10, avg60, avg300, total = numbers
    return PsiLine(float(avg10), float(avg60), float(avg300), int(total))
