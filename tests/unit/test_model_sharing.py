"""A list that comes anew keeps the objects of the one before it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import TypeVar

from koordlet.model.paths import CgroupPath
from koordlet.model.pods import Container, ContainerRecord, ContainerState, Pod, PodRecord
from koordlet.model.sharing import share_pod, share_record
from koordlet.protocol.qos import KubeQos, PriorityClass, Qos, QosSource, ValueSource

WEB = ContainerRecord("c1", "web", 0, ContainerState.RUNNING)
SIDE = ContainerRecord("c2", "side", 0, ContainerState.RUNNING)
RECORD = PodRecord("u1", "u1", "shop", "web-0", labels={"app": "web"}, containers=(WEB, SIDE))


T = TypeVar("T", PodRecord, Pod)


def _anew(value: T) -> T:
    """An equal that shares nothing, as another process would send it."""
    made: T = pickle.loads(pickle.dumps(value))
    return made


def _pod(record: PodRecord) -> Pod:
    cgroup = CgroupPath("kubepods/podu1")
    return Pod(
        record=record,
        cgroup=cgroup,
        kube_qos=KubeQos.GUARANTEED,
        qos=Qos.LS,
        qos_source=QosSource.LABEL,
        marked=True,
        refused="",
        priority=None,
        priority_class=PriorityClass.PROD,
        priority_source=ValueSource.DERIVED,
        containers=tuple(
            Container(each, CgroupPath(f"{cgroup}/{each.id}")) for each in record.containers
        ),
    )


def test_an_equal_record_or_pod_is_the_one_before() -> None:
    assert share_record(_anew(RECORD), RECORD) is RECORD
    pod = _pod(RECORD)
    assert share_pod(_anew(pod), pod) is pod


def test_a_newcomer_is_itself() -> None:
    assert share_record(RECORD, None) is RECORD
    pod = _pod(RECORD)
    assert share_pod(pod, None) is pod


def test_what_did_not_change_in_a_changed_pod_stays_the_same_object() -> None:
    third = ContainerRecord("c3", "job", 0, ContainerState.RUNNING)
    moved = replace(SIDE, state=ContainerState.EXITED)
    changed = replace(RECORD, containers=(copy.copy(WEB), moved, third))
    before, new = _pod(RECORD), _anew(_pod(changed))
    shared = share_pod(new, before)
    assert shared == new
    assert shared.record.labels is before.record.labels
    assert shared.record.containers[0] is WEB
    assert shared.record.containers[1] == moved
    assert shared.containers[0] is before.containers[0]
    assert shared.cgroup is before.cgroup


def test_a_restarted_container_of_the_same_name_is_another_one() -> None:
    restarted = replace(RECORD, containers=(replace(WEB, id="c9", attempt=1), SIDE))
    assert share_record(restarted, RECORD) == restarted
