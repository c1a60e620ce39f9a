"""A real runtime's pods under a real koordlet."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from koordlet.units import BASE_PERIOD_US, NS_PER_S
from tests.support.containerd import Containerd
from tests.support.criclient import TestPod
from tests.support.koordletd import Koordlet
from tests.support.waiting import until

SPIN = ("sh", "-c", "while :; do :; done")
SPIN_TWICE = ("sh", "-c", "while :; do :; done & while :; do :; done")
BE_TIER = Containerd.tiers["BE"]
NODE_SLO = """
spec:
  resourceUsedThresholdWithBE:
    enable: true
    cpuSuppressPolicy: {policy}
  resourceQOSStrategy: {{beClass: {{cpuQOS: {{enable: true, schedIdle: 1}}}}}}
"""


class Managed:
    """Pods below the runtime's own cgroup root, and daemons that manage them."""

    def __init__(self, runtime: Containerd, directory: Path) -> None:
        self.runtime = runtime
        self.client = runtime.client
        self.cgroups = runtime.cgroups
        self._directory = directory
        self._daemons: list[Koordlet] = []
        for tier in runtime.tiers.values():
            self.cgroups.mk(tier)

    @property
    def be_tier(self) -> str:
        return self.runtime.tiers["BE"]

    def daemon(self, policy: str = "cfsQuota", **options: Any) -> Koordlet:
        """A daemon that is not started yet; each with directories of its own unless told."""
        slo = self._directory / "nodeslo.yaml"
        slo.write_text(NODE_SLO.format(policy=policy))
        directory = options.pop("directory", self._directory / f"koordlet-{len(self._daemons)}")
        made = Koordlet(
            directory,
            self.cgroups.root,
            cri_endpoint=self.runtime.endpoint,
            **{"node_slo": slo, **options},
        )
        self._daemons.append(made)
        return made

    def pod(self, name: str, qos: str) -> TestPod:
        """A marked pod in its tier."""
        labels = {"koordinator.sh/qosClass": qos}
        return self.client.run_pod(
            name, cgroup_parent=self.runtime.parent(self.runtime.tiers[qos]), labels=labels
        )

    def cgroup_of(self, pod: TestPod, qos: str, container_id: str = "") -> str:
        """The cgroup of a pod or of one of its containers, below the root."""
        return self.runtime.cgroup_of(self.runtime.tiers[qos], pod.uid, container_id)

    def quota(self, cgroup: str = "") -> int:
        """A cgroup's, by default the BE tier's, cfs quota in microseconds; -1 is none."""
        return self.cgroups.quota_us(cgroup or self.be_tier)

    def cpus(self, cgroup: str = "") -> str:
        """The CPUs that a cgroup's, by default the BE tier's, tasks may use."""
        return self.cgroups.cpus(cgroup or self.be_tier)

    def limited_below(self, cores: float) -> bool:
        """Whether the BE tier has a quota below ``cores``."""
        return 0 < self.quota() < cores * BASE_PERIOD_US

    def used_cores(self, cgroup: str, seconds: float = 2.0) -> float:
        """Mean CPU use of a cgroup over the next seconds."""
        before_ns, started_s = self.cgroups.used_ns(cgroup), time.monotonic()
        time.sleep(seconds)
        used_ns = self.cgroups.used_ns(cgroup) - before_ns
        return used_ns / NS_PER_S / (time.monotonic() - started_s)

    def close(self) -> None:
        """End every daemon; restore what a killed one left in force."""
        for daemon in self._daemons:
            if daemon.started:
                daemon.kill()
                daemon.ctl("rollback")


def ctl_json(daemon: Koordlet, *words: str) -> dict[str, Any]:
    """The object that ``koordletctl -o json`` prints."""
    done = daemon.ctl("-o", "json", *words)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def decided(daemon: Koordlet) -> bool:
    """Whether the daemon waits for nothing any more and has made a tick since."""
    return not daemon.status()["waiting_for"] and len(daemon.ticks()) > 2


def await_decision(daemon: Koordlet) -> None:
    until(lambda: decided(daemon), 15, f"a first decision:\n{daemon.log_tail()}")
