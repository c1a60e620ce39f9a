"""Puts a file that is no sound database out of the way: one scheme for all of ours."""

from __future__ import annotations

import contextlib
from pathlib import Path

KEPT = 3
"""So many damaged files of one name are kept; the next one takes the place of the last."""
_COMPANIONS = ("-wal", "-shm")


def set_aside(path: Path) -> Path:
    """Rename ``path`` to ``NAME.damaged-N`` with what SQLite keeps beside it; gives the new path.

    Raises OSError where the directory refuses.
    """
    places = [path.with_name(f"{path.name}.damaged-{number}") for number in range(KEPT)]
    aside = next((place for place in places if not place.exists()), places[-1])
    path.replace(aside)
    for suffix in _COMPANIONS:
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).replace(aside.with_name(aside.name + suffix))
    return aside
