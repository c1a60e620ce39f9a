"""Where pods, containers and host applications lie in the cgroup tree, and their effective QoS.

Nothing is guessed: a directory is used because it is there and its name says whose it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from koordlet.host.cgroup import Cgroups
from koordlet.model.paths import ROOT, CgroupPath
from koordlet.model.pods import Container, ContainerState, KubeLayout, Pod, PodRecord
from koordlet.model.readings import Missing
from koordlet.model.sharing import share_paths, share_pod
from koordlet.protocol import names
from koordlet.protocol.policy import decide_qos, parse_priority_label, parse_qos_label
from koordlet.protocol.problem import Problem, Severity
from koordlet.protocol.qos import (
    KubeQos,
    PriorityClass,
    ValueSource,
    priority_class_from_qos,
    priority_class_of,
)
from koordlet.protocol.resourcestatus import resource_status_cpus

_RUNTIME_PREFIXES = ("cri-containerd-", "docker-", "crio-", "pouch-")
_STRAY_PARENTS = (ROOT, CgroupPath("system.slice/containerd.service"))
"""Where a cgroupfs runtime puts a path that was meant for systemd: the root, or its own cgroup."""

_VM_HANDLER = "kata"
_IN_A_VM = Missing("its processes live in a virtual machine; the host sees the pod's cgroup only")
_NOT_RUNNING = Missing("exited")


@dataclass(slots=True)
class _Hit:
    """What was found for one pod, and every directory below its own that this rests on."""

    record: PodRecord
    pod: Pod
    directories: tuple[str, ...]
    complete: bool


@dataclass(slots=True)
class LocateCache:
    """What the last call found, by pod uid; ``problems`` is what it has to tell.

    A pod that is no longer listed is forgotten (case OPS-03).
    """

    hits: dict[str, _Hit] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


@dataclass(slots=True)
class _Tree:
    """The listings that one call shares."""

    cgroups: Cgroups
    tiers: Mapping[KubeQos, Mapping[str, CgroupPath]]
    prefixes: Mapping[KubeQos, str]
    _strays: dict[str, CgroupPath] | None = None
    mismatched: list[tuple[PodRecord, CgroupPath]] = field(default_factory=list)

    def strays(self) -> Mapping[str, CgroupPath]:
        """Containers by id in directories named ``<slice>:<runtime>:<id>`` outside of kubepods."""
        if self._strays is None:
            self._strays = {}
            for parent in _STRAY_PARENTS:
                children = self.cgroups.children(parent)
                for child in () if isinstance(children, Missing) else children:
                    parts = child.name.split(":")
                    if len(parts) == 3 and parts[0].endswith(".slice"):
                        self._strays[child.name] = child
        return self._strays


def locate_pods(
    cgroups: Cgroups,
    layout: KubeLayout | Missing,
    records: Iterable[PodRecord],
    cache: LocateCache,
) -> tuple[Pod, ...]:
    """Each record as a Pod, in the given order; an unchanged pod is the same object as before.

    Directories are looked up by the names that both cgroup drivers and the known runtimes give
    them (case POD-08). What is not there is Missing, and looked for again in the next call.
    """
    if isinstance(layout, Missing):
        cache.hits, cache.problems = {}, ()
        return tuple(_place(record, layout, None, (), ()) for record in records)
    tree = _list_tiers(cgroups, layout)
    hits: dict[str, _Hit] = {}
    for record in records:
        hits[record.uid] = _locate(tree, record, cache.hits.get(record.uid))
    cache.hits = hits
    cache.problems = _mismatch(tree.mismatched)
    return tuple(hit.pod for hit in hits.values())


def _list_tiers(cgroups: Cgroups, layout: KubeLayout) -> _Tree:
    paths = {
        KubeQos.GUARANTEED: layout.kubepods,
        KubeQos.BURSTABLE: layout.burstable,
        KubeQos.BEST_EFFORT: layout.besteffort,
    }
    tiers: dict[KubeQos, dict[str, CgroupPath]] = {}
    for qos, path in paths.items():
        children = cgroups.children(path)
        listed = () if isinstance(children, Missing) else children
        tiers[qos] = {child.name: child for child in listed}
    return _Tree(
        cgroups, tiers, {qos: path.name.removesuffix(".slice") for qos, path in paths.items()}
    )


def _locate(tree: _Tree, record: PodRecord, hit: _Hit | None) -> _Hit:
    tier, directory = _pod_dir(tree, record)
    if (
        hit is not None
        and hit.pod.cgroup == directory
        and _still_holds(hit, record)
        and _still_there(tree, hit)
    ):
        return hit
    found = _search(tree, record, tier, directory)
    if hit is not None:
        found.pod = share_pod(found.pod, hit.pod)
        found.directories = share_paths(found.directories, hit.directories)
    return found


def _still_holds(hit: _Hit, record: PodRecord) -> bool:
    if record is not hit.record and record != hit.record:
        return False
    hit.record = record  # the next comparison is then one of identity
    return hit.complete or isinstance(hit.pod.cgroup, Missing)


def _still_there(tree: _Tree, hit: _Hit) -> bool:
    identity = tree.cgroups.files.identity
    return not any(isinstance(identity(directory), Missing) for directory in hit.directories)


def _pod_dir(tree: _Tree, record: PodRecord) -> tuple[KubeQos | None, CgroupPath | Missing]:
    """The pod's directory and the tier it lies in; the tier that a source named is tried first."""
    plain = f"pod{record.uid}"
    escaped = f"pod{record.uid.replace('-', '_')}.slice"
    told = record.kube_qos
    for qos in tree.tiers if told is None else (told, *tree.tiers):
        names_in = tree.tiers[qos]
        for name in (plain, f"{tree.prefixes[qos]}-{escaped}"):
            if name in names_in:
                return qos, names_in[name]
    return None, Missing(f"no directory of pod {record.uid} in the kubelet's tiers")


def _search(
    tree: _Tree, record: PodRecord, tier: KubeQos | None, directory: CgroupPath | Missing
) -> _Hit:
    if isinstance(directory, Missing):
        return _Hit(record, _place(record, directory, None, (), ()), (), complete=False)
    if record.runtime_handler.startswith(_VM_HANDLER):
        containers = tuple(Container(each, _IN_A_VM) for each in record.containers)
        pod = _place(record, directory, tier, containers, ())
        return _Hit(record, pod, (), complete=True)
    children = tree.cgroups.children(directory)
    listed = {} if isinstance(children, Missing) else {child.name: child for child in children}
    containers = tuple(
        Container(
            each,
            _NOT_RUNNING
            if each.state is ContainerState.EXITED
            else _container_dir(tree, record, directory, listed, each.id),
        )
        for each in record.containers
    )
    sandboxes = tuple(
        found for each in record.sandbox_ids if (found := _in_pod(directory, listed, each))
    )
    missing = any(each.cgroup is not _NOT_RUNNING and not each.cgroup for each in containers)
    found_paths = (*(each.cgroup for each in containers), *sandboxes)
    directories = (
        tree.cgroups.dir_of(path, "cpu") for path in found_paths if isinstance(path, CgroupPath)
    )
    return _Hit(
        record,
        _place(record, directory, tier, containers, sandboxes),
        tuple(each for each in directories if isinstance(each, str)),
        complete=not missing and (bool(sandboxes) or not record.running or not record.sandbox_ids),
    )


def _container_dir(
    tree: _Tree,
    record: PodRecord,
    directory: CgroupPath,
    listed: Mapping[str, CgroupPath],
    container_id: str,
) -> CgroupPath | Missing:
    found = _in_pod(directory, listed, container_id)
    if found is not None:
        return found
    for name in _stray_names(directory, container_id):
        stray = tree.strays().get(name)
        if stray is not None:
            tree.mismatched.append((record, stray))
            return stray
    return Missing(f"no directory of container {container_id} in {directory}")


def _in_pod(
    directory: CgroupPath, listed: Mapping[str, CgroupPath], some_id: str
) -> CgroupPath | None:
    for name in _spellings(directory, some_id):
        if name in listed:
            return listed[name]
    return None


def _spellings(directory: CgroupPath, some_id: str) -> Iterator[str]:
    """The names under which runtimes make a container's or sandbox's directory."""
    yield some_id
    for prefix in _RUNTIME_PREFIXES:
        yield f"{prefix}{some_id}.scope"
        yield f"{prefix}{some_id}"
    yield from _stray_names(directory, some_id)


def _stray_names(directory: CgroupPath, some_id: str) -> Iterator[str]:
    for prefix in _RUNTIME_PREFIXES:
        yield f"{directory.name}:{prefix.removesuffix('-')}:{some_id}"


def _mismatch(mismatched: list[tuple[PodRecord, CgroupPath]]) -> tuple[Problem, ...]:
    if not mismatched:
        return ()
    record, path = mismatched[0]
    return (
        Problem(
            code="cgroup-driver-mismatch",
            where=f"pod {record.namespace}/{record.name}",
            what=(
                f"{len(mismatched)} container(s) lie outside of their pod's cgroup, e.g. {path}:"
                " the kubelet uses the systemd driver, the runtime the cgroupfs one"
            ),
            limit="limits of the pod and of its tier do not bind them",
            remedy="set SystemdCgroup = true for runc in containerd's config.toml",
            severity=Severity.WARNING,
        ),
    )


# -- what a pod is ------------------------------------------------------------------------------


def _place(
    record: PodRecord,
    cgroup: CgroupPath | Missing,
    tier: KubeQos | None,
    containers: tuple[Container, ...],
    sandboxes: tuple[CgroupPath, ...],
) -> Pod:
    """The pod with its effective QoS; the tier tells the kube QoS where no source does."""
    if isinstance(cgroup, Missing):
        containers = tuple(Container(each, cgroup) for each in record.containers)
    kube_qos = record.kube_qos or tier
    claim = parse_qos_label(record.labels.get(names.LABEL_QOS, ""))
    band, source = _priority_band(record)
    decision = decide_qos(claim, kube_qos, band, cpuset_allocated=has_allocated_cpus(record))
    if band in (None, PriorityClass.NONE):
        band, source = priority_class_from_qos(decision.qos), ValueSource.DERIVED
    return Pod(
        record=record,
        cgroup=cgroup,
        kube_qos=kube_qos,
        qos=decision.qos,
        qos_source=decision.source,
        marked=claim is not None,
        refused=decision.refused,
        priority=record.priority,
        priority_class=band or PriorityClass.NONE,
        priority_source=source,
        containers=containers,
        sandboxes=sandboxes,
    )


def _priority_band(record: PodRecord) -> tuple[PriorityClass | None, ValueSource]:
    """The band that the pod's label names, else that of spec.priority, else none is known."""
    labelled = parse_priority_label(record.labels.get(names.LABEL_PRIORITY_CLASS, ""))
    if labelled is not None:
        return labelled, ValueSource.LABEL
    if record.priority is None:
        return None, ValueSource.UNKNOWN
    return priority_class_of(record.priority), record.priority_source


def has_allocated_cpus(record: PodRecord) -> bool:
    """True where the scheduler's resource-status annotation names CPUs; an odd one names none."""
    return bool(resource_status_cpus(record.annotations))
