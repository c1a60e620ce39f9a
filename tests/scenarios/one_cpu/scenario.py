from __future__ import annotations

from collections.abc import Iterator

from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from tests.scenarios.told import Told, begin
from tests.support.snapshots import Bench, node, pod, slo, use

STORY = """\
On one CPU the least cpuset would be all of it: refused, the weight remains (hazard H30)."""


def ticks() -> Iterator[Told]:
    yield begin(
        "first decision",
        Bench(
            node=node(1),
            slo=slo(CpuSuppressPolicy.CPUSET, priority=True),
            pods=(pod("web", Qos.LS), pod("batch")),
            cpu=use(pods=0.5),
        ),
    )
