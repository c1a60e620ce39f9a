"""The executor on a fake kernel: one plan after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.model.actions import Plan, Status
from koordlet.model.knobs import Channel, Direction, Knob
from koordlet.model.paths import CgroupPath
from koordlet.resexecutor.executor import Executor
from tests.support.execrig import HandClock, Rig, cpus, key, statuses, want
from tests.support.fakehost import CgroupTree, FakeHost, fake_host

TIER = "kubepods/besteffort"
POD = f"{TIER}/pod1"
APP = f"{POD}/c1"
SHARES, IDLE, QUOTA = Knob.CPU_SHARES, Knob.CPU_IDLE, Knob.CPU_QUOTA
CPUS, BURST = Knob.CPUSET_CPUS, Knob.CPU_BURST
KUBE: CgroupTree = {"kubepods": {"besteffort": {"pod1": {"c1": {"tasks": 1}}}}}


def make(
    tmp_path: Path, layout: str = "v1", tree: CgroupTree | None = None, **options: object
) -> Rig:
    return Rig(fake_host(layout, cgroups=tree or KUBE), tmp_path, **options)


def test_a_value_is_journaled_written_and_read_back(tmp_path: Path) -> None:
    rig = make(tmp_path)
    outcome = rig.tick(want(TIER, QUOTA, 50_000))[key(TIER, QUOTA)]
    assert (outcome.status, outcome.before, outcome.after) == (Status.APPLIED, "-1", "50000")
    owned = rig.executor.owned()[key(TIER, QUOTA)]
    assert (owned.original, owned.last_written, owned.owner) == ("-1", "50000", "cpu_suppress")
    assert rig.events() == ["write"]


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_V2_03_an_equal_value_is_not_written_again(tmp_path: Path, layout: str) -> None:
    rig = make(tmp_path, layout)
    plan = [want(TIER, QUOTA, 50_000), want(TIER, SHARES, 2), want(TIER, CPUS, cpus(0, 1))]
    if layout == "v1":
        plan += [want(POD, CPUS, cpus(0, 1)), want(APP, CPUS, cpus(0, 1))]
    rig.tick(*plan)
    rig.written()
    outcomes = rig.tick(*plan)
    assert rig.written() == []
    assert {o.status for o in outcomes.values()} == {Status.UNCHANGED}
    assert rig.tick(want(TIER, QUOTA, 100_000))[key(TIER, QUOTA)].before == "50000"


def test_what_equals_the_wish_already_is_not_owned(tmp_path: Path) -> None:
    rig = make(tmp_path, tree={"kubepods": {"besteffort": {"cpu.shares": "2"}}})
    outcomes = rig.tick(want(TIER, SHARES, 2))
    assert statuses(outcomes) == {TIER: Status.UNCHANGED}
    assert not rig.executor.owned()


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_a_restore_is_exact_and_leaves_nothing_owned(tmp_path: Path, layout: str) -> None:
    rig = make(tmp_path, layout)
    files = ("cpu.shares" if layout == "v1" else "cpu.weight", "cpuset.cpus")
    before = [rig.host.text(TIER, name) for name in files]
    if layout == "v2":
        before[1] = "0-3"  # with tasks below, the kernel never empties it again
    rig.tick(want(TIER, SHARES, 2), want(TIER, QUOTA, 50_000))
    rig.tick(want(APP, CPUS, cpus(1)), want(POD, CPUS, cpus(1)), want(TIER, CPUS, cpus(1)))
    outcomes = rig.restore(*rig.executor.owned())
    assert {o.status for o in outcomes.values()} == {Status.RESTORED}
    assert [rig.host.text(TIER, name) for name in files] == before
    assert not rig.executor.owned()
    assert rig.journal.rows() == ((), ())


def test_a_weight_survives_a_v2_restore_that_no_conversion_would(tmp_path: Path) -> None:
    tree: CgroupTree = {"kubepods": {"besteffort": {"cpu.weight": "59"}}}
    rig = make(tmp_path, "v2", tree)
    rig.tick(want(TIER, SHARES, 2))
    rig.restore_all()
    assert rig.host.text(TIER, "cpu.weight") == "59"


def test_CS_01_an_empty_cpuset_is_never_written_on_v1(tmp_path: Path) -> None:
    rig = make(tmp_path)
    outcome = rig.tick(want(APP, CPUS, cpus()))[key(APP, CPUS)]
    assert outcome.status is Status.REFUSED
    assert "empty cpuset" in outcome.why
    assert rig.written() == []


def test_H02_an_empty_v2_cpuset_is_restored_by_a_newline(tmp_path: Path) -> None:
    rig = make(tmp_path, "v2", {"kubepods": {"besteffort": {}}})
    rig.tick(want(TIER, CPUS, cpus(1)))
    rig.written()
    rig.restore_all()
    assert rig.written() == [(f"{TIER}/cpuset.cpus", "\n")]
    assert rig.host.text(TIER, "cpuset.cpus") == ""


@pytest.mark.parametrize(("layout", "file"), [("v1", "cpu.shares"), ("v2", "cpu.weight")])
def test_H02_idle_takes_the_weight_along_both_ways(tmp_path: Path, layout: str, file: str) -> None:
    rig = make(tmp_path, layout)
    rig.host.set_text(POD, file, "77")
    outcomes = rig.tick(want(POD, IDLE, 1))
    assert outcomes[key(POD, IDLE)].status is Status.APPLIED
    assert rig.executor.owned()[key(POD, SHARES)].side_effect
    assert rig.tick(want(POD, IDLE, 1))[key(POD, IDLE)].status is Status.UNCHANGED
    rig.restore(key(POD, IDLE))
    assert rig.host.text(POD, "cpu.idle") == "0"
    assert rig.host.text(POD, file) == "77"
    assert not rig.executor.owned()


@pytest.mark.parametrize(("layout", "file"), [("v1", "cpu.shares"), ("v2", "cpu.weight")])
def test_H02_a_weight_of_ours_is_put_back_when_idle_ends(
    tmp_path: Path, layout: str, file: str
) -> None:
    rig = make(tmp_path, layout)
    rig.host.set_text(POD, file, "77")
    lowest = "2" if layout == "v1" else "1"
    rig.tick(want(POD, SHARES, 2), want(POD, IDLE, 1))
    assert rig.tick(want(POD, SHARES, 2), want(POD, IDLE, 1))[key(POD, SHARES)].status is (
        Status.UNCHANGED
    )
    rig.restore(key(POD, IDLE))
    assert rig.host.text(POD, file) == lowest
    rig.restore_all()
    assert rig.host.text(POD, file) == "77"


def test_H02_a_weight_wished_together_with_the_end_of_idle(tmp_path: Path) -> None:
    rig = make(tmp_path)
    rig.tick(want(POD, IDLE, 1))
    outcomes = rig.tick(want(POD, SHARES, 2), want(POD, IDLE, 0))
    assert outcomes[key(POD, SHARES)].status is Status.APPLIED
    assert rig.host.text(POD, "cpu.shares") == "2"
    rig.restore_all()
    assert rig.host.text(POD, "cpu.shares") == "1024"


def test_H02_both_restored_at_once(tmp_path: Path) -> None:
    rig = make(tmp_path)
    rig.host.set_text(POD, "cpu.shares", "77")
    rig.tick(want(POD, SHARES, 2), want(POD, IDLE, 1))
    rig.restore(key(POD, SHARES), key(POD, IDLE))
    assert rig.host.text(POD, "cpu.shares") == "77"
    assert not rig.executor.owned()


def test_H02_idle_lifted_by_another_still_gets_the_weight_back(tmp_path: Path) -> None:
    rig = make(tmp_path)
    rig.host.set_text(POD, "cpu.shares", "77")
    rig.tick(want(POD, IDLE, 1))
    rig.host.foreign_write(POD, "cpu.idle", "0")  # systemd does so at daemon-reload
    assert rig.host.text(POD, "cpu.shares") == "1024"
    rig.restore(key(POD, IDLE))
    assert rig.host.text(POD, "cpu.shares") == "77"
    assert not rig.executor.owned()


def test_CQ_05_a_burst_in_the_way_goes_down_first_and_comes_back(tmp_path: Path) -> None:
    rig = make(tmp_path)
    rig.host.set_text(APP, "cpu.cfs_quota_us", "160000")
    rig.host.set_text(APP, "cpu.cfs_burst_us", "160000")
    rig.tick(want(APP, QUOTA, 100_000))
    assert rig.written() == [
        (f"{APP}/cpu.cfs_burst_us", "100000"),
        (f"{APP}/cpu.cfs_quota_us", "100000"),
    ]
    rig.restore(key(APP, QUOTA))
    assert rig.written() == [
        (f"{APP}/cpu.cfs_quota_us", "160000"),
        (f"{APP}/cpu.cfs_burst_us", "160000"),
    ]
    assert not rig.executor.owned()


def test_CQ_05_a_burst_taken_along_follows_a_rising_quota(tmp_path: Path) -> None:
    rig = make(tmp_path)
    rig.host.set_text(APP, "cpu.cfs_quota_us", "160000")
    rig.host.set_text(APP, "cpu.cfs_burst_us", "120000")
    rig.tick(want(APP, QUOTA, 100_000))
    rig.tick(want(APP, QUOTA, 110_000))
    assert rig.host.text(APP, "cpu.cfs_burst_us") == "110000"
    rig.tick(want(APP, QUOTA, 130_000))
    assert rig.host.text(APP, "cpu.cfs_burst_us") == "120000"
    assert key(APP, BURST) not in rig.executor.owned()


def test_CQ_06_a_lowered_limit_goes_child_first_and_is_raised_parent_first(
    tmp_path: Path,
) -> None:
    rig = make(tmp_path)
    rig.host.set_text(POD, "cpu.cfs_quota_us", "400000")
    rig.host.set_text(APP, "cpu.cfs_quota_us", "400000")
    rig.tick(want(POD, QUOTA, 200_000), want(APP, QUOTA, 200_000))
    assert [path for path, _ in rig.written()] == [
        f"{APP}/cpu.cfs_quota_us",
        f"{POD}/cpu.cfs_quota_us",
    ]
    rig.restore(key(APP, QUOTA), key(POD, QUOTA))
    assert [path for path, _ in rig.written()] == [
        f"{POD}/cpu.cfs_quota_us",
        f"{APP}/cpu.cfs_quota_us",
    ]


def test_H04_the_offending_child_is_named_and_nothing_is_called_unsupported(
    tmp_path: Path,
) -> None:
    rig = make(tmp_path)
    rig.host.set_text(APP, "cpu.cfs_quota_us", "100000")
    for _ in range(2):
        outcome = rig.tick(want(TIER, QUOTA, 30_000))[key(TIER, QUOTA)]
        assert outcome.status is Status.REFUSED
        assert APP in outcome.why
        assert "1.00 cores" in outcome.why
    assert not rig.executor.owned()
    rig.host.foreign_write(APP, "cpu.cfs_quota_us", "-1")
    assert rig.tick(want(TIER, QUOTA, 30_000))[key(TIER, QUOTA)].status is Status.APPLIED


def test_CQ_08_relatives_are_compared_by_their_share_of_the_period(tmp_path: Path) -> None:
    rig = make(tmp_path)
    rig.host.set_text(APP, "cpu.cfs_period_us", "20000")
    rig.host.set_text(APP, "cpu.cfs_quota_us", "15000")  # 0.75 cores, a smaller number than 30000
    outcome = rig.tick(want(TIER, QUOTA, 30_000))[key(TIER, QUOTA)]
    assert f"child {APP}" in outcome.why
    assert "0.75 cores" in outcome.why


def test_a_child_above_its_parent_names_the_parent(tmp_path: Path) -> None:
    rig = make(tmp_path)
    rig.host.set_text(TIER, "cpu.cfs_quota_us", "30000")
    outcome = rig.tick(want(APP, QUOTA, 50_000))[key(APP, QUOTA)]
    assert outcome.status is Status.REFUSED
    assert f"parent {TIER}" in outcome.why


def test_H18_a_cgroup_nested_in_a_container_does_not_block_the_tier(tmp_path: Path) -> None:
    rig = make(tmp_path)
    nested = str(rig.host.make(f"{APP}/docker/inner", {"tasks": 1}))
    outcomes = rig.tick(
        want(TIER, CPUS, cpus(1)), want(POD, CPUS, cpus(1)), want(APP, CPUS, cpus(1))
    )
    assert outcomes[key(TIER, CPUS)].status is Status.APPLIED
    assert rig.host.text(nested, "cpuset.cpus") == "1"
    assert key(nested, CPUS) in rig.executor.owned()
    rig.restore_all()
    assert rig.host.text(nested, "cpuset.cpus") == "0-3"
    assert rig.host.text(TIER, "cpuset.cpus") == "0-3"


def test_H18_after_three_tries_the_blocking_directory_is_named(tmp_path: Path) -> None:
    rig = make(tmp_path)
    path = f"/sys/fs/cgroup/cpuset/{APP}/cpuset.cpus"
    rig.host.files.fail(path, 13, on="write")
    outcomes = rig.tick(want(TIER, CPUS, cpus(1)), want(POD, CPUS, cpus(1)))
    assert outcomes[key(TIER, CPUS)].status is Status.REFUSED
    assert APP in outcomes[key(TIER, CPUS)].why
    tried = [each for each in rig.host.files.refused if each[0] == path]
    assert len(tried) <= 6
    assert rig.tick(want(TIER, SHARES, 2))[key(TIER, SHARES)].status is Status.APPLIED


def test_CS_04_a_child_wider_than_its_parent_names_the_parent(tmp_path: Path) -> None:
    rig = make(tmp_path)
    for path in (APP, POD, TIER):
        rig.host.set_text(path, "cpuset.cpus", "0-1")
    outcome = rig.tick(want(APP, CPUS, cpus(0, 1, 2)))[key(APP, CPUS)]
    assert outcome.status is Status.REFUSED
    assert f"parent {POD} holds 0-1" in outcome.why


def test_CS_21_a_pool_with_tasks_never_passes_through_an_empty_set(tmp_path: Path) -> None:
    rig = make(tmp_path)
    for path in (APP, POD, TIER):
        rig.tick(want(path, CPUS, cpus(0)))
    rig.written()
    outcomes = rig.tick(*(want(path, CPUS, cpus(3)) for path in (TIER, POD, APP)))
    assert {o.status for o in outcomes.values()} == {Status.APPLIED}
    assert [text for _, text in rig.written()] == ["0,3", "0,3", "0,3", "3", "3", "3"]


def test_CS_22_a_parent_is_not_touched_for_a_child_that_fits(tmp_path: Path) -> None:
    rig = make(tmp_path)
    rig.tick(want(APP, CPUS, cpus(2, 3)))
    assert [path for path, _ in rig.written()] == [f"{APP}/cpuset.cpus"]


def test_H05_a_container_born_under_a_narrowed_tier_becomes_wide_again(tmp_path: Path) -> None:
    rig = make(tmp_path)
    tree = {TIER: (POD,), POD: (APP,), APP: ()}
    rig.tick(*(want(path, CPUS, cpus(1)) for path in tree))
    born = str(rig.host.make(f"{TIER}/pod2/c2", {"tasks": 1}))
    assert rig.host.text(born, "cpuset.cpus") == "1"
    tree |= {TIER: (POD, f"{TIER}/pod2"), f"{TIER}/pod2": (born,), born: ()}
    adopted = rig.executor.adopt_inherited(_paths(tree), rig.clock.at_s)
    assert {str(path) for path, _ in adopted} == {f"{TIER}/pod2", born}
    assert "adopted" in rig.events()
    rig.restore_all()
    assert {rig.host.text(path, "cpuset.cpus") for path in tree} == {"0-3"}


def test_H05_a_set_that_was_pinned_before_us_is_no_copy_of_ours(tmp_path: Path) -> None:
    rig = make(tmp_path)
    rig.host.set_text(APP, "cpuset.cpus", "1")
    rig.host.set_text(POD, "cpuset.cpus", "1")
    tree = {TIER: (POD,), POD: (APP,), APP: ()}
    plan = tuple(want(path, CPUS, cpus(1)) for path in tree)
    rig.executor.adopt_inherited(_paths(tree), rig.clock.at_s)
    rig.tick(*plan)
    assert rig.executor.adopt_inherited(_paths(tree), rig.clock.at_s) == ()
    rig.tick(*plan)
    rig.restore_all()
    assert rig.host.text(TIER, "cpuset.cpus") == "0-3"
    assert rig.host.text(POD, "cpuset.cpus") == "1"
    assert rig.host.text(APP, "cpuset.cpus") == "1"


def test_H05_a_copy_that_is_in_the_way_of_the_next_value_is_no_wish_either(
    tmp_path: Path,
) -> None:
    rig = make(tmp_path)
    rig.tick(*(want(path, CPUS, cpus(1)) for path in (TIER, POD, APP)))
    born = str(rig.host.make(f"{TIER}/pod2/c2", {"tasks": 1}))  # copies 1, nobody saw it yet
    rig.tick(*(want(path, CPUS, cpus(2)) for path in (TIER, POD, APP)))
    assert rig.host.text(born, "cpuset.cpus") == "2"
    rig.restore_all()
    assert rig.host.text(born, "cpuset.cpus") == "0-3"
    assert rig.host.text(f"{TIER}/pod2", "cpuset.cpus") == "0-3"


def test_H05_nothing_is_adopted_on_v2_where_empty_means_inherit(tmp_path: Path) -> None:
    rig = make(tmp_path, "v2")
    rig.tick(want(TIER, CPUS, cpus(1)))
    assert rig.executor.adopt_inherited(_paths({TIER: (POD,)}), rig.clock.at_s) == ()


def _paths(tree: dict[str, tuple[str, ...]]) -> dict[CgroupPath, tuple[CgroupPath, ...]]:
    return {CgroupPath(p): tuple(CgroupPath(c) for c in cs) for p, cs in tree.items()}


def test_H06_files_that_vanish_with_their_controller_close_their_rows(tmp_path: Path) -> None:
    rig = make(tmp_path, "v2")
    rig.tick(want(POD, SHARES, 2))
    rig.host.delete_file(POD, "cpu.weight")  # systemd took the controller away at daemon-reload
    outcomes = rig.tick(want(POD, SHARES, 2))
    assert rig.review.gone == {key(POD, SHARES)}
    assert outcomes[key(POD, SHARES)].status is Status.UNSUPPORTED
    assert not rig.executor.owned()
    assert rig.restore_all() == {}


def test_OPS_05_what_is_switched_off_is_never_written_again(tmp_path: Path) -> None:
    rig = make(tmp_path)
    rig.tick(want(TIER, QUOTA, 50_000))
    rig.restore(key(TIER, QUOTA))
    rig.host.foreign_write(TIER, "cpu.cfs_quota_us", "70000")
    rig.written()
    for _ in range(5):
        rig.tick()
        rig.restore(key(TIER, QUOTA))
    assert rig.written() == []
    assert rig.host.text(TIER, "cpu.cfs_quota_us") == "70000"


def test_H09_under_static_the_original_comes_from_the_kubelet_now(tmp_path: Path) -> None:
    container = "ab" * 32
    state = {container: cpus(2, 3)}
    rig = make(
        tmp_path,
        tree={"kubepods": {"besteffort": {"pod1": {container: {"tasks": 1}}}}},
        cpuset_original=state.get,
    )
    path = f"{POD}/{container}"
    rig.tick(want(path, CPUS, cpus(0)))
    state[container] = cpus(1, 2)  # the kubelet gave CPU 3 away meanwhile
    outcome = rig.restore(key(path, CPUS))[key(path, CPUS)]
    assert outcome.status is Status.RESTORED
    assert rig.host.text(path, "cpuset.cpus") == "1-2"


def test_a_cpu_that_went_offline_is_left_out_of_a_restore(tmp_path: Path) -> None:
    rig = make(tmp_path)
    rig.tick(*(want(path, CPUS, cpus(1)) for path in (TIER, POD, APP)))
    for hierarchy in rig.host.files.hierarchies:
        hierarchy.online = cpus(0, 1, 2)
    rig.host.set_text("", "cpuset.cpus", "0-2")
    rig.host.set_text("kubepods", "cpuset.cpus", "0-2")
    outcomes = rig.restore_all()
    assert {o.status for o in outcomes.values()} == {Status.RESTORED}
    assert rig.host.text(TIER, "cpuset.cpus") == "0-2"


def test_a_gone_cgroup_closes_its_rows(tmp_path: Path) -> None:
    rig = make(tmp_path)
    rig.tick(want(POD, SHARES, 2), want(TIER, SHARES, 2))
    rig.host.remove(POD)
    outcomes = rig.tick(want(POD, SHARES, 2), want(TIER, SHARES, 2))
    assert outcomes[key(POD, SHARES)].status is Status.GONE
    assert rig.review.gone == {key(POD, SHARES)}
    assert set(rig.executor.owned()) == {key(TIER, SHARES)}
    assert len(rig.journal.rows()[0]) == 1


def test_a_recreated_cgroup_is_another_one(tmp_path: Path) -> None:
    rig = make(tmp_path)
    rig.tick(want(POD, SHARES, 2))
    rig.host.remove(POD)
    rig.host.make(POD, {"cpu.shares": "50"})
    outcomes = rig.tick(want(POD, SHARES, 2))
    assert rig.review.gone == {key(POD, SHARES)}
    assert outcomes[key(POD, SHARES)].status is Status.APPLIED
    assert rig.executor.owned()[key(POD, SHARES)].original == "50"


def test_a_recreated_cgroup_with_an_equal_value_is_found_within_four_looks(
    tmp_path: Path,
) -> None:
    rig = make(tmp_path)
    rig.tick(want(POD, SHARES, 2))
    rig.host.remove(POD)
    rig.host.make(POD, {"cpu.shares": "2"})
    for _ in range(4):
        rig.tick()
    assert not rig.executor.owned()


def test_OPS_01_an_absent_file_is_told_once_and_tried_once_a_minute(tmp_path: Path) -> None:
    pods: dict[str, CgroupTree] = {f"pod{number}": {} for number in range(5)}
    rig = make(tmp_path, tree={"kubepods": {"besteffort": pods}})
    for name in pods:
        rig.host.delete_file(f"{TIER}/{name}", "cpu.idle")
    plan = tuple(want(f"{TIER}/{name}", IDLE, 1) for name in pods)
    for _ in range(3):
        assert {o.status for o in rig.tick(*plan).values()} == {Status.UNSUPPORTED}
    assert rig.events() == ["unsupported"]
    assert [problem.code for problem in rig.executor.problems()] == ["knob-unsupported"]
    before = rig.host.files.reads
    rig.tick(*plan)
    assert rig.host.files.reads == before
    rig.host.set_text(f"{TIER}/pod0", "cpu.idle", "0")
    rig.clock.at_s += 60
    assert rig.tick(*plan)[key(f"{TIER}/pod0", IDLE)].status is Status.APPLIED


def test_a_write_that_the_kernel_cannot_do_marks_the_level(tmp_path: Path) -> None:
    rig = make(tmp_path)
    path = f"/sys/fs/cgroup/cpu/{POD}/cpu.idle"
    rig.host.files.fail(path, 95, on="write", times=1)
    assert rig.tick(want(POD, IDLE, 1))[key(POD, IDLE)].status is Status.UNSUPPORTED
    assert not rig.executor.owned()
    assert rig.tick(want(POD, IDLE, 1))[key(POD, IDLE)].status is Status.UNSUPPORTED
    assert rig.tick(want(TIER, IDLE, 1))[key(TIER, IDLE)].status is Status.APPLIED
    rig.clock.at_s += 60
    assert rig.tick(want(POD, IDLE, 1))[key(POD, IDLE)].status is Status.APPLIED


def test_V1_07_a_refused_limit_names_the_usage_and_is_not_hammered(tmp_path: Path) -> None:
    rig = make(tmp_path)
    limit = Knob.MEMORY_LIMIT
    rig.host.set_memory(APP, 1 << 20)
    path = f"/sys/fs/cgroup/memory/{APP}/memory.limit_in_bytes"
    rig.host.files.fail(path, 16, on="write")
    wish = want(APP, limit, 200 << 20)
    tried = []
    for _ in range(8):
        outcome = rig.tick(wish)[key(APP, limit)]
        assert outcome.status is Status.REFUSED
        assert f"usage is {1 << 20} bytes" in outcome.why
        tried.append(len(rig.host.files.refused))
    assert tried == [1, 2, 2, 3, 3, 3, 3, 4]


def test_H03_a_limit_is_never_lowered_below_usage_and_a_margin(tmp_path: Path) -> None:
    rig = make(tmp_path, "v2")
    rig.host.set_memory(APP, 303 << 20)
    limit = Knob.MEMORY_LIMIT
    outcome = rig.tick(want(APP, limit, 100 << 20))[key(APP, limit)]
    assert outcome.status is Status.PENDING
    assert "would kill" in outcome.why
    assert rig.host.text(APP, "memory.current") == str(303 << 20)
    rig.host.set_memory(APP, 20 << 20)
    assert rig.tick(want(APP, limit, 100 << 20))[key(APP, limit)].status is Status.APPLIED


def test_H03_nor_by_a_restore(tmp_path: Path) -> None:
    rig = make(tmp_path, "v2")
    limit = Knob.MEMORY_LIMIT
    rig.host.set_text(APP, "memory.max", str(100 << 20))
    rig.tick(want(APP, limit, 500 << 20))
    rig.host.set_memory(APP, 303 << 20)
    assert rig.restore_all()[key(APP, limit)].status is Status.PENDING
    assert rig.host.group(APP, "memory.max").killed == 0
    rig.host.set_memory(APP, 20 << 20)
    assert rig.restore_all()[key(APP, limit)].status is Status.RESTORED


def test_H14_the_start_writes_a_bounded_number_a_tick(tmp_path: Path) -> None:
    pods = {f"pod{number:02}": {"c": {"tasks": 1}} for number in range(10)}
    rig = make(tmp_path, tree={"kubepods": {"besteffort": pods}}, start_writes=7)
    plan = [want(TIER, SHARES, 2), want(TIER, CPUS, cpus(1))]
    for name in pods:
        plan += [want(f"{TIER}/{name}", CPUS, cpus(1)), want(f"{TIER}/{name}/c", CPUS, cpus(1))]
    rig.tick(*plan)
    first = rig.written()
    assert len(first) == 7
    assert first[0] == (f"{TIER}/cpu.shares", "2")
    for _ in range(3):
        rig.tick(*plan)
    assert rig.host.text(TIER, "cpuset.cpus") == "1"
    rig.written()
    rig.tick(*(want(action.target, CPUS, cpus(2)) for action in plan[1:]))
    assert len(rig.written()) == 42  # no bound once a plan was whole in force


def test_OPS_05_dry_run_writes_nothing_not_even_a_journal(tmp_path: Path) -> None:
    host: FakeHost = fake_host(cgroups=KUBE)
    executor = Executor(host.cgroups(), None, HandClock(), dry_run=True)
    executor.review(1.0)
    plan = Plan(
        (
            want(TIER, QUOTA, 50_000),
            want(POD, IDLE, 1),
            want(APP, QUOTA, None, channel=Channel.SPEC, container_id="c1"),
        )
    )
    outcomes = {o.key: o for o in executor.apply(plan, 1.0)}
    assert outcomes[key(TIER, QUOTA)].status is Status.DRY_RUN
    assert outcomes[key(TIER, QUOTA)].after == "50000"
    assert host.files.writes == []
    assert list(tmp_path.iterdir()) == []
    assert executor.restore_all("stop", 2.0) == ()


def test_direction_ranks_free_writes(tmp_path: Path) -> None:
    rig = make(tmp_path)
    relax = want(TIER, SHARES, 4, direction=Direction.RELAX)
    rig.tick(relax, want(POD, SHARES, 2))
    assert [path for path, _ in rig.written()] == [f"{POD}/cpu.shares", f"{TIER}/cpu.shares"]
