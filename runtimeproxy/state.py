"""What the proxy tells of itself, to its CLI and to Prometheus."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from koordlet.protocol.problem import Problem, Severity
from runtimeproxy.config import Config
from runtimeproxy.hooks.hooks import Hooks
from runtimeproxy.relay.front import Relay
from runtimeproxy.store import Store


@dataclass
class Recovery:
    """How the store stands to the runtime. ``problem`` is why it may be behind; empty: it is not.

    ``at_s`` is monotonic.
    """

    at_s: float | None = None
    problem: str = "not asked yet"
    rounds: int = 0


@dataclass
class State:
    """The parts that have something to tell."""

    config: Config
    relay: Relay
    hooks: Hooks
    store: Store
    recovery: Recovery = field(default_factory=Recovery)
    rights_problem: str = ""
    began_s: float = field(default_factory=time.monotonic)

    def ready(self) -> bool:
        """Whether the runtime answers and the store is as the runtime."""
        return not self.recovery.problem

    def status(self) -> dict[str, Any]:
        now_s = time.monotonic()
        at_s = self.recovery.at_s
        return {
            "uptime_s": round(now_s - self.began_s, 1),
            "socket": str(self.config.listen_path),
            "runtime_endpoint": str(self.config.runtime_endpoint),
            "image_endpoint": str(self.relay.images.path),
            "runtime_away": self.relay.runtime.why_away or None,
            "clients": len(self.relay.fronts),
            "calls_in_flight": self.relay.counts.in_flight,
            "sandboxes": len(self.store.sandboxes),
            "containers": len(self.store.containers),
            "reconciled_ago_s": None if at_s is None else round(now_s - at_s, 1),
            "hook_servers": len(self.hooks.directory.servers()),
            "problems": [_as_json(problem) for problem in self.problems()],
        }

    def problems(self) -> list[Problem]:
        endpoint = str(self.config.runtime_endpoint)
        found = list(self.hooks.directory.problems)
        if self.recovery.problem:
            what = f"pods and containers are not compared yet: {self.recovery.problem}"
            found.append(Problem("runtime-not-asked", endpoint, what, remedy="start the runtime"))
        if self.store.problem:
            where = str(self.config.store_path)
            found.append(Problem("checkpoint-not-written", where, self.store.problem))
        if self.rights_problem:
            where = str(self.config.listen_path)
            what = f"mode and owner of the runtime's socket not copied: {self.rights_problem}"
            found.append(Problem("socket-rights", where, what, severity=Severity.WARNING))
        return found

    def hook_servers(self) -> dict[str, Any]:
        servers = []
        for server in self.hooks.directory.servers():
            client = self.hooks.client(server)
            counts = client.counts
            servers.append(
                {
                    "name": server.name,
                    "socket": str(server.socket),
                    "policy": server.policy.value,
                    "stages": sorted(stage.value for stage in server.stages),
                    "resting": client.resting,
                    "asked": counts.asked,
                    "failed": counts.failed,
                    "skipped": counts.skipped,
                    "changes": counts.changes,
                    "refused": counts.refused,
                    "last_error": counts.last_error,
                    "last_ms": round(counts.last_s * 1000, 3),
                }
            )
        problems = [_as_json(problem) for problem in self.hooks.directory.problems]
        return {"servers": servers, "problems": problems}

    def calls(self) -> dict[str, Any]:
        methods = []
        for name, count in sorted(self.relay.counts.methods.items()):
            methods.append(
                {
                    "method": name,
                    "count": count.count,
                    "in_flight": count.in_flight,
                    "hooked": count.hooked,
                    "errors": count.errors,
                    "p50_ms": _ms(count.quantile_s(0.5)),
                    "p99_ms": _ms(count.quantile_s(0.99)),
                    "codes": {code.name: number for code, number in count.codes.items()},
                }
            )
        return {"methods": methods, "problems": []}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _as_json(problem: Problem) -> dict[str, str]:
    return {
        "code": problem.code,
        "where": problem.where,
        "what": problem.what,
        "limit": problem.limit,
        "remedy": problem.remedy,
    }
