"""Another agent that manages this node: two writers would undo each other (hazard H14)."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path

from koordlet.model.pods import PodRecord
from koordlet.protocol.problem import Problem

OTHER_AGENT = "other-agent"
"""Code of the problem."""

KOORDINATOR_SOCKETS = ("/run/koordlet/koordlet.sock", "/var/run/koordlet/koordlet.sock")
KOORDINATOR_POD = ("koord-app", "koordlet")
"""The label of its DaemonSet's pods."""

_PROCESS_NAME = "koordlet"
_CONNECT_S = 0.5


def find_other_agent(
    proc_root: str, own_run_dir: str, pods: Iterable[PodRecord] = ()
) -> Problem | None:
    """Koordinator's own node agent, by its process, its answering hook socket or its pod among
    ``pods``; else None.
    """
    process = _process(Path(proc_root))
    if process is not None:
        return _problem(f"process {process}", f"Koordinator's koordlet runs as process {process}")
    own = Path(own_run_dir).resolve()
    for path in KOORDINATOR_SOCKETS:
        if Path(path).resolve().parent != own and _answers(path):
            return _problem(path, "Koordinator's koordlet answers on its hook socket")
    label, value = KOORDINATOR_POD
    for pod in pods:
        if pod.labels.get(label) == value and pod.running and not pod.terminating:
            name = f"{pod.namespace}/{pod.name}"
            return _problem(f"pod {name}", f"Koordinator's koordlet runs as pod {name}")
    return None


def _problem(where: str, what: str) -> Problem:
    return Problem(
        OTHER_AGENT,
        where,
        what,
        limit="one agent may write a node's cgroups",
        remedy="stop it (or remove its DaemonSet pod from this node), then start koordlet and take"
        " over what it left with koordletctl adopt; or set otherAgent to ignore",
    )


def _process(proc: Path) -> str | None:
    """The pid of a process called koordlet that is no Python program (ours is one)."""
    try:
        pids = [entry.name for entry in proc.iterdir() if entry.name.isdigit()]
    except OSError:
        return None
    for pid in pids:
        try:
            if (proc / pid / "comm").read_text().strip() != _PROCESS_NAME:
                continue
            exe = (proc / pid / "exe").readlink().name
        except OSError:
            continue
        if not exe.startswith("python"):
            return pid
    return None


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
