"""The console script ``koordlet``, also ``python -m koordlet``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


def main() -> int:
    """Run the daemon; exit codes as ``koordlet.daemon.main`` tells them."""
    with _hidden("rich"):
        from koordlet import daemon
    return daemon.main()


@contextlib.contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Make ``package`` look absent while others are imported.

    structlog imports rich wherever it is installed, for a renderer that no daemon uses: 4 MiB.
    """
    sys.modules[package] = None  # type: ignore[assignment]  # what the import system looks for
    try:
        yield
    finally:
        del sys.modules[package]


if __name__ == "__main__":
    sys.exit(main())
