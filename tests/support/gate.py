"""What ``make check``, ``test`` and ``test-vm`` run: parts in order, their seconds, one summary.

``python -m tests.support.gate check|test|test-vm``. A part's output is shown only where it fails.
The last line is ``N passed, N failed, N skipped``; before it stands every reason for a skip.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import debian, vmguest, vmimage
from tests.support.ground import RESULTS

REPO = Path(__file__).resolve().parents[2]
PACKAGES = (
    "busybox-static",
    "containerd",
    "docker.io",
    "iproute2",
    "nginx",
    "prometheus",
    "runc",
    "strace",
)
SOFT_LIMIT_S = 20 * 60
_TYPED = ("koordlet", "runtimeproxy", "tests/support", "tests/benchmarks", "tests/conftest.py")


@dataclass(frozen=True)
class Part:
    """One command; ``counts`` for pytest, which leaves its own numbers."""

    name: str
    command: tuple[str, ...]
    counts: bool = False


@dataclass
class Tally:
    """What came of all parts so far."""

    outcomes: Counter[str] = field(default_factory=Counter)
    skips: Counter[str] = field(default_factory=Counter)

    def add(self, results: Path, code: int) -> None:
        """Add the counts that a pytest run left; none at all is one failure."""
        if not results.exists():
            self.outcomes["failed"] += 1
            return
        counts = json.loads(results.read_text(encoding="utf-8"))
        self.skips.update(counts.pop("skips"))
        self.outcomes.update(counts)
        if code not in (0, 5) and not counts["failed"]:  # 5: no test was collected
            self.outcomes["failed"] += 1

    def add_check(self, code: int) -> None:
        """Count a part that is one check."""
        self.outcomes["failed" if code else "passed"] += 1

    def last_line(self) -> str:
        return ", ".join(f"{self.outcomes[key]} {key}" for key in ("passed", "failed", "skipped"))


def _python(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", *words)


def _pytest(marks: str, *words: str) -> tuple[str, ...]:
    return _python("pytest", "-q", "-p", "no:cacheprovider", "-m", marks, *words, "tests")


CHECK = (
    Part("format", _python("ruff", "format", "--check", ".")),
    Part("lint", _python("ruff", "check", ".")),
    Part("types", _python("mypy", *_TYPED)),
    Part("generated files", _python("tests.support.gendocs", "--check")),
    Part("quick tests", _pytest("not kernel and not e2e and not vm", "-n", "2"), counts=True),
)
MACHINE = (
    Part("kernel tests", _pytest("kernel and not e2e and not vm"), counts=True),
    Part("end-to-end tests", _pytest("e2e and not vm"), counts=True),
)
IMAGES = Part("guest images", _python("tests.support.vmimage"))
GUESTS = Part("tests in guests", _pytest("vm and not long"), counts=True)
ALL_GUESTS = Part("tests in guests", _pytest("vm"), counts=True)


def run(part: Part, tally: Tally) -> None:
    """Run one part; its output goes to stderr where it fails."""
    started_s = time.monotonic()
    print(f"{part.name:20s} ", end="", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results.json"
        done = subprocess.run(
            part.command,
            cwd=REPO,
            env={**os.environ, RESULTS: str(results)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if part.counts:
            tally.add(results, done.returncode)
        else:
            tally.add_check(done.returncode)
    failed = done.returncode not in (0, 5)
    print(f"{'FAILED' if failed else 'ok':6s} {time.monotonic() - started_s:6.1f} s", flush=True)
    if failed:
        print(done.stdout, file=sys.stderr, flush=True)


def install_packages(tally: Tally, name: str, packages: tuple[str, ...]) -> None:
    """The Debian packages of the tests; without root those tests say themselves what they miss."""
    if os.geteuid() != 0:
        return
    started_s = time.monotonic()
    print(f"{name:20s} ", end="", flush=True)
    try:
        debian.ensure(*packages)
    except debian.PackagesError as error:
        tally.add_check(1)
        print(f"FAILED {time.monotonic() - started_s:6.1f} s\n{error}", flush=True)
    else:
        print(f"ok     {time.monotonic() - started_s:6.1f} s", flush=True)


def run_guests(tally: Tally, tests: Part) -> None:
    """The tests in virtual machines; where there can be none, they say why."""
    if not vmguest.why_impossible():
        install_packages(tally, "packages of guests", vmimage.HOST_PACKAGES)
        run(IMAGES, tally)
    run(tests, tally)


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    if words not in (["check"], ["test"], ["test-vm"]):
        print("usage: python -m tests.support.gate check|test|test-vm", file=sys.stderr)
        return 2
    started_s = time.monotonic()
    tally = Tally()
    if words == ["test"]:
        install_packages(tally, "Debian packages", PACKAGES)
    for part in {"check": CHECK, "test": CHECK + MACHINE, "test-vm": ()}[words[0]]:
        run(part, tally)
    if words != ["check"]:
        run_guests(tally, GUESTS if words == ["test"] else ALL_GUESTS)
    _summarise(tally, time.monotonic() - started_s)
    return 1 if tally.outcomes["failed"] else 0


def _summarise(tally: Tally, total_s: float) -> None:
    late = f", more than the {SOFT_LIMIT_S} s that all of it should take"
    print(f"{'all':20s} {total_s:13.1f} s{late if total_s > SOFT_LIMIT_S else ''}")
    for reason, count in tally.skips.most_common():
        print(f"skipped {count}: {reason}")
    print(tally.last_line())


if __name__ == "__main__":
    sys.exit(main())
