from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from koordlet.model.topology import CpuManagerPolicy
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from tests.scenarios.told import Told, begin
from tests.support.snapshots import TIER, Bench, app, node, pod, slo, use

STORY = """\
The kubelet's CPU manager is static: CPUs 6-7 are exclusive, 0 is reserved. Tier and pods stay
wide, containers are narrowed; a BE host application is narrowed as a whole."""


def ticks() -> Iterator[Told]:
    facts = replace(
        node(8),
        cpu_manager=CpuManagerPolicy.STATIC,
        exclusive_cpus=frozenset({6, 7}),
        reserved_cpus=frozenset({0}),
        reserved_cores=1.0,
    )
    yield begin(
        "first decision",
        Bench(
            node=facts,
            version=1,
            slo=slo(CpuSuppressPolicy.CPUSET),
            pods=(pod("db", Qos.LSR), pod("batch", containers=("one", "two"))),
            apps=(app("compiler"),),
            cpu=use(pods=1.1, system=0.3, be={TIER: 2.0, "host-best-effort/compiler": 1.0}),
        ),
    )
