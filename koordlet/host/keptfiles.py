"""File descriptors that stay open between reads, within a budget (hazard H29).

Kept by directory and name: a path of its own for each of some thousand files would cost more
memory than everything else that is known of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

PAGE_BYTES = 4_096
_ROUND_PER_FD = 16
_SHRINK_AFTER = 512
"""Directories dropped until the tables are made anew: a dict never gives back what it once took."""


@dataclass(slots=True)
class KeptFile:
    """An open file; an answer shorter than ``whole_below`` bytes is complete."""

    fd: int
    whole_below: int
    size: int = PAGE_BYTES  # what to ask the kernel for
    hits: int = 1


class KeptFiles:
    """The kept files by path. Where more files are read than fit, those read most often in the
    last round keep theirs.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._count = 0
        self._files: dict[str, dict[str, KeptFile]] = {}  # by directory and name
        self._inside: dict[str, set[str]] = {}  # directories with anything kept, by their parent
        self._missed: dict[str, int] = {}  # reads of files that did not fit, this round
        self._admitted: frozenset[str] = frozenset()
        self._round_ends = 0
        self._dropped = 0

    def __len__(self) -> int:
        return self._count

    def get(self, path: str) -> KeptFile | None:
        """The file at ``path``, if it is kept."""
        directory, _, name = path.rpartition("/")
        files = self._files.get(directory)
        return None if files is None else files.get(name)

    def has_room(self, path: str, reads: int) -> bool:
        """Whether ``path`` may be kept; ``reads`` counts all reads so far and measures rounds."""
        if not self._budget:
            return False
        if self._count < self._budget and (not self._admitted or path in self._admitted):
            return True
        if not self._round_ends:
            self._round_ends = reads + self._budget * _ROUND_PER_FD
        self._missed[path] = self._missed.get(path, 0) + 1
        if reads >= self._round_ends:
            self._next_round(reads)
        return False

    def _next_round(self, reads: int) -> None:
        """Choose anew which files keep their fd: the most read ones, kept ones first on a tie."""
        counted = [(-kept.hits, False, path) for path, kept in self._all()]
        counted += [(-count, True, path) for path, count in self._missed.items()]
        counted.sort()
        self._admitted = frozenset(path for _, _, path in counted[: self._budget])
        for path in [path for path, _ in self._all() if path not in self._admitted]:
            self.forget(path)
        for _, kept in self._all():
            kept.hits = 0
        self._missed.clear()
        self._round_ends = reads + self._budget * _ROUND_PER_FD

    def _all(self) -> Iterator[tuple[str, KeptFile]]:
        for directory, files in self._files.items():
            for name, kept in files.items():
                yield f"{directory}/{name}", kept

    def add(self, path: str, kept: KeptFile) -> None:
        """Keep a file that was not kept before."""
        directory, _, name = path.rpartition("/")
        self._count += 1
        files = self._files.get(directory)
        if files is not None:
            files[sys.intern(name)] = kept
            return
        self._files[directory] = {sys.intern(name): kept}
        while directory:
            parent = directory.rpartition("/")[0]
            known = self._inside.get(parent)
            if known is not None:
                known.add(directory)
                return
            self._inside[parent] = {directory}
            directory = parent

    def forget(self, path: str) -> None:
        """Close the file at ``path``, if it is kept."""
        directory, _, name = path.rpartition("/")
        kept = self._files.get(directory, {}).pop(name, None)
        if kept is not None:
            self._close(kept)

    def drop(self, prefix: str) -> None:
        """Close what is kept at ``prefix`` and below it."""
        self.forget(prefix)
        for kept in self._files.pop(prefix, {}).values():
            self._close(kept)
        for directory in self._inside.pop(prefix, ()):
            self.drop(directory)
        siblings = self._inside.get(prefix.rpartition("/")[0])
        if siblings is not None:
            siblings.discard(prefix)
        self._dropped += 1
        if self._dropped >= _SHRINK_AFTER:
            self._dropped = 0
            self._files, self._inside = self._files.copy(), self._inside.copy()

    def _close(self, kept: KeptFile) -> None:
        self._count -= 1
        with suppress(OSError):
            os.close(kept.fd)

    def clear(self) -> None:
        """Close all."""
        for _, kept in self._all():
            self._close(kept)
        for table in (self._files, self._inside, self._missed):
            table.clear()
