from __future__ import annotations

from collections.abc import Iterator

from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from tests.scenarios.told import Told, begin
from tests.support.snapshots import Bench, node, pod, slo, use

STORY = """\
16 hyperthreads of 8 cores on 2 NUMA nodes; an LSR pod owns 8-11. BE shares its CPUs by rule; as
soon as LSR is exclusive they are out of reach."""


def ticks() -> Iterator[Told]:
    bench = Bench(
        node=node(16, threads=2, nodes=2),
        slo=slo(CpuSuppressPolicy.CPUSET),
        pods=(pod("db", Qos.LSR, cpuset="8-11"), pod("batch")),
        cpu=use(pods=2.0),
    )
    told = begin("first decision", bench)
    yield told
    yield told.then(
        "lsrExclusive is switched on",
        slo=slo(CpuSuppressPolicy.CPUSET, lsr_exclusive=True),
    )
