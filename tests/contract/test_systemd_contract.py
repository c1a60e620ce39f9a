"""What koordlet relies on of systemd: held by the fake here, by a real one in a guest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.host.systemd import Systemd
from koordlet.host.unitowner import Fault, SystemdError, TakeBack, Taken
from koordlet.host.unitprops import IDLE_WEIGHT, PERIOD, UNSET, PropertyValue
from tests.support.unitground import FakeUnits, UnitGround

QUOTA = "CPUQuotaPerSecUSec"
NAMES = ("CPUWeight", QUOTA, PERIOD, "AllowedCPUs")
SOON_S = 5.0


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[UnitGround]:
    made = FakeUnits(tmp_path)
    yield made
    made.close()


@pytest.fixture
def systemd(ground: UnitGround) -> Iterator[Systemd]:
    client = ground.client(call_s=60.0)  # a guest is slow
    yield client
    client.hang_up()


def back(
    name: str,
    ours: PropertyValue,
    original: PropertyValue | None = UNSET,
    *,
    had_drop_in: bool = False,
) -> TakeBack:
    return TakeBack(name, original, had_drop_in, frozenset({ours}))


def taken_back(systemd: Systemd, unit: str, *wanted: TakeBack) -> Taken:
    taken = systemd.take_back(unit, wanted)
    if taken.wants_reload:
        systemd.reload()
    return taken


def reads(ground: UnitGround, unit: str, file: str, text: str | None) -> bool:
    """systemd answers first, and writes files in its next round."""
    deadline_s = time.monotonic() + SOON_S
    while time.monotonic() < deadline_s:
        if ground.text(unit, file) == text:
            return True
        time.sleep(0.02)
    return ground.text(unit, file) == text


def fault_of(systemd: Systemd, unit: str, values: dict[str, PropertyValue]) -> Fault:
    with pytest.raises(SystemdError) as caught:
        systemd.set(unit, values)
    return caught.value.fault


def test_a_unit_that_nobody_touched(ground: UnitGround, systemd: Systemd) -> None:
    unit = ground.service("koordtest-plain")
    state = systemd.state(unit, NAMES)
    assert state.control_group == f"/system.slice/{unit}"
    assert state.values == {
        "CPUWeight": UNSET,
        QUOTA: UNSET,
        PERIOD: UNSET,
        "AllowedCPUs": frozenset(),
    }
    assert set(state.drop_ins.values()) == {None}
    assert ground.text(unit, "cpu.max") is None


def test_a_unit_that_is_called_as_a_cgroup_file(ground: UnitGround, systemd: Systemd) -> None:
    unit = ground.service("cpuset")
    assert systemd.state(unit, NAMES).control_group == "/system.slice/_cpuset.service"


def test_H06_values_are_in_force_and_outlive_a_daemon_reload(
    ground: UnitGround, systemd: Systemd
) -> None:
    unit = ground.service("koordtest-set")
    systemd.set(unit, {QUOTA: 340_000, "CPUWeight": 1, "AllowedCPUs": frozenset({0, 1})})
    for _ in range(2):
        assert reads(ground, unit, "cpu.max", "34000 100000")
        assert reads(ground, unit, "cpu.weight", "1")
        assert reads(ground, unit, "cpuset.cpus", "0-1")
        ground.daemon_reload()
    says = systemd.state(unit, NAMES).drop_ins
    assert says == {QUOTA: "34%", "CPUWeight": "1", "AllowedCPUs": "0-1"}


def test_H02_a_daemon_reload_cuts_a_quota_to_whole_percents(
    ground: UnitGround, systemd: Systemd
) -> None:
    """Why it is rounded before it is set."""
    unit = ground.service("koordtest-round")
    systemd.set(unit, {QUOTA: 345_678})
    assert reads(ground, unit, "cpu.max", "34567 100000")
    ground.daemon_reload()
    assert reads(ground, unit, "cpu.max", "34000 100000")


def test_H01_weight_idle_is_cpu_idle_and_outlives_a_daemon_reload(
    ground: UnitGround, systemd: Systemd
) -> None:
    unit = ground.service("koordtest-idle")
    systemd.set(unit, {"CPUWeight": IDLE_WEIGHT})
    for _ in range(2):
        assert reads(ground, unit, "cpu.idle", "1")
        assert reads(ground, unit, "cpu.weight", "0")
        ground.daemon_reload()
    systemd.set(unit, {"CPUWeight": 7})
    assert reads(ground, unit, "cpu.idle", "0")
    assert reads(ground, unit, "cpu.weight", "7")


@pytest.mark.parametrize("kind", ["service", "transient"])
def test_H06_undo_is_exact(ground: UnitGround, systemd: Systemd, kind: str) -> None:
    unit = getattr(ground, kind)(f"koordtest-undo-{kind}")
    before = ground.show(unit)
    ours: dict[str, PropertyValue] = {
        QUOTA: 300_000,
        "CPUWeight": IDLE_WEIGHT,
        "AllowedCPUs": frozenset({0}),
        "MemoryHigh": 1 << 30,
    }
    systemd.set(unit, ours)
    assert reads(ground, unit, "cpu.max", "30000 100000")
    assert ground.show(unit) != before
    originals: dict[str, PropertyValue] = {**dict.fromkeys(ours, UNSET), "AllowedCPUs": frozenset()}
    wanted = [back(name, value, originals[name]) for name, value in ours.items()]
    assert taken_back(systemd, unit, *wanted) == Taken(wants_reload=True)
    assert ground.show(unit) == before


def test_H06_values_of_the_units_own_file_come_back(ground: UnitGround, systemd: Systemd) -> None:
    """Also those that a drop-in could not say: parts of a percent."""
    unit = ground.service("koordtest-own", {"CPUQuota": "80.1%", "CPUWeight": "250"})
    before, state = ground.show(unit), systemd.state(unit, NAMES)
    assert (state.values[QUOTA], state.values["CPUWeight"]) == (801_000, 250)
    systemd.set(unit, {QUOTA: 300_000, "CPUWeight": 1})
    wanted = (back(QUOTA, 300_000, 801_000), back("CPUWeight", 1, 250))
    taken_back(systemd, unit, *wanted)
    assert ground.show(unit) == before
    assert reads(ground, unit, "cpu.max", "80100 100000")


def test_H06_a_drop_in_from_before_stays_as_it_was(ground: UnitGround, systemd: Systemd) -> None:
    unit = ground.service("koordtest-had")
    ground.set_property(unit, "CPUQuota", "50%")
    before = ground.show(unit)
    systemd.set(unit, {QUOTA: 300_000})
    wanted = back(QUOTA, 300_000, 500_000, had_drop_in=True)
    assert not taken_back(systemd, unit, wanted).wants_reload
    assert ground.show(unit) == before


def test_H07_what_an_administrator_set_is_left(ground: UnitGround, systemd: Systemd) -> None:
    unit = ground.service("koordtest-foreign")
    systemd.set(unit, {QUOTA: 300_000})
    ground.set_property(unit, "CPUQuota", "70%")
    before = ground.show(unit)
    assert taken_back(systemd, unit, back(QUOTA, 300_000)).foreign == {QUOTA}
    assert ground.show(unit) == before


def test_H07_a_lasting_setting_hides_our_drop_in_which_leaves_all_the_same(
    ground: UnitGround, systemd: Systemd
) -> None:
    unit = ground.service("koordtest-lasting")
    systemd.set(unit, {QUOTA: 300_000})
    ground.set_property(unit, "CPUQuota", "70%", lasting=True)
    assert systemd.state(unit, NAMES).drop_ins[QUOTA] == "30%"
    assert taken_back(systemd, unit, back(QUOTA, 300_000)).foreign == {QUOTA}
    state = systemd.state(unit, NAMES)
    assert (state.values[QUOTA], state.drop_ins[QUOTA]) == (700_000, None)


def test_a_stopped_unit_keeps_its_drop_ins_until_they_are_taken_back(
    ground: UnitGround, systemd: Systemd
) -> None:
    unit = ground.service("koordtest-stopped")
    before = ground.show(unit)
    systemd.set(unit, {QUOTA: 300_000})
    ground.stop(unit)
    assert systemd.state(unit, NAMES).values[QUOTA] == 300_000
    taken_back(systemd, unit, back(QUOTA, 300_000))
    ground.start(unit)
    shown = ground.show(unit)
    assert [line for line in shown if "CPU" in line] == [line for line in before if "CPU" in line]
    assert reads(ground, unit, "cpu.max", None)


def test_a_unit_that_is_started_again_has_its_values(ground: UnitGround, systemd: Systemd) -> None:
    unit = ground.service("koordtest-again")
    systemd.set(unit, {QUOTA: 300_000})
    ground.stop(unit)
    ground.start(unit)
    assert reads(ground, unit, "cpu.max", "30000 100000")
    taken_back(systemd, unit, back(QUOTA, 300_000))


def test_a_transient_unit_takes_its_drop_ins_along(ground: UnitGround, systemd: Systemd) -> None:
    unit = ground.transient("koordtest-gone")
    systemd.set(unit, {QUOTA: 300_000})
    ground.stop(unit)
    assert taken_back(systemd, unit, back(QUOTA, 300_000)) == Taken(is_gone=True)


def test_there_is_no_such_unit(ground: UnitGround, systemd: Systemd) -> None:
    assert fault_of(systemd, "koordtest-none.service", {"CPUWeight": 1}) is Fault.NO_UNIT
    with pytest.raises(SystemdError) as caught:
        systemd.state("koordtest-none.service", NAMES)
    assert caught.value.fault is Fault.NO_UNIT


@pytest.mark.parametrize("values", [{"CPUWeight": 20_000}, {QUOTA: 0}])
def test_a_value_out_of_range_is_refused(
    ground: UnitGround, systemd: Systemd, values: dict[str, PropertyValue]
) -> None:
    unit = ground.service("koordtest-range")
    assert fault_of(systemd, unit, values) is Fault.REFUSED


def test_a_property_of_another_type_is_refused(ground: UnitGround, systemd: Systemd) -> None:
    unit = ground.service("koordtest-type")
    assert fault_of(systemd, unit, {"CPUWeight": frozenset({1})}) is Fault.REFUSED
