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
    """The text of a pressure file. Raises ValueError where it holds neither line."""
    usual = _USUAL_ROW.findall(text)
    if usual and len(usual) == text.strip().count(b"\n") + 1:  # read for each container: be quick
        rows = {
            kind: PsiLine(float(avg10), float(avg60), float(avg300), int(total))
            for kind, avg10, avg60, avg300, total in usual
        }
        return Psi(rows.get(b"some"), rows.get(b"full"))
    lines: dict[bytes, PsiLine] = {}
    for row in text.splitlines():
        kind, _, pairs = row.partition(b" ")
        if kind in (b"some", b"full"):
            lines[kind] = _parse_line(pairs.split())
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


def _parse_line(pairs: list[bytes]) -> PsiLine:
    values = dict(pair.split(b"=", 1) for pair in pairs)
    try:
        return PsiLine(
            float(values[b"avg10"]),
            float(values[b"avg60"]),
            float(values[b"avg300"]),
            int(values[b"total"]),
        )
    except KeyError as error:
        raise ValueError(f"a pressure line lacks {error}") from None
