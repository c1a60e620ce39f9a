"""The whole tick over a fake host, with a clock that tests turn by hand.

    with Pipeline(tmp_path, "v2", slo=slo(CpuSuppressPolicy.CFS_QUOTA)) as pipe:
        web, batch = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
        pipe.load[web.cgroup] = 2.0
        pipe.run(3)
        pipe.host.text(TIER, "cpu.max")

From the sources' words to the kernel's files everything is the real thing; only the files, the
clock and the processes around it are not. Slow files are written in the tick.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from koordlet import ipc
from koordlet.config import Config
from koordlet.corewiring import Keeping, tick_parts
from koordlet.frontstate import FrontState
from koordlet.host.knobtable import specs
from koordlet.host.machine import Machine
from koordlet.host.tree import Tree
from koordlet.metrics.hot import HotSampler
from koordlet.model.actions import Mode, Outcome, Status
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import CgroupDriver, ContainerRecord, ContainerState, PodRecord
from koordlet.model.readings import Missing
from koordlet.model.topology import CpuManagerPolicy
from koordlet.observer import Observer, Word
from koordlet.pods.hostapp import HostAppRecord
from koordlet.protocol.cpuset import parse_cpuset
from koordlet.protocol.names import ANNOTATION_RESOURCE_STATUS, LABEL_QOS
from koordlet.protocol.nodeslo import DEFAULT_NODESLO, NodeSlo
from koordlet.protocol.problem import Problem
from koordlet.protocol.qos import KubeQos, Qos
from koordlet.report import CoreStatus, NodeView, TickCause, TickReport
from koordlet.resexecutor.journal import Journal
from koordlet.resexecutor.unitthread import UnitThread
from koordlet.standing import ModeOrder, Standing
from koordlet.tick import Tick
from koordlet.treewatch import TreeWatch
from koordlet.units import BASE_PERIOD_US, NS_PER_S
from tests.support.execrig import BOOT, HandClock
from tests.support.fakehost import CgroupTree, FakeHost, fake_host

LAYOUTS = ("v1", "v1-together", "hybrid", "v2")
KUBEPODS = CgroupPath("kubepods")
BURSTABLE = CgroupPath("kubepods/burstable")
TIER = CgroupPath("kubepods/besteffort")
STATE_FILE = "/var/lib/kubelet/cpu_manager_state"
KNOB_FILES = frozenset(spec.file for version in (1, 2) for spec in specs(version).values())
SAMPLES_PER_S = 5
_TIERS = {Qos.BE: (KubeQos.BEST_EFFORT, TIER), Qos.LS: (KubeQos.BURSTABLE, BURSTABLE)}

Photo = dict[tuple[str, str], str]
"""Texts of kernel settings by (cgroup directory, file)."""


@dataclass(frozen=True)
class FakePod:
    """A pod of the fake host: what the sources tell of it, and where it lies."""

    record: PodRecord
    cgroup: CgroupPath

    def container(self, number: int = 0) -> CgroupPath:
        """The cgroup of one of its containers."""
        return self.cgroup.child(self.record.containers[number].id)


@dataclass
class Told:
    """What the sources say now; ``Pipeline.tell_*`` passes it on."""

    pods: dict[str, FakePod] = field(default_factory=dict)
    apps: dict[str, HostAppRecord] = field(default_factory=dict)
    slo_version: int = 0


class Pipeline:
    """One core without its loop. ``load`` are the cores that cgroups use from now on.

    ``hushed`` leaves it to the test to let each source speak. ``units`` talks to systemd; after
    each tick it is waited for. ``restart`` puts another core over the same host and journal.
    ``writes`` are all kernel writes so far.
    """

    def __init__(
        self,
        directory: Path,
        layout: str = "v1",
        *,
        cpus: str = "0-7",
        slo: NodeSlo = DEFAULT_NODESLO,
        hushed: bool = False,
        cgroups: CgroupTree | None = None,
        host: FakeHost | None = None,
        units: UnitThread | None = None,
        **config: Any,
    ) -> None:
        tree: dict[str, Any] = {
            "kubepods": {"burstable": {}, "besteffort": {"cpu.shares": "2"}},
            "system.slice": {"tasks": 1},
        }
        if layout == "v2":
            tree["kubepods"]["besteffort"] = {"cpu.weight": "1"}
        self.host = host or fake_host(layout, cpus=cpus, cgroups=tree | dict(cgroups or {}))
        self.units = units
        self.clock = HandClock()
        self.load: dict[str, float] = {}
        self.told = Told()
        self.reports: list[TickReport] = []
        self._cpus = len(parse_cpuset(cpus))
        self._journals: list[Journal] = []
        (directory / "run").mkdir(exist_ok=True)
        self.config = Config(
            run_dir=directory / "run",
            state_dir=directory / "state",
            node_slo=directory / "nodeslo.yaml",
            host_apps_dir=directory / "hostapps.d",
            node_name="testnode",
            kubelet_state_file=Path(STATE_FILE),
            cri_endpoint="none",
            kubelet="none",
            **config,
        )
        self._slo = slo
        self._assemble()
        if not hushed:
            self.tell_all()

    def _assemble(self) -> None:
        cgroups = self.host.cgroups()
        hierarchy = cgroups.hierarchies.of("cpu")
        assert hierarchy is not None
        machine = Machine(
            files=cast(Tree, self.host.files),
            roots=self.host.roots,
            cgroups=cgroups,
            boot_id=BOOT,
            managed_root=hierarchy.managed,
            root_identity=(1, 1),
            possible_cpus=self._cpus,
        )
        self.observer = Observer(cgroups, TreeWatch(cgroups, None))
        self.hot = HotSampler(cgroups, online_cpus=self._cpus)
        keeping = None if self.config.dry_run else self._keeping()
        self.parts = tick_parts(
            self.config, self.clock, machine, self.observer, self.hot, keeping, self.units
        )
        self.tick = Tick(self.parts)
        self.front = FrontState(self.config, cgroups, self.clock)
        self._fresh = True

    def _keeping(self) -> Keeping:
        path = self.config.run_dir / "journal.db"
        opened = Journal.open(path, boot_id=BOOT, managed_root="/", pid=1)
        self._journals.append(opened.journal)
        return Keeping(opened.journal, None, str(path), opened.problems)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        """Free what was opened. It is no stop: nothing is restored."""
        for journal in self._journals:
            journal.close()

    # -- workloads --------------------------------------------------------------------------------

    def add_pod(
        self,
        name: str,
        qos: Qos = Qos.BE,
        *,
        marked: bool = True,
        containers: int = 1,
        quota_us: int | None = None,
        cpuset: str = "",
        told: bool = True,
    ) -> FakePod:
        """Start a pod in the tier of its class; ``quota_us`` is what each container's limit is."""
        kube_qos, tier = _TIERS.get(qos, (KubeQos.GUARANTEED, KUBEPODS))
        records = tuple(_container(name, f"c{number}", 0, quota_us) for number in range(containers))
        status = {ANNOTATION_RESOURCE_STATUS: json.dumps({"cpuset": cpuset})} if cpuset else {}
        record = PodRecord(
            uid=name,
            api_uid=name,
            namespace="default",
            name=name,
            labels={LABEL_QOS: qos.value} if marked else {},
            annotations=status,
            containers=records,
            kube_qos=kube_qos,
        )
        pod = FakePod(record, tier.child(f"pod{name}"))
        self.host.make(pod.cgroup, {"tasks": 0})
        for each in records:
            self.start_container(pod.cgroup.child(each.id), quota_us)
        self.told.pods[name] = pod
        if told:
            self.tell_pods()
        return pod

    def start_container(self, path: CgroupPath, quota_us: int | None = None) -> None:
        """Make a container's cgroup as runc does, with one task in it."""
        self.host.make(path, {"tasks": 1})
        if quota_us is not None:
            on_v1 = "cpu" in self.host.hierarchies.v1
            file, text = ("cpu.cfs_quota_us", "{}") if on_v1 else ("cpu.max", "{} 100000")
            self.host.foreign_write(path, file, text.format(quota_us))

    def remove_pod(self, name: str, *, told: bool = True) -> None:
        """End a pod: its cgroup leaves, then the sources say so."""
        pod = self.told.pods.pop(name)
        self.load = {path: cores for path, cores in self.load.items() if not _in(path, pod)}
        self.host.remove(pod.cgroup)
        if told:
            self.tell_pods()

    def restart_container(self, name: str, number: int = 0, *, told: bool = True) -> FakePod:
        """A container ends and comes back with another id, in the same pod."""
        pod = self.told.pods[name]
        old = pod.record.containers[number]
        new = _container(name, old.name, old.attempt + 1, old.spec_quota_us)
        self.host.remove(pod.cgroup.child(old.id))
        self.start_container(pod.cgroup.child(new.id), new.spec_quota_us)
        containers = (*pod.record.containers[:number], new, *pod.record.containers[number + 1 :])
        pod = self.told.pods[name] = replace(pod, record=replace(pod.record, containers=containers))
        if told:
            self.tell_pods()
        return pod

    def add_app(self, name: str, qos: Qos = Qos.BE, *, told: bool = True) -> CgroupPath:
        """Start a host application in its default place and declare it."""
        kind = "host-best-effort" if qos is Qos.BE else "host-latency-sensitive"
        path = self.host.make(f"{kind}/{name}", {"tasks": 1})
        self.told.apps[name] = HostAppRecord(name, qos=qos, declared_in="test.yaml")
        if told:
            self.tell_apps()
        return path

    # -- what the sources say ---------------------------------------------------------------------

    def tell_all(self) -> None:
        """Every source speaks: no orders, the NodeSLO, applications, pods."""
        self.order(Standing())
        self.tell_slo(self._slo)
        self.tell_apps()
        self.tell_pods()

    def tell_pods(self, *, age_s: float = 0.0) -> None:
        records = tuple(pod.record for pod in self.told.pods.values())
        self.hear(ipc.PodsUpdate(records, age_s))

    def lose_pods(self, why: str = "containerd does not answer") -> None:
        """No source knows the pods."""
        self.hear(ipc.PodsUpdate(Missing(why), 0.0))

    def tell_apps(self) -> None:
        self.hear(ipc.AppsUpdate(tuple(self.told.apps.values())))

    def tell_slo(self, slo: NodeSlo) -> None:
        self.told.slo_version += 1
        self._slo = slo
        self.hear(ipc.SloUpdate(slo, self.told.slo_version))

    def tell_kubelet(self, policy: CpuManagerPolicy, state: str = "") -> None:
        """A kubelet is found; ``state`` is its CPU manager's state file."""
        if state:
            self.host.files.put(STATE_FILE, state)
        self.hear(ipc.KubeletUpdate("", CgroupDriver.CGROUPFS, policy, frozenset(), 0))

    def order(self, standing: Standing) -> None:
        """The operator's orders from now on."""
        self.tick.standing = standing

    def set_mode(self, mode: Mode, strategy: str = "") -> None:
        self.order(self.tick.standing.with_mode(ModeOrder(strategy, mode, None)))

    def release(self, scope: str) -> None:
        self.order(self.tick.standing.with_release(scope))

    def resume(self, scope: str = "") -> None:
        self.order(self.tick.standing.without_release(scope))

    def hear(self, word: Word) -> None:
        self.observer.hear(word, self.clock.now_s())

    def answer(self, request: ipc.SpecRequest, error: str = "") -> None:
        """The runtime's answer to a change of a container's spec."""
        self.tick.spec_answered(
            ipc.SpecAnswer(request.container_id, request.knob, request.value, error)
        )

    # -- time -------------------------------------------------------------------------------------

    def sample(self) -> None:
        """A fifth of a second passes, its load is counted, and the 5 Hz sampler looks."""
        self.clock.at_s = round(self.clock.at_s + 1 / SAMPLES_PER_S, 6)
        for path, cores in self.load.items():
            self.host.use_cpu(path, round(cores * NS_PER_S / SAMPLES_PER_S))
        self.hot.sample(self.clock.now_s())

    def run_tick(self, cause: TickCause = TickCause.REGULAR) -> TickReport:
        """One tick now, told to the front."""
        if self.observer.is_blind:
            self.observer.tree_changed()
        report = self.tick.run(cause, overrun=False, whole=self._fresh)
        if self.units is not None:
            self.units.wait_idle(5.0)
        return self._tell(report)

    def _tell(self, report: TickReport) -> TickReport:
        self._fresh = False
        self.front.apply(report)
        self.reports.append(report)
        return report

    def run(self, seconds: int = 1) -> TickReport:
        """Seconds pass: five samples and a tick each. Gives the last report back."""
        for _ in range(seconds):
            for _ in range(SAMPLES_PER_S):
                self.sample()
            self.run_tick()
        return self.reports[-1]

    def run_until_settled(self, most_s: int = 60) -> None:
        """Seconds pass until a tick writes nothing."""
        self.run(2)
        for _ in range(most_s):
            before = len(self.writes)
            self.run()
            if len(self.writes) == before and not self.parts.executor.pending():
                return
        raise AssertionError(f"still writes after {most_s} s: {self.writes[-5:]}")

    # -- the end ----------------------------------------------------------------------------------

    def stop(self) -> tuple[Outcome, ...]:
        """A clean stop: everything is given back."""
        self._tell(self.tick.restore_all("clean stop"))
        report = self._tell(self.tick.finish())
        return report.outcomes

    def restart(self) -> None:
        """Another core after a SIGKILL of this one; the sources tell it all."""
        self._assemble()
        self.tell_all()

    # -- what came of it --------------------------------------------------------------------------

    @property
    def writes(self) -> list[tuple[str, str]]:
        return self.host.files.writes

    def view(self) -> NodeView:
        """What the API would answer from."""
        return self.front.view()

    def status(self) -> CoreStatus:
        core = self.view().core
        assert isinstance(core, CoreStatus), core
        return core

    def problems(self) -> dict[str, Problem]:
        """Problems that stand now, by code."""
        return {problem.code: problem for problem in self.status().problems}

    def owned(self) -> set[tuple[str, Knob]]:
        """What the journal holds."""
        return {(str(path), knob) for path, knob in self.parts.executor.owned()}

    def quota_us(self, path: str) -> int | None:
        """The cfs quota in the kernel; None is unlimited."""
        if "cpu" in self.host.hierarchies.v1:
            text = self.host.text(path, "cpu.cfs_quota_us")
        else:
            text = self.host.text(path, "cpu.max").split()[0]
        return None if text in ("-1", "max") else int(text)

    def cpus(self, path: str) -> frozenset[int]:
        """cpuset.cpus in the kernel."""
        return parse_cpuset(self.host.text(path, "cpuset.cpus"))

    def photo(self) -> Photo:
        """Every kernel setting now, so that an undo can be compared byte for byte."""
        return {
            (each.path, name): each.setting(name)
            for hierarchy in self.host.files.hierarchies
            for each in hierarchy.root.walk()
            for name in each.files
            if name in KNOB_FILES
        }

    def not_as_wanted(self) -> list[Outcome]:
        """Refusals among the newest outcomes."""
        wrong = (Status.REFUSED, Status.UNSUPPORTED, Status.FOREIGN)
        return [each for each in self.view().outcomes.values() if each.status in wrong]


def changed(before: Photo, after: Photo) -> set[tuple[str, str]]:
    """Settings that differ, cgroups that came or went left out."""
    return {key for key in before.keys() & after.keys() if before[key] != after[key]}


def _container(pod: str, name: str, attempt: int, quota_us: int | None) -> ContainerRecord:
    text = f"{pod}/{name}/{attempt}"
    return ContainerRecord(
        id=hashlib.sha256(text.encode()).hexdigest(),
        name=name,
        attempt=attempt,
        state=ContainerState.RUNNING,
        spec_quota_us=quota_us,
        spec_period_us=BASE_PERIOD_US,
    )


def _in(path: str, pod: FakePod) -> bool:
    return CgroupPath(path).is_at_or_below(pod.cgroup)
