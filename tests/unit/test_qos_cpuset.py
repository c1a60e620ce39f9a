"""Policy cpuset: how many CPUs, which, and in which directories."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from koordlet.model.actions import Owned
from koordlet.model.knobs import Channel, Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.model.topology import CpuManagerPolicy
from koordlet.protocol.cpuset import parse_cpuset
from koordlet.protocol.names import ANNOTATION_RESOURCE_STATUS
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from koordlet.protocol.resourcestatus import resource_status_cpus
from tests.support.snapshots import TIER, Bench, Tick, app, decide, node, pod, reset, slo, unit, use

CPUSET = slo(CpuSuppressPolicy.CPUSET)
POD = f"{TIER}/poda"
CONTAINER = f"{POD}/a-main"
BATCH = "host-best-effort/batch"


def bench(**changes: Any) -> Bench:
    made = Bench(node=node(8), slo=CPUSET, pods=(pod("a"),), cpu=use(pods=1.3))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def next_tick(tick: Tick, **changes: Any) -> Tick:
    return decide(tick.after(**changes), tick.proposals.memory)


def cpus(tick: Tick, path: str = TIER) -> frozenset[int]:
    value = tick.value(path, Knob.CPUSET_CPUS)
    assert isinstance(value, frozenset)
    return value


def written(tick: Tick) -> set[str]:
    return {w.target for w in tick.plan.writes}


@pytest.mark.parametrize(
    ("nonbe", "size"),
    [(1.3, 4), (1.2, 4), (1.19, 5), (5.1, 2), (8.0, 2)],
    ids=["ceil", "whole", "just above", "floor", "nothing left"],
)
def test_size_is_the_budget_rounded_up_and_at_least_the_floor(nonbe: float, size: int) -> None:
    assert len(cpus(decide(bench(cpu=use(pods=nonbe)).snapshot()))) == size


@pytest.mark.parametrize(("online", "size"), [(2, 1), (3, 2), (4, 2)])
def test_CS_15_never_fewer_than_one_cpu(online: int, size: int) -> None:
    busy = bench(node=node(online), cpu=use(pods=float(online)))
    assert len(cpus(decide(busy.snapshot()))) == size


def test_H30_refused_where_the_floor_covers_all_cpus() -> None:
    tick = decide(bench(node=node(1), cpu=use(pods=1.0)).snapshot())
    assert not tick.plan.writes
    note = next(p for p in tick.proposals.problems if p.code == "cpuset-floor")
    assert "every CPU (1 online)" in note.what


def test_shrinks_at_once_and_grows_by_a_tenth_of_the_cpus() -> None:
    tick = decide(bench(cpu=use(pods=4.0)).snapshot())
    assert len(cpus(tick)) == 2
    for size in (3, 4):
        tick = next_tick(tick, cpu=use(pods=0.0))
        assert len(cpus(tick)) == size
    again = decide(tick.after(seconds=0.2, cpu=use()), tick.proposals.memory)
    assert len(cpus(again)) == 4, "an early tick is no second"
    assert len(cpus(next_tick(tick, cpu=use(pods=4.0)))) == 2


def test_CQ_01_a_reset_cpuset_comes_back_without_a_ramp() -> None:
    tick = decide(bench().snapshot())
    snapshot = reset(tick.after(), TIER, Knob.CPUSET_CPUS)
    again = decide(snapshot, tick.proposals.memory)
    assert cpus(again) == cpus(tick)


def test_v2_writes_the_roots_only() -> None:
    tick = decide(bench(apps=(app("batch"),), nested=(f"{CONTAINER}/inner",)).snapshot())
    assert written(tick) == {TIER, BATCH}


def test_H12_all_roots_get_the_same_set() -> None:
    tick = decide(bench(apps=(app("batch"), app("more"))).snapshot())
    sets = {cpus(tick, root) for root in written(tick)}
    assert len(written(tick)) == 3
    assert len(sets) == 1


def test_H18_v1_narrows_the_whole_subtree() -> None:
    """One child cgroup made inside a container blocked suppression of the whole tier."""
    deep = (f"{CONTAINER}/docker", f"{CONTAINER}/docker/inner")
    tick = decide(bench(version=1, nested=deep).snapshot())
    assert written(tick) == {TIER, POD, CONTAINER, *deep}
    assert {cpus(tick, path) for path in written(tick)} == {cpus(tick)}


def test_CS_04_H09_static_policy_leaves_tier_and_pods_wide() -> None:
    """The kubelet starts containers with wide sets; a narrow tier would refuse them."""
    facts = replace(node(8), cpu_manager=CpuManagerPolicy.STATIC)
    inner = f"{CONTAINER}/inner"
    tick = decide(bench(version=1, node=facts, nested=(inner,), apps=(app("batch"),)).snapshot())
    assert written(tick) == {CONTAINER, inner, BATCH}
    policy_none = replace(node(8), cpu_manager=CpuManagerPolicy.NONE)
    tick = decide(bench(version=1, node=policy_none).snapshot())
    assert written(tick) == {TIER, POD, CONTAINER}


def test_CS_04_growth_under_the_static_policy_counts_what_containers_have() -> None:
    facts = replace(node(8), cpu_manager=CpuManagerPolicy.STATIC)
    tick = decide(bench(version=1, node=facts, cpu=use(pods=4.0)).snapshot())
    tick = next_tick(tick, cpu=use())
    assert len(cpus(tick, CONTAINER)) == 3


def test_CS_01_no_cpu_left_is_no_write() -> None:
    facts = replace(node(8), reserved_cpus=frozenset(range(8)))
    tick = decide(bench(node=facts).snapshot())
    assert not tick.plan.writes
    report = next(r for r in tick.proposals.reports if r.name == "cpu_suppress")
    assert "reserved" in report.hold_why
    owned = decide(bench().snapshot())
    held = next_tick(owned, node=facts)
    assert not held.plan.writes
    assert not held.plan.restores
    assert [hold.target for hold in held.plan.holds] == [TIER]


def test_CS_21_a_set_whose_cpus_become_exclusive_moves_and_is_never_emptied() -> None:
    tick = decide(bench().snapshot())
    assert cpus(tick) == parse_cpuset("0-3")
    taken = replace(node(8), exclusive_cpus=parse_cpuset("0-5"))
    tick = next_tick(tick, node=taken)
    assert cpus(tick) == parse_cpuset("6-7")
    all_taken = replace(node(8), exclusive_cpus=parse_cpuset("0-7"))
    tick = next_tick(tick, node=all_taken)
    assert not tick.plan.writes
    assert [hold.target for hold in tick.plan.holds] == [TIER]


def test_CS_17_H22_exclusive_cpus_are_left_alone_and_the_shortage_told() -> None:
    wanted_six = use()
    by_kubelet = replace(node(8), exclusive_cpus=parse_cpuset("4-7"))
    six = slo(CpuSuppressPolicy.CPUSET, threshold_percent=75)
    tick = decide(bench(node=by_kubelet, cpu=wanted_six, slo=six).snapshot())
    assert cpus(tick) == parse_cpuset("0-3")
    assert "be-cpus-short" in tick.codes()
    lse = (pod("a"), pod("latency", Qos.LSE, cpuset="4-7"))
    tick = decide(bench(pods=lse, cpu=wanted_six, slo=six).snapshot())
    assert cpus(tick) == parse_cpuset("0-3")


def test_CS_17_H22_lsr_cpus_are_shared_unless_told_otherwise() -> None:
    six = slo(CpuSuppressPolicy.CPUSET, threshold_percent=75)
    pods = (pod("a"), pod("service", Qos.LSR, cpuset="4-7"))
    tick = decide(bench(pods=pods, cpu=use(), slo=six).snapshot())
    assert len(cpus(tick)) == 6
    assert len(cpus(tick) & parse_cpuset("4-7")) == 3
    exclusive = slo(CpuSuppressPolicy.CPUSET, threshold_percent=75, lsr_exclusive=True)
    tick = decide(bench(pods=pods, cpu=use(), slo=exclusive).snapshot())
    assert cpus(tick) == parse_cpuset("0-3")


def test_H22_lsr_cpus_are_seen_in_the_cgroup_where_nothing_is_annotated() -> None:
    pods = (pod("a"), pod("service", Qos.LSR))
    container = "kubepods/podservice/service-main"
    values = {(container, Knob.CPUSET_CPUS): parse_cpuset("0-3")}
    exclusive = slo(CpuSuppressPolicy.CPUSET, lsr_exclusive=True)
    tick = decide(bench(pods=pods, values=values, slo=exclusive).snapshot())
    assert cpus(tick) == parse_cpuset("4-7")
    # A cpuset as wide as the whole kubepods tree belongs to nobody.
    values[("kubepods", Knob.CPUSET_CPUS)] = parse_cpuset("0-3")
    tick = decide(bench(pods=pods, values=values, slo=exclusive).snapshot())
    assert cpus(tick) & parse_cpuset("0-3")


def test_H22_under_the_static_policy_the_shared_pool_belongs_to_nobody() -> None:
    facts = replace(node(8), cpu_manager=CpuManagerPolicy.STATIC)
    pods = (pod("a"), pod("service", Qos.LSR))
    values = {("kubepods/podservice/service-main", Knob.CPUSET_CPUS): parse_cpuset("0-5")}
    exclusive = slo(CpuSuppressPolicy.CPUSET, lsr_exclusive=True)
    tick = decide(bench(node=facts, pods=pods, values=values, slo=exclusive).snapshot())
    assert len(cpus(tick)) == 4


def test_H22_a_declared_LSE_application_keeps_its_cpus() -> None:
    server = app("server", Qos.LSE)
    values = {(str(server.cgroup), Knob.CPUSET_CPUS): parse_cpuset("6-7")}
    tick = decide(bench(apps=(server,), values=values, cpu=use()).snapshot())
    assert not cpus(tick) & parse_cpuset("6-7")


def test_H26_a_refused_claim_takes_no_cpus() -> None:
    """A BestEffort pod that says LSR with a cpuset is BE, and its annotation counts for nothing."""
    liar = pod("liar", Qos.BE, cpuset="0-7", refused="LSR needs Guaranteed")
    honest = pod("job", Qos.BE)
    exclusive = slo(CpuSuppressPolicy.CPUSET, lsr_exclusive=True)
    assert len(cpus(decide(bench(pods=(liar, honest), slo=exclusive).snapshot()))) == 4


def test_H26_a_refused_claim_marks_no_tier() -> None:
    """Without an honest BE pod beside it the tier stays as it is."""
    liar = pod("liar", Qos.BE, refused="LSR needs Guaranteed")
    tick = decide(bench(pods=(liar,), slo=slo(CpuSuppressPolicy.CPUSET)).snapshot())
    assert tick.plan.writes == ()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"cpuset": 5}', '{"cpuset": "0-"}', "[" * 100_000, "null"]
)
def test_H26_an_unreadable_annotation_is_absent(text: str) -> None:
    assert resource_status_cpus({ANNOTATION_RESOURCE_STATUS: text}) == frozenset()


def test_resource_status_cpus() -> None:
    text = json.dumps({"cpuset": "0-1,4", "numaNodeResources": []})
    assert resource_status_cpus({ANNOTATION_RESOURCE_STATUS: text}) == {0, 1, 4}
    assert resource_status_cpus({}) == frozenset()


def test_H05_a_container_born_in_a_narrowed_tier_has_no_wish_of_its_own() -> None:
    """runc copied the parent's narrow set; when the tier grows, it grows with it."""
    tick = decide(bench(version=1, cpu=use(pods=4.0)).snapshot())
    narrow = cpus(tick)
    newborn = bench(version=1, pods=(pod("a"), pod("b"))).snapshot()
    snapshot = tick.after(cpu=use(pods=0.0), workloads=newborn.workloads, be_tree=newborn.be_tree)
    born = [f"{TIER}/podb", f"{TIER}/podb/b-main"]
    snapshot = replace(
        snapshot,
        values={
            **newborn.values,
            **snapshot.values,
            **{(CgroupPath(path), Knob.CPUSET_CPUS): narrow for path in born},
        },
    )
    grown = decide(snapshot, tick.proposals.memory)
    assert len(cpus(grown)) == 3
    assert {cpus(grown, path) for path in born} == {cpus(grown)}


def test_an_owners_narrower_set_is_kept_within() -> None:
    values = {
        (TIER, Knob.CPUSET_CPUS): parse_cpuset("0-5"),
        (BATCH, Knob.CPUSET_CPUS): parse_cpuset("4-7"),
        (CONTAINER, Knob.CPUSET_CPUS): parse_cpuset("4"),
        (POD, Knob.CPUSET_CPUS): parse_cpuset("0-5"),
    }
    tick = decide(bench(version=1, apps=(app("batch"),), values=values).snapshot())
    assert cpus(tick) == cpus(tick, BATCH) == cpus(tick, POD) == parse_cpuset("4-5")
    assert cpus(tick, CONTAINER) == parse_cpuset("4")


def test_a_child_pinned_outside_the_set_gets_its_parents() -> None:
    """v1 takes no parent below its child: the pinned child has to move."""
    values = {(CONTAINER, Knob.CPUSET_CPUS): parse_cpuset("7")}
    tick = decide(bench(version=1, values=values).snapshot())
    assert cpus(tick, CONTAINER) == cpus(tick, POD) == parse_cpuset("0-3")
    again = next_tick(tick)
    assert cpus(again, CONTAINER) == parse_cpuset("0-3")


def test_roots_with_no_cpu_in_common_are_named() -> None:
    values = {
        (TIER, Knob.CPUSET_CPUS): parse_cpuset("0-3"),
        (BATCH, Knob.CPUSET_CPUS): parse_cpuset("4-7"),
    }
    tick = decide(bench(apps=(app("batch"),), values=values, cpu=use(pods=4.0)).snapshot())
    assert written(tick) == {TIER}
    assert "be-root-cpuset-apart" in tick.codes()


def test_isolated_cpus_are_not_used() -> None:
    facts = node(8)
    facts = replace(facts, topology=replace(facts.topology, isolated=parse_cpuset("0-3")))
    assert not cpus(decide(bench(node=facts).snapshot())) & parse_cpuset("0-3")


def test_H06_a_unit_gets_the_cpuset_of_all_where_systemd_can_be_asked() -> None:
    batch = unit("batch")
    assert written(decide(bench(apps=(batch,)).snapshot())) == {TIER, batch.cgroup}
    observed = unit("batch", "PID 1 is not systemd (init)")
    assert written(decide(bench(apps=(observed,)).snapshot())) == {TIER}


def test_an_unreadable_root_is_held() -> None:
    values = {(TIER, Knob.CPUSET_CPUS): Missing("EIO")}
    tick = decide(bench(values=values).snapshot())
    assert [hold.target for hold in tick.plan.holds] == [TIER]
    assert not tick.plan.writes


def test_a_child_that_is_not_in_the_cpuset_hierarchy_is_passed_over() -> None:
    values = {(POD, Knob.CPUSET_CPUS): Missing("no such directory")}
    tick = decide(bench(version=1, values=values).snapshot())
    assert written(tick) == {TIER, CONTAINER}


def test_a_host_without_cpusets_says_so() -> None:
    tick = decide(bench(unusable=(Knob.CPUSET_CPUS,)).snapshot())
    assert not tick.plan.writes
    assert "cpuset-cpus-unsupported" in tick.codes()


def test_a_row_that_is_no_cpuset_counts_for_nothing() -> None:
    snapshot = bench().snapshot()
    key = (pod("a").cgroup, Knob.CPUSET_CPUS)
    assert not isinstance(key[0], Missing)
    row = Owned(key[0], key[1], "cpu_suppress", Channel.FILE, "?", "?", 0.0)
    tick = decide(replace(snapshot, owned={(key[0], key[1]): row}))
    assert len(cpus(tick)) == 4
