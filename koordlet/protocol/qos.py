"""QoS classes, priority bands and the kube QoS: Koordinator's protocol, as values.

Priority bands: koord-prod 9000-9999, koord-mid 7000-7999, koord-batch 5000-5999,
koord-free 3000-3999.
"""

from __future__ import annotations

from enum import Enum


class Qos(Enum):
    """Koordinator's QoS class of a workload."""

    SYSTEM = "SYSTEM"
    LSE = "LSE"
    LSR = "LSR"
    LS = "LS"
    BE = "BE"

    @property
    def is_latency_sensitive(self) -> bool:
        """True for every class whose tail latency is protected."""
        return self is not Qos.BE


class KubeQos(Enum):
    """The kubelet's own QoS class, read from the tier that a pod's cgroup lies in."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class PriorityClass(Enum):
    """Koordinator's priority class; NONE is a priority outside every band."""

    PROD = "koord-prod"
    MID = "koord-mid"
    BATCH = "koord-batch"
    FREE = "koord-free"
    NONE = ""


PRIORITY_BANDS: tuple[tuple[PriorityClass, int, int], ...] = (
    (PriorityClass.PROD, 9000, 9999),
    (PriorityClass.MID, 7000, 7999),
    (PriorityClass.BATCH, 5000, 5999),
    (PriorityClass.FREE, 3000, 3999),
)

KUBE_QOS_DEFAULT: dict[KubeQos, Qos] = {
    KubeQos.GUARANTEED: Qos.LSR,
    KubeQos.BURSTABLE: Qos.LS,
    KubeQos.BEST_EFFORT: Qos.BE,
}


class QosSource(Enum):
    """Where the effective QoS of a workload comes from."""

    LABEL = "label"
    DECLARED = "declared"
    RESOURCE_STATUS = "resource-status cpuset"
    KUBE_DEFAULT = "kube-default"
    REFUSED = "refused by policy"


class ValueSource(Enum):
    """Where a pod's priority, requests or limits come from, best first."""

    KUBELET = "kubelet"
    DECLARED = "declared"
    EXTENDED_RESOURCE_SPEC = "extended-resource-spec"
    LABEL = "label"
    CONTAINER_STATUS = "container-status"
    DERIVED = "derived"
    UNKNOWN = "unknown"


def priority_class_of(priority: int) -> PriorityClass:
    """The band that ``priority`` (spec.priority, an int32) lies in."""
    for band, low, high in PRIORITY_BANDS:
        if low <= priority <= high:
            return band
    return PriorityClass.NONE


def priority_class_from_qos(qos: Qos) -> PriorityClass:
    """Koordinator's fallback where only the QoS is known; mark such a class ``derived``."""
    return PriorityClass.BATCH if qos is Qos.BE else PriorityClass.PROD
