"""The order of writes, as lists of steps."""

from __future__ import annotations

from koordlet.model.actions import Target
from koordlet.model.knobs import Direction, Knob
from koordlet.model.paths import CgroupPath
from koordlet.resexecutor.ordering import Change, amount, order

V1 = dict.fromkeys(Knob, 1)
V2 = dict.fromkeys(Knob, 2)
TIER, POD, APP = "be", "be/pod", "be/pod/app"


def change(path: str, knob: Knob, text: str, direction: Direction = Direction.RESTRICT) -> Change:
    return Change(CgroupPath(path), knob, text, direction)


def current(*entries: tuple[str, Knob, str]) -> dict[Target, str]:
    return {(CgroupPath(path), knob): text for path, knob, text in entries}


def steps(
    changes: list[Change], now: dict[Target, str], versions: dict[Knob, int] = V1
) -> list[tuple[str, str]]:
    return [(str(step.target), step.text) for step in order(changes, now, versions)]


def test_V2_03_every_spelling_of_no_limit_is_above_every_number() -> None:
    assert amount("max") == amount("-1") == amount("max 100000") == float("inf")
    assert amount("200000 100000") == 200_000


def test_CQ_05_burst_before_a_falling_quota_and_after_a_rising_one() -> None:
    quota, burst = Knob.CPU_QUOTA, Knob.CPU_BURST
    high = current((APP, quota, "160000"), (APP, burst, "160000"))
    fall = [change(APP, quota, "100000"), change(APP, burst, "100000")]
    assert [s.knob for s in order(fall, high, V1)] == [burst, quota]
    low = current((APP, quota, "100000"), (APP, burst, "100000"))
    rise = [change(APP, burst, "160000"), change(APP, quota, "160000")]
    assert [s.knob for s in order(rise, low, V2)] == [quota, burst]


def test_CQ_06_quota_raised_from_the_top_and_lowered_from_the_bottom() -> None:
    quota = Knob.CPU_QUOTA
    now = current((POD, quota, "400000"), (APP, quota, "400000"))
    down = [change(POD, quota, "200000"), change(APP, quota, "200000")]
    assert steps(down, now) == [(APP, "200000"), (POD, "200000")]
    up = [change(APP, quota, "500000"), change(POD, quota, "500000")]
    assert steps(up, now) == [(POD, "500000"), (APP, "500000")]


def test_H04_a_child_is_lifted_before_its_tier_is_lowered() -> None:
    quota = Knob.CPU_QUOTA
    now = current((TIER, quota, "-1"), (APP, quota, "100000"))
    changes = [change(TIER, quota, "30000"), change(APP, quota, "-1")]
    assert steps(changes, now) == [(APP, "-1"), (TIER, "30000")]


def test_a_v1_cpuset_goes_over_the_union() -> None:
    cpus = Knob.CPUSET_CPUS
    now = current((TIER, cpus, "0-1"), (POD, cpus, "0-1"))
    changes = [change(POD, cpus, "1-2"), change(TIER, cpus, "1-2")]
    assert steps(changes, now) == [
        (TIER, "0-2"),
        (POD, "0-2"),
        (POD, "1-2"),
        (TIER, "1-2"),
    ]
    marks = [step.final for step in order(changes, now, V1)]
    assert marks == [False, False, True, True]


def test_a_v1_cpuset_that_only_grows_or_shrinks_is_written_once() -> None:
    cpus = Knob.CPUSET_CPUS
    now = current((TIER, cpus, "0-1"), (POD, cpus, "0-1"))
    grow = [change(POD, cpus, "0-3"), change(TIER, cpus, "0-3")]
    assert steps(grow, now) == [(TIER, "0-3"), (POD, "0-3")]
    shrink = [change(TIER, cpus, "1"), change(POD, cpus, "1")]
    assert steps(shrink, now) == [(POD, "1"), (TIER, "1")]


def test_a_v2_cpuset_is_written_once() -> None:
    cpus = Knob.CPUSET_CPUS
    now = current((TIER, cpus, "0-1"), (POD, cpus, "0-1"))
    changes = [change(POD, cpus, "1-2"), change(TIER, cpus, "1-2")]
    assert steps(changes, now, V2) == [(TIER, "1-2"), (POD, "1-2")]


def test_CS_22_only_what_is_asked_for_is_written() -> None:
    now = current((APP, Knob.CPUSET_CPUS, "0-3"))
    assert steps([change(APP, Knob.CPUSET_CPUS, "2-3")], now) == [(APP, "2-3")]


def test_H02_idle_ends_before_the_weight_and_begins_after_it() -> None:
    idle, shares = Knob.CPU_IDLE, Knob.CPU_SHARES
    idling = current((POD, idle, "1"), (POD, shares, "3"))
    ends = order([change(POD, shares, "512"), change(POD, idle, "0")], idling, V1)
    assert [(s.knob, s.text) for s in ends] == [(idle, "0"), (shares, "512")]
    plain = current((POD, idle, "0"), (POD, shares, "512"))
    begins = order([change(POD, idle, "1"), change(POD, shares, "2")], plain, V1)
    assert [(s.knob, s.text) for s in begins] == [(shares, "2"), (idle, "1")]


def test_H02_the_weight_is_written_after_idle_even_if_it_reads_the_same() -> None:
    idle, shares = Knob.CPU_IDLE, Knob.CPU_SHARES
    idling = current((POD, idle, "1"), (POD, shares, "3"))
    ends = order([change(POD, shares, "3"), change(POD, idle, "0")], idling, V1)
    assert [s.knob for s in ends] == [idle, shares]


def test_memory_and_swap_keep_their_order() -> None:
    limit, both = Knob.MEMORY_LIMIT, Knob.MEMORY_SWAP_LIMIT
    now = current((APP, limit, "200"), (APP, both, "400"))
    up = order([change(APP, limit, "500"), change(APP, both, "600")], now, V1)
    assert [s.knob for s in up] == [both, limit]
    down = order([change(APP, both, "100"), change(APP, limit, "100")], now, V1)
    assert [s.knob for s in down] == [limit, both]


def test_H30_weight_comes_first_and_H14_restrictions_before_relaxations() -> None:
    now = current(
        (TIER, Knob.CPU_SHARES, "1024"),
        (POD, Knob.CPU_SHARES, "1024"),
        (TIER, Knob.CPU_QUOTA, "-1"),
    )
    changes = [
        change(TIER, Knob.CPU_QUOTA, "5000"),
        change(TIER, Knob.CPU_SHARES, "4096", Direction.RELAX),
        change(POD, Knob.CPU_SHARES, "2"),
    ]
    assert steps(changes, now) == [(POD, "2"), (TIER, "5000"), (TIER, "4096")]


def test_H14_on_v2_a_lowered_quota_goes_before_raised_ones_the_tiers_first() -> None:
    now = current(
        (TIER, Knob.CPU_QUOTA, "max"), (POD, Knob.CPU_QUOTA, "max"), ("ls/pod", Knob.CPU_QUOTA, "1")
    )
    changes = [
        change("ls/pod", Knob.CPU_QUOTA, "max"),
        change(POD, Knob.CPU_QUOTA, "9000"),
        change(TIER, Knob.CPU_QUOTA, "5000"),
    ]
    ordered = order(changes, now, {Knob.CPU_QUOTA: 2})
    assert [(step.target, step.text) for step in ordered] == [
        (TIER, "5000"),
        (POD, "9000"),
        ("ls/pod", "max"),
    ]


def test_H02_a_weight_that_protects_goes_early_with_the_idle_that_hides_it() -> None:
    now = current(
        (TIER, Knob.CPU_IDLE, "1"),
        (TIER, Knob.CPU_SHARES, "3"),
        (POD, Knob.CPU_IDLE, "1"),
        (POD, Knob.CPU_QUOTA, "-1"),
    )
    changes = [
        change(POD, Knob.CPU_IDLE, "0", Direction.RELAX),
        change(POD, Knob.CPU_QUOTA, "5000"),
        change(TIER, Knob.CPU_IDLE, "0"),
        change(TIER, Knob.CPU_SHARES, "2"),
    ]
    assert steps(changes, now) == [(TIER, "0"), (TIER, "2"), (POD, "5000"), (POD, "0")]


def test_nothing_to_change_is_no_step() -> None:
    now = current((TIER, Knob.CPU_QUOTA, "-1"), (TIER, Knob.CPUSET_CPUS, "0-3"))
    same = [change(TIER, Knob.CPU_QUOTA, "-1"), change(TIER, Knob.CPUSET_CPUS, "0-3")]
    assert steps(same, now) == []
