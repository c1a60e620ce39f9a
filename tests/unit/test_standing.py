"""Standing orders: which mode holds for whom, and what was released."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.model.actions import Mode
from koordlet.model.paths import CgroupPath
from koordlet.standing import ALL, ModeOrder, ScopeError, Standing, Withheld, check_scope
from koordlet.state import StateStore, load_standing, save_standing

NOW_S = 1_000.0


def test_without_orders_every_strategy_enforces() -> None:
    assert Standing().mode_of("cpu_suppress", NOW_S) is Mode.ENFORCE


def test_H17_observe_for_one_strategy_leaves_the_other_enforcing() -> None:
    standing = Standing().with_mode(ModeOrder("cpu_suppress", Mode.OBSERVE, None))
    assert standing.mode_of("cpu_suppress", NOW_S) is Mode.OBSERVE
    assert standing.mode_of("be_priority", NOW_S) is Mode.ENFORCE


def test_H17_a_timed_order_ends_by_itself() -> None:
    standing = Standing().with_mode(ModeOrder("", Mode.OFF, NOW_S + 60))
    assert standing.mode_of("be_priority", NOW_S) is Mode.OFF
    assert standing.mode_of("be_priority", NOW_S + 60) is Mode.ENFORCE


def test_an_order_for_all_replaces_single_ones() -> None:
    one = Standing().with_mode(ModeOrder("be_priority", Mode.OFF, None))
    everyone = one.with_mode(ModeOrder("", Mode.ENFORCE, None))
    assert everyone.mode_of("be_priority", NOW_S) is Mode.ENFORCE


def test_a_strategys_own_order_wins_over_an_earlier_one_for_all() -> None:
    standing = Standing().with_mode(ModeOrder("", Mode.OBSERVE, None))
    standing = standing.with_mode(ModeOrder("be_priority", Mode.ENFORCE, None))
    assert standing.mode_of("be_priority", NOW_S) is Mode.ENFORCE
    assert standing.mode_of("cpu_suppress", NOW_S) is Mode.OBSERVE


def test_released_owners_only_observe_but_off_stays_off() -> None:
    standing = Standing().with_release("owner:cpu_suppress")
    assert standing.mode_of("cpu_suppress", NOW_S) is Mode.OBSERVE
    assert standing.mode_of("be_priority", NOW_S) is Mode.ENFORCE
    off = standing.with_mode(ModeOrder("cpu_suppress", Mode.OFF, None))
    assert off.mode_of("cpu_suppress", NOW_S) is Mode.OFF


def test_release_of_all_swallows_the_smaller_ones_and_resume_takes_it_back() -> None:
    standing = Standing().with_release("pod:u1").with_release("all")
    assert standing.released == ("all",)
    assert standing.without_release("").released == ()


@pytest.mark.parametrize("scope", ["", "pod", "pod:", "node:x", "ALL"])
def test_a_scope_that_names_nothing_is_refused(scope: str) -> None:
    with pytest.raises(ScopeError, match="use all, owner:NAME"):
        check_scope(scope)


def test_resume_of_what_is_not_released_says_what_is() -> None:
    with pytest.raises(ScopeError, match="pod:u1"):
        Standing().with_release("pod:u1").without_release("pod:u2")


def test_withheld_covers_a_pod_with_all_below_it_and_a_single_file() -> None:
    withheld = Withheld((CgroupPath("kubepods/besteffort/podu1"),), frozenset({"/x/cpu.shares"}))
    assert withheld.covers(CgroupPath("kubepods/besteffort/podu1/c1"), "")
    assert not withheld.covers(CgroupPath("kubepods/besteffort/podu11"), "")
    assert withheld.covers(CgroupPath("other"), "/x/cpu.shares")


def test_orders_survive_a_restart(tmp_path: Path) -> None:
    standing = Standing().with_mode(ModeOrder("be_priority", Mode.OBSERVE, 5.0))
    standing = standing.with_release("file:/sys/x")
    store = StateStore(tmp_path / "state" / "state.db")
    save_standing(store, standing)
    store.close()
    again = StateStore(tmp_path / "state" / "state.db")
    assert load_standing(again) == standing
    again.close()


def test_a_damaged_store_is_kept_aside_and_nothing_is_enforced_until_resumed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"no database at all, and longer than a header" * 100)
    store = StateStore(path)
    assert store.lost is not None and "koordletctl resume" in store.lost.remedy
    assert (tmp_path / "state.db.damaged-0").exists()
    assert load_standing(store).mode_of("be_priority", NOW_S) is Mode.OBSERVE
    store.close()
    again = StateStore(path)
    assert again.lost is None
    assert load_standing(again).released == ("all",)
    again.close()


def test_H15_a_disk_that_takes_no_file_keeps_orders_in_memory_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the directory belongs")
    store = StateStore(tmp_path / "state" / "state.db")
    assert store.unstored is not None
    assert store.lost is None
    assert load_standing(store) == Standing()
    save_standing(store, Standing().with_release(ALL))
    assert load_standing(store) == Standing().with_release(ALL)


def test_H15_orders_that_cannot_be_read_may_be_orders_to_stand_back(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.mkdir()
    store = StateStore(path)
    assert store.lost is store.unstored is not None
    assert load_standing(store) == Standing().with_release(ALL)


def test_H15_stored_orders_are_read_without_room_for_another_file(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = StateStore(path)
    save_standing(store, Standing().with_release("owner:x"))
    assert [each.name for each in tmp_path.iterdir()] == ["state.db"]
    store.close()
