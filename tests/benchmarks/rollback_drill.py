"""SIGKILL at random instants, and everything back byte for byte.

Forty cgroups, half of them BE roots or below one; latency-sensitive load comes and goes, so that
the BE budget, and with it a quota or cpuset of each, changes in every tick. The daemon runs with
each write(2) to the kernel slowed down, so that a kill falls between any two of them. After the
kill ``koordletctl rollback`` restores; every fourth time a new daemon takes the journal over and is
stopped instead, every fifth time the rollback itself is killed half-way and run again. The NodeSLO
changes meanwhile, another program changes some files, and containers are born under a tier that is
narrowed. The kill comes up to 1.5 s after the daemon's first plan began.

With ``--unit koordlet.service`` all of that goes through the installed unit: systemd starts, kills
and stops it, what the unit runs after its end decides, and the restore is the dead-man timer's.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koordlet.config import key_of
from koordlet.resexecutor.journal import journal_path
from tests.benchmarks import common, photo
from tests.benchmarks.common import Bench, CannotMeasureError
from tests.benchmarks.drilled import SLOW, SLOW_WRITE_MS, Driven, Process, Unit, unit_as_before
from tests.benchmarks.photo import Photo
from tests.benchmarks.usage import OwnCgroup
from tests.support import debian, machine
from tests.support.fakenode import FakeNode
from tests.support.koordletd import Koordlet

KILL_WITHIN_S = 1.5
TOLD_EVERY = 10
TAKEOVER_EVERY, BROKEN_ROLLBACK_EVERY = 4, 5
MID_PLAN_SHARE = 0.3
FIRST_PLAN_S = 120.0  # slowed down, in a guest
HELD = "kubepods/besteffort"
APPS = 16
QUIET_CORES, BUSY_CORES = 0.05, 0.7
TOGGLE_S = (0.3, 0.9)
NODE_SLO = """
spec:
  resourceUsedThresholdWithBE:
    enable: true
    cpuSuppressPolicy: {policy}
    cpuSuppressThresholdPercent: {percent}
  resourceQOSStrategy: {{beClass: {{cpuQOS: {{enable: true, schedIdle: {idle}}}}}}}
"""


@dataclass
class World:
    """The node, what another program wrote to it, and what all of it should look like again."""

    node: FakeNode
    directory: Path
    unit: str
    own: OwnCgroup | None = None
    pids: list[int] = field(default_factory=list)
    cgroups: int = 0
    foreign: Photo = field(default_factory=dict)
    born: list[str] = field(default_factory=list)

    @property
    def slo(self) -> Path:
        return self.directory / "nodeslo.yaml"


def arguments() -> argparse.ArgumentParser:
    made = common.parser("rollback_drill", __doc__)
    made.add_argument("--kills", type=int, default=200)
    made.add_argument("--unit", default="", help="an installed unit; else a process of our own")
    return made


def measure(bench: Bench) -> None:
    """Fill in ``bench.figures``."""
    if why_not := machine.why_no_kernel_tests():
        raise CannotMeasureError(why_not)
    debian.ensure("strace")
    counted = ("kills", "mid_plan_kills", "unrestored", "foreign_overwritten")
    bench.figures |= dict.fromkeys((*counted, "takeovers", "rollbacks_killed"), 0)
    with contextlib.ExitStack() as stack:
        unit = bench.options.unit
        if unit:
            stack.enter_context(unit_as_before(unit))
        # A service has a /tmp of its own.
        made = tempfile.TemporaryDirectory(prefix="koordtest-", dir="/run" if unit else None)
        scratch = Path(stack.enter_context(made))
        world = stack.enter_context(_world(scratch, unit, bench.rng))
        bench.quiet.own(world.node.root.dir("", "cpuacct"))
        if world.own is not None:
            bench.quiet.own(stack.enter_context(world.own).cpuacct)
        bench.figures["cgroups"] = world.cgroups
        for number in range(1, bench.options.kills + 1):
            _cycle(bench, world, number)
            if number % TOLD_EVERY == 0:
                bench.log(f"{number} kills, {bench.figures['unrestored']} files not restored")
    least = MID_PLAN_SHARE * bench.options.kills
    bench.require(
        bench.figures["mid_plan_kills"] >= least, f"fewer than {least:.0f} kills hit a plan"
    )


@contextlib.contextmanager
def _world(scratch: Path, unit: str, rng: random.Random) -> Iterator[World]:
    with FakeNode(scratch) as node:
        world = World(node, scratch, unit, None if unit else OwnCgroup())
        for index in range(3):
            pod = node.add_pod(f"batch-{index}", "BE", 1)
            node.add_container(pod, "limited", quota_us=150_000)
            node.add_container(pod, "other")
        for index in range(2):
            node.add_pod(f"service-{index}", "LS", 1)
        outer = next(iter(node.pods[0].containers.values()))
        nested = node.root.mk(f"{outer}/nested")
        apps = [node.root.mk(f"host-best-effort/batch-{n}", shares=512) for n in range(APPS)]
        apps += [node.root.mk(f"host-latency-sensitive/service-{n}") for n in range(2)]
        containers = [cgroup for pod in node.pods for cgroup in pod.containers.values()]
        if node.root.version == 2:
            containers.remove(outer)  # what hands controllers down can hold no process
        world.pids = [node.sleeper(cgroup) for cgroup in (*containers, nested, *apps)]
        node.root.set_shares(HELD, 1000)
        _declare_apps(world)
        world.cgroups = sum(1 for path in node.root.dir("").rglob("*") if path.is_dir())
        with _toggling(node, rng):
            yield world


def _declare_apps(world: World) -> None:
    apps = [f"{{name: batch-{number}, qos: BE}}" for number in range(APPS)]
    apps += [f"{{name: service-{number}, qos: LS}}" for number in range(2)]
    directory = world.directory / "hostapps.d"
    directory.mkdir()
    (directory / "apps.yaml").write_text(
        f"apiVersion: koordlet/v1\nkind: HostApplications\napplications: [{', '.join(apps)}]\n"
    )


@contextlib.contextmanager
def _toggling(node: FakeNode, rng: random.Random) -> Iterator[None]:
    """Latency-sensitive load that comes and goes."""
    service = next(pod for pod in node.pods if pod.record.name == "service-0")
    burner = node.burner(next(iter(service.containers.values())), QUIET_CORES)
    stop = threading.Event()

    def toggle() -> None:
        for cores in itertools.cycle((BUSY_CORES, QUIET_CORES)):
            if stop.wait(rng.uniform(*TOGGLE_S)):
                return
            burner.use(cores)

    thread = threading.Thread(target=toggle, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _put_slo(world: World, variant: int) -> None:
    """One of the NodeSLOs that the drill changes between."""
    text = NODE_SLO.format(
        policy="cpuset" if variant % 2 else "cfsQuota",
        percent=50 + variant % 3 * 15,
        idle=int(variant % 4 < 3),
    )
    temporary = world.slo.with_name(".nodeslo")
    temporary.write_text(text)
    temporary.rename(world.slo)


def _daemon(world: World, *, slow: bool) -> Driven:
    wrapper = SLOW if slow else ()
    options: dict[str, Any] = {
        "cri_endpoint": world.node.cri.endpoint,
        "node_slo": world.slo,
        "host_apps_dir": world.directory / "hostapps.d",
    }
    root = world.node.root.root
    if not world.unit:
        own = () if world.own is None else world.own.directories
        directory = world.directory / "koordlet"
        return Process(Koordlet(directory, root, own_cgroups=own, wrapper=wrapper, **options))
    given = {"cgroup_root": root, "kubelet": "none", "metrics_address": "none", **options}
    config = world.directory / "koordlet.yaml"
    config.write_text(json.dumps({key_of(name): str(value) for name, value in given.items()}))
    return Unit(world.unit, config, wrapper)


def _cycle(bench: Bench, world: World, number: int) -> None:
    """One life of a daemon, its end, the restore, and the comparison."""
    before = photo.take(world.node.root, world.pids)
    world.foreign.clear()
    daemon = _daemon(world, slow=True)
    _put_slo(world, number)
    daemon.start()
    journal = journal_path(daemon.run_dir)
    _await_first_plan(daemon, journal)
    until_s = time.monotonic() + bench.rng.uniform(0.0, KILL_WITHIN_S)
    _put_slo(world, number + 1)
    _be_born(world, number)
    _meddle_with_a_daemon(world, number)
    time.sleep(max(0.0, until_s - time.monotonic()))
    daemon.kill()
    mid_plan = _meta(journal).get("clean") == "0"
    bench.figures["kills"] += 1
    bench.figures["mid_plan_kills"] += mid_plan
    if number % 2 == 0:
        _wish(world, HELD, 300 + number)
    _restore(bench, world, daemon, number)
    _compare(bench, world, before, number, mid_plan=mid_plan)
    for cgroup in world.born:
        world.node.root.rm(cgroup)
    world.born.clear()


def _meta(journal: Path) -> dict[str, str]:
    """The facts of a journal that somebody else may be writing; empty before there is one."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as db:
            return dict(db.execute("SELECT name, value FROM meta").fetchall())
    except sqlite3.OperationalError:
        return {}


def _await_first_plan(daemon: Driven, journal: Path) -> None:
    deadline_s = time.monotonic() + FIRST_PLAN_S
    while _meta(journal).get("clean") != "0":
        if time.monotonic() > deadline_s:
            raise CannotMeasureError(f"no plan in {FIRST_PLAN_S} s:\n{daemon.log_tail()}")
        time.sleep(0.005)


def _be_born(world: World, number: int) -> None:
    """A container made while its tier is held: it copies its parent's cpuset (hazard H5)."""
    pod = world.node.pods[number % 3]
    world.born.append(world.node.root.mk(f"{pod.cgroup}/born-{number}"))


def _meddle_with_a_daemon(world: World, number: int) -> None:
    """Wishes of another program while the daemon lives: for files that it leaves alone, and for
    one that it already holds. (A file that it is about to write for the first time cannot be told
    apart: nobody can see what changed between its read and its write.)
    """
    _wish(world, "kubepods/burstable", 3000 + number)
    _wish(world, "host-latency-sensitive/service-0", 700 + number)
    root = world.node.root
    if number % 2 and root.weight(HELD) == root.weight_of(2):
        _wish(world, HELD, 600 + number)


def _wish(world: World, cgroup: str, weight: int) -> None:
    """Another program's weight, one that neither version's file refuses."""
    root = world.node.root
    root.write(cgroup, root.weight_file, str(weight))
    path = root.dir(cgroup) / root.weight_file
    world.foreign[str(path)] = path.read_bytes()


def _restore(bench: Bench, world: World, daemon: Driven, number: int) -> None:
    if number % TAKEOVER_EVERY == 0:
        _take_over(bench, world)
        return
    if number % BROKEN_ROLLBACK_EVERY == 0:
        held = photo.take(world.node.root, world.pids)
        bench.figures["rollbacks_killed"] += daemon.broken_rollback(
            lambda: held != photo.take(world.node.root, world.pids),
            bench.rng.uniform(0.0, 20 * SLOW_WRITE_MS / 1000),
        )
    code, said = daemon.rollback()
    if code not in (0, 4):  # 4: something was left because it holds a foreign value
        bench.log(f"rollback ended with {code}: {said}")


def _take_over(bench: Bench, world: World) -> None:
    """A new daemon finds the journal, manages for a while, and is stopped."""
    successor = _daemon(world, slow=False)
    successor.start()
    time.sleep(bench.rng.uniform(0.0, 2 * KILL_WITHIN_S))
    code = successor.stop()
    bench.figures["takeovers"] += 1
    if code:
        bench.log(f"clean stop ended with {code}:\n{successor.log_tail()}")


def _compare(bench: Bench, world: World, before: Photo, number: int, *, mid_plan: bool) -> None:
    after = photo.take(world.node.root, world.pids)
    root = world.node.root
    narrow = [cgroup for cgroup in world.born if root.cpus(cgroup) != root.cpus("kubepods")]
    overwritten = [name for name, wish in world.foreign.items() if after.get(name) != wish]
    expected = {name for name in world.foreign} | {name for name in after if "/born-" in name}
    unrestored = [n for n in photo.differences(before, after) if n not in expected] + narrow
    bench.figures["unrestored"] += len(unrestored)
    bench.figures["foreign_overwritten"] += len(overwritten)
    bench.runs.append({"kill": number, "mid_plan": mid_plan, "unrestored": len(unrestored)})
    for name in unrestored:
        bench.log(f"kill {number}: {name}: {before.get(name)!r} became {after.get(name)!r}")
    for name in overwritten:
        bench.log(f"kill {number}: {name}: {world.foreign[name]!r} became {after.get(name)!r}")


def main(words: list[str] | None = None) -> int:
    return common.main("rollback_drill", arguments(), measure, words)


if __name__ == "__main__":
    sys.exit(main())
