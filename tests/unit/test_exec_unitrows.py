"""What the journal keeps of a unit's value, and what it refuses to take for it (H27)."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.host.systemd import Systemd
from koordlet.host.unitowner import Fault, TakeBack
from koordlet.host.unitprops import PERIOD, UNSET
from koordlet.model.knobs import Channel, Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.resexecutor.journal import Journal, Row
from koordlet.resexecutor.unitrows import Original, from_text, to_text
from koordlet.resexecutor.unitthread import UnitOrder, UnitResult, UnitThread
from tests.support.fakehost import fake_host
from tests.support.fakesystemd import FakeSystemd, Refused

PATH = CgroupPath("system.slice/batch.service")
PROPERTIES = (
    Original("CPUQuotaPerSecUSec", UNSET, False),
    Original(PERIOD, 10_000, False),
    Original("AllowedCPUs", frozenset({0, 3}), True),
    Original("CPUWeight", None, True),
)


def row(**changes: object) -> Row:
    fields: dict[str, object] = {
        "mount": "cpu@/sys/fs/cgroup",
        "path": PATH,
        "knob": Knob.CPU_QUOTA,
        "inode": 7,
        "original": "max",
        "may_write": frozenset({"30000"}),
        "last_written": "30000",
        "owner": "cpu_suppress",
        "channel": Channel.UNIT,
        "properties": PROPERTIES,
        **changes,
    }
    return Row(**fields)  # type: ignore[arg-type]


def test_properties_come_back_as_they_were() -> None:
    assert from_text(to_text(PROPERTIES)) == PROPERTIES
    assert to_text(()) == ""
    assert from_text("") == ()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"ExecStart": ["/bin/evil", false]}',
        '{"CPUWeight": ["1", false]}',
        '{"CPUWeight": [-1, false]}',
        '{"CPUWeight": [18446744073709551616, false]}',
        '{"CPUWeight": [true, false]}',
        '{"CPUWeight": [[1], false]}',
        '{"AllowedCPUs": [1, false]}',
        '{"AllowedCPUs": [["0"], false]}',
        '{"CPUWeight": [1]}',
        '{"CPUWeight": [1, 0]}',
        '{"CPUWeight": 1}',
        "{",
    ],
)
def test_H27_what_was_never_written_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        from_text(text)


def test_the_journal_has_them_beside_the_row_and_drops_them_with_it(tmp_path: Path) -> None:
    path = tmp_path / "run" / "journal.db"
    path.parent.mkdir(mode=0o700)
    journal = Journal.open(path, boot_id="b", managed_root="/").journal
    journal.begin([row()])
    assert journal.rows() == ((row(),), ())
    journal.close()
    journal = Journal.open(path, boot_id="b", managed_root="/").journal
    assert journal.rows()[0][0].properties == PROPERTIES
    journal.finish([], [(PATH, Knob.CPU_QUOTA)])
    journal.begin([row(channel=Channel.FILE, properties=())])
    assert journal.rows()[0][0].properties == ()
    journal.close()


# -- orders ---------------------------------------------------------------------------------------


def order(**changes: object) -> UnitOrder:
    fields: dict[str, object] = {
        "path": PATH,
        "unit": "batch.service",
        "values": {},
        "take_back": (),
        "texts": {},
        "before": {},
        **changes,
    }
    return UnitOrder(**fields)  # type: ignore[arg-type]


def test_of_two_orders_for_a_unit_the_later_counts() -> None:
    first = order(
        values={"CPUWeight": 1, "CPUQuotaPerSecUSec": 300_000},
        texts={Knob.CPU_SHARES: "1", Knob.CPU_QUOTA: "30000"},
        before={Knob.CPU_SHARES: "100", Knob.CPU_QUOTA: "max"},
    )
    later = order(
        values={"CPUQuotaPerSecUSec": 500_000},
        texts={Knob.CPU_QUOTA: "50000"},
        before={Knob.CPU_QUOTA: "30000"},
    )
    both = first.then(later)
    assert both.values == {"CPUWeight": 1, "CPUQuotaPerSecUSec": 500_000}
    assert both.texts == {Knob.CPU_SHARES: "1", Knob.CPU_QUOTA: "50000"}
    assert both.before == {Knob.CPU_SHARES: "100", Knob.CPU_QUOTA: "max"}


def test_what_is_taken_back_later_is_not_set_before_and_the_other_way_round() -> None:
    back = TakeBack("CPUWeight", UNSET, False, frozenset({1}))
    setting = order(values={"CPUWeight": 1})
    taking = order(take_back=(back,))
    assert setting.then(taking).values == {}
    assert setting.then(taking).take_back == (back,)
    assert taking.then(setting).values == {"CPUWeight": 1}
    assert taking.then(setting).take_back == ()


def test_a_result_without_a_fault_is_one_that_worked() -> None:
    assert UnitResult(PATH, {}).fault is None
    assert UnitResult(PATH, {}, Fault.REFUSED, "no").why == "no"


# -- the thread -----------------------------------------------------------------------------------


def test_a_systemd_that_did_not_answer_is_asked_again(tmp_path: Path) -> None:
    host = fake_host("v2", systemd=True)
    fake = FakeSystemd(tmp_path, host)
    thread = UnitThread(Systemd(**fake.client_options()), host.cgroups())
    fake.refusals["Get"] = Refused("org.freedesktop.DBus.Error.AccessDenied", "Access denied")
    thread.begin()
    thread.wait_idle(5.0)
    assert isinstance(thread.version, Missing)
    fake.refusals.clear()
    thread.ask_version()
    thread.wait_idle(5.0)
    assert str(thread.version) == "252.39-1~deb12u1"
    thread.stop(5.0)
    fake.close()


def test_H11_a_thread_that_hangs_in_a_call_says_for_how_long(tmp_path: Path) -> None:
    host = fake_host("v2", systemd=True)
    fake = FakeSystemd(tmp_path, host)
    fake.delays_s["Get"] = 0.5
    thread = UnitThread(Systemd(**fake.client_options()), host.cgroups())
    thread.begin()
    assert not thread.wait_idle(0.1)
    assert thread.busy_s() > 0
    assert thread.wait_idle(5.0)
    assert thread.busy_s() == 0
    thread.stop(5.0)
    fake.close()
