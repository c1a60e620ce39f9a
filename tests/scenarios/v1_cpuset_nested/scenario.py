from __future__ import annotations

from collections.abc import Iterator

from koordlet.model.knobs import Knob
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from tests.scenarios.told import Told, begin
from tests.support.snapshots import TIER, Bench, node, pod, slo, use

STORY = """\
Policy cpuset on cgroup v1: somebody runs docker inside a BE container, and a new pod is born
in the narrowed tier."""


def ticks() -> Iterator[Told]:
    inner = f"{TIER}/podbatch/batch-main/docker"
    bench = Bench(
        node=node(8),
        version=1,
        slo=slo(CpuSuppressPolicy.CPUSET),
        pods=(pod("web", Qos.LS), pod("batch")),
        nested=(inner,),
        cpu=use(pods=3.4),
    )
    told = begin("the whole subtree is narrowed", bench)
    yield told
    bench.pods = (*bench.pods, pod("new")) if not isinstance(bench.pods, Missing) else ()
    newborn = bench.snapshot()
    narrow = told.tick.value(TIER, Knob.CPUSET_CPUS)
    born = {
        key: narrow if key[1] is Knob.CPUSET_CPUS else value
        for key, value in newborn.values.items()
        if "podnew" in key[0]
    }
    yield told.then(
        "a pod was born with the narrow set; it grows with the tier",
        cpu=use(pods=2.0),
        workloads=newborn.workloads,
        be_tree=newborn.be_tree,
        values={**told.tick.after().values, **born},
    )
