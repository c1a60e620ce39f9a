"""H14: originals that are known better than by their files."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from koordlet.host.cgroup import CgroupId
from koordlet.model.actions import Status
from koordlet.model.adoption import ADOPTED, Adoption, AdoptStatus
from koordlet.model.knobs import Channel, Knob
from koordlet.model.paths import CgroupPath
from koordlet.resexecutor.journal import Journal
from tests.support.execrig import BOOT, Rig, key, want
from tests.support.fakehost import FakeHost, fake_host

TIER = "kubepods/besteffort"
QUOTA = key(TIER, Knob.CPU_QUOTA)
MakeRig = Callable[..., Rig]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    host = fake_host("v1", cgroups={"kubepods": {"besteffort": {"pod1": {}}, "burstable": {}}})
    host.set_text(TIER, "cpu.cfs_quota_us", "50000")
    return Rig(host, tmp_path)


def entry(host: FakeHost, path: str = TIER, knob: Knob = Knob.CPU_QUOTA, **rest: str) -> Adoption:
    identity = host.cgroups().identity(CgroupPath(path), knob)
    assert isinstance(identity, CgroupId)
    return Adoption(
        CgroupPath(path),
        knob,
        rest.get("found", "50000"),
        rest.get("original", "-1"),
        "the kubelet gives tiers no quota",
        identity.ino,
    )


def adopt(rig: Rig, *entries: Adoption) -> list[AdoptStatus]:
    return [each.status for each in rig.executor.adopt(entries, rig.clock.now_s())]


def test_H14_an_original_is_journaled_and_nothing_else_is_written(rig: Rig) -> None:
    assert adopt(rig, entry(rig.host)) == [AdoptStatus.ADOPTED]
    assert rig.written() == []
    owned = rig.executor.owned()[QUOTA]
    assert (owned.owner, owned.original, owned.last_written) == (ADOPTED, "-1", "50000")
    assert owned.source == "the kubelet gives tiers no quota"
    (event,) = rig.executor.take_events()
    assert (event.kind, event.from_text, event.to_text) == ("adopted", "-1", "50000")
    assert "kubelet" in event.reason
    rows, bad = rig.journal.rows()
    assert [(row.key, row.original, row.source) for row in rows] == [
        (QUOTA, "-1", "the kubelet gives tiers no quota")
    ]
    assert bad == ()


def test_H14_it_comes_back_after_a_restart_and_goes_with_its_row(rig: Rig) -> None:
    adopt(rig, entry(rig.host))
    rig.restart()
    assert rig.executor.owned()[QUOTA].source == "the kubelet gives tiers no quota"
    assert rig.restore(QUOTA)[QUOTA].status is Status.RESTORED
    assert rig.host.text(TIER, "cpu.cfs_quota_us") == "-1"
    rig.tick(want(TIER, Knob.CPU_QUOTA, 70_000))
    rig.restart()
    assert rig.executor.owned()[QUOTA].source == ""


def test_H14_a_strategys_write_keeps_the_adopted_original(rig: Rig) -> None:
    adopt(rig, entry(rig.host))
    rig.tick(want(TIER, Knob.CPU_QUOTA, 70_000))
    owned = rig.executor.owned()[QUOTA]
    assert (owned.owner, owned.original, bool(owned.source)) == ("cpu_suppress", "-1", True)
    rig.restore_all()
    assert rig.host.text(TIER, "cpu.cfs_quota_us") == "-1"


def test_H07_the_owners_new_wish_replaces_an_adopted_original(rig: Rig) -> None:
    adopt(rig, entry(rig.host))
    rig.tick(want(TIER, Knob.CPU_QUOTA, 70_000))
    rig.host.foreign_write(TIER, "cpu.cfs_quota_us", "90000")
    rig.tick(want(TIER, Knob.CPU_QUOTA, 70_000))
    owned = rig.executor.owned()[QUOTA]
    assert (owned.original, owned.source) == ("90000", "")


def test_H14_the_original_of_a_governed_file_is_corrected_in_place(rig: Rig) -> None:
    rig.tick(want(TIER, Knob.CPU_QUOTA, 70_000))
    rig.written()
    assert adopt(rig, entry(rig.host)) == [AdoptStatus.ADOPTED]
    assert rig.written() == []
    owned = rig.executor.owned()[QUOTA]
    assert (owned.owner, owned.original, owned.last_written) == ("cpu_suppress", "-1", "70000")


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"found": "60000"}, AdoptStatus.CHANGED),
        ({"original": "50000"}, AdoptStatus.ALREADY),
        ({"original": "many"}, AdoptStatus.REFUSED),
        ({"knob": Knob.CPU_PERIOD}, AdoptStatus.REFUSED),
        ({"knob": Knob.IO_MAX}, AdoptStatus.REFUSED),
        ({"inode": 4}, AdoptStatus.GONE),
        ({"target": CgroupPath("kubepods/gone")}, AdoptStatus.GONE),
    ],
)
def test_H14_only_what_was_listed_is_adopted(
    rig: Rig, change: dict[str, object], status: AdoptStatus
) -> None:
    wanted = replace(entry(rig.host), **change)  # type: ignore[arg-type]
    if change.get("original") == "50000":
        wanted = replace(wanted, found="40000")
    assert adopt(rig, wanted) == [status]
    assert rig.executor.owned() == {}
    assert rig.events() == []


def test_H14_a_governed_file_with_yet_another_original_is_left(rig: Rig) -> None:
    rig.tick(want(TIER, Knob.CPU_QUOTA, 70_000))
    assert adopt(rig, entry(rig.host, found="60000")) == [AdoptStatus.CHANGED]
    assert rig.executor.owned()[QUOTA].original == "50000"


def test_H08_a_value_in_the_runtimes_spec_goes_back_through_the_runtime(rig: Rig) -> None:
    pod = entry(rig.host, f"{TIER}/pod1", found="-1", original="20000")
    rig.host.set_text(f"{TIER}/pod1", "cpu.cfs_quota_us", "-1")
    assert adopt(rig, replace(pod, channel=Channel.SPEC, container_id="c1")) == [
        AdoptStatus.ADOPTED
    ]
    outcomes = rig.restore(pod.key)
    assert outcomes[pod.key].status is Status.PENDING
    assert rig.runtime.asked == [("c1", Knob.CPU_QUOTA, 20_000)]


def test_H15_where_the_journal_takes_nothing_nothing_is_adopted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(rig.journal, "_put", full)
    assert adopt(rig, entry(rig.host)) == [AdoptStatus.REFUSED]
    assert rig.executor.owned() == {}


def test_H25_a_dry_run_adopts_nothing(tmp_path: Path) -> None:
    host = fake_host("v1", cgroups={"kubepods": {"besteffort": {"cpu.cfs_quota_us": "50000"}}})
    rig = Rig(host, tmp_path, dry_run=True)
    assert adopt(rig, entry(host)) == [AdoptStatus.REFUSED]
    assert rig.journal.rows() == ((), ())


def test_a_journal_of_an_older_version_is_read_and_taken_over(rig: Rig) -> None:
    rig.tick(want(TIER, Knob.CPU_QUOTA, 70_000))
    rig.crash()
    with sqlite3.connect(rig.path) as db:
        db.execute("DROP TABLE origins")
    old = Journal.read_only(rig.path, boot_id=BOOT)
    (row,) = old.rows()[0]
    assert row.source == ""
    old.close()
    rig.start()
    assert adopt(rig, entry(rig.host)) == [AdoptStatus.ADOPTED]


def test_H14_sources_of_rows_that_another_version_dropped_are_forgotten(rig: Rig) -> None:
    adopt(rig, entry(rig.host))
    rig.crash()
    with sqlite3.connect(rig.path) as db:
        db.execute("DELETE FROM rows")
    rig.start()
    rig.tick(want(TIER, Knob.CPU_QUOTA, 70_000))
    assert rig.executor.owned()[QUOTA].source == ""
