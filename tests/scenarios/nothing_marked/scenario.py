from __future__ import annotations

from collections.abc import Iterator

from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from tests.scenarios.told import Told, begin
from tests.support.snapshots import Bench, node, pod, slo, use

STORY = """\
BestEffort pods without a label of ours: nothing here is koordlet's business."""


def ticks() -> Iterator[Told]:
    yield begin(
        "first decision",
        Bench(
            node=node(4),
            slo=slo(CpuSuppressPolicy.CPUSET, priority=True, idle=1),
            pods=(pod("web", Qos.LS, marked=False), pod("batch", marked=False)),
            cpu=use(pods=3.9),
        ),
    )
