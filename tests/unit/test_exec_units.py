"""Values of systemd's units: asked of systemd, kept by it, given back with every trace (H6)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.host.systemd import Systemd
from koordlet.host.unitprops import UNSET
from koordlet.model.actions import Outcome, Plan, SetValue, Status, Target
from koordlet.model.knobs import Channel, Knob
from koordlet.resexecutor.journal import Journal
from koordlet.resexecutor.rollback import RollbackHost, RollbackOptions, RollbackReport, rollback
from koordlet.resexecutor.unitrows import Original
from koordlet.resexecutor.unitthread import UnitOrder, UnitResult, UnitThread
from tests.support.execrig import BOOT, Rig, cpus, key, want
from tests.support.fakehost import FakeHost, fake_host
from tests.support.fakesystemd import FakeSystemd, Refused

PATH = "system.slice/batch.service"
UNIT = "batch.service"
QUOTA, WEIGHT, IDLE, CPUS = Knob.CPU_QUOTA, Knob.CPU_SHARES, Knob.CPU_IDLE, Knob.CPUSET_CPUS
PER_S = "CPUQuotaPerSecUSec"
LIMIT = want(PATH, QUOTA, 30_000)
LOWEST = want(PATH, WEIGHT, 2)
IDLES = want(PATH, IDLE, 1)


class Units:
    """An executor over a fake host with a fake systemd."""

    def __init__(self, host: FakeHost, directory: Path) -> None:
        self.host = host
        self.directory = directory
        self.systemd = FakeSystemd(directory, host)
        self.systemd.add(UNIT)
        self.rig = Rig(host, directory, units=self.thread())

    def thread(self) -> UnitThread:
        client = Systemd(**self.systemd.client_options(), call_s=2.0)
        return UnitThread(client, self.host.cgroups())

    def restart(self) -> None:
        self.rig.options["units"] = self.thread()
        self.rig.restart()

    def tick(self, *writes: SetValue) -> dict[Target, Outcome]:
        """A tick, after which systemd has had the time to answer; what came late counts most."""
        rig = self.rig
        rig.clock.at_s += 1.0
        rig.review = rig.executor.review(rig.clock.at_s)
        outcomes = rig.executor.apply(Plan(writes), rig.clock.at_s)
        rig.executor._units.wait_idle()
        told = sorted(outcomes, key=lambda outcome: outcome.status is not Status.UNCHANGED)
        return {outcome.key: outcome for outcome in told}

    def settle(self, *writes: SetValue) -> dict[Target, Outcome]:
        """Ticks until ``writes`` are in force or refused: ask, set, see."""
        for _ in range(4):
            outcomes = self.tick(*writes)
        return outcomes

    def restore(self, *keys: Target) -> dict[Target, Outcome]:
        self.rig.restore(*keys)
        self.rig.executor._units.wait_idle()
        return self.tick()

    def property(self, name: str) -> object:
        return self.systemd.units[UNIT].values[name]

    def text(self, file: str) -> str:
        return self.host.text(PATH, file)

    def rollback(self) -> RollbackReport:
        self.rig.crash()
        host = RollbackHost(self.host.cgroups(), BOOT, "/", (7, 7), self.thread())
        options = RollbackOptions(lock_dir=self.directory / "locks")
        return rollback(self.rig.path.parent, host, self.rig.clock, options=options)


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Units]:
    monkeypatch.setattr(
        "koordlet.resexecutor.rollback.journal_path", lambda run: run / "journal.db"
    )
    made = Units(fake_host("v2", systemd=True, cpus="0-3"), tmp_path)
    yield made
    made.rig.executor._units.stop(5.0)
    made.systemd.close()


def test_H06_a_unit_is_asked_about_then_set_then_seen(units: Units) -> None:
    target = LIMIT.key
    first = units.tick(LIMIT)[target]
    assert (first.status, first.why) == (Status.PENDING, f"systemd is asked about {UNIT}")
    second = units.tick(LIMIT)[target]
    assert (second.status, second.why) == (Status.PENDING, "asked systemd")
    assert units.property(PER_S) == 300_000
    applied = units.tick(LIMIT)[target]
    assert (applied.status, applied.before, applied.after) == (Status.APPLIED, "max", "30000")
    assert units.tick(LIMIT)[target].status is Status.UNCHANGED
    assert units.rig.written() == []


def test_H06_the_journal_has_the_property_before_it_is_set(units: Units) -> None:
    units.systemd.refusals["SetUnitProperties"] = Refused("org.freedesktop.X", "no")
    units.tick(LIMIT)
    units.tick(LIMIT)
    (row,) = units.rig.journal.rows()[0]
    assert (row.channel, row.original) == (Channel.UNIT, "max")
    assert "30000" in row.may_write
    assert row.properties == (
        Original(PER_S, UNSET, False),
        Original("CPUQuotaPeriodUSec", UNSET, False),
    )


def test_H02_a_quota_is_in_force_as_systemd_rounds_it(units: Units) -> None:
    odd = want(PATH, QUOTA, 34_567)
    units.settle(odd)
    assert units.property(PER_S) == 350_000
    assert units.text("cpu.max") == "35000 100000"
    assert units.tick(odd)[odd.key].status is Status.UNCHANGED
    units.systemd.daemon_reload()
    assert units.tick(odd)[odd.key].status is Status.UNCHANGED
    assert units.rig.review.resets == frozenset()


def test_CQ_12_daemon_reload_takes_nothing_away(units: Units) -> None:
    wanted = (LIMIT, LOWEST, want(PATH, CPUS, cpus(0, 1)))
    units.settle(*wanted)
    units.systemd.daemon_reload()
    assert {o.status for o in units.tick(*wanted).values()} == {Status.UNCHANGED}
    assert (units.text("cpu.max"), units.text("cpu.weight")) == ("30000 100000", "1")
    assert units.text("cpuset.cpus") == "0-1"


def test_H01_idle_is_a_weight_and_hides_the_other_one(units: Units) -> None:
    outcomes = units.settle(LOWEST, IDLES)
    assert units.property("CPUWeight") == 0
    assert (units.text("cpu.idle"), units.text("cpu.weight")) == ("1", "0")
    assert {o.status for o in outcomes.values()} == {Status.UNCHANGED}
    units.restore(IDLES.key)
    assert units.property("CPUWeight") == 1
    assert (units.text("cpu.idle"), units.text("cpu.weight")) == ("0", "1")
    units.restore(LOWEST.key)
    assert units.property("CPUWeight") == UNSET
    assert not units.rig.executor.owned()


def test_H01_idle_after_the_weight_knows_the_owners_weight(units: Units) -> None:
    units.systemd.units[UNIT].fragment = {"CPUWeight": 250}
    units.systemd.daemon_reload()
    before = units.systemd.show()
    units.settle(LOWEST)
    units.settle(LOWEST, IDLES)
    assert units.property("CPUWeight") == 0
    units.rig.restore_all()
    assert units.systemd.show() == before


def test_H06_restore_all_waits_for_systemd_and_leaves_no_trace(units: Units) -> None:
    before = units.systemd.show()
    units.settle(LIMIT, LOWEST, IDLES, want(PATH, CPUS, cpus(1)))
    outcomes = units.rig.restore_all()
    assert {o.status for o in outcomes.values()} == {Status.RESTORED}
    assert units.systemd.show() == before
    assert units.rig.journal.rows() == ((), ())
    assert units.systemd.reloads == 1


def test_H06_rollback_without_a_daemon_leaves_no_trace(units: Units) -> None:
    before = units.systemd.show()
    units.settle(LIMIT, LOWEST)
    report = units.rollback()
    assert {o.status for o in report.outcomes} == {Status.RESTORED}
    assert report.is_as_before
    assert units.systemd.show() == before


@pytest.mark.parametrize("ticks", [1, 2, 3])
def test_H06_rollback_after_a_kill_at_any_step(units: Units, ticks: int) -> None:
    before = units.systemd.show()
    for _ in range(ticks):
        units.rig.tick(LIMIT, LOWEST)
        units.rig.executor._units.wait_idle()
    report = units.rollback()
    assert report.is_as_before
    assert units.systemd.show() == before


def test_H16_a_new_process_takes_a_units_values_over(units: Units) -> None:
    before = units.systemd.show()
    units.settle(LIMIT)
    sets = units.systemd.calls.count("SetUnitProperties")
    units.restart()
    assert units.tick(LIMIT)[LIMIT.key].status is Status.UNCHANGED
    assert units.systemd.calls.count("SetUnitProperties") == sets
    units.rig.restore_all()
    assert units.systemd.show() == before


def test_H06_without_systemd_a_rollback_says_so_and_keeps_the_row(units: Units) -> None:
    units.settle(LIMIT)
    units.systemd.close()
    Path(units.systemd.socket_path).unlink()
    report = units.rollback()
    (outcome,) = report.outcomes
    assert outcome.status is Status.REFUSED
    assert "private" in outcome.why
    assert not report.is_as_before
    journal = Journal.open(units.rig.path, boot_id=BOOT, managed_root="/").journal
    assert len(journal.rows()[0]) == 1
    journal.close()


def test_rows_of_another_boot_are_void(units: Units) -> None:
    units.settle(LIMIT)
    units.rig.crash()
    journal = Journal.open(units.rig.path, boot_id="boot-2", managed_root="/").journal
    assert journal.rows() == ((), ())
    journal.close()


# -- others ---------------------------------------------------------------------------------------


def test_H07_an_owners_new_value_becomes_the_original(units: Units) -> None:
    units.settle(LIMIT)
    units.systemd.set_property(UNIT, {PER_S: 700_000})
    wish = units.systemd.show()
    units.tick(LIMIT)
    assert units.rig.review.rebased == {LIMIT.key}
    assert units.rig.executor.owned()[LIMIT.key].original == "70000"
    units.settle(LIMIT)
    assert units.property(PER_S) == 300_000
    units.rig.restore_all()
    assert units.systemd.show() == wish


def test_H07_an_owners_lasting_value_leaves_no_drop_in_of_ours(units: Units) -> None:
    units.settle(LIMIT)
    units.systemd.set_for_good(UNIT, PER_S, 700_000)
    units.tick(LIMIT)
    assert units.rig.review.rebased == {LIMIT.key}
    units.rig.restore_all()
    assert units.property(PER_S) == 700_000
    assert not list(units.systemd.units_dir.rglob("*.conf"))


def test_H07_a_reset_is_put_back(units: Units) -> None:
    units.settle(LIMIT)
    units.systemd.set_property(UNIT, {PER_S: UNSET})
    units.tick(LIMIT)
    assert units.rig.review.resets == {LIMIT.key}
    units.settle(LIMIT)
    assert units.property(PER_S) == 300_000


def test_H07_a_weight_set_while_idle_is_in_force(units: Units) -> None:
    units.settle(LOWEST, IDLES)
    units.systemd.set_property(UNIT, {"CPUWeight": 500})
    wish = units.systemd.show()
    units.settle(LOWEST, IDLES)
    assert units.property("CPUWeight") == 0
    units.rig.restore_all()
    assert units.systemd.show() == wish


def test_a_foreign_value_at_the_last_moment_is_not_overwritten(units: Units) -> None:
    """It comes between the decision and the call."""
    units.settle(LIMIT)
    other = want(PATH, QUOTA, 50_000)
    order = UnitOrder(
        path=other.target,
        unit=UNIT,
        values={PER_S: 500_000},
        take_back=(),
        texts={QUOTA: "50000"},
        before={QUOTA: "30000"},
    )
    units.systemd.set_property(UNIT, {PER_S: 700_000})
    thread = units.thread()
    thread.submit(order)
    thread.wait_idle(5.0)
    (result,) = thread.drain()
    assert isinstance(result, UnitResult)
    assert result.overtaken == "another writer made cpu.quota '70000' this moment"
    assert units.property(PER_S) == 700_000


def test_a_stopped_unit_keeps_no_value_for_its_next_start(units: Units) -> None:
    before = units.systemd.show()
    units.settle(LIMIT)
    units.systemd.stop(UNIT)
    assert units.tick(LIMIT)[LIMIT.key].status is Status.PENDING
    assert LIMIT.key in units.rig.executor.owned()
    units.restore(LIMIT.key)
    assert not units.rig.executor.owned()
    assert units.systemd.show() == before


def test_a_unit_that_is_started_again_has_its_values(units: Units) -> None:
    units.settle(LIMIT)
    units.systemd.stop(UNIT)
    units.systemd.start(UNIT)
    assert units.tick(LIMIT)[LIMIT.key].status is Status.UNCHANGED
    assert units.text("cpu.max") == "30000 100000"


def test_a_transient_unit_that_ended_is_gone(units: Units) -> None:
    run = "system.slice/run-u7.scope"
    limit = want(run, QUOTA, 30_000)
    units.systemd.add("run-u7.scope", transient=True)
    units.settle(limit)
    assert units.host.text(run, "cpu.max") == "30000 100000"
    units.systemd.stop("run-u7.scope")
    units.rig.restore(limit.key)
    units.rig.executor._units.wait_idle()
    assert units.tick()[limit.key].status is Status.GONE
    assert not units.rig.executor.owned()


# -- no -------------------------------------------------------------------------------------------


def test_a_refusal_is_told_and_not_hammered(units: Units) -> None:
    units.systemd.refusals["SetUnitProperties"] = Refused(
        "org.freedesktop.DBus.Error.AccessDenied", "Access denied"
    )
    units.settle(LIMIT)
    outcome = units.tick(LIMIT)[LIMIT.key]
    assert outcome.status is Status.REFUSED
    assert "Access denied" in outcome.why
    assert units.systemd.calls.count("SetUnitProperties") <= 3
    (problem,) = units.rig.executor.problems()
    assert (problem.code, problem.where) == ("unit-refused", UNIT)


def test_H11_a_tick_never_waits_for_systemd(units: Units) -> None:
    units.tick(LIMIT)
    units.systemd.delays_s["SetUnitProperties"] = 1.0
    for _ in range(3):
        assert units.rig.tick(LIMIT)[LIMIT.key].status is Status.PENDING
    assert units.rig.executor.pending() == {LIMIT.key}
    units.rig.executor._units.wait_idle()
    assert units.tick(LIMIT)[LIMIT.key].status is Status.APPLIED


def test_H11_a_set_that_was_given_up_may_come_and_is_taken_back(
    units: Units, tmp_path: Path
) -> None:
    client = Systemd(**units.systemd.client_options(), call_s=0.2)
    units.rig.options["units"] = UnitThread(client, units.host.cgroups())
    units.rig.restart()
    before = units.systemd.show()
    units.tick(LIMIT)
    units.systemd.delays_s["SetUnitProperties"] = 0.5
    units.tick(LIMIT)
    assert units.tick(LIMIT)[LIMIT.key].status in (Status.REFUSED, Status.APPLIED)
    assert LIMIT.key in units.rig.executor.owned()
    units.systemd.delays_s.clear()
    for _ in range(3):
        units.rig.restore_all()
    assert units.systemd.show() == before


def test_a_burst_has_no_property(units: Units) -> None:
    burst = want(PATH, Knob.CPU_BURST, 1_000)
    outcome = units.tick(burst)[burst.key]
    assert outcome.status is Status.UNSUPPORTED
    assert outcome.why == "systemd has no property for cpu.burst on cgroup v2"


def test_a_unit_whose_cgroup_lies_elsewhere_is_refused(units: Units) -> None:
    units.host.make("other.slice/batch.service")
    other = want("other.slice/batch.service", QUOTA, 30_000)
    outcome = units.settle(other)[other.key]
    assert outcome.status is Status.REFUSED
    assert "its cgroup is /system.slice/batch.service" in outcome.why
    assert not units.rig.executor.owned()


# -- by file --------------------------------------------------------------------------------------


def test_H06_what_is_not_delegated_is_not_written(units: Units) -> None:
    part = want(f"{PATH}/part", QUOTA, 30_000)
    units.host.make(f"{PATH}/part")
    outcome = units.tick(part)[part.key]
    assert outcome.status is Status.UNSUPPORTED
    assert "systemd has not delegated" in outcome.why


@pytest.mark.parametrize("name", ["user.delegate", "trusted.delegate"])
def test_H06_below_a_delegated_unit_files_are_written(units: Units, name: str) -> None:
    part = want(f"{PATH}/part", QUOTA, 30_000)
    units.host.make(f"{PATH}/part")
    units.host.files.attributes[f"/sys/fs/cgroup/{PATH}", name] = b"1"
    assert units.tick(part)[part.key].status is Status.APPLIED
    assert units.rig.written() == [(f"{PATH}/part/cpu.max", "30000")]
    assert units.rig.restore_all()[part.key].status is Status.RESTORED


def test_H06_kubepods_of_the_systemd_driver_is_written_by_file(units: Units) -> None:
    tier = "kubepods.slice/kubepods-besteffort.slice"
    units.host.make(tier)
    limit = want(tier, QUOTA, 30_000)
    assert units.tick(limit)[limit.key].status is Status.APPLIED
    assert units.rig.written() == [(f"{tier}/cpu.max", "30000")]


def test_without_systemd_the_same_name_is_anybodys(tmp_path: Path) -> None:
    rig = Rig(fake_host("v2", cgroups={"system.slice": {"batch.service": {}}}), tmp_path)
    assert rig.tick(LIMIT)[LIMIT.key].status is Status.APPLIED
    assert rig.executor.owned()[key(PATH, QUOTA)].channel is Channel.FILE


# -- cgroup v1 ------------------------------------------------------------------------------------


@pytest.fixture
def v1_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Units]:
    monkeypatch.setattr(
        "koordlet.resexecutor.rollback.journal_path", lambda run: run / "journal.db"
    )
    made = Units(fake_host("v1", systemd=True, cpus="0-3"), tmp_path)
    yield made
    made.rig.executor._units.stop(5.0)
    made.systemd.close()


def test_H06_on_v1_a_unit_is_governed_by_shares_and_quota(v1_units: Units) -> None:
    units = v1_units
    before = units.systemd.show()
    outcomes = units.settle(LIMIT, LOWEST)
    assert {o.status for o in outcomes.values()} == {Status.UNCHANGED}
    assert (units.text("cpu.shares"), units.text("cpu.cfs_quota_us")) == ("2", "30000")
    assert units.property("CPUShares") == 2
    units.systemd.daemon_reload()
    assert {o.status for o in units.tick(LIMIT, LOWEST).values()} == {Status.UNCHANGED}
    assert units.rollback().is_as_before
    assert units.systemd.show() == before


def test_on_v1_a_weight_of_the_owner_gives_way_and_comes_back(v1_units: Units) -> None:
    units = v1_units
    units.systemd.units[UNIT].fragment = {"CPUWeight": 250}
    units.systemd.daemon_reload()
    before = units.systemd.show()
    assert units.settle(LOWEST)[LOWEST.key].status is Status.UNCHANGED
    assert (units.property("CPUWeight"), units.property("CPUShares")) == (UNSET, 2)
    units.rig.restore_all()
    assert units.systemd.show() == before
    assert units.text("cpu.shares") == "2560"


@pytest.mark.parametrize("knob", [IDLE, CPUS])
def test_on_v1_systemd_has_neither_idle_nor_cpusets_for_units(v1_units: Units, knob: Knob) -> None:
    value = 1 if knob is IDLE else cpus(0)
    outcome = v1_units.settle(want(PATH, knob, value))[key(PATH, knob)]
    assert outcome.status is Status.UNSUPPORTED
    assert "no property" in outcome.why
