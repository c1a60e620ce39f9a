"""The core process put together."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from koordlet.clock import Clock
from koordlet.config import Config
from koordlet.core import Core
from koordlet.corelink import CoreLink
from koordlet.endpoints import find_runtime
from koordlet.eventloop import EventLoop
from koordlet.extensions import as_capabilities, load_strategies
from koordlet.host.cgroup import Cgroups
from koordlet.host.delegated import delegated_cgroup, make_room
from koordlet.host.detect import probe, prove, shortcomings
from koordlet.host.machine import Machine, open_machine
from koordlet.host.watch import Watch, WatchUnavailable
from koordlet.metrics.collector import Collector
from koordlet.metrics.hot import HotSampler
from koordlet.model.capabilities import Capabilities
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.model.topology import CpuManagerPolicy
from koordlet.nodefacts import NodeFactsReader
from koordlet.observer import Observer
from koordlet.pressure import PressureWatch
from koordlet.protocol.problem import Problem, RefusedError
from koordlet.qosmanager.registry import STRATEGIES
from koordlet.resexecutor.effects import Effects
from koordlet.resexecutor.executor import Executor
from koordlet.resexecutor.journal import Journal, JournalError, journal_path
from koordlet.resexecutor.unitlink import greet, unit_capability, unit_thread
from koordlet.resexecutor.unitthread import UnitThread
from koordlet.sdnotify import Heartbeat
from koordlet.specoutbox import SpecOutbox
from koordlet.supervisor import Signals
from koordlet.tick import Tick
from koordlet.tickparts import TickParts
from koordlet.treewatch import TreeWatch


@dataclass(frozen=True, slots=True)
class Keeping:
    """What an executor that writes needs: the journal, and the thread for slow files."""

    journal: Journal
    effects: Effects | None
    path: str
    problems: tuple[Problem, ...] = ()


def run_core(config: Config, clock: Clock, signals: Signals, heartbeat: Heartbeat) -> int:
    """The core process, from fork to exit."""
    machine = open_machine(config.roots, keeps_fds=True)
    loop = EventLoop()
    observer = observer_of(machine)
    hot = HotSampler(machine.cgroups, online_cpus=machine.possible_cpus)
    for lack in shortcomings(probe(machine.cgroups, machine.roots, run_dir=str(config.run_dir))):
        structlog.get_logger("core").info("not available here", what=lack.where, why=lack.what)
    keeping = None if config.dry_run else _keeping(config, machine)
    units = unit_thread(machine)
    greet(units)
    tick = Tick(tick_parts(config, clock, machine, observer, hot, keeping, units))
    core = Core(
        config,
        clock,
        loop,
        tick,
        observer,
        hot,
        make_link=lambda handle: CoreLink(config.run_dir / "core.sock", loop, handle),
        make_pressure=lambda fired: PressureWatch(machine.cgroups, loop, fired),
        heartbeat=heartbeat,
    )
    gc.disable()  # a collection of everything takes longer than a tick; Core does it in between
    return core.run(signals)


def observer_of(machine: Machine) -> Observer:
    """An observer that watches directories where this host lets it, else polls them."""
    try:
        watch: Watch | None = Watch()
        problem: Problem | None = None
    except WatchUnavailable as error:
        watch, problem = None, error.problem
    tree_watch = TreeWatch(machine.cgroups, watch, problem)
    return Observer(machine.cgroups, tree_watch)


def tick_parts(
    config: Config,
    clock: Clock,
    machine: Machine,
    observer: Observer,
    hot: HotSampler,
    keeping: Keeping | None,
    units: UnitThread | None = None,
) -> TickParts:
    """Everything a Tick needs. Without ``keeping`` it is a dry run: nothing is ever written, and
    ``units`` is only asked.
    """
    facts = NodeFactsReader(machine.cgroups, config, machine.roots)
    spec = SpecOutbox(lambda: observer.seen.workloads)
    executor = Executor(
        machine.cgroups,
        None if keeping is None else keeping.journal,
        clock,
        spec_channel=spec,
        effects=None if keeping is None else keeping.effects,
        units=units,
        dry_run=keeping is None,
        cpuset_original=_cpuset_original(facts, observer),
        start_writes=config.start_writes_per_tick,
    )
    extra = load_strategies(config.extensions)
    count = len(executor.owned())
    takeover = f"{count} values of an earlier run taken over" if count else ""
    if takeover:
        structlog.get_logger("core").info("journal taken over", values=count)
    return TickParts(
        config=config,
        clock=clock,
        files=machine.files,
        cgroups=machine.cgroups,
        observer=observer,
        facts=facts,
        hot=hot,
        collector=Collector(machine.cgroups, machine.roots, online_cpus=machine.possible_cpus),
        executor=executor,
        spec=spec,
        strategies=(*STRATEGIES, *extra.strategies),
        probe=_prober(config, machine, units),
        prove=_prover(config, machine),
        takeover=takeover,
        journal_path="" if keeping is None else keeping.path,
        problems=(*(() if keeping is None else keeping.problems), *extra.problems),
    )


def _keeping(config: Config, machine: Machine) -> Keeping:
    path = journal_path(config.run_dir)
    journal, problems = _journal(config, path, machine)
    effects = Effects(_own_cgroups(config))
    effects.start()
    return Keeping(journal, effects, str(path), problems)


def _prober(
    config: Config, machine: Machine, units: UnitThread | None
) -> Callable[[], Capabilities]:
    def found() -> Capabilities:
        host = probe(machine.cgroups, machine.roots, run_dir=str(config.run_dir))
        installed = {each.name: each for each in as_capabilities(config.extensions)}
        systemd = unit_capability(machine, units)
        return replace(host, others={**host.others, systemd.name: systemd, **installed})

    return found


def _prover(config: Config, machine: Machine) -> Callable[[Capabilities], Capabilities]:
    """Proof in a scratch cgroup below our own; none where we were given no cgroup."""
    if config.dry_run:
        return lambda found: found

    def proven(found: Capabilities) -> Capabilities:
        try:
            own = _own_cgroup(config, machine)
            return found if own is None else prove(found, machine.cgroups, own.child("scratch"))
        except OSError as error:
            structlog.get_logger("core").warning("no proof of capabilities", error=str(error))
            return found

    return proven


def _own_cgroup(config: Config, machine: Machine) -> CgroupPath | None:
    """The configured cgroup, or the one that systemd delegated; None where we have none."""
    if config.own_cgroup:
        return CgroupPath.parse(config.own_cgroup)
    own = delegated_cgroup(machine.cgroups, machine.roots)
    if isinstance(own, Missing):
        return None
    make_room(machine.cgroups, own)
    return own


def _journal(config: Config, path: Path, machine: Machine) -> tuple[Journal, tuple[Problem, ...]]:
    try:
        opened = Journal.open(
            path,
            boot_id=machine.boot_id,
            managed_root=machine.managed_root,
            pid=os.getpid(),
            runtime=find_runtime(config) or "",
        )
    except JournalError as error:
        problem = Problem("journal", str(path), str(error), remedy="koordletctl rollback")
        raise RefusedError((problem,)) from error
    return opened.journal, opened.problems


def _own_cgroups(config: Config) -> Cgroups:
    """Another thread's own descriptors."""
    return open_machine(config.roots, keeps_fds=False).cgroups


def _cpuset_original(
    facts: NodeFactsReader, observer: Observer
) -> Callable[[str], frozenset[int] | None]:
    """What the kubelet's static policy gives a container now; None under another policy (H9)."""

    def original(container_id: str) -> frozenset[int] | None:
        state = facts.kubelet.state
        if isinstance(state, Missing) or state.policy is not CpuManagerPolicy.STATIC:
            return None
        for pod in observer.seen.workloads.known_pods():
            for container in pod.containers:
                if container.id == container_id:
                    key = (pod.record.api_uid, container.name)
                    return state.exclusive.get(key, state.default_cpus)
        return None

    return original
