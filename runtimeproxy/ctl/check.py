"""``koord-runtimeproxy check``: would it work, does it, and who uses it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koordlet.protocol.problem import Problem
from runtimeproxy.config import Config
from runtimeproxy.cri.recovery import Faults, Runtime
from runtimeproxy.ctl import kubelet as kubelets
from runtimeproxy.hooks.files import HookDirectory, HookServer
from runtimeproxy.relay.endpoint import Endpoint, Unreachable
from runtimeproxy.relay.unary import UnaryClient

_MAX_BYTES = 1 << 20


@dataclass
class Checked:
    """What was found; ``data`` is for the output, ``problems`` decide the exit code."""

    data: dict[str, Any]
    problems: list[Problem]


def check(config: Config, host_root: Path = Path("/")) -> Checked:
    problems: list[Problem] = []
    runtime = _version(config.runtime_endpoint)
    if isinstance(runtime, Problem):
        problems.append(runtime)
    proxy = _version(config.listen_path)
    if isinstance(proxy, Problem):
        problems.append(proxy)
    directory = HookDirectory(config.hooks_dir)
    servers = directory.servers()
    problems += directory.problems
    problems += [problem for server in servers if (problem := _unreachable(server))]
    kubelet = kubelets.find_kubelet(config.proc_root, host_root)
    problems += kubelets.problems(kubelet, config.listen_path, config.runtime_endpoint)
    ours, theirs = f"unix://{config.listen_path}", f"unix://{config.runtime_endpoint}"
    kubeadm = (host_root / kubelets.KUBEADM_FLAGS.relative_to("/")).exists()
    data = {
        "runtime": None if isinstance(runtime, Problem) else runtime,
        "proxy": None if isinstance(proxy, Problem) else proxy,
        "hook_servers": [server.name for server in servers],
        "kubelet": {
            "running": kubelet.running,
            "endpoint": kubelet.endpoint,
            "through_proxy": kubelet.endpoint == ours,
            "settings": [
                {"where": one.where, "key": one.key, "value": one.value} for one in kubelet.settings
            ],
        },
        "to_the_proxy": kubelets.steps(ours, kubeadm=kubeadm),
        "back_to_the_runtime": kubelets.steps(theirs, kubeadm=kubeadm),
    }
    return Checked(data, problems)


def _version(socket: Path) -> str | Problem:
    """Name and version of the runtime that answers there."""

    async def ask() -> str:
        client = UnaryClient(Endpoint(socket), max_message_bytes=_MAX_BYTES)
        try:
            told = await Runtime(client).version()
            return f"{told.runtime_name} {told.runtime_version}"
        finally:
            client.close()

    try:
        return asyncio.run(ask())
    except Faults as error:
        remedy = "start it, or name its socket with --runtime-endpoint or --socket"
        return Problem("no-answer", str(socket), str(error), "CRI", remedy)


def _unreachable(server: HookServer) -> Problem | None:
    try:
        Endpoint(server.socket).connect().close()
    except Unreachable as error:
        what = f"hook server {server.name} (policy {server.policy.value}): {error}"
        return Problem("hook-server-away", str(server.socket), what, remedy="start it")
    return None
