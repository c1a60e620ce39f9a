from __future__ import annotations

from collections.abc import Iterator

from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from tests.scenarios.told import Told, begin
from tests.support.snapshots import TIER, Bench, node, pod, slo, use

STORY = """\
A web service and batch pods on 8 cores, cgroup v2, policy cfsQuota.
The service wakes up, and goes back to sleep."""


def ticks() -> Iterator[Told]:
    told = begin(
        "first decision; the tier was never limited",
        Bench(
            node=node(8),
            slo=slo(CpuSuppressPolicy.CFS_QUOTA, priority=True, idle=1),
            pods=(pod("web", Qos.LS), pod("batch"), pod("more", marked=False)),
            cpu=use(pods=1.0, system=0.2, be={TIER: 6.5}),
        ),
    )
    yield told
    woken = use(pods=3.5, system=0.2, be={TIER: 3.9}, window_s=0.2)
    told = told.then("the service wakes up: seen in one 5 Hz interval", 0.2, cpu_surge=woken)
    yield told
    told = told.then(
        "it sleeps again: BE grows by a tenth of the node",
        0.8,
        cpu=use(pods=1.0, system=0.2, be={TIER: 1.5}),
        cpu_surge=use(pods=1.0, system=0.2, be={TIER: 1.5}, window_s=0.2),
    )
    yield told
    yield told.then("an early tick: no growth within the same second", 0.3)
