"""How soon batch work is narrowed when latency-sensitive work wakes up.

Two BE spinners want two cores, one LS process steps from 0.1 to 1.0 core at a random phase, eight
seconds apart. t0 is the step's first instruction, told by the process itself; a poll of the kernel
file every 2 ms sees the first BE quota of at most 0.9 of that before (reaction), and the first
within 10 % of the final one (settled: the median of the step's last second). Afterwards an LS pod
runs into its own CPU limit for a while: that must not call early ticks (early_ticks_per_min).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import common
from tests.benchmarks.common import Bench, CannotMeasureError, quantile
from tests.benchmarks.usage import OwnCgroup
from tests.support import machine
from tests.support.cgroot import parse_quota
from tests.support.fakenode import TIERS, FakeNode
from tests.support.koordletd import Koordlet
from tests.support.load import Burner

QUIET_CORES, BUSY_CORES = 0.1, 1.0
APART_S, BUSY_S, FINAL_S = 8.0, 2.5, 1.0
POLL_S = 0.002
ROOM_US, ROOM_WITHIN_S = 60_000, 60.0
NARROWED, SETTLED = 0.9, 0.1
LIMIT_QUOTA_US = 50_000  # of the LS pod that runs into its own limit
EARLY_CAUSES = ("surge", "psi")
NODE_SLO = """
spec:
  resourceUsedThresholdWithBE: {enable: true, cpuSuppressPolicy: cfsQuota}
  resourceQOSStrategy: {beClass: {cpuQOS: {enable: true}}}
"""


@dataclass(frozen=True)
class Step:
    """One step as the poll saw it: times in ms from its first instruction, NaN where never."""

    before_us: int
    final_us: float
    reaction_ms: float
    settled_ms: float


def arguments() -> argparse.ArgumentParser:
    made = common.parser("reaction", __doc__)
    made.add_argument("--steps", type=int, default=60)
    made.add_argument("--warmup", type=float, default=15.0, help="seconds before the first step")
    made.add_argument("--limited", type=float, default=60.0, help="seconds at an own limit")
    return made


def measure(bench: Bench) -> None:
    """Fill in ``bench.figures``."""
    if why_not := machine.why_no_kernel_tests():
        raise CannotMeasureError(why_not)
    with _world(bench) as (node, koordlet):
        quota = node.root.dir(TIERS["BE"]) / node.root.quota_file
        service = node.burner(_only_container(node, "service"), QUIET_CORES)
        for _ in range(2):
            node.burner(_only_container(node, "batch"), BUSY_CORES)
        time.sleep(bench.options.warmup)
        bench.require(_read(quota) > 0, "BE work was never limited")
        steps = [_step(bench, service, quota, number) for number in range(bench.options.steps)]
        service.use(0.0)
        _judge(bench, steps)
        bench.figures["early_ticks_per_min"] = _limited(bench, node, koordlet)


@contextlib.contextmanager
def _world(bench: Bench) -> Iterator[tuple[FakeNode, Koordlet]]:
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="koordtest-")))
        node = stack.enter_context(FakeNode(scratch))
        own = stack.enter_context(OwnCgroup())
        bench.quiet.own(node.root.dir("", "cpuacct"), own.cpuacct)
        node.add_pod("service", "LS", 1)
        node.add_pod("limited", "LS", 1)
        node.add_pod("batch", "BE", 1)
        slo = scratch / "nodeslo.yaml"
        slo.write_text(NODE_SLO)
        koordlet = Koordlet(
            scratch / "koordlet",
            node.root.root,
            own_cgroups=own.directories,
            cri_endpoint=node.cri.endpoint,
            node_slo=slo,
        )
        yield node, stack.enter_context(koordlet)


def _only_container(node: FakeNode, name: str) -> str:
    (cgroup,) = next(pod for pod in node.pods if pod.record.name == name).containers.values()
    return cgroup


def _read(quota: Path) -> int:
    return parse_quota(quota.read_text())


def _step(bench: Bench, service: Burner, quota: Path, number: int) -> Step:
    """One step and the quiet time before it."""
    time.sleep(APART_S - BUSY_S - 1.0 + bench.rng.random())
    _await_room(bench, quota)
    before_us = _read(quota)
    service.use(BUSY_CORES)
    seen = _poll(quota, time.monotonic() + BUSY_S)
    started_s = service.changed_s
    service.use(QUIET_CORES)
    step = judge_step(before_us, started_s, seen)
    bench.runs.append([_printable(step.reaction_ms), _printable(step.settled_ms)])
    bench.log(
        f"step {number + 1}: {before_us} to {step.final_us:.0f} us, reaction"
        f" {step.reaction_ms:.0f} ms, settled {step.settled_ms:.0f} ms"
    )
    return step


def _await_room(bench: Bench, quota: Path) -> None:
    """Other work on the machine may hold the quota so low that nothing is left to narrow."""
    deadline_s = time.monotonic() + ROOM_WITHIN_S
    while _read(quota) < ROOM_US:
        if time.monotonic() > deadline_s:
            raise CannotMeasureError("the machine was too busy to leave BE work room to narrow")
        time.sleep(bench.rng.uniform(0.1, 0.2))


def _printable(elapsed_ms: float) -> float | None:
    return None if math.isnan(elapsed_ms) else round(elapsed_ms, 1)


def _poll(quota: Path, end_s: float) -> list[tuple[float, int]]:
    """(monotonic time, quota) at each change, the first and the last read included."""
    seen: list[tuple[float, int]] = []
    fd = os.open(quota, os.O_RDONLY)
    try:
        while (now_s := time.monotonic()) < end_s:
            value = parse_quota(os.pread(fd, 32, 0).decode())
            if not seen or seen[-1][1] != value:
                seen.append((now_s, value))
            time.sleep(POLL_S)
    finally:
        os.close(fd)
    seen.append((end_s, seen[-1][1]))
    return seen


def judge_step(before_us: int, started_s: float, seen: list[tuple[float, int]]) -> Step:
    """What the reads of one step say. ``seen`` holds each change and ends with the last read."""
    final_us = _final_us(seen)
    narrowed = (at_s for at_s, value in seen if value <= NARROWED * before_us)
    settled = (at_s for at_s, value in seen if abs(value - final_us) <= SETTLED * final_us)
    return Step(
        before_us,
        final_us,
        (next(narrowed, math.nan) - started_s) * 1000,
        (next(settled, math.nan) - started_s) * 1000,
    )


def _final_us(seen: list[tuple[float, int]]) -> float:
    """The time-weighted median of the last FINAL_S seconds."""
    end_s = seen[-1][0]
    spans = [
        (value, min(next_s, end_s) - max(at_s, end_s - FINAL_S))
        for (at_s, value), (next_s, _) in itertools.pairwise(seen)
        if next_s > end_s - FINAL_S
    ]
    values, seconds = zip(*sorted(spans), strict=True)
    reached = itertools.accumulate(seconds)
    half_s = sum(seconds) / 2
    middle = next(index for index, so_far_s in enumerate(reached) if so_far_s >= half_s)
    return float(values[middle])


def _judge(bench: Bench, steps: list[Step]) -> None:
    reactions = [_never_is_late(step.reaction_ms) for step in steps]
    settled = [_never_is_late(step.settled_ms) for step in steps]
    bench.figures |= {
        "steps": len(steps),
        "never_narrowed": sum(math.isnan(step.reaction_ms) for step in steps),
        "reaction_ms_p50": round(quantile(reactions, 0.5), 1),
        "reaction_ms_p99": round(quantile(reactions, 0.99), 1),
        "settled_ms_p50": round(quantile(settled, 0.5), 1),
        "settled_ms_p99": round(quantile(settled, 0.99), 1),
        "quota_before_us": statistics.median(step.before_us for step in steps),
        "quota_final_us": statistics.median(step.final_us for step in steps),
    }


def _never_is_late(elapsed_ms: float) -> float:
    return BUSY_S * 1000 if math.isnan(elapsed_ms) else elapsed_ms


def _limited(bench: Bench, node: FakeNode, koordlet: Koordlet) -> float:
    """Early ticks a minute while an LS pod is throttled by its own limit, and by nothing else."""
    bench.log(f"an LS pod at its own limit for {bench.options.limited:.0f} s")
    pod = next(pod for pod in node.pods if pod.record.name == "limited")
    node.root.set_quota_us(pod.cgroup, LIMIT_QUOTA_US)
    for _ in range(2):
        node.burner(_only_container(node, "limited"), BUSY_CORES)
    time.sleep(5.0)  # the start of the load itself is a surge
    first_tick = koordlet.ticks()[-1]["tick"]
    started_s = time.monotonic()
    time.sleep(bench.options.limited)
    early = [
        tick
        for tick in koordlet.ticks()
        if tick["tick"] > first_tick and tick["cause"] in EARLY_CAUSES
    ]
    minutes = (time.monotonic() - started_s) / 60
    bench.figures["early_causes"] = Counter(tick["cause"] for tick in early)
    stat = dict(line.split() for line in node.root.read(pod.cgroup, "cpu.stat").splitlines())
    bench.require(int(stat["nr_throttled"]) > 0, "the LS pod never ran into its limit")
    return round(len(early) / minutes, 2)


def main(words: list[str] | None = None) -> int:
    return common.main("reaction", arguments(), measure, words)


if __name__ == "__main__":
    sys.exit(main())
