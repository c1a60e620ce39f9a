"""What koordlet is for: a service keeps its latency while batch work uses what it leaves.

A real nginx compresses a page for each request, about 1 ms of CPU, through one compressed day
(0.15 to 0.7 core); beside it two processes for each core compress text with xz, in units that are
counted. Four arms get the same requests, each part of the day in each arm, in changing order:

* alone: the batch work is stopped;
* unmanaged: service and batch work in two cgroups of equal weight, as two units of a plain host;
* k8s_default: the batch cgroup at the least weight, as the kubelet sets its BestEffort tier;
* managed: koordlet, with systemd/examples/colocation.yaml.

koordlet runs in its own arm only, so that what it costs counts there. Before a slice is counted
its arm is set up (for managed: koordlet started, and its first values in force) and the load runs
for --settle seconds; the object tells how long that took. Everything lies in cgroups of the demo's
own, which are gone afterwards, and what koordlet wrote is compared with what was there before it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console

from koordlet.units import NS_PER_S, SHARES_MIN
from tests.benchmarks import common, demofigures, demoplot, photo
from tests.benchmarks.common import Bench, CannotMeasureError
from tests.benchmarks.demofigures import DAY, NOON_CORES, Arm, Phase, Slice, demand_cores
from tests.benchmarks.usage import OwnCgroup
from tests.support import debian, machine, webserver
from tests.support.cgroot import CgroupRoot
from tests.support.koordletd import Koordlet
from tests.support.load import Cruncher, Load
from tests.support.openloop import OpenLoop, arrivals
from tests.support.waiting import until
from tests.support.webserver import WebServer

REPO = Path(__file__).resolve().parents[2]
SHOP, CRUNCH = "shop", "crunch"
HOST_APPS = """
apiVersion: koordlet/v1
kind: HostApplications
applications:
  - {name: shop, qos: LS, cgroupPath: {base: CgroupRoot, relativePath: shop}}
  - {name: crunch, qos: BE, cgroupPath: {base: CgroupRoot, relativePath: crunch}}
"""
# Each arm is once in each place, and once after each other one (a Williams square).
ORDERS = (
    (Arm.ALONE, Arm.UNMANAGED, Arm.MANAGED, Arm.K8S_DEFAULT),
    (Arm.UNMANAGED, Arm.K8S_DEFAULT, Arm.ALONE, Arm.MANAGED),
    (Arm.K8S_DEFAULT, Arm.MANAGED, Arm.UNMANAGED, Arm.ALONE),
    (Arm.MANAGED, Arm.ALONE, Arm.K8S_DEFAULT, Arm.UNMANAGED),
)
REQUEST_CPU_S, REQUEST_CPU_RANGE_S = 0.001, (0.0005, 0.002)
FIRST_PAGE_BYTES, CALIBRATE_S = 40_000, 2.0
IN_FORCE_WITHIN_S = 20.0
SENT_RATIO_MIN, LATE_MS_MAX, DEMAND_ERROR = 0.99, 1.0, 0.25


@dataclass
class World:
    """Everything that runs, and where."""

    bench: Bench
    scratch: Path
    root: CgroupRoot
    own: OwnCgroup
    server: WebServer
    crunchers: tuple[Cruncher, ...]
    generator: OpenLoop
    slo: Path

    def used_s(self, path: str) -> float:
        """CPU time of all that ever ran in a cgroup."""
        return self.root.used_ns(path) / NS_PER_S

    def counters(self) -> tuple[float, float, float, float]:
        """The time, CPU of the service and of the batch work, and units of the latter."""
        units = sum(each.units for each in self.crunchers)
        return time.monotonic(), self.used_s(SHOP), self.used_s(CRUNCH), units

    def in_force(self) -> dict[str, str]:
        """What governs the batch work now."""
        return {
            "weight": self.root.weight(CRUNCH),
            "quota_us": str(self.root.quota_us(CRUNCH)),
            "idle": self.root.read(CRUNCH, "cpu.idle"),
        }


def arguments() -> argparse.ArgumentParser:
    made = common.parser("demo", __doc__)
    made.add_argument("--slice", type=float, default=15.0, help="counted seconds of an arm's turn")
    made.add_argument("--settle", type=float, default=3.0, help="seconds of load before them")
    made.add_argument(
        "--node-slo",
        type=Path,
        default=REPO / "systemd/examples/colocation.yaml",
        help="what koordlet is told (default: %(default)s)",
    )
    made.add_argument(
        "--plot",
        type=Path,
        default=REPO / ".cache/demo/demo.html",
        help="where the page with the charts goes (default: %(default)s)",
    )
    return made


def measure(bench: Bench) -> None:
    """Fill in ``bench.figures``."""
    if why_not := machine.why_no_kernel_tests():
        raise CannotMeasureError(why_not)
    debian.ensure(webserver.PACKAGE)
    try:
        with _world(bench) as world:
            request_s = _calibrate(world)
            slices = _day(world, request_s)
    except TimeoutError as error:
        raise CannotMeasureError(str(error)) from error
    cores = os.cpu_count() or 1
    bench.figures |= demofigures.of_all(slices, cores)
    bench.figures |= {
        "request_cpu_ms": round(request_s * 1000, 3),
        "generator_priority": world.generator.priority,
        "settle_s": bench.options.settle,
        "batch_processes": len(world.crunchers),
        "plot": str(bench.options.plot),
    }
    bench.runs += [one.raw() for one in slices]
    _judge(bench, slices)
    _show(bench, slices)


@contextlib.contextmanager
def _world(bench: Bench) -> Iterator[World]:
    cores = os.cpu_count() or 1
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="koordtest-")))
        root = stack.enter_context(CgroupRoot())
        own = stack.enter_context(OwnCgroup())
        for name in (SHOP, CRUNCH):
            root.mk(name)
        server = WebServer(scratch / "nginx", _directories(root, SHOP), cores)
        load = stack.enter_context(Load())
        stack.enter_context(server)
        generator = OpenLoop(server.address, webserver.REQUEST, webserver.REPLY_START)
        stack.enter_context(generator)
        bench.quiet.own(root.dir("", "cpuacct"), own.cpuacct)
        bench.quiet.own_process(generator.pid)
        crunchers = tuple(load.cruncher() for _ in range(2 * cores))
        for each in crunchers:
            each.pause()
            for directory in _directories(root, CRUNCH):
                (directory / "cgroup.procs").write_text(str(each.pid))
        slo = scratch / "nodeslo.yaml"
        shutil.copyfile(bench.options.node_slo, slo)
        slo.chmod(0o644)
        yield World(bench, scratch, root, own, server, crunchers, generator, slo)


def _directories(root: CgroupRoot, path: str) -> list[Path]:
    """The cgroup in every hierarchy."""
    return [mount / root.root[1:] / path for mount in set(root.mounts.values())]


def _calibrate(world: World) -> float:
    """Size the page so that a request costs about 1 ms of CPU; what it costs then, seconds."""
    world.server.set_page(FIRST_PAGE_BYTES)
    _request_s(world)  # the first ones warm everything up
    cost_s = _request_s(world)
    world.server.set_page(round(FIRST_PAGE_BYTES * REQUEST_CPU_S / cost_s))
    cost_s = _request_s(world)
    least_s, most_s = REQUEST_CPU_RANGE_S
    if not least_s <= cost_s <= most_s:
        raise CannotMeasureError(f"a request costs {cost_s * 1000:.2f} ms of CPU, not about 1")
    world.bench.log(f"a request costs {cost_s * 1000:.2f} ms of CPU")
    return cost_s


def _request_s(world: World) -> float:
    """CPU of one request while the service is alone at a middling load."""
    rate = demand_cores(0.25) / REQUEST_CPU_S
    seconds = min(CALIBRATE_S, world.bench.options.slice)
    offsets = arrivals(world.bench.rng, lambda _: rate, rate, seconds)
    before_s = world.used_s(SHOP)
    world.generator.begin(offsets, time.monotonic() + 0.05)
    played = world.generator.result()
    if played.unanswered:
        raise CannotMeasureError(f"nginx left {played.unanswered} requests without a good reply")
    return (world.used_s(SHOP) - before_s) / len(offsets)


def _day(world: World, request_s: float) -> list[Slice]:
    """Every phase in every arm."""
    bench, slices = world.bench, []
    turns = [(phase, arm) for phase, order in zip(DAY, ORDERS, strict=True) for arm in order]
    turn_s = bench.options.settle + bench.options.slice + 0.7
    for number, (phase, arm) in enumerate(turns):
        offsets = phase_arrivals(bench.options, phase, request_s)
        one = _slice(world, arm, phase, offsets)
        slices.append(one)
        values = demofigures.of_slices([one], os.cpu_count() or 1)
        bench.log(
            f"{number + 1:2d}/{len(turns)} {phase.name:8s} {arm:12s}"
            f" p99 {values['p99_ms']:6.2f} ms, {values['units_per_s']:6.1f} batch units/s;"
            f" about {(len(turns) - number - 1) * turn_s:.0f} s left"
        )
    return slices


def phase_arrivals(options: argparse.Namespace, phase: Phase, request_s: float) -> list[float]:
    """The phase's requests, the same in each arm: offsets from the start of the counted time on,
    so negative while the load settles, at the rate of the phase's beginning.
    """
    rng = random.Random(f"{options.seed} {phase.name}")

    def rate_per_s(offset_s: float) -> float:
        through = max(0.0, offset_s - options.settle) / options.slice
        return demand_cores(phase.begins + (phase.ends - phase.begins) * through) / request_s

    most_per_s = NOON_CORES / request_s
    offsets = arrivals(rng, rate_per_s, most_per_s, options.settle + options.slice)
    return [offset - options.settle for offset in offsets]


def _slice(world: World, arm: Arm, phase: Phase, offsets: list[float]) -> Slice:
    options = world.bench.options
    asked_s = time.monotonic()
    with _governed(world, arm):
        start_s = time.monotonic() + options.settle + 0.05
        world.generator.begin(offsets, start_s)
        _sleep_until(start_s)
        before = world.counters()
        _sleep_until(start_s + options.slice)
        after = world.counters()
        in_force = world.in_force()
        played = world.generator.result()
    wall_s, service_s, batch_s, units = (new - old for old, new in zip(before, after, strict=True))
    return Slice(
        arm,
        phase,
        wall_s,
        played.between(0.0, options.slice),
        service_s,
        batch_s,
        units,
        start_s - options.settle - asked_s,
        in_force,
    )


def _sleep_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))


@contextlib.contextmanager
def _governed(world: World, arm: Arm) -> Iterator[None]:
    """The arm in force while the context lasts; afterwards the batch work is stopped."""
    if arm is Arm.ALONE:
        yield
        return
    for each in world.crunchers:
        each.resume()
    try:
        if arm is Arm.UNMANAGED:
            yield
        elif arm is Arm.K8S_DEFAULT:
            world.root.set_shares(CRUNCH, SHARES_MIN)
            yield
            world.root.write(CRUNCH, world.root.weight_file, world.root.default_weight)
        else:
            with _koordlet(world):
                yield
    finally:
        for each in world.crunchers:
            each.pause()


@contextlib.contextmanager
def _koordlet(world: World) -> Iterator[None]:
    """koordlet as it is shipped; what it leaves behind must be what it found."""
    before, unmanaged = photo.take(world.root, ()), world.in_force()
    koordlet = Koordlet(
        world.scratch / "koordlet",
        world.root.root,
        own_cgroups=world.own.directories,
        cri_endpoint="none",
        node_slo=world.slo,
    )
    apps = koordlet.directory / "hostapps.d"
    apps.mkdir(exist_ok=True)
    (apps / "demo.yaml").write_text(HOST_APPS)
    with koordlet:
        until(
            lambda: world.in_force() != unmanaged,
            IN_FORCE_WITHIN_S,
            f"koordlet's first values:\n{koordlet.log_tail()}",
        )
        yield
    changed = photo.differences(before, photo.take(world.root, ()))
    world.bench.require(not changed, f"koordlet left other values than it found: {changed}")


def _judge(bench: Bench, slices: list[Slice]) -> None:
    """Whether the figures mean anything."""
    figures = bench.figures
    bench.require(
        figures["sent_ratio"] >= SENT_RATIO_MIN,
        f"only {figures['sent_ratio']:.1%} of the requests could be sent",
    )
    bench.require(
        figures["sent_late_ms_p99"] <= LATE_MS_MAX,
        f"the generator was late by {figures['sent_late_ms_p99']:.2f} ms (p99)",
    )
    wanted = statistics.fmean(demand_cores(step / 100) for step in range(100))
    used = figures["arms"][Arm.ALONE]["service_cores"]
    bench.require(
        abs(used / wanted - 1) <= DEMAND_ERROR,
        f"the service alone used {used:.2f} cores, not {wanted:.2f}",
    )
    plain = next(one.in_force for one in slices if one.arm is Arm.UNMANAGED)
    bench.require(
        all(one.in_force != plain for one in slices if one.arm is Arm.MANAGED),
        "koordlet had no value in force at the end of one of its turns",
    )


def _show(bench: Bench, slices: list[Slice]) -> None:
    bench.options.plot.parent.mkdir(parents=True, exist_ok=True)
    demoplot.write(bench.options.plot, bench.figures, slices)
    Console(stderr=True).print(demofigures.table(bench.figures))
    bench.log(f"charts: {bench.options.plot}")


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Ctrl-C and SIGTERM end the demo once; cleaning up is not interrupted again."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(words: list[str] | None = None) -> int:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _interrupted)
    try:
        return common.main("demo", arguments(), measure, words)
    except KeyboardInterrupt:
        print("demo: interrupted; everything is as it was before", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
