from __future__ import annotations

from collections.abc import Iterator

from koordlet.model.knobs import Knob
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from tests.scenarios.told import Told, begin
from tests.support.snapshots import TIER, Bench, node, pod, slo, use

STORY = """\
The kubelet puts the quota of the BE tier back to -1 once a minute (Koordinator #1734)."""


def ticks() -> Iterator[Told]:
    told = begin(
        "first decision",
        Bench(
            node=node(16),
            slo=slo(CpuSuppressPolicy.CFS_QUOTA),
            pods=(pod("web", Qos.LS), pod("batch")),
            cpu=use(pods=2.4),
        ),
    )
    yield told
    yield told.then_reset("the tier was reset: back at once, no ramp", TIER, Knob.CPU_QUOTA, 60)
