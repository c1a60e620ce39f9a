"""Runs tests of this project inside a guest; their counts and skips are added to this run's."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable

from tests.support import ground
from tests.support.vmguest import Guest

RecordProperty = Callable[[str, object], None]
_RESULTS = "/tmp/results.json"
_PATIENCE = 4
_PYTEST = "/venv/bin/python -m pytest -v --tb=short -p no:cacheprovider --timeout 300"


def run_tests(guest: Guest, record: RecordProperty, *words: str, limit_s: float) -> None:
    """Run pytest with ``words`` in the guest's copy of the project, and ``record`` what came of it.

    AssertionError with all that pytest said where a test failed, none passed or the time was up.
    """
    environment = f"{ground.RESULTS}={_RESULTS} KOORDTEST_PATIENCE={_PATIENCE}"
    command = f"cd /project && rm -f {_RESULTS} && {environment} {_PYTEST} {shlex.join(words)}"
    ran = guest.sh(command, limit_s)
    assert ran.code == 0, f"pytest in the guest ended with {ran.code}:\n{ran.out}\n{ran.err}"
    counts = json.loads(guest.get(_RESULTS))
    assert counts["passed"], f"nothing was tested:\n{ran.out}"
    counts["skips"] = {f"in the guest: {why}": n for why, n in counts["skips"].items()}
    record(ground.INNER_RUN, json.dumps(counts))
