"""A node without a kubelet: real cgroups, real processes, and a CRI server that tells of them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import grpc
from koordpb import cri_v1_pb2 as pb

from tests.support.cgroot import CgroupRoot
from tests.support.fakecri import FakeContainer, FakeCri, FakePod, RefusalError
from tests.support.load import Burner, Load

TIERS = {"LS": "kubepods/burstable", "BE": "kubepods/besteffort"}
PRIORITY_CLASSES = {"LS": "koord-prod", "BE": "koord-batch"}
LABEL_QOS = "koordinator.sh/qosClass"
LABEL_PRIORITY_CLASS = "koordinator.sh/priority-class"


@dataclass
class NodePod:
    """One pod: its CRI record, its cgroup below the root, and its containers' ids to cgroups."""

    record: FakePod
    cgroup: str
    containers: dict[str, str] = field(default_factory=dict)

    def name_of(self, container_id: str) -> str:
        """The name of a container."""
        (name,) = (each.name for each in self.record.containers.values() if each.id == container_id)
        return name


class FakeNode:
    """Pods of a kubelet with the cgroupfs driver, below a cgroup root of their own."""

    def __init__(self, directory: Path) -> None:
        self.root = CgroupRoot()
        self.cri = FakeCri(str(directory / "cri.sock"), on_update=self._apply_spec)
        self.load = Load()
        self.pods: list[NodePod] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> FakeNode:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.root)
            stack.enter_context(self.cri)
            stack.enter_context(self.load)
            for tier in TIERS.values():
                self.root.mk(tier)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def add_pod(self, name: str, qos: str, containers: int) -> NodePod:
        """A marked pod (``LS`` or ``BE``) with this many containers; no process yet."""
        record = self.cri.add_pod(
            name, labels={LABEL_QOS: qos, LABEL_PRIORITY_CLASS: PRIORITY_CLASSES[qos]}
        )
        cgroup = self.root.mk(f"{TIERS[qos]}/pod{record.uid}")
        record.cgroup_parent = f"{self.root.root}/{cgroup}"
        pod = NodePod(record, cgroup)
        for number in range(containers):
            self.add_container(pod, f"c{number}")
        self.pods.append(pod)
        return pod

    def add_container(self, pod: NodePod, name: str, *, quota_us: int = 0) -> str:
        """A further container of ``pod``, 0 for no CPU limit; its id."""
        container = self.cri.add_container(pod.record, name, quota_us=quota_us)
        shares = container.spec.cpu_shares  # what a runtime makes is what its spec says
        pod.containers[container.id] = self.root.mk(
            f"{pod.cgroup}/{container.id}", quota_us=quota_us or None, shares=shares
        )
        return container.id

    def _apply_spec(self, container: FakeContainer, spec: pb.LinuxContainerResources) -> None:
        """What runc does with a spec: every field that is set is written to its file."""
        (cgroup,) = (
            pod.containers[container.id] for pod in self.pods if container.id in pod.containers
        )
        try:
            if spec.cpu_shares:
                self.root.set_shares(cgroup, spec.cpu_shares)
            if spec.cpu_quota:
                self.root.set_quota_us(cgroup, spec.cpu_quota)
            if spec.cpuset_cpus:
                self.root.write(cgroup, "cpuset.cpus", spec.cpuset_cpus, "cpuset")
        except OSError as error:
            what = f"failed to write a value of {spec}: {error}"
            raise RefusalError(grpc.StatusCode.UNKNOWN, what) from error

    def remove_container(self, pod: NodePod, container_id: str) -> None:
        """Take a container and its cgroup away; processes in it are killed."""
        self.cri.remove_container(pod.record, container_id)
        self.root.rm(pod.containers.pop(container_id))

    def remove_pod(self, pod: NodePod) -> None:
        """Take the pod, its containers and cgroups away; processes in it are killed."""
        self.cri.remove_pod(pod.record)
        self.root.rm(pod.cgroup)
        self.pods.remove(pod)

    def place(self, pid: int, cgroup: str) -> None:
        """Put a process into ``cgroup`` in every hierarchy."""
        for mount in set(self.root.mounts.values()):
            (mount / self.root.root[1:] / cgroup / "cgroup.procs").write_text(str(pid))

    def sleeper(self, cgroup: str) -> int:
        """A process that sleeps in ``cgroup``."""
        pid = self.load.idle()
        self.place(pid, cgroup)
        return pid

    def burner(self, cgroup: str, cores: float, *, period_s: float = 0.01) -> Burner:
        """A process that uses ``cores`` in ``cgroup``."""
        burner = self.load.burner(cores, period_s=period_s)
        self.place(burner.pid, cgroup)
        return burner
