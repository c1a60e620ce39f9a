"""What an operator may do next where koordlet has nothing to do, or is kept from doing it."""

from __future__ import annotations

from koordlet.model.readings import Missing
from koordlet.protocol.names import LABEL_QOS
from koordlet.protocol.problem import Problem, Severity
from koordlet.protocol.qos import Qos
from koordlet.report import CoreStatus, NodeView

HOST_APPS_DIR = "/etc/koordlet/hostapps.d"


def hints(view: NodeView) -> tuple[Problem, ...]:
    """Hints, the most basic first; those about marks only while koordlet governs nothing."""
    return (*_orders(view), *_leftovers(view), *_slo_off(view), *_marks(view))


def host_apps_dir(view: NodeView) -> str:
    """Where host applications are declared: what the source says, else the packaged place."""
    for source in view.sources:
        if source.name == "hostapps" and source.detail.startswith("/"):
            return source.detail
    return HOST_APPS_DIR


def _orders(view: NodeView) -> tuple[Problem, ...]:
    if not isinstance(view.core, CoreStatus):
        return ()
    found: list[Problem] = []
    if view.core.dry_run:
        found.append(_hint("dry-run", "koordlet", "nothing is ever written", "drop --dry-run"))
    if view.core.released:
        what = f"released, restored and only observed: {', '.join(view.core.released)}"
        found.append(_hint("released", "koordlet", what, "koordletctl resume"))
    return tuple(found)


def _leftovers(view: NodeView) -> tuple[Problem, ...]:
    if not view.leftovers:
        return ()
    others = f" and {len(view.leftovers) - 1} more" if view.leftovers[1:] else ""
    what = f"this file{others} of the kubelet's tiers hold what another agent left"
    return (_hint("leftovers", view.leftovers[0], what, "koordletctl adopt --dry-run"),)


def _slo_off(view: NodeView) -> tuple[Problem, ...]:
    if isinstance(view.slo, Missing) or not isinstance(view.core, CoreStatus):
        return ()
    if not view.core.strategies or any(strategy.enabled for strategy in view.core.strategies):
        return ()
    if view.core.waiting_for:
        return ()  # The core may yet decide by the NodeSLO before this one.
    return (
        _hint(
            "slo-all-off",
            view.slo.where,
            "the NodeSLO in force switches no strategy on",
            "set resourceUsedThresholdWithBE.enable or resourceQOSStrategy.beClass.cpuQOS.enable:"
            " true in it; koordletctl slo defaults shows every field",
        ),
    )


def _marks(view: NodeView) -> tuple[Problem, ...]:
    workloads = view.workloads
    if isinstance(workloads, Missing):
        return ()
    marked = [pod.qos for pod in workloads.known_pods() if pod.marked]
    marked += [app.qos for app in workloads.apps]
    if Qos.BE in marked:
        return ()
    what = "no pod and no host application is marked, so nothing is written"
    if marked:
        what = "latency-sensitive work is marked but no BE work, so nothing is limited for it"
    return (
        _hint("nothing-marked" if not marked else "no-be-marked", "workloads", what, _how(view)),
    )


def _how(view: NodeView) -> str:
    """CRI alone never tells of a label that is added to a running pod (hazard H13)."""
    return (
        f"declare a host application with qos: BE in {host_apps_dir(view)}/batch.yaml (see"
        " systemd/examples/hostapps.yaml), or create batch pods (of kube QoS BestEffort) with the"
        f" label {LABEL_QOS}: BE"
    )


def _hint(code: str, where: str, what: str, remedy: str) -> Problem:
    return Problem(code, where, what, remedy=remedy, severity=Severity.INFO)
