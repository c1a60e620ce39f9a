from __future__ import annotations

from collections.abc import Iterator

from koordlet.model.actions import Mode
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from tests.scenarios.told import Told, begin
from tests.support.snapshots import Bench, node, pod, slo, use

STORY = """\
A canary: suppression observes beside an enforced priority, is enforced, and switched off."""


def ticks() -> Iterator[Told]:
    told = begin(
        "cpu_suppress observes",
        Bench(
            node=node(4),
            slo=slo(CpuSuppressPolicy.CFS_QUOTA, priority=True),
            pods=(pod("web", Qos.LS), pod("batch")),
            cpu=use(pods=0.6),
            modes={"cpu_suppress": Mode.OBSERVE},
        ),
    )
    yield told
    told = told.then("enforced", modes={})
    yield told
    yield told.then("both switched off", modes={"cpu_suppress": Mode.OFF, "be_priority": Mode.OFF})
