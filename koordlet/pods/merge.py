"""One pod list out of what the runtime and the kubelet say of the same pods (hazard H13)."""

from __future__ import annotations

from dataclasses import replace

from koordlet.model.pods import ContainerRecord, PodRecord
from koordlet.model.readings import Missing


def merge(
    cri: tuple[PodRecord, ...], kubelet: tuple[PodRecord, ...] | Missing
) -> tuple[PodRecord, ...]:
    """Join by the uid of cgroup paths; sorted by namespace, name and uid.

    The kubelet tells the spec and what is alive: labels, annotations, priority, kube QoS, owner,
    requests and limits. The runtime tells what is: sandboxes, containers and their states. A pod
    that only one of them knows is just coming or just leaving, and kept. Containers that were
    not created yet have no id and are left out.
    """
    told = {} if isinstance(kubelet, Missing) else {record.uid: record for record in kubelet}
    merged = [_join(record, told.pop(record.uid, None)) for record in cri]
    merged.extend(_created_only(record) for record in told.values())
    return tuple(sorted(merged, key=lambda record: (record.namespace, record.name, record.uid)))


def _created_only(record: PodRecord) -> PodRecord:
    created = tuple(container for container in record.containers if container.id)
    return record if created == record.containers else replace(record, containers=created)


def _join(cri: PodRecord, kubelet: PodRecord | None) -> PodRecord:
    if kubelet is None:
        return cri
    specs = {container.name: container for container in kubelet.containers}
    return replace(
        kubelet,
        runtime_handler=cri.runtime_handler or kubelet.runtime_handler,
        sandbox_ids=cri.sandbox_ids,
        containers=tuple(_with_spec(each, specs.get(each.name)) for each in cri.containers),
        cgroup_parent=cri.cgroup_parent,
        running=cri.running,
    )


def _with_spec(container: ContainerRecord, spec: ContainerRecord | None) -> ContainerRecord:
    if spec is None:
        return container
    return replace(
        container,
        requests=spec.requests,
        limits=spec.limits,
        resources_source=spec.resources_source,
        native=spec.native,
    )
