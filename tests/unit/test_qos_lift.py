"""cgroup v1: quotas below a BE root are lifted before the root's own goes below them (H4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from koordlet.model.capabilities import Capability, Proof
from koordlet.model.knobs import Channel, Direction, Knob, Value
from koordlet.model.pods import ContainerState
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from tests.support.snapshots import TIER, Bench, Tick, decide, node, pod, slo, use

QUOTA = slo(CpuSuppressPolicy.CFS_QUOTA)
POD = f"{TIER}/poda"
CONTAINER = f"{POD}/a-main"
NESTED = f"{CONTAINER}/inner"

Values = Mapping[tuple[str, Knob], Value | Missing]


def bench(values: Values, *, version: int = 1, nonbe: float = 4.2, **changes: Any) -> Bench:
    """8 cores, so that ``nonbe`` 4.2 leaves the tier a quota of 100000 us."""
    made = Bench(
        node=node(8),
        version=version,
        slo=QUOTA,
        pods=(pod("a"),),
        nested=(NESTED,),
        cpu=use(pods=nonbe),
        values=values,
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def quota(path: str, quota_us: int, period_us: int = 100_000) -> dict[tuple[str, Knob], Value]:
    return {(path, Knob.CPU_QUOTA): quota_us, (path, Knob.CPU_PERIOD): period_us}


def lifted(tick: Tick) -> set[str]:
    return {w.target for w in tick.plan.writes if w.knob is Knob.CPU_QUOTA and w.value is None}


def test_H04_a_container_is_lifted_in_the_runtimes_spec_and_waited_for() -> None:
    """The kernel refuses 100000 on the tier while the container has 200000 (CQ-20)."""
    tick = decide(bench(quota(CONTAINER, 200_000)).snapshot())
    write = tick.write(CONTAINER, Knob.CPU_QUOTA)
    assert (write.value, write.channel, write.container_id) == (None, Channel.SPEC, "a-main")
    assert write.direction is Direction.RESTRICT
    assert tick.value(TIER, Knob.CPU_QUOTA) == 200_000, "the least that the kernel takes now"
    bound = dict(tick.write(TIER, Knob.CPU_QUOTA).terms)["bound_by"]
    assert bound == f"until {CONTAINER} is lifted"
    assert "v1-child-quota" in tick.codes()
    after = decide(tick.after(), tick.proposals.memory)
    assert after.value(TIER, Knob.CPU_QUOTA) == 100_000
    assert lifted(after) == {CONTAINER}
    assert "v1-child-quota" not in after.codes()


def test_H04_pod_directories_and_nested_cgroups_are_lifted_by_file_at_once() -> None:
    values = quota(POD, 400_000) | quota(NESTED, 150_000)
    tick = decide(bench(values).snapshot())
    assert lifted(tick) == {POD, NESTED}
    channels = {w.channel for w in tick.plan.writes if w.value is None}
    assert channels == {Channel.FILE}
    assert tick.value(TIER, Knob.CPU_QUOTA) == 100_000


@pytest.mark.parametrize(
    ("state", "cri"),
    [(ContainerState.EXITED, None), (ContainerState.RUNNING, Proof.ABSENT)],
    ids=["not running", "no runtime to ask"],
)
def test_H04_a_container_that_no_runtime_would_update_is_lifted_by_file(
    state: ContainerState, cri: Proof | None
) -> None:
    snapshot = bench(quota(CONTAINER, 200_000), pods=(pod("a", state=state),)).snapshot()
    if cri is not None:
        others = {"cri": Capability("cri", cri)}
        capabilities = replace(snapshot.capabilities, others=others)
        snapshot = replace(snapshot, capabilities=capabilities)
    tick = decide(snapshot)
    assert tick.write(CONTAINER, Knob.CPU_QUOTA).channel is Channel.FILE
    assert tick.value(TIER, Knob.CPU_QUOTA) == 100_000


def test_CQ_06_what_fits_below_the_root_is_left_alone() -> None:
    values = quota(POD, 100_000) | quota(CONTAINER, 50_000)
    assert lifted(decide(bench(values).snapshot())) == set()


@pytest.mark.parametrize(("quota_us", "period_us"), [(22_969, 22_968), (20_001, 20_000)])
def test_CQ_08_ratios_are_compared_not_raw_quotas(quota_us: int, period_us: int) -> None:
    """Koordinator compared 22968 us with 100000 us; as ratios it is the larger one."""
    assert lifted(decide(bench(quota(POD, quota_us, period_us)).snapshot())) == {POD}
    below = quota(POD, quota_us - 2, period_us)
    assert lifted(decide(bench(below).snapshot())) == set()


def test_CQ_18_a_container_above_its_own_pod_is_lifted_too() -> None:
    """A LimitRange left cpu: 2 on a batch pod of 1 core: the container was above its pod."""
    values = quota(POD, 100_000) | quota(CONTAINER, 200_000)
    tick = decide(bench(values, nonbe=4.7).snapshot())
    assert lifted(tick) == {POD, CONTAINER}


def test_a_lifted_child_stays_lifted_until_the_root_is_well_above_its_limit() -> None:
    tick = decide(bench(quota(POD, 150_000)).snapshot())
    for nonbe, expected in ((3.65, {POD}), (3.56, {POD}), (3.46, set[str]())):
        tick = decide(tick.after(cpu=use(pods=nonbe)), tick.proposals.memory)
        assert lifted(tick) == expected
    assert [(r.target, r.channel) for r in tick.plan.restores] == [(POD, Channel.FILE)]


def test_a_lift_in_the_spec_is_restored_through_the_spec() -> None:
    tick = decide(bench(quota(CONTAINER, 200_000)).snapshot())
    tick = decide(tick.after(slo=slo()), tick.proposals.memory)
    restore = next(r for r in tick.plan.restores if r.target == CONTAINER)
    assert (restore.channel, restore.container_id) == (Channel.SPEC, "a-main")


def test_H07_a_child_whose_owner_set_a_new_limit_is_lifted_again() -> None:
    tick = decide(bench(quota(POD, 150_000)).snapshot())
    snapshot = tick.after()
    key = tick.write(POD, Knob.CPU_QUOTA).key
    row = replace(snapshot.owned[key], original="300000")
    snapshot = replace(
        snapshot,
        values={**snapshot.values, key: 300_000},
        owned={**snapshot.owned, key: row},
    )
    assert lifted(decide(snapshot, tick.proposals.memory)) == {POD}


def test_a_lifted_child_that_cannot_be_read_is_held() -> None:
    tick = decide(bench(quota(POD, 150_000)).snapshot())
    snapshot = tick.after()
    key = tick.write(POD, Knob.CPU_QUOTA).key
    values = {**snapshot.values, key: Missing("EIO")}
    tick = decide(replace(snapshot, values=values), tick.proposals.memory)
    assert [hold.key for hold in tick.plan.holds] == [key]


def test_v2_has_nothing_to_lift() -> None:
    tick = decide(bench(quota(CONTAINER, 200_000), version=2).snapshot())
    assert lifted(tick) == set()
    assert tick.value(TIER, Knob.CPU_QUOTA) == 100_000
    assert "v1-quota-new-container" not in tick.codes()


def test_H04_the_limit_of_new_containers_on_v1_is_told_once() -> None:
    tick = decide(bench({}).snapshot())
    assert [p.code for p in tick.proposals.problems].count("v1-quota-new-container") == 1


def test_H18_a_deep_tree_made_inside_a_container_is_walked() -> None:
    """Work inside a BE container decides how deep its cgroups go."""
    deep = [CONTAINER]
    for _ in range(1_100):
        deep.append(f"{deep[-1]}/d")
    tick = decide(bench(quota(deep[-1], 400_000), nested=tuple(deep[1:])).snapshot())
    assert lifted(tick) == {deep[-1]}
