"""What koordlet costs on a node full of pods.

P pods, half LS half BE, each with C containers of one process; every tenth process burns 1 ms in
100 ms. Pods come from a CRI server with Koordinator's labels, suppression and be_priority are on,
/metrics is scraped every second. Figures are the median of three equal parts of the measured time,
memory the maximum of all of it. --churn N then makes and removes N containers at 50/s.

``fresh_ok`` keeps "read less" from winning: load that moves to five random containers must show
in /metrics within 2 s, within 10 % of what the kernel counted.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from koordlet.memory import COLLECT_ALL_EVERY_S
from koordlet.protocol.names import LABEL_QOS
from koordlet.units import NS_PER_S
from tests.benchmarks import common
from tests.benchmarks.common import Bench, CannotMeasureError, quantile
from tests.benchmarks.scrape import Page, Scraper
from tests.benchmarks.usage import (
    MemoryWatch,
    OwnCgroup,
    busiest_thread,
    cpu_s,
    pss_mib,
    thread_run_s,
)
from tests.support import debian, machine
from tests.support.fakenode import FakeNode, NodePod
from tests.support.koordletd import Koordlet

PARTS = 3
BURN_EVERY, BURN_CORES, BURN_PERIOD_S = 10, 0.01, 0.1
FRESH_CONTAINERS, FRESH_CORES, FRESH_WITHIN_S, FRESH_ERROR = 5, 0.05, 2.0, 0.1
TRACE_S = 15.0  # longer than the slowest cadence
TICK_COVERAGE, MANY_CONTAINERS = 0.8, 100
CHURN_PER_S, CHURN_LIFE_S = 50, 2.0
CHURN_SETTLE_S = COLLECT_ALL_EVERY_S + 5.0  # once more its processes have given memory back

NODE_SLO = """
spec:
  resourceUsedThresholdWithBE: {enable: true, cpuSuppressPolicy: cfsQuota}
  resourceQOSStrategy: {beClass: {cpuQOS: {enable: true, schedIdle: 1}}}
"""


def arguments() -> argparse.ArgumentParser:
    made = common.parser("overhead", __doc__)
    made.add_argument("--pods", type=int, default=110)
    made.add_argument("--containers", type=int, default=3, help="per pod")
    made.add_argument("--warmup", type=float, default=30.0, help="seconds before measuring")
    made.add_argument("--seconds", type=float, default=120.0, help="measured, in three parts")
    made.add_argument("--nofile", type=int, help="hard limit of open files of the daemon")
    made.add_argument("--churn", type=int, default=0, help="short-lived containers afterwards")
    return made


def measure(bench: Bench) -> None:
    """Fill in ``bench.figures``."""
    if why_not := machine.why_no_kernel_tests():
        raise CannotMeasureError(why_not)
    debian.ensure("strace")
    with _world(bench) as (node, own, koordlet):
        bench.log(f"{len(node.pods)} pods, warm-up {bench.options.warmup:.0f} s")
        with Scraper(koordlet.metrics_port) as scraper:
            time.sleep(bench.options.warmup)
            _steady(bench, own, koordlet)
            bench.figures["fresh_ok"] = _fresh(bench, node, scraper)
            _trace(bench, node, own, koordlet)
            if bench.options.churn:
                bench.figures["churn_growth_mib"] = _churn(bench, node, own)
        bench.require(not scraper.failures, f"{scraper.failures} scrapes of /metrics failed")


@contextlib.contextmanager
def _world(bench: Bench) -> Iterator[tuple[FakeNode, OwnCgroup, Koordlet]]:
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="koordtest-")))
        node = stack.enter_context(FakeNode(scratch))
        own = stack.enter_context(OwnCgroup())
        bench.quiet.own(node.root.dir("", "cpuacct"), own.cpuacct)
        _populate(node, bench.options.pods, bench.options.containers)
        slo = scratch / "nodeslo.yaml"
        slo.write_text(NODE_SLO)
        koordlet = Koordlet(
            scratch / "koordlet",
            node.root.root,
            own_cgroups=own.directories,
            nofile=bench.options.nofile,
            cri_endpoint=node.cri.endpoint,
            node_slo=slo,
        )
        stack.enter_context(koordlet)
        yield node, own, koordlet


def _populate(node: FakeNode, pods: int, containers: int) -> None:
    number = 0
    for index in range(pods):
        pod = node.add_pod(f"pod-{index}", "LS" if index % 2 else "BE", containers)
        for cgroup in pod.containers.values():
            if number % BURN_EVERY:
                node.sleeper(cgroup)
            else:
                node.burner(cgroup, BURN_CORES, period_s=BURN_PERIOD_S)
            number += 1


def _steady(bench: Bench, own: OwnCgroup, koordlet: Koordlet) -> None:
    core_pid = int(koordlet.status()["core"]["pid"])
    thread = busiest_thread(core_pid)
    with MemoryWatch(own) as memory:
        for part in range(PARTS):
            bench.log(f"measuring, part {part + 1} of {PARTS}")
            bench.runs.append(_part(bench.options.seconds / PARTS, own, koordlet, core_pid, thread))
    figures = {
        key: statistics.median(run[key] for run in bench.runs)
        for key in bench.runs[0]
        if isinstance(bench.runs[0][key], float)
    }
    bench.figures |= {key: round(value, 4) for key, value in figures.items()}
    bench.figures |= {
        "pss_mib": round(max(memory.pss_mib), 1),
        "cgroup_mem_mib": round(max(memory.cgroup_mib), 1),
        "processes": len(own.pids()),
        "containers": bench.options.pods * bench.options.containers,
    }
    # On a small node the 5 Hz samples, which are no part of a tick, weigh more than the ticks.
    if bench.figures["containers"] >= MANY_CONTAINERS:
        bench.require(
            bench.figures["tick_coverage"] >= TICK_COVERAGE,
            "the ticks' own times do not account for what the tick thread ran",
        )


def _part(
    seconds: float, own: OwnCgroup, koordlet: Koordlet, core_pid: int, thread: int
) -> dict[str, Any]:
    first_tick = koordlet.ticks()[-1]["tick"]
    used_s, ran_s = cpu_s(own.pids()), thread_run_s(core_pid, thread)
    started_s = time.monotonic()
    time.sleep(seconds)
    wall_s = time.monotonic() - started_s
    used_s, ran_s = cpu_s(own.pids()) - used_s, thread_run_s(core_pid, thread) - ran_s
    ticks = [tick for tick in koordlet.ticks() if tick["tick"] > first_tick]
    durations_s = [tick["duration_s"] for tick in ticks]
    if not ticks:
        raise CannotMeasureError(f"no tick in {seconds:.0f} s:\n{koordlet.log_tail()}")
    return {
        "cpu_core_ratio": used_s / wall_s,
        "tick_ms_p50": quantile(durations_s, 0.5) * 1000,
        "tick_ms_p99": quantile(durations_s, 0.99) * 1000,
        "tick_ms_max": max(durations_s) * 1000,
        "tick_coverage": sum(durations_s) / ran_s,
        "tick_thread_core_ratio": ran_s / wall_s,
        "reads_per_tick": statistics.fmean(tick["reads"] for tick in ticks),
        "opens_per_tick": statistics.fmean(tick["opens"] for tick in ticks),
        "writes_per_tick": statistics.fmean(tick["writes"] for tick in ticks),
        "ticks_per_s": len(ticks) / wall_s,
        "overruns": sum(tick["overrun"] for tick in ticks),
        "causes": dict(Counter(tick["cause"] for tick in ticks)),
    }


def _fresh(bench: Bench, node: FakeNode, scraper: Scraper) -> bool:
    """Move load into five random containers; when does /metrics show each?

    Of LS pods: what a suppressed container gets of its quota differs from second to second, so
    that the kernel's own count over two windows does not agree with itself within 10 %.
    """
    everywhere = [(pod, id_) for pod in _pods(node, "LS") for id_ in sorted(pod.containers)]
    chosen = bench.rng.sample(everywhere, min(FRESH_CONTAINERS, len(everywhere)))
    watched = [_Moved(node, pod, id_) for pod, id_ in chosen]
    deadline_s = time.monotonic() + FRESH_WITHIN_S + 1.0
    while time.monotonic() < deadline_s and any(each.shown_s is None for each in watched):
        page = scraper.fetch()
        for each in watched:
            each.look(page)
        time.sleep(0.1)
    for each in watched:
        each.burner.use(0.0)
    bench.figures["fresh_s"] = [each.shown_s for each in watched]
    return all(each.shown_s is not None and each.shown_s <= FRESH_WITHIN_S for each in watched)


class _Moved:
    """A container that load moved into; ``shown_s`` is when the page first agreed with the kernel
    about its use since then, None as long as it does not.
    """

    def __init__(self, node: FakeNode, pod: NodePod, container_id: str) -> None:
        self._uid = pod.record.uid
        self._name = pod.name_of(container_id)
        self._cpuacct = node.root.dir(pod.containers[container_id], "cpuacct")
        self.burner = node.burner(pod.containers[container_id], FRESH_CORES)
        self._from_ns, self._from_s = common.cpu_ns(self._cpuacct), time.monotonic()
        self.shown_s: float | None = None

    def look(self, page: Page) -> None:
        elapsed_s = time.monotonic() - self._from_s
        truth_cores = (common.cpu_ns(self._cpuacct) - self._from_ns) / NS_PER_S / elapsed_s
        seen_cores = page.container_cores(self._uid, self._name)
        if self.shown_s is None and seen_cores and truth_cores:
            error = abs(seen_cores / truth_cores - 1)
            self.shown_s = round(elapsed_s, 2) if error <= FRESH_ERROR else None


def _trace(bench: Bench, node: FakeNode, own: OwnCgroup, koordlet: Koordlet) -> None:
    """Count system calls and the files read of each container, outside the measured time."""
    bench.log(f"tracing system calls for {TRACE_S:.0f} s")
    first_tick = koordlet.ticks()[-1]["tick"]
    with tempfile.NamedTemporaryFile(prefix="koordtest-trace-") as output:
        pids = [word for pid in own.pids() for word in ("-p", str(pid))]
        command = ["strace", "-f", "-y", "-qq", "-s", "0", "-o", output.name, *pids]
        tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=sys.stderr)
        time.sleep(TRACE_S)
        ticks = koordlet.ticks()[-1]["tick"] - first_tick
        tracer.terminate()
        tracer.wait(30)
        lines = Path(output.name).read_text(errors="replace").splitlines()
    calls = [line for line in lines if "resumed>" not in line and "(" in line]
    bench.require(bool(calls) and ticks > 0, "strace saw nothing")
    cgroups = [cgroup for pod in node.pods for cgroup in pod.containers.values()]
    counts = files_per_container(calls, node.root.root, cgroups)
    bench.figures |= {
        "syscalls_per_tick": round(len(calls) / max(ticks, 1)),
        "files_per_container": statistics.median(counts),
        "files_per_container_min": min(counts),
    }


_READ = re.compile(r"\b(?:read|pread64|readv|preadv)\(\d+<([^>]*)>")


def files_per_container(calls: list[str], root: str, cgroups: list[str]) -> list[int]:
    """How many different files were read of each container, over all hierarchies."""
    files: defaultdict[str, set[str]] = defaultdict(set)
    for call in calls:
        if found := _READ.search(call):
            directory, _, _ = found[1].rpartition("/")
            _, _, cgroup = directory.partition(f"{root}/")
            files[cgroup].add(found[1])
    return [len(files[cgroup]) for cgroup in cgroups]


def _pods(node: FakeNode, qos: str) -> list[NodePod]:
    return [pod for pod in node.pods if pod.record.labels[LABEL_QOS] == qos]


def _churn(bench: Bench, node: FakeNode, own: OwnCgroup) -> float:
    """PSS after N short-lived containers less PSS before, MiB."""
    bench.log(f"churn: {bench.options.churn} containers at {CHURN_PER_S}/s")
    before_mib = pss_mib(own.pids())
    pods = _pods(node, "BE")
    live: list[tuple[float, Any, str]] = []
    started_s = time.monotonic()
    for number in range(bench.options.churn):
        time.sleep(max(0.0, started_s + number / CHURN_PER_S - time.monotonic()))
        pod = bench.rng.choice(pods)
        id_ = node.add_container(pod, f"churn-{number}")
        live.append((time.monotonic() + CHURN_LIFE_S, pod, id_))
        while live and live[0][0] < time.monotonic():
            _, pod, id_ = live.pop(0)
            node.remove_container(pod, id_)
    for _, pod, id_ in live:
        node.remove_container(pod, id_)
    time.sleep(CHURN_SETTLE_S)
    after_mib = pss_mib(own.pids())
    bench.runs.append({"pss_mib_before_churn": before_mib, "pss_mib_after_churn": after_mib})
    return round(after_mib - before_mib, 2)


def main(words: list[str] | None = None) -> int:
    return common.main("overhead", arguments(), measure, words)


if __name__ == "__main__":
    sys.exit(main())
