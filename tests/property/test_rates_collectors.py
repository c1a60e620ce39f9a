"""Whatever cgroups do between two ticks, no reading of the collectors or the sampler is absurd."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.metrics.hot import HotSampler
from koordlet.metrics.readings import Level
from koordlet.model.pods import BeRoot
from koordlet.protocol.qos import Qos
from koordlet.snapshot import CpuUse
from tests.support.metricsrig import LAYOUT, MetricsRig, host_app, pod

CPUS = 4
U64 = 2**64
MAIN = "kubepods/burstable/podls/main"
BATCH = "kubepods/besteffort/podbe"

counter_texts = st.one_of(
    st.integers(0, U64 - 1).map(str), st.sampled_from(("0", str(U64 - 25_160), "", "garbage"))
)
events = st.one_of(
    st.tuples(st.just("use"), st.sampled_from((MAIN, BATCH, "redis", "")), st.integers(0, 10**10)),
    st.tuples(st.just("text"), st.sampled_from((MAIN, BATCH, "redis", "kubepods")), counter_texts),
    st.tuples(st.just("anew"), st.sampled_from((MAIN, "redis")), st.integers(0, 10**12)),
    st.tuples(st.just("lose"), st.sampled_from((MAIN, "redis")), st.none()),
    st.tuples(st.just("stat"), st.just(""), st.lists(st.integers(0, 2**40), max_size=10)),
)
steps = st.tuples(st.lists(events, max_size=4), st.floats(-3.0, 30.0))


def apply(rig: MetricsRig, kind: str, cgroup: str, value: object) -> None:
    alive = rig.host.hierarchies.of("cpuacct") and cgroup_exists(rig, cgroup)
    if kind == "use" and alive:
        rig.host.use_cpu(cgroup, int(str(value)))
    elif kind == "text" and alive:
        rig.host.set_text(cgroup, "cpuacct.usage", str(value) or "0")
    elif kind == "lose" and alive:
        rig.host.remove(cgroup)
    elif kind == "anew":
        if alive:
            rig.host.remove(cgroup)
        rig.make(cgroup)
        rig.host.set_text(cgroup, "cpuacct.usage", str(value))
    elif kind == "stat" and isinstance(value, list):
        rig.host.files.put("/proc/stat", f"cpu {' '.join(map(str, value))}\n")


def cgroup_exists(rig: MetricsRig, cgroup: str) -> bool:
    found = rig.host.files.cgroup_at(f"/sys/fs/cgroup/cpuacct/{cgroup}".rstrip("/"))
    return found is not None and found[1] is not None


def numbers_only(rig: MetricsRig) -> None:
    """``use_cpu`` adds to what is there: give it something to add to."""
    for cgroup in ("", "kubepods", "kubepods/burstable", "kubepods/burstable/podls", MAIN, BATCH):
        if cgroup_exists(rig, cgroup) and not rig.host.text(cgroup, "cpuacct.usage").isdigit():
            rig.host.set_text(cgroup, "cpuacct.usage", "0")
    if cgroup_exists(rig, "redis") and not rig.host.text("redis", "cpuacct.usage").isdigit():
        rig.host.set_text("redis", "cpuacct.usage", "0")


@settings(max_examples=40)
@given(history=st.lists(steps, min_size=2, max_size=12))
def test_PP_15_PP_17_every_reading_is_possible(
    history: list[tuple[list[tuple[str, str, object]], float]],
) -> None:
    rig = MetricsRig()
    rig.add(pod("ls"), pod("be", ("worker",), qos=Qos.BE))
    rig.apps = (host_app("redis"),)
    rig.make("redis")
    hot = HotSampler(rig.host.cgroups(), online_cpus=CPUS)
    hot.set_roots(LAYOUT, (BeRoot(LAYOUT.besteffort, "tier"),), rig.apps)
    for happened, step_s in history:
        numbers_only(rig)
        for event in happened:
            apply(rig, *event)
            if event[0] == "text":
                rig.collect()
                numbers_only(rig)
        rig.now_s += step_s
        hot.sample(rig.now_s)
        rig.cpu = hot.cpu_use(0.5, rig.now_s)
        rig.collect()
        check_use(rig.cpu)
        for level in Level:
            for _, values in rig.table.at(level):
                check_values(values)


def check_use(use: object) -> None:
    if isinstance(use, CpuUse):
        for cores in (use.nonbe_pods_cores, use.nonbe_apps_cores, *use.be_roots_cores.values()):
            assert 0.0 <= cores <= CPUS + 1e-9
        assert 0.0 <= use.system_cores <= use.node_cores <= CPUS + 1e-9


def check_values(values: dict[str, float]) -> None:
    for name, value in values.items():
        assert value >= 0.0, name
        assert value == value, name
        if name.endswith(("_cores", "used_cpu_cores")):
            assert value <= CPUS + 1e-6, (name, value)
        if name.endswith("_ratio"):
            assert value <= 1.0, (name, value)
