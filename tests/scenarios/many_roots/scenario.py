from __future__ import annotations

from collections.abc import Iterator

from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from koordlet.snapshot import RootDemand
from tests.scenarios.told import Told, begin
from tests.support.snapshots import TIER, Bench, app, node, pod, slo, unit, use

STORY = """\
The kube tier, two declared applications and a systemd unit share one budget: by demand, and by
floors once there is no budget. A second unit is observed only."""


def ticks() -> Iterator[Told]:
    backup = unit("backup", "it lies where systemd has not delegated anything")
    batch = unit("crunch")
    compiler, indexer = "host-best-effort/compiler", "host-best-effort/indexer"
    told = begin(
        "the tier is throttled, the compiler uses little, the indexer is idle",
        Bench(
            node=node(8),
            slo=slo(CpuSuppressPolicy.CFS_QUOTA, priority=True, idle=1),
            pods=(pod("web", Qos.LS), pod("batch")),
            apps=(app("compiler"), app("indexer"), backup, batch, app("dns", Qos.LS)),
            cpu=use(pods=1.0, apps=0.2, be={TIER: 2.5, str(backup.cgroup): 0.5}),
            demand={
                TIER: RootDemand(2.5, 0.8),
                compiler: RootDemand(0.4, 0.0),
                indexer: RootDemand(0.0, 0.0),
                str(batch.cgroup): RootDemand(0.2, 0.0),
            },
        ),
    )
    yield told
    yield told.then("latency-sensitive work takes the node", cpu=use(pods=7.0, apps=0.2))
