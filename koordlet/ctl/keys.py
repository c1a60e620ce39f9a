"""Keys pressed on the terminal, without a line end and without waiting."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Any


class Keys:
    """As a context: each key is read as it is pressed, and not echoed. Ctrl-C stays a signal.

    Where stdin is no terminal there are no keys.
    """

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.stdin.isatty() else -1
        self._before: list[Any] = []

    def __enter__(self) -> Keys:
        if self._fd >= 0:
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fd >= 0:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def pressed(self) -> str:
        """The keys since the last call."""
        if self._fd < 0 or not select.select([self._fd], [], [], 0)[0]:
            return ""
        return os.read(self._fd, 256).decode(errors="replace")
