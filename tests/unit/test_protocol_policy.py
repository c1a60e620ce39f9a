"""What a pod may claim (hazard H26)."""

from __future__ import annotations

import itertools

import pytest

from koordlet.protocol.policy import decide_qos, parse_priority_label, parse_qos_label
from koordlet.protocol.qos import KUBE_QOS_DEFAULT, KubeQos, PriorityClass, Qos, QosSource

ACCEPTED = {
    (Qos.LSE, KubeQos.GUARANTEED),
    (Qos.LSR, KubeQos.GUARANTEED),
    (Qos.LS, KubeQos.GUARANTEED),
    (Qos.LS, KubeQos.BURSTABLE),
    (Qos.SYSTEM, KubeQos.GUARANTEED),
    (Qos.SYSTEM, KubeQos.BURSTABLE),
    (Qos.BE, KubeQos.BEST_EFFORT),
}


@pytest.mark.parametrize(("claim", "kube"), list(itertools.product(Qos, KubeQos)))
def test_H26_a_claim_must_agree_with_the_kube_qos(claim: Qos, kube: KubeQos) -> None:
    decision = decide_qos(claim, kube, None, cpuset_allocated=False)
    if (claim, kube) in ACCEPTED:
        assert (decision.qos, decision.source, decision.refused) == (claim, QosSource.LABEL, "")
    else:
        assert decision.qos is KUBE_QOS_DEFAULT[kube]
        assert decision.source is QosSource.REFUSED
        assert claim.value in decision.refused
        assert kube.value in decision.refused


@pytest.mark.parametrize("claim", [Qos.SYSTEM, Qos.LSE, Qos.LSR, Qos.LS])
def test_H26_best_effort_work_cannot_escape_suppression(claim: Qos) -> None:
    assert decide_qos(claim, KubeQos.BEST_EFFORT, None, cpuset_allocated=True).qos is Qos.BE


@pytest.mark.parametrize(
    ("claim", "kube", "band", "holds"),
    [
        (Qos.LSR, KubeQos.GUARANTEED, PriorityClass.PROD, True),
        (Qos.LSR, KubeQos.GUARANTEED, PriorityClass.MID, False),
        (Qos.LSE, KubeQos.GUARANTEED, PriorityClass.BATCH, False),
        (Qos.LSE, KubeQos.GUARANTEED, PriorityClass.NONE, True),
        (Qos.LS, KubeQos.BURSTABLE, PriorityClass.MID, True),
        (Qos.LS, KubeQos.BURSTABLE, PriorityClass.BATCH, False),
        (Qos.LS, KubeQos.BURSTABLE, PriorityClass.FREE, False),
        (Qos.BE, KubeQos.BEST_EFFORT, PriorityClass.FREE, True),
        (Qos.BE, KubeQos.BEST_EFFORT, PriorityClass.MID, True),
        (Qos.BE, KubeQos.BEST_EFFORT, PriorityClass.NONE, True),
        (Qos.BE, KubeQos.BEST_EFFORT, PriorityClass.PROD, False),
        (Qos.SYSTEM, KubeQos.BURSTABLE, PriorityClass.FREE, True),
    ],
)
def test_H26_a_claim_must_agree_with_the_priority_band(
    claim: Qos, kube: KubeQos, band: PriorityClass, holds: bool
) -> None:
    decision = decide_qos(claim, kube, band, cpuset_allocated=False)
    assert (decision.source is QosSource.LABEL) is holds
    assert (band.value in decision.refused) is not holds or band is PriorityClass.NONE


@pytest.mark.parametrize("kube", list(KubeQos))
def test_without_a_claim_the_kube_qos_decides(kube: KubeQos) -> None:
    decision = decide_qos(None, kube, PriorityClass.FREE, cpuset_allocated=False)
    assert decision.qos is KUBE_QOS_DEFAULT[kube]
    assert decision.source is QosSource.KUBE_DEFAULT
    assert decision.refused == ""


def test_an_allocated_cpuset_without_a_label_is_lsr() -> None:
    decision = decide_qos(None, KubeQos.GUARANTEED, None, cpuset_allocated=True)
    assert (decision.qos, decision.source) == (Qos.LSR, QosSource.RESOURCE_STATUS)


@pytest.mark.parametrize("kube", [KubeQos.BURSTABLE, KubeQos.BEST_EFFORT])
def test_H26_a_false_resource_status_takes_no_cpus(kube: KubeQos) -> None:
    decision = decide_qos(None, kube, None, cpuset_allocated=True)
    assert decision.qos is KUBE_QOS_DEFAULT[kube]
    assert decision.source is QosSource.REFUSED
    assert "resource-status" in decision.refused


def test_a_label_wins_over_a_cpuset() -> None:
    assert decide_qos(Qos.LS, KubeQos.GUARANTEED, None, cpuset_allocated=True).qos is Qos.LS


@pytest.mark.parametrize(
    ("claim", "qos"),
    [
        (None, Qos.LS),
        (Qos.BE, Qos.BE),
        (Qos.LS, Qos.LS),
        (Qos.LSR, Qos.LS),
        (Qos.LSE, Qos.LS),
        (Qos.SYSTEM, Qos.LS),
    ],
)
def test_an_unknown_kube_qos_proves_no_privilege(claim: Qos | None, qos: Qos) -> None:
    decision = decide_qos(claim, None, None, cpuset_allocated=False)
    assert decision.qos is qos
    assert bool(decision.refused) is (claim is not None and claim is not qos)


@pytest.mark.parametrize("text", ["", "be", "BE ", "Burstable", "SYSTEM\n", "LSX"])
def test_a_label_that_is_no_class_claims_nothing(text: str) -> None:
    assert parse_qos_label(text) is None


def test_labels_are_read() -> None:
    assert [parse_qos_label(qos.value) for qos in Qos] == list(Qos)
    assert parse_priority_label("koord-batch") is PriorityClass.BATCH
    assert parse_priority_label("") is None
    assert parse_priority_label("prod") is None
