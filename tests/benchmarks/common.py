"""What every benchmark shares: arguments, the JSON object, and whether the machine was quiet."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from koordlet.units import NS_PER_S, usec_to_ns
from tests.support.cgroot import hierarchies
from tests.support.debian import PackagesError
from tests.support.koordletd import NotReadyError

DIRTY_CORES = 0.2
DIRTY_RATIO_MAX = 0.3


class CannotMeasureError(RuntimeError):
    """The benchmark cannot give figures here, and why."""


@dataclass
class Bench:
    """One run of one benchmark; ``figures`` and ``runs`` are filled in by it."""

    name: str
    options: argparse.Namespace
    rng: random.Random
    quiet: QuietWatch
    figures: dict[str, Any] = field(default_factory=dict)
    runs: list[Any] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)

    def log(self, text: str) -> None:
        """Progress, for people; stdout belongs to the result."""
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def require(self, condition: bool, why_not: str) -> None:
        """Without ``condition`` the figures mean nothing, and ``invalid_why`` says so."""
        if not condition:
            self.invalid.append(why_not)


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark takes."""
    made = argparse.ArgumentParser(
        prog=f"python -m tests.benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--json", action="store_true", help="one line of JSON, not an indented text")
    made.add_argument("--seed", type=int, default=1, help="of everything random (default 1)")
    return made


def main(
    name: str,
    arguments: argparse.ArgumentParser,
    body: Callable[[Bench], None],
    words: Sequence[str] | None = None,
) -> int:
    """Run ``body`` and print the one object; 1 where the figures are not valid."""
    options = arguments.parse_args(words)
    started_s = time.monotonic()
    with QuietWatch() as quiet:
        bench = Bench(name, options, random.Random(options.seed), quiet)
        try:
            body(bench)
        except (CannotMeasureError, NotReadyError, PackagesError) as error:
            bench.invalid.append(str(error))
    ratio = quiet.dirty_ratio()
    bench.require(ratio <= DIRTY_RATIO_MAX, f"other work on the machine in {ratio:.0%} of the time")
    print(_text(_object(bench, time.monotonic() - started_s, ratio), options.json))
    return 1 if bench.invalid else 0


def _object(bench: Bench, wall_s: float, dirty_ratio: float) -> dict[str, Any]:
    return {
        "benchmark": bench.name,
        "valid": not bench.invalid,
        "invalid_why": "; ".join(bench.invalid),
        **bench.figures,
        "seed": bench.options.seed,
        "kernel": platform.release(),
        "cgroup": cgroup_layout(),
        "cores": os.cpu_count(),
        "wall_s": round(wall_s, 1),
        "dirty_ratio": round(dirty_ratio, 3),
        "runs": bench.runs,
    }


def _text(result: dict[str, Any], one_line: bool) -> str:
    return json.dumps(result) if one_line else json.dumps(result, indent=2)


def cgroup_layout() -> str:
    """v1, v2, or hybrid where both are mounted."""
    mounts = hierarchies()
    if "cpu" not in mounts:
        return "v2"
    return "hybrid" if "unified" in mounts else "v1"


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed; NaN of none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class QuietWatch:
    """Each second, how much CPU is used by neither the benchmark nor cgroups named to it."""

    def __init__(self) -> None:
        self._own: list[Path] = []
        self._processes: list[int] = []
        self._used_ns: dict[Path, int] = {}
        self._samples: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="quiet-watch", daemon=True)
        mounts = hierarchies()
        self._mount = mounts.get("cpuacct", mounts.get("unified"))

    def own(self, *directories: Path) -> None:
        """Count the use of these directories (on v1 of cpuacct) as the benchmark's."""
        self._own += directories

    def own_process(self, pid: int) -> None:
        """Count a child's use as the benchmark's; once it has ended it counts by itself."""
        self._processes.append(pid)

    def dirty_ratio(self) -> float:
        """The share of seconds with more than DIRTY_CORES of foreign use."""
        dirty = sum(cores > DIRTY_CORES for cores in self._samples)
        return dirty / len(self._samples) if self._samples else 0.0

    def __enter__(self) -> QuietWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        if self._mount is None:
            return
        before_s, before_ns, seen = time.monotonic(), self._foreign_ns(), len(self._own)
        while not self._stop.wait(1.0):
            now_s, now_ns = time.monotonic(), self._foreign_ns()
            if len(self._own) == seen:  # else a cgroup came into the sum in between
                self._samples.append((now_ns - before_ns) / NS_PER_S / (now_s - before_s))
            before_s, before_ns, seen = now_s, now_ns, len(self._own)

    def _foreign_ns(self) -> float:
        assert self._mount is not None
        for directory in self._own:
            with contextlib.suppress(OSError):  # gone: what it had used is known
                self._used_ns[directory] = cpu_ns(directory)
        own = (
            use.ru_utime + use.ru_stime
            for use in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )
        running = sum(map(_process_ns, self._processes))
        return cpu_ns(self._mount) - sum(self._used_ns.values()) - running - sum(own) * NS_PER_S


def _process_ns(pid: int) -> int:
    """CPU time of a process of one thread that runs; nothing of one that is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return 0


def cpu_ns(directory: Path) -> int:
    """CPU time of all that ran in a cgroup (on v1 of the cpuacct hierarchy) and below it."""
    v1 = directory / "cpuacct.usage"
    if v1.exists():
        return int(v1.read_text())
    lines = (directory / "cpu.stat").read_text().splitlines()
    return usec_to_ns(int(dict(map(str.split, lines))["usage_usec"]))
