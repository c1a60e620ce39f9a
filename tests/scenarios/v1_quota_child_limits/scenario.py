from __future__ import annotations

from collections.abc import Iterator

from koordlet.model.knobs import Knob
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from tests.scenarios.told import Told, begin
from tests.support.snapshots import TIER, Bench, node, pod, slo, use

STORY = """\
cgroup v1 takes no quota on the BE tier below any child's. One pod has a limit on its directory,
one container has a limit in the runtime's spec, one fits."""


def ticks() -> Iterator[Told]:
    big, small = f"{TIER}/podbig", f"{TIER}/podsmall"
    told = begin(
        "first decision",
        Bench(
            node=node(4),
            version=1,
            slo=slo(CpuSuppressPolicy.CFS_QUOTA, priority=True),
            pods=(pod("web", Qos.LS), pod("big"), pod("small")),
            cpu=use(pods=1.6),
            values={
                (big, Knob.CPU_QUOTA): 300_000,
                (f"{big}/big-main", Knob.CPU_QUOTA): 200_000,
                (f"{small}/small-main", Knob.CPU_QUOTA): 50_000,
            },
        ),
    )
    yield told
    told = told.then("the runtime has lifted the container")
    yield told
    told = told.then("the service is idle; limits come back once the tier is well above", cpu=use())
    yield told
    for seconds in (3, 4, 5):
        told = told.then(f"{seconds} s", cpu=use())
    yield told
    yield told.then("switched off: everything goes back", slo=slo())
