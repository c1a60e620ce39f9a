"""The NodeSLO from a file, read again when it changes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from koordlet.protocol.document import MAX_DOCUMENT_BYTES
from koordlet.protocol.nodeslo import DEFAULT_NODESLO
from koordlet.protocol.nodeslo_schema import LoadedSlo, load_nodeslo
from koordlet.protocol.problem import Problem, RefusedError, Severity
from koordlet.trustedfile import read_trusted


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Nothing new since the last answer, or a change that is not settled yet."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A newer text that cannot be put in force; whatever was in force stays."""

    problems: tuple[Problem, ...]


_Found = str | None | tuple[Problem, ...]  # the text, no such file, or why it is not read


class SloFile:
    """Polls one file. The whole text is compared each time: it is small, and neither times nor
    sizes tell a change for sure (``cp -p`` keeps both).

    A change counts once two polls in a row have seen the same, so that a file which is just
    being written is not read half. The first poll answers at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._polled = False
        self._loaded = False
        self._seen: _Found = None
        self._answered: _Found = None

    def poll(self) -> LoadedSlo | Unchanged | Refused:
        """What is new since the last answer.

        A file that was never there is the built-in defaults (case CFG-05). One that vanishes
        after it was in force is refused: a gap in somebody's deployment is no order to let go.
        """
        found = self._read()
        settled = found == self._seen or not self._polled
        news = found != self._answered or not self._polled
        self._seen, self._polled = found, True
        if not (settled and news):
            return Unchanged()
        self._answered = found
        return self._judge(found)

    def _read(self) -> _Found:
        try:
            return read_trusted(self.path, MAX_DOCUMENT_BYTES)
        except FileNotFoundError:
            return None
        except RefusedError as refusal:
            return refusal.problems

    def _judge(self, found: _Found) -> LoadedSlo | Refused:
        if isinstance(found, tuple):
            return Refused(found)
        if found is None:
            problem = self._absence()
            return Refused((problem,)) if self._loaded else LoadedSlo(DEFAULT_NODESLO, (problem,))
        try:
            loaded = load_nodeslo(found, str(self.path))
        except RefusedError as refusal:
            return Refused(refusal.problems)
        self._loaded = True
        return loaded

    def _absence(self) -> Problem:
        if self._loaded:
            return Problem(
                code="slo-file-gone",
                where=str(self.path),
                what="the file is gone; what it said stays in force",
                remedy="put it back, or write {} into it to switch everything off",
                severity=Severity.WARNING,
            )
        return Problem(
            code="slo-file-absent",
            where=str(self.path),
            what="no such file; the built-in defaults are in force, everything is off",
            remedy="write a NodeSLO there; `koordletctl slo defaults` prints one to start from",
            severity=Severity.INFO,
        )
