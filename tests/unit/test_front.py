"""The front's parts: orders, the audit's thread, and the newest list of each pod source."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from koordlet import auditwriter, ipc
from koordlet import front as front_module
from koordlet.auditwriter import AuditWriter, open_audit
from koordlet.clock import SystemClock
from koordlet.front import Commands, PodLists
from koordlet.model.actions import Mode
from koordlet.model.pods import ContainerRecord, ContainerState, PodRecord
from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem
from koordlet.protocol.qos import KubeQos
from koordlet.resexecutor.audit import AuditEvent, AuditQuery, AuditStore
from koordlet.standing import Standing
from koordlet.state import StateStore, load_standing
from tests.support.execrig import HandClock
from tests.support.waiting import until

WITHIN_S = 5.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    opened = StateStore(tmp_path / "state.db")
    yield opened
    opened.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "COMMAND_TIMEOUT_S", 0.05)


# -- orders ---------------------------------------------------------------------------------------


def test_an_order_is_stored_before_it_is_sent(store: StateStore) -> None:
    stored: list[Standing] = []
    commands: Commands

    def post(message: object) -> None:
        stored.append(load_standing(store))
        assert isinstance(message, ipc.Command)
        threading.Thread(
            target=lambda: commands.answered(ipc.CommandReply(message.id, {"outcomes": 1}))
        ).start()

    commands = Commands(store, HandClock(), post)
    reply = commands.send(ipc.ReleaseCommand("owner:cpu_suppress"), 0)
    assert reply.result == {"outcomes": 1}
    assert [standing.released for standing in stored] == [("owner:cpu_suppress",)]


def test_an_order_that_nobody_answers_says_so_and_is_kept(
    store: StateStore, impatient: None
) -> None:
    sent: list[Any] = []
    commands = Commands(store, HandClock(), sent.append)
    reply = commands.send(ipc.ModeCommand("", Mode.OFF, None), 0)
    assert "did not answer" in reply.problems[0].what
    assert load_standing(store) == sent[0].standing == commands.standing
    commands.answered(ipc.CommandReply(sent[0].id))  # too late, and no reason to fail
    assert Commands(store, HandClock(), sent.append).standing == commands.standing


def test_a_time_limit_counts_from_now(store: StateStore, impatient: None) -> None:
    clock = HandClock()
    commands = Commands(store, clock, lambda _message: None)
    commands.send(ipc.ModeCommand("cpu_suppress", Mode.OBSERVE, 1_800.0), 0)
    (order,) = commands.standing.modes
    assert order.until_wall_s == clock.wall_s() + 1_800.0


def test_a_bad_order_is_refused_and_changes_nothing(store: StateStore) -> None:
    sent: list[object] = []
    commands = Commands(store, HandClock(), sent.append)
    reply = commands.send(ipc.ReleaseCommand("everything"), 0)
    assert reply.problems[0].code == "order-refused"
    reply = commands.send(ipc.ResumeCommand("pod:unknown"), 0)
    assert "is not released" in reply.problems[0].what
    assert sent == []
    assert load_standing(store) == Standing()


def test_an_order_that_cannot_be_stored_is_not_obeyed_either(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    commands = Commands(store, HandClock(), sent.append)

    def full(*_args: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(front_module, "save_standing", full)
    reply = commands.send(ipc.ReleaseCommand("all"), 0)
    assert "disk is full" in reply.problems[0].what
    assert sent == []
    assert commands.standing == Standing()


def test_orders_of_many_reach_the_core_as_they_were_stored(
    store: StateStore, impatient: None
) -> None:
    sent: list[Any] = []
    commands = Commands(store, HandClock(), sent.append)
    threads = [
        threading.Thread(target=commands.send, args=(ipc.ReleaseCommand(f"pod:u{n}"), 0))
        for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(command.standing.released) for command in sent] == list(range(1, 17))
    assert load_standing(store) == sent[-1].standing
    assert len({command.id for command in sent}) == 16


# -- audit ----------------------------------------------------------------------------------------


class FakeStore:
    """An audit store whose disk hangs or refuses."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.begun = threading.Event()
        self.broken = False
        self.events: list[AuditEvent] = []
        self.pruned = 0

    def append(self, events: tuple[AuditEvent, ...]) -> int:
        self.begun.set()
        assert self.may_go.wait(WITHIN_S)
        if self.broken:
            raise sqlite3.OperationalError("disk I/O error")
        self.events += events
        return len(events)

    def prune(self, _wall_s: float) -> int:
        self.pruned += 1
        return 0


def _event(number: int) -> AuditEvent:
    return AuditEvent(time.time(), "write", "cpu_suppress", reason=str(number))


def _writer(store: object) -> AuditWriter:
    writer = AuditWriter(cast(AuditStore, store), SystemClock())
    writer.start()
    return writer


def test_H15_a_disk_that_hangs_delays_nobody_and_what_is_lost_is_counted() -> None:
    store = FakeStore()
    writer = _writer(store)
    writer.put((_event(0),))
    assert store.begun.wait(WITHIN_S)
    started_s = time.monotonic()
    for number in range(1, 1_030):
        writer.put((_event(number), _event(-number)))
    assert time.monotonic() - started_s < 1.0
    assert writer.dropped == 2 * 5
    store.may_go.set()
    writer.stop()
    assert len(store.events) == 1 + 2 * 1_024


def test_a_broken_disk_is_logged_once_and_works_again() -> None:
    store = FakeStore()
    store.broken = True
    store.may_go.set()
    with capture_logs() as logs:
        writer = _writer(store)
        for number in range(5):
            writer.put((_event(number),))
        _wait(lambda: writer.dropped == 5)
        store.broken = False
        writer.put((_event(6),))
        writer.stop()
    assert [entry["event"] for entry in logs] == [
        "audit events are lost",
        "audit events are stored again",
    ]
    assert logs[1]["lost"] == 5
    trouble = writer.trouble()
    assert trouble is not None
    assert "5 events" in trouble.problems[0].what
    assert [event.reason for event in store.events] == ["6"]


def test_a_stop_does_not_wait_for_a_dead_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditwriter, "STOP_S", 0.05)
    store = FakeStore()
    writer = _writer(store)
    for number in range(2_000):
        writer.put((_event(number),))
    started_s = time.monotonic()
    writer.stop()
    assert time.monotonic() - started_s < 1.0
    store.may_go.set()


def test_events_are_stored_and_old_ones_leave_at_the_start(tmp_path: Path) -> None:
    store = AuditStore(tmp_path / "audit.db", keep_days=1)
    old = AuditEvent(time.time() - 2 * 86_400, "write", "cpu_suppress")
    store.append((old,))
    writer = _writer(store)
    assert writer.trouble() is None
    event = AuditEvent(round(time.time(), 3), "write", "cpu_suppress")
    writer.put((event,))
    _wait(lambda: store.query(AuditQuery()) == (event,))
    writer.stop()
    store.close()


def test_a_damaged_store_is_put_aside_and_told(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    path.write_bytes(b"no database at all" * 100)
    store, problem = open_audit(path, 7)
    assert problem is not None
    assert problem.code == "audit-damaged"
    assert store.append((_event(1),)) == 1
    store.close()
    assert (tmp_path / "audit.db.damaged-0").exists()
    store, problem = open_audit(path, 7)
    assert problem is None
    assert len(store.query(AuditQuery())) == 1
    store.close()


def test_where_no_file_can_be_made_events_are_kept_in_memory(tmp_path: Path) -> None:
    store, problem = open_audit(tmp_path / "none" / "audit.db", 7)
    assert problem is not None
    assert problem.code == "audit-not-stored"
    writer = AuditWriter(store, SystemClock(), problem)
    writer.start()
    writer.put((_event(1),))
    _wait(lambda: len(store.query(AuditQuery())) == 1)
    trouble = writer.trouble()
    assert trouble is not None
    assert trouble.problems == (problem,)
    writer.stop()
    store.close()


# -- pod lists ------------------------------------------------------------------------------------


class Lists:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.sent: list[Any] = []
        self.lists = PodLists(self.clock, self.sent.append)

    def pass_s(self, seconds: float) -> None:
        self.clock.at_s += seconds

    def uids(self) -> list[str]:
        """The uids that a core knows which has heard everything."""
        records: tuple[PodRecord, ...] = ()
        for message in self.sent:
            if isinstance(message, ipc.PodsUpdate):
                assert not isinstance(message.records, Missing)
                records = message.records
            elif isinstance(message, ipc.PodsChange):
                records = message.applied_to(records)
        return [record.uid for record in records]


DOWN = Problem("cri", "containerd.sock", "connection refused")


def _record(uid: str, *, priority: int | None = None, container: str = "") -> PodRecord:
    containers = (
        (ContainerRecord(container, "main", 0, ContainerState.RUNNING),) if container else ()
    )
    return PodRecord(
        uid=uid,
        api_uid=uid,
        namespace="default",
        name=uid,
        containers=containers,
        priority=priority,
        kube_qos=None if priority is None else KubeQos.BEST_EFFORT,
    )


def test_H13_a_list_is_sent_when_every_expected_source_has_answered_good_or_bad() -> None:
    rig = Lists()
    rig.lists.expect("cri")
    rig.lists.expect("kubelet")
    rig.lists.publish("cri", (_record("u1", container="c1"),))
    assert rig.sent == []
    rig.lists.publish("kubelet", Problem("kubelet", "10250", "401"))
    (update,) = rig.sent
    assert [record.uid for record in update.records] == ["u1"]


def test_H13_both_lists_are_merged_by_uid() -> None:
    rig = Lists()
    rig.lists.expect("cri")
    rig.lists.expect("kubelet")
    rig.lists.publish("kubelet", (_record("u1", priority=5_500), _record("u2", priority=9_000)))
    rig.lists.publish("cri", (_record("u1", container="c1"),))
    records = {record.uid: record for record in rig.sent[-1].records}
    assert records["u1"].priority == 5_500
    assert records["u1"].containers[0].id == "c1"
    assert "u2" in records


def test_the_kubelet_alone_will_do() -> None:
    rig = Lists()
    rig.lists.expect("cri")
    rig.lists.expect("kubelet")
    rig.lists.publish("cri", DOWN)
    rig.lists.publish("kubelet", (_record("u1", priority=5_500),))
    assert [record.uid for record in rig.sent[-1].records] == ["u1"]


def test_with_no_list_at_all_the_reason_is_sent() -> None:
    rig = Lists()
    rig.lists.expect("cri")
    rig.lists.publish("cri", DOWN)
    assert isinstance(rig.sent[-1].records, Missing)
    assert "connection refused" in rig.sent[-1].records.why


def test_a_host_without_sources_has_no_pods_and_knows_it() -> None:
    rig = Lists()
    rig.lists.no_sources()
    assert rig.sent == [ipc.PodsUpdate((), 0.0)]


def test_a_source_that_appears_late_holds_up_nobody() -> None:
    rig = Lists()
    rig.lists.expect("cri")
    rig.lists.publish("cri", (_record("u1"),))
    rig.lists.expect("kubelet")  # found after half a minute, and slow to answer
    rig.lists.publish("cri", (_record("u1"), _record("u2")))
    assert [type(message) for message in rig.sent] == [ipc.PodsUpdate, ipc.PodsChange]
    assert rig.uids() == ["u1", "u2"]


def test_a_runtime_that_comes_up_later_is_heard() -> None:
    rig = Lists()
    rig.lists.no_sources()
    rig.lists.expect("cri")
    rig.lists.publish("cri", (_record("u1"),))
    assert rig.uids() == ["u1"]


def test_a_failure_keeps_the_last_good_list_and_its_age_grows() -> None:
    rig = Lists()
    rig.lists.publish("cri", (_record("u1"),))
    rig.pass_s(12)
    rig.lists.publish("cri", DOWN)
    assert rig.sent[1:] == [ipc.PodsStillTrue(12.0)]
    rig.pass_s(3)
    assert rig.lists.resend() == ipc.PodsUpdate((_record("u1"),), 15.0)


def test_the_age_of_a_merged_list_is_that_of_its_oldest_part() -> None:
    rig = Lists()
    rig.lists.publish("kubelet", (_record("u1"),))
    rig.pass_s(7)
    rig.lists.publish("cri", (_record("u1", container="c1"),))
    assert rig.sent[-1].age_s == 7.0


def test_an_unchanged_list_is_told_in_a_word_and_of_a_changed_one_the_change() -> None:
    rig = Lists()
    rig.lists.publish("cri", (_record("u1"),))
    rig.lists.publish("cri", (_record("u1"),))
    rig.lists.publish("cri", (_record("u2"),))
    rig.lists.publish("cri", DOWN)
    kinds = [type(message) for message in rig.sent]
    assert kinds == [ipc.PodsUpdate, ipc.PodsStillTrue, ipc.PodsChange, ipc.PodsStillTrue]
    assert rig.uids() == ["u2"]


def test_OPS_03_one_containers_start_on_a_full_node_is_told_alone_and_twice_is_harmless() -> None:
    rig = Lists()
    many = [_record(f"u{n}") for n in range(100)]
    rig.lists.publish("cri", tuple(many))
    many[50] = _record("u50", container="c1")
    rig.lists.publish("cri", tuple(many[:-1]))
    change = rig.sent[-1]
    assert [record.uid for record in change.changed] == ["u50"]
    assert change.gone == {"u99"}
    once = change.applied_to(rig.sent[0].records)
    assert change.applied_to(once) == once
    assert {record.uid: record for record in once} == {r.uid: r for r in many[:-1]}


def test_before_the_first_list_there_is_nothing_to_send_again() -> None:
    rig = Lists()
    rig.lists.expect("cri")
    assert rig.lists.resend() is None


def _wait(done: Callable[[], object]) -> None:
    until(done, WITHIN_S)
