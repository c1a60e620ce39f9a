"""``koord-runtimeproxy``: run, and ask a running one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

from koordlet.protocol.problem import RefusedError

PROGRAM = "koord-runtimeproxy"
BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> None:
    """Ends the process: 0 done, 1 failed, 2 bad usage or input, 3 the daemon does not answer,
    4 done, but something is not as wanted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["run"]:
        sys.exit(_run(words[1:]))
    # The daemon does without what only the other commands need.
    from runtimeproxy.ctl.app import main as ask

    ask(words)


@contextlib.contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Make ``package`` look absent while others are imported.

    structlog imports rich wherever it is installed, for a renderer that no daemon uses: that costs
    memory, and time in which clients of a restarting proxy wait.
    """
    sys.modules[package] = None  # type: ignore[assignment]  # what the import system looks for
    try:
        yield
    finally:
        del sys.modules[package]


def _run(words: Sequence[str]) -> int:
    with _hidden("rich"):
        from runtimeproxy import daemon, logs
    from runtimeproxy.config import load_config
    from runtimeproxy.memory import keep_small

    keep_small()
    try:
        config = load_config(words)
        logs.configure(config.log_level, config.log_format)
        daemon.run(config)
    except RefusedError as refusal:
        for problem in refusal.problems:
            print(f"{PROGRAM}: {problem}", file=sys.stderr)
        return BAD_INPUT
    return 0
