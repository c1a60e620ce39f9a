"""Pods and containers found in the cgroup tree."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordlet.host.cgroup import Cgroups
from koordlet.host.mounts import Hierarchies, Hierarchy
from koordlet.host.tree import Tree
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import (
    ContainerRecord,
    ContainerState,
    KubeLayout,
    Pod,
    PodRecord,
)
from koordlet.model.readings import Missing
from koordlet.pods.layout import find_layout
from koordlet.pods.locate import LocateCache, has_allocated_cpus, locate_pods
from koordlet.protocol import names
from koordlet.protocol.qos import KubeQos, PriorityClass, Qos, QosSource, ValueSource
from tests.support.fakehost import FakeHost, fake_host

UID = "3089d7a8-a983-4649-9088-39efe764e4b4"
UID_ = UID.replace("-", "_")
CID = "95f5" + "0" * 60
SID = "5a5a" + "0" * 60
SLICE = f"kubepods-burstable-pod{UID_}.slice"


def container(some_id: str = CID, **changes: Any) -> ContainerRecord:
    return replace(ContainerRecord(some_id, "main", 0, ContainerState.RUNNING), **changes)


def record(**changes: Any) -> PodRecord:
    made = PodRecord(
        uid=UID,
        api_uid=UID,
        namespace="ns",
        name="p",
        sandbox_ids=(SID,),
        containers=(container(),),
    )
    return replace(made, **changes)


def layout_of(host: FakeHost) -> KubeLayout:
    layout = find_layout(host.cgroups())
    assert isinstance(layout, KubeLayout)
    return layout


def locate(host: FakeHost, *records: PodRecord, cache: LocateCache | None = None) -> list[Pod]:
    if cache is None:
        cache = LocateCache()
    return list(locate_pods(host.cgroups(), layout_of(host), records, cache))


def cgroupfs(tier: str = "burstable", *, uid: str = UID, kind: str = "v1") -> FakeHost:
    pod: dict[str, Any] = {f"pod{uid}": {CID: {}, SID: {}}}
    if tier:
        return fake_host(kind, cgroups={"kubepods": {"burstable": {}, "besteffort": {}, tier: pod}})
    return fake_host(kind, cgroups={"kubepods": {"burstable": {}, "besteffort": {}, **pod}})


def systemd(*names_in_pod: str, kind: str = "v2") -> FakeHost:
    pod: dict[str, Any] = {SLICE: {name: {} for name in names_in_pod}}
    return fake_host(kind, cgroups={"kubepods.slice": {"kubepods-burstable.slice": pod}})


@pytest.mark.parametrize("kind", ["v1", "v1-together", "hybrid", "v2"])
@pytest.mark.parametrize(
    ("tier", "qos"),
    [
        ("", KubeQos.GUARANTEED),
        ("burstable", KubeQos.BURSTABLE),
        ("besteffort", KubeQos.BEST_EFFORT),
    ],
)
def test_cgroupfs_pod_in_each_tier(kind: str, tier: str, qos: KubeQos) -> None:
    (pod,) = locate(cgroupfs(tier, kind=kind), record())
    assert pod.cgroup == "/".join(filter(None, ("kubepods", tier, f"pod{UID}")))
    assert pod.kube_qos is qos
    assert pod.containers[0].cgroup == f"{pod.cgroup}/{CID}"
    assert pod.sandboxes == (f"{pod.cgroup}/{SID}",)


def test_POD_01_static_pod_is_found_by_its_hash() -> None:
    digest = "8f6a44fc62e8cb075753c843896568ca"
    name = f"kubepods-besteffort-pod{digest}.slice"
    tree: dict[str, Any] = {"kubepods.slice": {"kubepods-besteffort.slice": {name: {}}}}
    (pod,) = locate(fake_host("v2", cgroups=tree), record(uid=digest, api_uid="0a1b"))
    assert pod.cgroup == f"kubepods.slice/kubepods-besteffort.slice/{name}"


def test_POD_03_container_below_a_pod_slice() -> None:
    host = systemd(f"cri-containerd-{CID}.scope", f"cri-containerd-{SID}.scope")
    (pod,) = locate(host, record())
    assert pod.containers[0].cgroup == (
        f"kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{CID}.scope"
    )
    assert pod.sandboxes == (
        f"kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{SID}.scope",
    )


def test_POD_04_pod_below_a_cgroup_root_of_the_kubelet() -> None:
    name = f"kubelet-kubepods-besteffort-pod{UID_}.slice"
    tiers: dict[str, Any] = {"kubelet-kubepods-besteffort.slice": {name: {}}}
    host = fake_host("v1", cgroups={"kubelet.slice": {"kubelet-kubepods.slice": tiers}})
    layout = find_layout(host.cgroups(), "/kubelet")
    (pod,) = locate_pods(host.cgroups(), layout, [record()], LocateCache())
    assert isinstance(pod.cgroup, CgroupPath)
    assert pod.cgroup.name == name
    assert pod.kube_qos is KubeQos.BEST_EFFORT


def test_POD_05_unknown_layout_leaves_pods_without_cgroups() -> None:
    host = fake_host("v2")
    layout = find_layout(host.cgroups())
    cache = LocateCache()
    (pod,) = locate_pods(host.cgroups(), layout, [record()], cache)
    assert pod.cgroup == layout
    assert pod.containers[0].cgroup == layout
    assert pod.kube_qos is None
    assert pod.qos is Qos.LS
    assert not cache.hits


@pytest.mark.parametrize(
    "spelling",
    [
        "{id}",
        "cri-containerd-{id}.scope",
        "docker-{id}.scope",
        "crio-{id}.scope",
        "crio-{id}",
        "pouch-{id}.scope",
        "{slice}:cri-containerd:{id}",
    ],
)
@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_POD_08_container_spellings(spelling: str, kind: str) -> None:
    name = spelling.format(id=CID, slice=SLICE)
    cache = LocateCache()
    (pod,) = locate(systemd(name, kind=kind), record(sandbox_ids=()), cache=cache)
    assert isinstance(pod.containers[0].cgroup, CgroupPath)
    assert pod.containers[0].cgroup.name == name
    assert cache.problems == ()


@pytest.mark.parametrize("parent", ["", "system.slice/containerd.service"])
def test_POD_08_driver_mismatch_is_found_and_told(parent: str) -> None:
    host = systemd()
    stray = f"{parent}/{SLICE}:cri-containerd:{CID}".strip("/")
    host.make(stray)
    host.make(f"test.slice:cri-containerd:{'a' * 64}")
    cache = LocateCache()
    (pod,) = locate(host, record(sandbox_ids=()), cache=cache)
    assert pod.containers[0].cgroup == stray
    (problem,) = cache.problems
    assert problem.code == "cgroup-driver-mismatch"
    assert stray in problem.what
    assert "SystemdCgroup" in problem.remedy


def test_POD_08_hit_is_cached_and_dropped_when_gone() -> None:
    host = cgroupfs()
    cache = LocateCache()
    (before,) = locate(host, record(), cache=cache)
    (again,) = locate(host, record(), cache=cache)
    assert again is before
    host.remove(f"kubepods/burstable/pod{UID}/{CID}")
    (gone,) = locate(host, record(), cache=cache)
    assert isinstance(gone.containers[0].cgroup, Missing)
    host.make(f"kubepods/burstable/pod{UID}/{CID}")
    (back,) = locate(host, record(), cache=cache)
    assert back == before


def test_OPS_03_gone_pods_leave_the_cache() -> None:
    cache = LocateCache()
    host = cgroupfs()
    locate(host, record(), cache=cache)
    assert set(cache.hits) == {UID}
    assert locate(host, cache=cache) == []
    assert not cache.hits


def test_pod_directory_that_comes_later() -> None:
    host = fake_host("v1", cgroups={"kubepods": {"burstable": {}}})
    cache = LocateCache()
    (early,) = locate(host, record(), cache=cache)
    assert isinstance(early.cgroup, Missing)
    assert UID in early.cgroup.why
    assert early.containers[0].cgroup == early.cgroup
    (still,) = locate(host, record(), cache=cache)
    assert still is early
    host.make(f"kubepods/burstable/pod{UID}/{CID}")
    (late,) = locate(host, record(), cache=cache)
    assert late.containers[0].cgroup == f"kubepods/burstable/pod{UID}/{CID}"


def test_changed_record_is_located_anew() -> None:
    host = cgroupfs()
    cache = LocateCache()
    locate(host, record(), cache=cache)
    other = "77" + "0" * 62
    host.make(f"kubepods/burstable/pod{UID}/{other}")
    changed = record(containers=(container(), container(other, name="second")))
    (pod,) = locate(host, changed, cache=cache)
    assert all(isinstance(each.cgroup, CgroupPath) for each in pod.containers)


def test_exited_container_is_not_looked_for() -> None:
    exited = container("e" * 64, name="init", state=ContainerState.EXITED)
    (pod,) = locate(cgroupfs(), record(containers=(container(), exited)))
    assert pod.containers[1].cgroup == Missing("exited")


def test_pod_with_zero_containers_and_with_only_a_sandbox() -> None:
    (pod,) = locate(cgroupfs(), record(containers=()))
    assert pod.containers == ()
    assert len(pod.sandboxes) == 1
    (bare,) = locate(cgroupfs(), record(containers=(), sandbox_ids=()))
    assert bare.sandboxes == ()
    assert isinstance(bare.cgroup, CgroupPath)


def test_POD_13_containers_of_a_virtual_machine_are_left_alone() -> None:
    host = cgroupfs()
    host.make(f"kubepods/burstable/pod{UID}/{CID}/node0")
    (pod,) = locate(host, record(runtime_handler="kata-qemu"))
    assert isinstance(pod.cgroup, CgroupPath)
    assert isinstance(pod.containers[0].cgroup, Missing)
    assert "virtual machine" in pod.containers[0].cgroup.why
    assert pod.sandboxes == ()


def test_directories_of_a_cgroupfs_runtime_without_a_pod_are_no_pods() -> None:
    """The odd machine: ``test.slice:cri-containerd:<id>`` lies directly below the root."""
    stray = f"test.slice:cri-containerd:{'a' * 64}"
    host = cgroupfs()
    for name in ("test.slice", stray, f"kubepods/{stray}", f"kubepods/burstable/{stray}"):
        host.make(name)
    (pod,) = locate(host, record())
    assert pod.cgroup == f"kubepods/burstable/pod{UID}"


def test_container_of_another_pod_does_not_match() -> None:
    host = cgroupfs()
    host.make(f"other.slice:cri-containerd:{'b' * 64}")
    (pod,) = locate(host, record(containers=(container("b" * 64),)))
    assert isinstance(pod.containers[0].cgroup, Missing)


@pytest.mark.parametrize("uid", ["../burstable", "", "x/y"])
def test_H27_uid_never_leaves_the_tiers(uid: str) -> None:
    (pod,) = locate(cgroupfs(), record(uid=uid))
    assert isinstance(pod.cgroup, Missing)


def test_named_kube_qos_is_tried_first_and_kept() -> None:
    host = fake_host(
        "v1",
        cgroups={"kubepods": {"burstable": {f"pod{UID}": {}}, "besteffort": {f"pod{UID}": {}}}},
    )
    (pod,) = locate(host, record(kube_qos=KubeQos.BEST_EFFORT))
    assert pod.cgroup == f"kubepods/besteffort/pod{UID}"
    assert pod.kube_qos is KubeQos.BEST_EFFORT


def test_V2_05_container_without_a_memory_controller_is_located_and_its_memory_missing() -> None:
    host = cgroupfs(kind="v2")
    path = f"kubepods/burstable/pod{UID}/{CID}"
    for file in ("memory.current", "memory.stat"):
        host.delete_file(path, file)
    (pod,) = locate(host, record())
    assert pod.containers[0].cgroup == path
    assert isinstance(host.cgroups().memory(CgroupPath(path)), Missing)
    assert not isinstance(host.cgroups().cpu_usage_ns(CgroupPath(path)), Missing)


# -- effective QoS ------------------------------------------------------------------------------


def qos_of(tier: str, **changes: Any) -> Pod:
    (pod,) = locate(cgroupfs(tier), record(**changes))
    return pod


def test_label_that_agrees_marks_the_pod() -> None:
    pod = qos_of("besteffort", labels={names.LABEL_QOS: "BE"})
    assert (pod.qos, pod.qos_source, pod.marked) == (Qos.BE, QosSource.LABEL, True)
    assert pod.priority_class is PriorityClass.BATCH
    assert pod.priority_source is ValueSource.DERIVED


def test_unlabelled_pod_has_the_class_of_its_kube_qos_and_no_mark() -> None:
    pod = qos_of("besteffort")
    assert (pod.qos, pod.qos_source, pod.marked) == (Qos.BE, QosSource.KUBE_DEFAULT, False)
    assert qos_of("burstable").qos is Qos.LS
    assert qos_of("").qos is Qos.LSR


def test_invalid_label_does_not_mark() -> None:
    pod = qos_of("besteffort", labels={names.LABEL_QOS: "be"})
    assert (pod.qos, pod.marked) == (Qos.BE, False)


def test_H26_claim_against_the_kube_qos_is_refused() -> None:
    pod = qos_of("besteffort", labels={names.LABEL_QOS: "LSR"})
    assert pod.qos is Qos.BE
    assert pod.qos_source is QosSource.REFUSED
    assert "BestEffort" in pod.refused


def test_H26_claim_against_the_priority_is_refused() -> None:
    pod = qos_of(
        "burstable",
        labels={names.LABEL_QOS: "LS"},
        priority=5500,
        priority_source=ValueSource.KUBELET,
    )
    assert pod.qos_source is QosSource.REFUSED


def test_allocated_cpus_claim_lsr() -> None:
    annotations = {names.ANNOTATION_RESOURCE_STATUS: json.dumps({"cpuset": "2-3"})}
    pod = qos_of("", annotations=annotations)
    assert (pod.qos, pod.qos_source) == (Qos.LSR, QosSource.RESOURCE_STATUS)


@pytest.mark.parametrize(
    ("text", "allocated"),
    [
        ('{"cpuset": "0-1"}', True),
        ('{"cpuset": ""}', False),
        ('{"cpuset": "x"}', False),
        ('{"cpuset": 3}', False),
        ("[]", False),
        ("{", False),
        ("", False),
    ],
)
def test_resource_status_texts(text: str, allocated: bool) -> None:
    made = record(annotations={names.ANNOTATION_RESOURCE_STATUS: text})
    assert has_allocated_cpus(made) is allocated


def test_priority_label_wins_over_the_number() -> None:
    pod = qos_of(
        "burstable",
        labels={names.LABEL_PRIORITY_CLASS: "koord-mid"},
        priority=9100,
        priority_source=ValueSource.KUBELET,
    )
    assert pod.priority == 9100
    assert pod.priority_class is PriorityClass.MID
    assert pod.priority_source is ValueSource.LABEL


def test_priority_number_gives_the_class() -> None:
    pod = qos_of("burstable", priority=9100, priority_source=ValueSource.KUBELET)
    assert pod.priority_class is PriorityClass.PROD
    assert pod.priority_source is ValueSource.KUBELET


def test_priority_outside_of_every_band_is_derived() -> None:
    pod = qos_of("burstable", priority=0, priority_source=ValueSource.KUBELET)
    assert pod.priority_class is PriorityClass.PROD
    assert pod.priority_source is ValueSource.DERIVED


# -- cost ---------------------------------------------------------------------------------------


def test_500_pods_are_located_in_little_time(tmp_path: Path) -> None:
    tier = tmp_path / "kubepods" / "burstable"
    records = []
    for index in range(500):
        uid = f"{index:08x}-a983-4649-9088-39efe764e4b4"
        ids = [f"{index:032x}{each:032x}" for each in range(4)]
        for each in ids:
            (tier / f"pod{uid}" / each).mkdir(parents=True)
        containers = tuple(container(each, name=f"c{at}") for at, each in enumerate(ids[:3]))
        records.append(record(uid=uid, containers=containers, sandbox_ids=(ids[3],)))
    hierarchy = Hierarchy(str(tmp_path), 1, frozenset({"cpu"}), str(tmp_path))
    tree = Tree(budget=64)
    cgroups = Cgroups(tree, Hierarchies(v1={"cpu": hierarchy}))
    layout = find_layout(cgroups)
    cache = LocateCache()
    pods = locate_pods(cgroups, layout, records, cache)
    assert all(isinstance(each.cgroup, CgroupPath) for pod in pods for each in pod.containers)

    def warm_s() -> float:
        began = time.thread_time()
        assert locate_pods(cgroups, layout, records, cache) == pods
        return time.thread_time() - began

    assert min(warm_s() for _ in range(5)) < 0.020
    tree.close()
