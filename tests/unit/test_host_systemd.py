"""The D-Bus client: values as they are asked for, exact undo, and every way to say no."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.host.mounts import Roots
from koordlet.host.systemd import Systemd
from koordlet.host.unitowner import (
    BUS_SOCKET,
    Fault,
    SystemdError,
    TakeBack,
    Taken,
    capability,
    no_systemd,
)
from koordlet.host.unitprops import UNSET
from koordlet.model.capabilities import Proof
from koordlet.model.readings import Missing
from tests.support.fakehost import fake_host
from tests.support.fakesystemd import FakeSystemd, Refused

BATCH = "batch.service"
NAMES = ("CPUWeight", "CPUQuotaPerSecUSec", "AllowedCPUs")
QUOTA = "CPUQuotaPerSecUSec"


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeSystemd]:
    made = FakeSystemd(tmp_path)
    made.add(BATCH)
    yield made
    made.close()


@pytest.fixture
def systemd(fake: FakeSystemd) -> Iterator[Systemd]:
    made = Systemd(**fake.client_options(), call_s=2.0)
    yield made
    made.hang_up()


def quota_back(had_drop_in: bool = False, original: int | None = UNSET) -> TakeBack:
    return TakeBack(QUOTA, original, had_drop_in, frozenset({300_000}))


def back(systemd: Systemd, unit: str, wanted: TakeBack) -> Taken:
    """Taken back to the end, as the thread does it."""
    taken = systemd.take_back(unit, [wanted])
    if taken.wants_reload:
        systemd.reload()
    return taken


def fault_of(call: object) -> Fault:
    assert callable(call)
    with pytest.raises(SystemdError) as caught:
        call()
    return caught.value.fault


def test_what_a_unit_is_like(fake: FakeSystemd, systemd: Systemd) -> None:
    fake.set_property(BATCH, {"AllowedCPUs": b"\x03"})
    state = systemd.state(BATCH, NAMES)
    assert state.control_group == f"/system.slice/{BATCH}"
    assert state.values == {"CPUWeight": UNSET, QUOTA: UNSET, "AllowedCPUs": frozenset({0, 1})}
    assert state.drop_ins == {"CPUWeight": None, QUOTA: None, "AllowedCPUs": "0-1"}
    assert systemd.version().startswith("252")


def test_a_property_that_an_older_systemd_lacks_is_left_out(
    fake: FakeSystemd, systemd: Systemd
) -> None:
    del fake.units[BATCH].values["AllowedCPUs"]
    assert set(systemd.state(BATCH, NAMES).values) == {"CPUWeight", QUOTA}


def test_several_properties_are_set_at_once(fake: FakeSystemd, systemd: Systemd) -> None:
    systemd.set(BATCH, {"CPUWeight": 0, QUOTA: 300_000, "AllowedCPUs": frozenset({1})})
    unit = fake.units[BATCH]
    assert (unit.values["CPUWeight"], unit.values[QUOTA]) == (0, 300_000)
    assert unit.values["AllowedCPUs"] == b"\x02"
    assert fake.calls.count("SetUnitProperties") == 1
    assert systemd.state(BATCH, NAMES).drop_ins["CPUWeight"] == "idle"


# -- taking back --------------------------------------------------------------------------------


def test_H06_taking_back_leaves_neither_value_nor_drop_in(
    fake: FakeSystemd, systemd: Systemd
) -> None:
    before = fake.show()
    systemd.set(BATCH, {QUOTA: 300_000})
    assert back(systemd, BATCH, quota_back()) == Taken(wants_reload=True)
    assert fake.show() == before
    assert not list(fake.units_dir.rglob("*.d"))
    assert fake.reloads == 1


def test_H06_a_drop_in_that_was_there_before_stays(fake: FakeSystemd, systemd: Systemd) -> None:
    fake.set_property(BATCH, {QUOTA: 500_000})
    before = fake.show()
    systemd.set(BATCH, {QUOTA: 300_000})
    back(systemd, BATCH, quota_back(had_drop_in=True, original=500_000))
    assert fake.show() == before
    assert fake.reloads == 0


def test_H06_a_value_of_the_units_own_file_comes_back(fake: FakeSystemd, systemd: Systemd) -> None:
    fake.add("own.service", fragment={QUOTA: 801_000})
    before = fake.show()
    systemd.set("own.service", {QUOTA: 300_000})
    back(systemd, "own.service", quota_back(original=801_000))
    assert fake.show() == before


def test_H06_taking_back_twice_changes_nothing(fake: FakeSystemd, systemd: Systemd) -> None:
    systemd.set(BATCH, {QUOTA: 300_000})
    back(systemd, BATCH, quota_back())
    before, calls = fake.show(), fake.calls.count("SetUnitProperties")
    back(systemd, BATCH, quota_back())
    assert fake.show() == before
    assert (fake.calls.count("SetUnitProperties"), fake.reloads) == (calls, 1)


def test_H06_a_drop_in_left_by_a_killed_undo_is_found(fake: FakeSystemd, systemd: Systemd) -> None:
    """Killed after the old value was set, before its drop-in was removed."""
    before = fake.show()
    systemd.set(BATCH, {QUOTA: 300_000})
    systemd.set(BATCH, {QUOTA: UNSET})
    back(systemd, BATCH, quota_back())
    assert fake.show() == before


def test_H07_a_value_of_somebody_else_is_left(fake: FakeSystemd, systemd: Systemd) -> None:
    systemd.set(BATCH, {QUOTA: 300_000})
    fake.set_property(BATCH, {QUOTA: 700_000})
    before = fake.show()
    assert back(systemd, BATCH, quota_back()).foreign == {QUOTA}
    assert fake.show() == before


def test_H07_our_drop_in_leaves_also_where_a_lasting_one_hides_it(
    fake: FakeSystemd, systemd: Systemd
) -> None:
    systemd.set(BATCH, {QUOTA: 300_000})
    fake.set_for_good(BATCH, QUOTA, 700_000)
    assert back(systemd, BATCH, quota_back()).foreign == {QUOTA}
    assert fake.units[BATCH].values[QUOTA] == 700_000
    assert not list(fake.units_dir.rglob("*.conf"))


def test_without_an_original_nothing_is_set(fake: FakeSystemd, systemd: Systemd) -> None:
    fake.set_property(BATCH, {QUOTA: 700_000})
    before = fake.show()
    assert back(systemd, BATCH, quota_back(original=None)).foreign == {QUOTA}
    assert fake.show() == before


def test_a_unit_that_is_gone_keeps_no_drop_in(fake: FakeSystemd, systemd: Systemd) -> None:
    systemd.set(BATCH, {QUOTA: 300_000})
    fake.stop(BATCH)
    del fake.units[BATCH]
    assert back(systemd, BATCH, quota_back()) == Taken(is_gone=True, wants_reload=True)
    assert not list(fake.units_dir.rglob("*.conf"))


def test_a_stopped_unit_is_given_its_value_back(fake: FakeSystemd, systemd: Systemd) -> None:
    before = fake.show()
    systemd.set(BATCH, {QUOTA: 300_000})
    fake.stop(BATCH)
    back(systemd, BATCH, quota_back())
    assert fake.show() == before


def test_a_transient_units_drop_ins_lie_elsewhere(fake: FakeSystemd, systemd: Systemd) -> None:
    fake.add("run-u7.scope", transient=True)
    before = fake.show()
    systemd.set("run-u7.scope", {QUOTA: 300_000})
    assert (fake.units_dir / "transient/run-u7.scope.d/50-CPUQuota.conf").exists()
    back(systemd, "run-u7.scope", quota_back())
    assert fake.show() == before


def test_a_drop_in_that_says_more_is_not_touched(fake: FakeSystemd, systemd: Systemd) -> None:
    path = fake.drop_in_dir(fake.units[BATCH]) / "50-CPUQuota.conf"
    path.parent.mkdir(parents=True)
    path.write_text("[Service]\nCPUQuota=30%\nNice=5\n")
    assert fault_of(lambda: systemd.state(BATCH, NAMES)) is Fault.REFUSED
    assert fault_of(lambda: back(systemd, BATCH, quota_back())) is Fault.REFUSED
    assert path.exists()


# -- no -----------------------------------------------------------------------------------------


def test_no_such_unit(systemd: Systemd) -> None:
    assert fault_of(lambda: systemd.state("none.service", NAMES)) is Fault.NO_UNIT
    assert fault_of(lambda: systemd.set("none.service", {"CPUWeight": 1})) is Fault.NO_UNIT


@pytest.mark.parametrize(
    "name",
    [
        "org.freedesktop.DBus.Error.AccessDenied",
        "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
        "org.freedesktop.DBus.Error.Timeout",
    ],
)
def test_a_refusal_says_what_was_refused(fake: FakeSystemd, systemd: Systemd, name: str) -> None:
    fake.refusals["SetUnitProperties"] = Refused(name, "Access denied")
    with pytest.raises(SystemdError, match=r"batch\.service: CPUWeight: Access denied") as caught:
        systemd.set(BATCH, {"CPUWeight": 1})
    assert caught.value.fault is Fault.REFUSED


def test_a_value_out_of_range_is_refused(systemd: Systemd) -> None:
    assert fault_of(lambda: systemd.set(BATCH, {"CPUWeight": 20_000})) is Fault.REFUSED


def test_H11_a_call_that_stalls_ends_at_its_time_limit(fake: FakeSystemd) -> None:
    fake.delays_s["SetUnitProperties"] = 1.0
    hasty = Systemd(**fake.client_options(), call_s=0.2)
    assert fault_of(lambda: hasty.set(BATCH, {"CPUWeight": 1})) is Fault.UNREACHABLE
    fake.delays_s.clear()
    assert hasty.version()
    hasty.hang_up()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"l\x02\x00\x01",
        b"X" * 64,
        b"l\x02\x00\x01" + b"\xff" * 60,
        b"l\x02\x00\x01" + b"\0" * 60,
    ],
)
def test_an_answer_that_is_none(fake: FakeSystemd, systemd: Systemd, said: bytes) -> None:
    fake.instead["Get"] = lambda connection: connection.sendall(said)
    assert fault_of(systemd.version) is Fault.UNREACHABLE


def test_a_property_of_the_wrong_type(fake: FakeSystemd, systemd: Systemd) -> None:
    fake.odd["CPUWeight"] = ("s", "heavy")
    assert fault_of(lambda: systemd.state(BATCH, NAMES)) is Fault.REFUSED


def test_a_socket_that_nobody_listens_on(tmp_path: Path) -> None:
    path = str(tmp_path / "private")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path)
        systemd = Systemd(path, f"{path}-bus", str(tmp_path), call_s=0.5)
        with pytest.raises(SystemdError, match=r"refused.*No such file"):
            systemd.version()


def test_a_socket_that_lets_nobody_in(tmp_path: Path) -> None:
    path = str(tmp_path / "private")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path)
        bound.listen()
        systemd = Systemd(path, f"{path}-bus", str(tmp_path), call_s=0.3)
        assert fault_of(systemd.version) is Fault.UNREACHABLE


# -- whether it is there ------------------------------------------------------------------------


def test_pid_1_says_whether_cgroups_are_systemds() -> None:
    roots = Roots()
    assert no_systemd(fake_host("v2", systemd=True).files, roots) == ""
    assert no_systemd(fake_host("v2").files, roots) == "PID 1 is not systemd (init)"
    host = fake_host("v2", systemd=True)
    host.files.remove("/run/systemd")
    assert "neither /run/systemd/private" in no_systemd(host.files, roots)
    host.files.put(BUS_SOCKET, "")
    assert no_systemd(host.files, roots) == ""


def test_the_capability_says_why_not() -> None:
    assert capability("", "252").usable
    assert capability("PID 1 is not systemd (init)", "252").proof is Proof.ABSENT
    refused = capability("", Missing("/run/systemd/private: Permission denied"))
    assert (refused.proof, refused.usable) == (Proof.REFUSED, False)
    assert "Permission denied" in refused.why
