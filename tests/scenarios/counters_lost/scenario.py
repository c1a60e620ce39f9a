from __future__ import annotations

from collections.abc import Iterator

from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from tests.scenarios.told import Told, begin
from tests.support.snapshots import Bench, node, pod, slo, use

STORY = """\
The counters of the node go away while BE is suppressed: held, then safe, then back."""


def ticks() -> Iterator[Told]:
    told = begin(
        "first decision",
        Bench(
            node=node(8),
            slo=slo(CpuSuppressPolicy.CFS_QUOTA, priority=True),
            pods=(pod("web", Qos.LS), pod("batch")),
            cpu=use(pods=2.2),
        ),
    )
    yield told
    told = told.then("no use is known", cpu=Missing("cpuacct.usage cannot be read: EIO"))
    yield told
    told = told.then("still not", 20)
    yield told
    told = told.then("for longer than 30 s", 11)
    yield told
    yield told.then("the counters are back", cpu=use(pods=2.2))
