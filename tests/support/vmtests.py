"""Runs tests of this project inside a guest; their counts and skips are added to this run's."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from tests.support import ground
from tests.support.vmguest import Guest, GuestError

RecordProperty = Callable[[str, object], None]
PATIENCE = 4
_JUNIT = "/tmp/junit.xml"
_PYTEST = "/venv/bin/python -m pytest -v --tb=short -p no:cacheprovider --timeout 300"
_END_S = 30.0  # for a run that is told to end


@dataclass(frozen=True)
class InnerTest:
    """One test of an inner run: ``passed``, ``failed`` or ``skipped``; ``said`` is why."""

    name: str
    outcome: str
    said: str = ""
    took_s: float = 0.0


@dataclass(frozen=True)
class InnerRun:
    """What one pytest in a guest did, and all that it printed."""

    tests: tuple[InnerTest, ...]
    output: str

    def check(self, module: str, record: RecordProperty) -> None:
        """AssertionError where a test of ``module`` failed, or none passed; ``record`` the counts.

        ``tests.kernel`` has those of its directory, ``tests`` all.
        """
        ours = [test for test in self.tests if f"{test.name}.".startswith(f"{module}.")]
        counts = Counter(test.outcome for test in ours)
        skips = Counter(f"in the guest: {t.said}" for t in ours if t.outcome == "skipped")
        record(ground.INNER_RUN, json.dumps({**counts, "skips": skips}))
        failed = [test for test in ours if test.outcome == "failed"]
        assert not failed, "\n\n".join(f"{test.name}:\n{test.said}" for test in failed)
        assert counts["passed"], f"no test of {module} passed:\n{self.output}"


def run_tests(guest: Guest, record: RecordProperty, *words: str, limit_s: float) -> None:
    """``inner_run``; AssertionError where a test failed or none passed."""
    inner_run(guest, *words, limit_s=limit_s).check("tests", record)


def inner_run(guest: Guest, *words: str, limit_s: float) -> InnerRun:
    """Run pytest with ``words`` in the guest's copy of the project, for ``limit_s`` at most.

    GuestError with all that it printed where it left no results.
    """
    environment = f"KOORDTEST_PATIENCE={PATIENCE} timeout -s INT -k {_END_S} {limit_s}"
    command = f"{_PYTEST} --junitxml {_JUNIT} {shlex.join(words)}"
    ran = guest.sh(f"cd /project && rm -f {_JUNIT} && {environment} {command}", limit_s + _END_S)
    output = f"pytest in the guest ended with {ran.code}:\n{ran.out}\n{ran.err}"
    try:
        results = guest.get(_JUNIT)
    except GuestError:
        raise GuestError(output) from None
    return InnerRun(tuple(_tests(results)), output)


def _tests(results: bytes) -> Iterator[InnerTest]:
    for case in ElementTree.fromstring(results).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        took_s = float(case.get("time") or 0)
        told = {each.tag: each for each in case}
        wrong = told.get("failure", told.get("error"))
        if wrong is not None:
            yield InnerTest(name, "failed", wrong.text or wrong.get("message") or "", took_s)
        elif "skipped" in told:
            yield InnerTest(name, "skipped", told["skipped"].get("message", ""), took_s)
        else:
            yield InnerTest(name, "passed", took_s=took_s)
