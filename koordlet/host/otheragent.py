"""Another agent that manages this node: two writers would undo each other (hazard H14)."""

from __future__ import annotations

import socket
from pathlib import Path

from koordlet.protocol.problem import Problem

OTHER_AGENT = "other-agent"
"""Code of the problem."""

KOORDINATOR_SOCKETS = ("/run/koordlet/koordlet.sock", "/var/run/koordlet/koordlet.sock")
_PROCESS_NAME = "koordlet"
_CONNECT_S = 0.5


def find_other_agent(proc_root: str, own_run_dir: str) -> Problem | None:
    """Koordinator's own node agent, by its process or its answering hook socket; else None."""
    process = _process(Path(proc_root))
    if process is not None:
        return _problem(f"process {process}", f"Koordinator's koordlet runs as process {process}")
    for path in KOORDINATOR_SOCKETS:
        if not path.startswith(own_run_dir + "/") and _answers(path):
            return _problem(path, "Koordinator's koordlet answers on its hook socket")
    return None


def _problem(where: str, what: str) -> Problem:
    return Problem(
        OTHER_AGENT,
        where,
        what,
        limit="one agent may write a node's cgroups",
        remedy="stop it (or remove its DaemonSet pod from this node), then start koordlet",
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
