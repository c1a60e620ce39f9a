"""Which tests this machine allows, and proof that they leave it as it was."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support import ground, machine, vmguest

SETTLE_S = 5.0  # processes that were just told to end

hypothesis.settings.register_profile(
    "ci", max_examples=50, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

_WHY_NOT: dict[str, Callable[[], str]] = {
    "kernel": machine.why_no_kernel_tests,
    "e2e": machine.why_no_runtime_tests,
    "vm": vmguest.why_not,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    asked: dict[str, str] = {}
    for item in items:
        for mark, why_not in _WHY_NOT.items():
            if item.get_closest_marker(mark) is None:
                continue
            if mark not in asked:
                asked[mark] = why_not()
            if asked[mark]:
                item.add_marker(pytest.mark.skip(reason=f"{mark}: {asked[mark]}"))


class _Watch:
    """The run's own plugin: counts, and the ground before and after. Controller only."""

    def __init__(self) -> None:
        self._surveyor = ground.Surveyor(os.getpid(), "")
        self._before = ground.Ground()
        self._left: list[str] = []
        self._outcomes: Counter[str] = Counter()
        self._skips: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        scratch = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._surveyor = ground.Surveyor(os.getpid(), str(scratch))
        os.environ[ground.MARK] = str(os.getpid())
        self._before = self._surveyor.look()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._surveyor.adopt(getattr(node, "workeroutput", {}).get("pid", os.getpid()))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self._outcomes["skipped"] += 1
            self._skips[_reason(report)] += 1
        elif report.failed:
            self._outcomes["failed"] += 1
        elif report.when == "call":
            self._outcomes["passed"] += 1
        if report.when == "call":
            self._add_inner_runs(report)

    def _add_inner_runs(self, report: pytest.TestReport) -> None:
        """A test that ran tests elsewhere: theirs count as those of this run do."""
        for name, value in report.user_properties:
            if name == ground.INNER_RUN:
                inner = json.loads(str(value))
                self._skips.update(inner.pop("skips"))
                self._outcomes.update(inner)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._outcomes["failed"] += report.failed
        if report.skipped:
            self._outcomes["skipped"] += 1
            self._skips[_reason(report)] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._left = self._settled_difference()
        if self._left:
            self._outcomes["failed"] += 1
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if path := os.environ.get(ground.RESULTS):
            counts = {key: self._outcomes[key] for key in ("passed", "failed", "skipped")}
            Path(path).write_text(json.dumps({**counts, "skips": self._skips}))

    def _settled_difference(self) -> list[str]:
        deadline_s = time.monotonic() + SETTLE_S
        while left := self._surveyor.look().left_behind(self._before):
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.1)
        return left

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._skips:
            terminalreporter.section("skipped, and why")
        for reason, count in self._skips.most_common():
            terminalreporter.write_line(f"{count:4d}  {reason}")
        if self._left:
            terminalreporter.section("the tests left something behind", red=True)
        for thing in self._left:
            terminalreporter.write_line(thing)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Watch(), "koordtest-ground")


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["pid"] = os.getpid()
