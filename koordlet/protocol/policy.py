"""What a pod may claim: labels are wishes of whoever wrote the pod, not facts (hazard H26)."""

from __future__ import annotations

from dataclasses import dataclass

from koordlet.protocol.qos import KUBE_QOS_DEFAULT, KubeQos, PriorityClass, Qos, QosSource

_KUBE_QOS_OF: dict[Qos, frozenset[KubeQos]] = {
    Qos.LSE: frozenset({KubeQos.GUARANTEED}),
    Qos.LSR: frozenset({KubeQos.GUARANTEED}),
    Qos.LS: frozenset({KubeQos.GUARANTEED, KubeQos.BURSTABLE}),
    Qos.BE: frozenset({KubeQos.BEST_EFFORT}),
    Qos.SYSTEM: frozenset({KubeQos.GUARANTEED, KubeQos.BURSTABLE}),
}
_BANDS_OF: dict[Qos, frozenset[PriorityClass]] = {
    Qos.LSE: frozenset({PriorityClass.PROD}),
    Qos.LSR: frozenset({PriorityClass.PROD}),
    Qos.LS: frozenset({PriorityClass.PROD, PriorityClass.MID}),
    Qos.BE: frozenset({PriorityClass.MID, PriorityClass.BATCH, PriorityClass.FREE}),
    Qos.SYSTEM: frozenset(PriorityClass),
}
_SAFE_UNPROVEN = frozenset({Qos.BE, Qos.LS})


@dataclass(frozen=True, slots=True)
class QosDecision:
    """The QoS in force, where it comes from, and why a claim was not accepted (else ``""``)."""

    qos: Qos
    source: QosSource
    refused: str = ""


def parse_qos_label(text: str) -> Qos | None:
    """The class that a ``koordinator.sh/qosClass`` label names; None for any other text."""
    try:
        return Qos(text)
    except ValueError:
        return None


def parse_priority_label(text: str) -> PriorityClass | None:
    """The band that a ``koordinator.sh/priority-class`` label names; None for any other text."""
    try:
        return PriorityClass(text) if text else None
    except ValueError:
        return None


def decide_qos(
    claim: Qos | None,
    kube_qos: KubeQos | None,
    priority_class: PriorityClass | None,
    *,
    cpuset_allocated: bool,
) -> QosDecision:
    """The effective QoS of a pod, by the default rule of hazard H26.

    ``claim`` is the label; without one, a cpuset in resource-status claims LSR
    (``cpuset_allocated``). A claim holds where it agrees with the kube QoS (LSE and LSR are
    Guaranteed, LS and SYSTEM are Guaranteed or Burstable, BE is BestEffort) and with the priority
    band if there is one (LSE and LSR prod; LS prod or mid; BE mid, batch or free). A priority
    outside every band proves nothing: Kubernetes gives 0 to a pod that names no class.
    A refused claim falls to the class of the kube QoS.

    Where no source tells the kube QoS, LS is the default: such a pod is neither suppressed nor
    given CPUs of its own. BE and LS claims hold there, the others are refused.
    """
    wish = claim
    source = QosSource.LABEL
    if wish is None and cpuset_allocated:
        wish, source = Qos.LSR, QosSource.RESOURCE_STATUS
    if wish is None:
        return QosDecision(_default_of(kube_qos), QosSource.KUBE_DEFAULT)
    refused = _objection(wish, kube_qos, priority_class)
    if not refused:
        return QosDecision(wish, source)
    fallback = _default_of(kube_qos)
    return QosDecision(
        fallback,
        QosSource.REFUSED,
        f"{wish.value} (from {source.value}) refused: {refused}; {fallback.value} is in force",
    )


def _default_of(kube_qos: KubeQos | None) -> Qos:
    return Qos.LS if kube_qos is None else KUBE_QOS_DEFAULT[kube_qos]


def _objection(wish: Qos, kube_qos: KubeQos | None, band: PriorityClass | None) -> str:
    if kube_qos is None:
        if wish not in _SAFE_UNPROVEN:
            return "the kube QoS of the pod is not known"
    elif kube_qos not in _KUBE_QOS_OF[wish]:
        allowed = " or ".join(sorted(kube.value for kube in _KUBE_QOS_OF[wish]))
        return f"the pod's kube QoS is {kube_qos.value}, {wish.value} needs {allowed}"
    if band in (None, PriorityClass.NONE) or band in _BANDS_OF[wish]:
        return ""
    allowed = " or ".join(sorted(band.value for band in _BANDS_OF[wish]))
    return f"its priority is in {band.value}, {wish.value} needs {allowed}"
