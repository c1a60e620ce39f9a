"""Core and front over real sockets: either restarts without the other, none gets out of step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet import ipc
from koordlet.auditwriter import AuditWriter
from koordlet.clock import SystemClock
from koordlet.config import Config
from koordlet.corelink import CoreLink
from koordlet.eventloop import EventLoop
from koordlet.front import Commands, Front, FrontParts, Outbox, PodLists
from koordlet.frontstate import FrontState
from koordlet.metrics.readings import Readings
from koordlet.model.knobs import Knob
from koordlet.model.pods import PodRecord
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import DEFAULT_NODESLO
from koordlet.protocol.problem import Problem
from koordlet.protocol.qos import Qos
from koordlet.report import SourceState, TickCause, TickReport, TickStats
from koordlet.resexecutor.audit import AuditEvent, AuditQuery, AuditStore
from koordlet.standing import Standing
from koordlet.state import StateStore
from tests.support.fakehost import fake_host
from tests.support.pipeline import Pipeline
from tests.support.waiting import until

WITHIN_S = 5.0
MIB = 1 << 20


class CoreEnd:
    """The core's end, stepped by the test."""

    def __init__(self, path: Path) -> None:
        self.loop = EventLoop()
        self.got: list[Any] = []
        self.link = CoreLink(path, self.loop, self.got.append)

    def step(self, until: Callable[[], object]) -> None:
        """Let things happen until ``until`` is true."""
        deadline_s = time.monotonic() + WITHIN_S
        while not until():
            assert time.monotonic() < deadline_s, f"did not happen in time; got {self.got}"
            self.loop.wait(0.01)

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.got if isinstance(message, kind)]


class FrontEnd:
    """A front with everything of its own but the sources, running in a thread."""

    def __init__(self, directory: Path, core_socket: Path) -> None:
        clock = SystemClock()
        directory.mkdir(exist_ok=True)
        self.outbox = Outbox()
        self.loop = EventLoop()
        self.state = FrontState(Config(), fake_host().cgroups(), clock)
        self.store = StateStore(directory / "state.db")
        self.audit_store = AuditStore(directory / "audit.db")
        self.audit = AuditWriter(self.audit_store, clock)
        self.commands = Commands(self.store, clock, self.outbox.post)
        self.pods = PodLists(clock, self.outbox.post)
        self.relists = 0
        self.specs: list[ipc.SpecRequest] = []
        self.observed: list[TickReport] = []
        self.front = Front(core_socket, self.outbox, self.loop, clock, self._parts())
        self._thread = threading.Thread(target=self.front.run, daemon=True)

    def _parts(self) -> FrontParts:
        return FrontParts(
            state=self.state,
            commands=self.commands,
            audit=self.audit,
            pods=self.pods,
            observe=self.observed.append,
            spec=self._spec,
            relist=self._relist,
            standing_messages=lambda: [ipc.SloUpdate(DEFAULT_NODESLO, 3)],
        )

    def _relist(self) -> None:
        self.relists += 1

    def _spec(self, request: ipc.SpecRequest) -> str:
        self.specs.append(request)
        return "no such container"

    def start(self) -> None:
        self.audit.start()
        self._thread.start()

    def stop(self) -> None:
        self.front.stop()
        self.outbox.post(ipc.PodsStillTrue(0.0))  # wakes its loop
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive()
        self.audit.stop()
        self.audit_store.close()
        self.store.close()

    def core_source(self) -> SourceState | None:
        return next((s.state for s in self.state.view().sources if s.name == "core"), None)


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "core.sock"


@pytest.fixture
def core(socket_path: Path) -> Iterator[CoreEnd]:
    end = CoreEnd(socket_path)
    yield end
    end.link.close()


@pytest.fixture
def front(tmp_path: Path, socket_path: Path) -> Iterator[FrontEnd]:
    end = FrontEnd(tmp_path / "state", socket_path)
    end.start()
    yield end
    end.stop()


def _record(uid: str) -> PodRecord:
    return PodRecord(uid=uid, api_uid=uid, namespace="default", name=uid)


def _report(tick: int, **parts: Any) -> TickReport:
    stats = TickStats(tick, 0.0, TickCause.REGULAR, 0.001, 0.001, 10, 0, 0, False)
    return TickReport(stats, Readings(tick), **parts)


# -- the core's end -------------------------------------------------------------------------------


def test_without_a_front_nothing_is_sent_and_nothing_waits(core: CoreEnd) -> None:
    assert not core.link.send(ipc.Relist("x"))
    assert not core.link.fresh
    assert not core.link.wants_write


def test_each_new_front_is_fresh_and_replaces_the_one_before(
    core: CoreEnd, socket_path: Path
) -> None:
    first = ipc.connect(socket_path)
    core.step(lambda: core.link.fresh)
    core.link.sent_whole()
    second = ipc.connect(socket_path)
    core.step(lambda: core.link.fresh)
    assert core.link.send(ipc.Relist("for the second"))
    assert second.receive() == [ipc.Relist("for the second")]
    with pytest.raises(ipc.ChannelClosedError):
        first.receive()
    first.close(), second.close()


def test_a_front_that_died_is_noticed_by_reading_and_by_writing(
    core: CoreEnd, socket_path: Path
) -> None:
    for _ in range(2):
        end = ipc.connect(socket_path)
        core.step(lambda: core.link.fresh)
        end.close()
        if core.link.send(ipc.Relist("into the void")):
            core.step(lambda: not core.link.send(ipc.Relist("again")))
        assert not core.link.fresh
    end = ipc.connect(socket_path)
    core.step(lambda: core.link.fresh)
    end.close()
    core.step(lambda: not core.link.fresh)


def test_closing_leaves_no_socket_file(socket_path: Path) -> None:
    end = CoreEnd(socket_path)
    end.link.close()
    assert not socket_path.exists()


def test_a_front_that_does_not_read_loses_reports_but_not_its_consistency(
    core: CoreEnd, socket_path: Path, tmp_path: Path
) -> None:
    """What it holds after it was made fresh again equals what the core holds."""
    end = ipc.connect(socket_path)
    core.step(lambda: core.link.fresh)
    state = FrontState(Config(), fake_host().cgroups(), SystemClock())
    lost = 0
    with Pipeline(tmp_path, "v2") as pipe:
        for number in range(12):
            pipe.add_pod(f"pod{number}", Qos.LS)
        for second in range(40):
            pipe.load = {f"kubepods/burstable/podpod{second % 12}": 1.0 + second / 7}
            if second == 20:
                pipe.remove_pod("pod3")
            for _ in range(5):
                pipe.sample()
            whole = core.link.fresh
            report = pipe.tick.run(TickCause.REGULAR, overrun=False, whole=whole)
            taken = core.link.send(report, droppable=True)
            if taken and whole:
                core.link.sent_whole()
            lost += not taken
            if 3 <= second < 25:  # the front reads nothing, and much is to be read
                core.link.send(ipc.Relist("x" * MIB), droppable=True)
            elif second >= 25:
                core.loop.wait(0)
                _take(end, state, core)
        assert lost > 5
        last = pipe.tick.run(TickCause.REGULAR, overrun=False, whole=True)
    expected = FrontState(Config(), fake_host().cgroups(), SystemClock())
    expected.apply(last)
    assert _values(state) == _values(expected)
    assert state.view().workloads == expected.view().workloads
    end.close()


def _take(end: ipc.Channel, state: FrontState, core: CoreEnd) -> None:
    """Read all that is on its way, as a front does."""
    deadline_s = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline_s:
        for message in end.receive():
            if isinstance(message, TickReport):
                state.apply(message)
        if not core.link.wants_write:
            break
        core.loop.wait(0.01)
    for message in end.receive():
        if isinstance(message, TickReport):
            state.apply(message)


def _values(state: FrontState) -> dict[object, object]:
    table = state.readings
    with table.lock:
        return {
            entity.key: {group: values for group, (_, values) in entity.groups.items()}
            for entity in table.entities.values()
        }


# -- the front's end ------------------------------------------------------------------------------


def test_a_front_tells_everything_that_it_knows_at_each_connection(
    socket_path: Path, front: FrontEnd
) -> None:
    front.pods.publish("cri", (_record("u1"),))
    for life in (1, 2):  # the core restarts
        core = CoreEnd(socket_path)
        core.step(lambda core=core: len(core.of(ipc.PodsUpdate)) > 0)
        assert core.of(ipc.StandingUpdate) == [ipc.StandingUpdate(Standing())]
        assert core.of(ipc.SloUpdate) == [ipc.SloUpdate(DEFAULT_NODESLO, 3)]
        assert core.of(ipc.PodsUpdate)[0].records == (_record("u1"),)
        core.step(lambda life=life: front.relists >= life)
        core.link.close()
    _wait(lambda: front.core_source() is SourceState.STALE)


def test_reports_reach_the_view_and_their_events_the_audit(core: CoreEnd, front: FrontEnd) -> None:
    core.step(lambda: core.link.fresh and front.relists == 1)
    event = AuditEvent(round(time.time(), 3), "write", "cpu_suppress", reason="a test")
    core.link.send(_report(1, audit=(event,)))
    core.step(lambda: front.core_source() is SourceState.OK)
    core.step(lambda: front.audit_store.query(AuditQuery()) == (event,))
    assert len(front.observed) == 1


def test_a_relist_is_passed_on(core: CoreEnd, front: FrontEnd) -> None:
    core.step(lambda: core.link.fresh and front.relists == 1)
    core.link.send(ipc.Relist("a cgroup directory came or went"))
    core.step(lambda: front.relists == 2)


def test_a_request_to_the_runtime_is_carried_out_beside_and_answered(
    core: CoreEnd, front: FrontEnd
) -> None:
    core.step(lambda: core.link.fresh and front.relists == 1)
    request = ipc.SpecRequest("abc", Knob.CPU_QUOTA, 5_000)
    core.link.send(request)
    core.step(lambda: core.of(ipc.SpecAnswer))
    assert front.specs == [request]
    assert core.of(ipc.SpecAnswer) == [
        ipc.SpecAnswer("abc", Knob.CPU_QUOTA, 5_000, "no such container")
    ]


def test_an_order_is_stored_obeyed_and_answered(core: CoreEnd, front: FrontEnd) -> None:
    core.step(lambda: core.link.fresh and front.relists == 1)
    replies: list[ipc.CommandReply] = []
    order = ipc.ReleaseCommand("all")
    asking = threading.Thread(target=lambda: replies.append(front.commands.send(order, 0)))
    asking.start()
    core.step(lambda: core.of(ipc.Command))
    (command,) = core.of(ipc.Command)
    assert command.standing.released == ("all",)
    core.link.send(ipc.CommandReply(command.id, {"outcomes": ()}))
    core.step(lambda: replies)
    asking.join(WITHIN_S)
    assert replies == [ipc.CommandReply(command.id, {"outcomes": ()})]


def test_a_pod_list_that_did_not_change_is_told_in_a_word(core: CoreEnd, front: FrontEnd) -> None:
    core.step(lambda: core.link.fresh and front.relists == 1)
    for _ in range(3):
        front.pods.publish("cri", (_record("u1"),))
    core.step(lambda: len(core.of(ipc.PodsStillTrue)) == 2)
    assert len(core.of(ipc.PodsUpdate)) == 1


def test_what_no_source_knows_is_told_with_the_reason(core: CoreEnd, front: FrontEnd) -> None:
    core.step(lambda: core.link.fresh and front.relists == 1)
    front.pods.publish("cri", Problem("cri", "containerd", "does not answer"))
    core.step(lambda: core.of(ipc.PodsUpdate))
    (update,) = core.of(ipc.PodsUpdate)
    assert isinstance(update.records, Missing)
    assert "does not answer" in update.records.why


def _wait(done: Callable[[], object]) -> None:
    until(done, WITHIN_S)
