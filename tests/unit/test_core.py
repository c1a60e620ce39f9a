"""The core's loop: deadlines on a grid, early ticks, orders, signals, the end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import structlog

from koordlet import ipc
from koordlet.config import Config
from koordlet.core import Core
from koordlet.model.actions import Mode, Outcome, Status
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import Workloads
from koordlet.model.readings import Missing
from koordlet.observer import Seen
from koordlet.qosmanager.budget import SurgeLine
from koordlet.report import TickCause
from koordlet.snapshot import CpuUse
from koordlet.standing import ModeOrder, Standing
from koordlet.supervisor import STOP_LEAVING

START_S = 100.0
SPEC_ANSWER_S = 5.0


class FakeLoop:
    """A loop and its clock: waiting takes no time, what is scheduled happens on the way."""

    def __init__(self) -> None:
        self.at_s = START_S
        self.handlers: dict[int, Callable[[int], None]] = {}
        self._scheduled: list[tuple[float, int, Callable[[], None]]] = []

    def now_s(self) -> float:
        return self.at_s

    def wall_s(self) -> float:
        return self.at_s

    def at(self, seconds: float, call: Callable[[], None]) -> None:
        """Call ``call`` so many seconds after the start."""
        self._scheduled.append((START_S + seconds, len(self._scheduled), call))
        self._scheduled.sort(key=lambda each: each[:2])

    def watch(self, fd: int, _events: int, handler: Callable[[int], None]) -> None:
        self.handlers[fd] = handler

    def wait(self, timeout_s: float) -> None:
        until_s = self.at_s + max(0.0, timeout_s)
        if self._scheduled and self._scheduled[0][0] <= until_s:
            due_s, _, call = self._scheduled.pop(0)
            self.at_s = max(self.at_s, due_s)
            call()
        else:
            self.at_s = until_s


class FakeSignals:
    fd = 3

    def __init__(self, loop: FakeLoop) -> None:
        self._loop = loop
        self._came: set[signal.Signals] = set()

    def send(self, number: signal.Signals) -> None:
        self._came.add(number)
        self._loop.handlers[self.fd](1)

    def take(self) -> set[signal.Signals]:
        came, self._came = self._came, set()
        return came


@dataclass(frozen=True)
class Report:
    number: int
    outcomes: tuple[Outcome, ...] = ()


LINE = SurgeLine(capacity_cores=8.0, workload_cores=1.0, budget_cores=4.2, floor_cores=0.4)


@dataclass
class FakeTick:
    """``ran``: (seconds since the start, cause, overrun, whole) of each tick."""

    loop: FakeLoop
    duration_s: float = 0.0
    surge_line: SurgeLine | None = LINE
    standing: Standing = field(default_factory=Standing)
    pending: bool = False
    nothing_owned: bool = True
    outcomes: tuple[Outcome, ...] = ()
    requests: list[ipc.SpecRequest] = field(default_factory=list)
    ran: list[tuple[float, TickCause, bool, bool]] = field(default_factory=list)
    untold: list[Report] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def run(self, cause: TickCause, *, overrun: bool, whole: bool) -> Report:
        self.ran.append((round(self.loop.at_s - START_S, 6), cause, overrun, whole))
        self.loop.at_s += self.duration_s
        return Report(len(self.ran), self.outcomes)

    def take_spec_requests(self) -> list[ipc.SpecRequest]:
        taken, self.requests = self.requests, []
        return taken

    def keep_audit(self, report: Report) -> None:
        self.untold.append(report)

    def note_order(self, command: ipc.Command) -> None:
        self.done.append(f"order {command.id}")

    def probe_again(self) -> None:
        self.done.append("probe")

    def spec_answered(self, answer: ipc.SpecAnswer) -> None:
        self.pending = False

    @property
    def summary(self) -> str:
        return f"tick {len(self.ran)}"

    def reconfigure(self, config: Config) -> None:
        self.done.append("reconfigured")

    def leave(self) -> Report:
        self.done.append("left")
        return Report(-3)

    def restore_all(self, why: str) -> Report:
        self.done.append(why)
        return Report(-1)

    def finish(self) -> Report:
        self.done.append("finish")
        return Report(-2)


@dataclass
class FakeHot:
    loop: FakeLoop
    sampled: list[float] = field(default_factory=list)
    nonbe_cores: float | None = None
    be_cores: float = 4.2
    system_cores: float = 0.0

    def sample(self, now_s: float) -> None:
        self.sampled.append(round(now_s - START_S, 6))

    def surge(self, _now_s: float) -> CpuUse | Missing:
        if self.nonbe_cores is None:
            return Missing("no samples yet")
        be = {CgroupPath("kubepods/besteffort"): self.be_cores}
        return CpuUse(0.2, self.nonbe_cores, self.nonbe_cores, 0.0, self.system_cores, be)


@dataclass
class FakeObserver:
    watch_fd: int | None = 4
    is_blind: bool = False
    changed: bool = False
    looked: int = 0
    heard: list[object] = field(default_factory=list)
    seen: Seen = field(
        default_factory=lambda: Seen(Workloads((), 0.0, (), Missing("none")), (), {}, ())
    )

    def hear(self, word: object, _now_s: float) -> bool:
        self.heard.append(word)
        return not isinstance(word, ipc.PodsStillTrue)

    def tree_changed(self) -> bool:
        self.looked += 1
        return self.changed


@dataclass
class FakeLink:
    fresh: bool = False
    takes: bool = True
    wants_write: bool = False
    closed: bool = False
    sent: list[object] = field(default_factory=list)

    def send(self, message: object, *, droppable: bool = False) -> bool:
        if not self.takes and droppable:
            self.fresh = True
            return False
        self.sent.append(message)
        return True

    def sent_whole(self) -> None:
        self.fresh = False

    def close(self) -> None:
        self.closed = True

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]


class FakePressure:
    def __init__(self) -> None:
        self.closed = False

    def follow(self, wanted: object) -> None:
        assert list(cast(tuple[object], wanted)) == []

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeHeartbeat:
    """``beats``: the status of each, and whether a front had taken the report."""

    beats: list[tuple[str, bool]] = field(default_factory=list)
    paces: list[float] = field(default_factory=list)

    def beat(self, status: str, *, serves: bool) -> None:
        self.beats.append((status, serves))

    def pace(self, tick_s: float) -> None:
        self.paces.append(tick_s)


class Rig:
    """A core among fakes. ``run(seconds)`` lets it live so long, then SIGTERM comes."""

    def __init__(self, **config: Any) -> None:
        self.loop = FakeLoop()
        self.tick = FakeTick(self.loop)
        self.hot = FakeHot(self.loop)
        self.observer = FakeObserver()
        self.link = FakeLink()
        self.pressure = FakePressure()
        self.signals = FakeSignals(self.loop)
        self.heartbeat = FakeHeartbeat()
        self.handle: Callable[[object], None] = lambda _message: None
        self.stall: Callable[[CgroupPath], None] = lambda _path: None
        self.core = Core(
            Config(run_dir=Path("/nowhere"), **config),
            self.loop,
            cast(Any, self.loop),
            cast(Any, self.tick),
            cast(Any, self.observer),
            cast(Any, self.hot),
            make_link=self._make_link,
            make_pressure=self._make_pressure,
            heartbeat=cast(Any, self.heartbeat),
        )

    def _make_link(self, handle: Callable[[object], None]) -> Any:
        self.handle = handle
        return self.link

    def _make_pressure(self, fired: Callable[[CgroupPath], None]) -> Any:
        self.stall = fired
        return self.pressure

    def run(self, seconds: float, stop: signal.Signals = signal.SIGTERM) -> int:
        self.loop.at(seconds, lambda: self.signals.send(stop))
        return self.core.run(cast(Any, self.signals))

    def ticks(self) -> list[float]:
        return [at_s for at_s, *_ in self.tick.ran]

    def causes(self) -> list[TickCause]:
        return [cause for _, cause, *_ in self.tick.ran]


# -- deadlines ------------------------------------------------------------------------------------


def test_ticks_and_samples_are_on_their_grids() -> None:
    rig = Rig()
    rig.tick.duration_s = 0.13
    assert rig.run(4.05) == 0
    assert rig.ticks() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert rig.causes() == [TickCause.REGULAR] * 5
    assert rig.hot.sampled[:6] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert not any(overrun for *_, overrun, _ in rig.tick.ran)


def test_other_periods_are_kept() -> None:
    rig = Rig(tick_seconds=0.5, hot_sample_seconds=0.1)
    rig.run(1.02)
    assert rig.ticks() == [0.0, 0.5, 1.0]
    assert len(rig.hot.sampled) == 11


def test_missed_ticks_are_skipped_and_the_late_one_is_an_overrun() -> None:
    rig = Rig()

    def stuck() -> None:
        rig.tick.duration_s = 3.7

    def free() -> None:
        rig.tick.duration_s = 0.0

    rig.loop.at(1.9, stuck)
    rig.loop.at(2.1, free)
    rig.run(9.5)
    assert rig.ticks() == [0.0, 1.0, 2.0, 5.7, 6.0, 7.0, 8.0, 9.0]
    assert [at_s for at_s, _, overrun, _ in rig.tick.ran if overrun] == [5.7]


def test_a_tick_a_little_late_is_no_overrun_with_a_short_period_it_is() -> None:
    for period_s, expected in ((1.0, False), (0.2, True)):
        rig = Rig(tick_seconds=period_s, hot_sample_seconds=0.1)
        rig.loop.at(0.35, lambda rig=rig: setattr(rig.tick, "duration_s", 0.35))
        rig.loop.at(1.4, lambda rig=rig: setattr(rig.tick, "duration_s", 0.0))
        rig.run(2.5)
        assert any(overrun for *_, overrun, _ in rig.tick.ran) is expected


# -- early ticks ----------------------------------------------------------------------------------


def test_H28_early_ticks_are_at_least_200_ms_apart_and_counted_by_cause() -> None:
    rig = Rig()
    for number in range(1, 190):
        rig.loop.at(number / 100, lambda: rig.stall(CgroupPath("kubepods/burstable")))
    rig.run(2.5)
    assert rig.causes().count(TickCause.PSI) >= 8
    early = [(a, b) for a, b in pairwise(rig.ticks()) if b % 1.0]
    assert all(b - a >= 0.2 - 1e-6 for a, b in early)
    assert {1.0, 2.0} <= set(rig.ticks())  # the grid stands whatever comes early


def test_H28_a_jump_of_what_BE_makes_room_for_calls_a_tick() -> None:
    rig = Rig()
    rig.loop.at(1.35, lambda: setattr(rig.hot, "nonbe_cores", 1.5))
    rig.loop.at(1.45, lambda: setattr(rig.hot, "nonbe_cores", None))
    rig.run(1.9)
    assert rig.ticks() == [0.0, 1.0, 1.4]
    assert rig.causes()[-1] is TickCause.SURGE


@pytest.mark.parametrize("decided, now", [(1.0, 1.39), (None, 7.0), (7.0, 1.0), (1.5, 1.5)])
def test_no_surge_where_the_last_decision_knew_it_or_there_is_no_BE_work(
    decided: float | None, now: float
) -> None:
    rig = Rig()
    rig.tick.surge_line = None if decided is None else SurgeLine(8.0, decided, 4.2, 0.4)
    rig.hot.nonbe_cores = now
    rig.run(1.9)
    assert rig.ticks() == [0.0, 1.0]


def test_H28_the_rest_of_a_surge_calls_one_more_tick() -> None:
    """The step began within an interval: the next one shows a little more of it."""
    rig = Rig()
    rig.loop.at(1.35, lambda: setattr(rig.hot, "nonbe_cores", 2.0))
    rig.loop.at(1.45, lambda: setattr(rig.tick, "surge_line", SurgeLine(8.0, 2.0, 3.2, 0.4)))
    rig.loop.at(1.55, lambda: setattr(rig.hot, "nonbe_cores", 2.1))
    rig.loop.at(1.65, lambda: setattr(rig.tick, "surge_line", SurgeLine(8.0, 2.1, 3.1, 0.4)))
    rig.run(1.95)
    assert rig.ticks() == [0.0, 1.0, 1.4, 1.6]


def test_a_jump_of_system_use_calls_no_tick_since_our_own_tick_is_one() -> None:
    rig = Rig()
    rig.hot.nonbe_cores = 1.0
    rig.loop.at(1.35, lambda: setattr(rig.hot, "system_cores", 3.0))
    rig.run(1.9)
    assert rig.ticks() == [0.0, 1.0]


@pytest.mark.parametrize(
    "line, be_cores",
    [
        (SurgeLine(8.0, 1.0, 4.2, 0.4), 1.0),  # what is left is still more than BE work uses
        (SurgeLine(8.0, 1.0, 0.4, 0.4), 4.0),  # BE work is at its floor already
    ],
)
def test_H28_no_surge_where_a_decision_now_would_narrow_nothing(
    line: SurgeLine, be_cores: float
) -> None:
    rig = Rig()
    rig.tick.surge_line = line
    rig.hot.be_cores = be_cores
    rig.loop.at(1.35, lambda: setattr(rig.hot, "nonbe_cores", 3.0))
    rig.run(1.9)
    assert rig.ticks() == [0.0, 1.0]


def test_a_word_of_a_source_calls_a_tick_but_not_one_that_says_nothing_new() -> None:
    rig = Rig()
    rig.loop.at(1.5, lambda: rig.handle(ipc.PodsUpdate((), 0.0)))
    rig.loop.at(2.5, lambda: rig.handle(ipc.PodsStillTrue(0.0)))
    rig.run(2.9)
    assert rig.ticks() == [0.0, 1.0, 1.5, 2.0]
    assert rig.causes()[2] is TickCause.WORKLOADS
    assert len(rig.observer.heard) == 2


def test_a_changed_tree_calls_a_tick_and_asks_the_sources() -> None:
    rig = Rig()
    rig.observer.changed = True
    rig.loop.at(1.5, lambda: rig.loop.handlers[4](1))
    rig.run(1.9)
    assert rig.ticks() == [0.0, 1.0, 1.5]
    assert len(rig.link.of(ipc.Relist)) == 1


def test_where_directories_have_to_be_compared_that_is_done_before_each_tick() -> None:
    rig = Rig()
    rig.observer.is_blind, rig.observer.watch_fd = True, None
    rig.loop.at(1.5, lambda: setattr(rig.observer, "changed", True))
    rig.run(2.1)
    assert rig.observer.looked == 3
    assert len(rig.link.of(ipc.Relist)) == 1
    assert rig.causes() == [TickCause.REGULAR, TickCause.REGULAR, TickCause.WORKLOADS]


def test_an_unknown_message_is_no_reason_to_fail() -> None:
    rig = Rig()
    rig.loop.at(0.5, lambda: rig.handle("what is this"))
    assert rig.run(1.5) == 0


# -- orders ---------------------------------------------------------------------------------------


def _command(number: int, standing: Standing) -> ipc.Command:
    return ipc.Command(number, ipc.ReleaseCommand("all"), 0, standing)


def test_orders_are_answered_by_a_tick_of_their_own_even_when_nothing_changes() -> None:
    rig = Rig()
    first = Standing().with_mode(ModeOrder("", Mode.OBSERVE, None))
    second = first.with_release("all")
    rig.loop.at(1.35, lambda: rig.handle(_command(7, first)))
    rig.loop.at(1.36, lambda: rig.handle(_command(8, second)))
    rig.run(1.9)
    assert rig.ticks() == [0.0, 1.0, 1.35, 1.55]
    assert rig.causes()[2] is TickCause.COMMAND
    assert [reply.id for reply in rig.link.of(ipc.CommandReply)] == [7, 8]
    assert rig.tick.standing == second
    assert rig.tick.done[:2] == ["order 7", "order 8"]


def test_the_answer_tells_what_the_tick_did() -> None:
    rig = Rig()
    target = CgroupPath("kubepods/besteffort")
    rig.tick.outcomes = (
        Outcome(target, Knob.CPU_QUOTA, "cpu_suppress", Status.RESTORED),
        Outcome(target, Knob.CPU_IDLE, "be_priority", Status.FOREIGN, why="not ours"),
    )
    rig.loop.at(0.5, lambda: rig.handle(_command(1, Standing())))
    rig.run(0.9)
    (reply,) = rig.link.of(ipc.CommandReply)
    assert reply.result["outcomes"] == rig.tick.outcomes


def test_a_standing_update_at_connection_is_obeyed() -> None:
    rig = Rig()
    standing = Standing().with_release("all")
    rig.loop.at(0.5, lambda: rig.handle(ipc.StandingUpdate(standing)))
    rig.run(0.9)
    assert rig.tick.standing == standing


# -- the front ------------------------------------------------------------------------------------


def test_a_fresh_front_gets_one_whole_report_then_changes() -> None:
    rig = Rig()
    rig.loop.at(1.5, lambda: setattr(rig.link, "fresh", True))
    rig.run(4.5)
    assert [whole for *_, whole in rig.tick.ran] == [False, False, True, False, False]


def test_a_lost_whole_report_is_made_again_and_its_audit_kept() -> None:
    rig = Rig()
    rig.link.fresh, rig.link.takes = True, False
    rig.loop.at(2.5, lambda: setattr(rig.link, "takes", True))
    rig.run(4.5)
    assert [whole for *_, whole in rig.tick.ran] == [True, True, True, True, False]
    assert [report.number for report in rig.tick.untold] == [1, 2, 3]


def test_requests_to_the_runtime_leave_with_the_tick() -> None:
    rig = Rig()
    request = ipc.SpecRequest("abc", Knob.CPU_QUOTA, None)
    rig.loop.at(0.5, lambda: rig.tick.requests.append(request))
    rig.run(1.5)
    assert rig.link.of(ipc.SpecRequest) == [request]


# -- the service manager --------------------------------------------------------------------------


def test_H11_each_tick_ends_with_a_word_and_nothing_else_says_one() -> None:
    rig = Rig()
    rig.link.takes = False
    rig.loop.at(1.5, lambda: setattr(rig.link, "takes", True))
    rig.run(2.5)
    assert rig.heartbeat.beats == [("tick 1", False), ("tick 2", False), ("tick 3", True)]


# -- a reload -------------------------------------------------------------------------------------


@pytest.fixture
def logs_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_a_reload_takes_new_periods_from_now_on(logs_as_before: None) -> None:
    rig = Rig(tick_seconds=10.0, hot_sample_seconds=5.0)
    config = Config(run_dir=Path("/nowhere"), tick_seconds=0.5, hot_sample_seconds=0.1)
    rig.loop.at(1.25, lambda: rig.handle(ipc.ConfigUpdate(config)))
    rig.run(2.3)
    assert rig.ticks() == [0.0, 1.25, 1.75, 2.25]
    assert len(rig.hot.sampled) == 1 + 11
    assert rig.heartbeat.paces == [0.5]
    assert rig.tick.done[0] == "reconfigured"


def test_the_configuration_of_a_front_that_connects_again_changes_nothing() -> None:
    rig = Rig()
    rig.loop.at(1.25, lambda: rig.handle(ipc.ConfigUpdate(Config(run_dir=Path("/nowhere")))))
    rig.run(2.3)
    assert rig.ticks() == [0.0, 1.0, 2.0]


# -- signals and the end --------------------------------------------------------------------------


def test_SIGHUP_probes_the_host_again_and_ends_nothing() -> None:
    rig = Rig()
    rig.loop.at(0.5, lambda: rig.signals.send(signal.SIGHUP))
    rig.run(2.5)
    assert rig.tick.done[0] == "probe"
    assert rig.ticks() == [0.0, 1.0, 2.0]


def test_a_stop_restores_tells_and_closes() -> None:
    rig = Rig()
    assert rig.run(1.5) == 0
    assert rig.tick.done == ["clean stop", "finish"]
    assert [report.number for report in rig.link.of(Report)][-2:] == [-1, -2]
    assert rig.link.closed
    assert rig.pressure.closed
    assert rig.loop.at_s == START_S + 1.5


def test_H16_a_stop_that_leaves_restores_nothing_and_ends_well() -> None:
    rig = Rig()
    rig.tick.nothing_owned = False
    rig.tick.pending = True
    assert rig.run(1.5, stop=STOP_LEAVING) == 0
    assert rig.tick.done == ["left"]
    assert rig.link.of(Report)[-1].number == -3
    assert rig.link.closed
    assert rig.loop.at_s == START_S + 1.5


def test_a_stop_waits_for_the_runtime_but_not_for_ever() -> None:
    rig = Rig()
    rig.tick.pending = True
    rig.tick.nothing_owned = False
    assert rig.run(1.5) == 4
    assert rig.loop.at_s == START_S + 1.5 + SPEC_ANSWER_S


def test_a_stop_goes_on_when_the_runtime_has_answered() -> None:
    rig = Rig()
    rig.tick.pending = True
    answer = ipc.SpecAnswer("abc", Knob.CPU_QUOTA, None, "")
    rig.loop.at(3.5, lambda: rig.handle(answer))
    assert rig.run(1.5) == 0
    assert rig.loop.at_s == START_S + 3.5
    assert rig.tick.done[-1] == "finish"


def test_the_last_words_wait_a_little_for_a_front_that_reads_slowly() -> None:
    rig = Rig()
    rig.link.wants_write = True
    rig.loop.at(2.0, lambda: setattr(rig.link, "wants_write", False))
    rig.run(1.5)
    assert rig.loop.at_s == START_S + 2.0
    rig = Rig()
    rig.link.wants_write = True
    rig.run(1.5)
    assert rig.loop.at_s == START_S + 3.5


def test_an_order_that_comes_with_the_stop_is_answered() -> None:
    rig = Rig()
    rig.loop.at(1.05, lambda: rig.handle(_command(9, Standing())))
    rig.run(1.06)
    (reply,) = rig.link.of(ipc.CommandReply)
    assert reply.id == 9
    assert reply.problems[0].code == "stopping"
