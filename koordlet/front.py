"""The front: everything that answers or decodes, beside the core and never in its way.

One main thread owns the connection to the core; sources, API and metrics pages have threads of
their own and reach the core only through ``Front.post``.
"""

from __future__ import annotations

import os
import queue
import select
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koordlet import ipc
from koordlet.auditwriter import AuditWriter
from koordlet.clock import Clock
from koordlet.eventloop import EventLoop
from koordlet.frontstate import FrontState
from koordlet.memory import COLLECT_ALL_EVERY_S, give_back
from koordlet.model.pods import PodRecord
from koordlet.model.readings import Missing
from koordlet.pods.merge import merge
from koordlet.pods.slot import Aged, Slot
from koordlet.protocol.problem import Problem
from koordlet.report import SourceState, SourceStatus, TickReport
from koordlet.standing import ModeOrder, ScopeError, Standing
from koordlet.state import StateStore, load_standing, save_standing

RECONNECT_S = 0.2
COMMAND_TIMEOUT_S = 10.0
CRI, KUBELET = "cri", "kubelet"


@dataclass(slots=True)
class _Waiting:
    done: threading.Event
    reply: ipc.CommandReply | None = None


class Commands:
    """Orders of operators: persisted where they stand until the next one, sent to the core,
    answered when the core has obeyed.
    """

    def __init__(self, store: StateStore, clock: Clock, post: Callable[[object], None]) -> None:
        self._store = store
        self._clock = clock
        self._post = post
        self._lock = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._last_id = 0
        self.standing = load_standing(store)

    def send(self, order: ipc.Order, uid: int) -> ipc.CommandReply:
        """Obey ``order``; waits up to COMMAND_TIMEOUT_S for the core's answer."""
        waiting = _Waiting(threading.Event())
        with self._lock:
            try:
                standing = self._after(order)
                if standing is not self.standing:
                    save_standing(self._store, standing)
            except (ScopeError, sqlite3.Error) as error:
                return _refused(str(error))
            self.standing = standing
            self._last_id += 1
            number = self._last_id
            self._waiting[number] = waiting
            # Within the lock: the core must get the orders of two operators as they were stored.
            self._post(ipc.Command(number, order, uid, standing))
        waiting.done.wait(COMMAND_TIMEOUT_S)
        with self._lock:
            del self._waiting[number]
        return waiting.reply or _refused(_silence(order))

    def _after(self, order: ipc.Order) -> Standing:
        match order:
            case ipc.AdoptCommand():
                return self.standing
            case ipc.ModeCommand(strategy, mode, for_s):
                until = None if for_s is None else self._clock.wall_s() + for_s
                return self.standing.with_mode(ModeOrder(strategy, mode, until))
            case ipc.ReleaseCommand(scope):
                return self.standing.with_release(scope)
            case ipc.ResumeCommand(scope):
                return self.standing.without_release(scope)

    def answered(self, reply: ipc.CommandReply) -> None:
        """The core's reply to one order."""
        with self._lock:
            waiting = self._waiting.get(reply.id)
        if waiting is not None:
            waiting.reply = reply
            waiting.done.set()


def _silence(order: ipc.Order) -> str:
    """What holds of an order that the core has not answered."""
    if isinstance(order, ipc.AdoptCommand):
        then = "list again to see whether it was obeyed"
    else:
        then = "the order is stored and holds as soon as it does"
    return f"the core did not answer within {COMMAND_TIMEOUT_S:.0f} s; {then}"


def _refused(what: str) -> ipc.CommandReply:
    return ipc.CommandReply(0, {}, (Problem("order-refused", "order", what),))


class PodLists:
    """The newest list of each source, merged; the core hears of it only when it changed."""

    def __init__(self, clock: Clock, post: Callable[[object], None]) -> None:
        self._clock = clock
        self._post = post
        self._lock = threading.Lock()
        self._slots: dict[str, Slot[tuple[PodRecord, ...]]] = {}
        self._heard: set[str] = set()
        self._sent: ipc.PodsUpdate | None = None
        self._sent_at_s = 0.0

    def expect(self, source: str) -> None:
        """Wait for the first answer of ``source``, good or bad, before the first list is sent."""
        with self._lock:
            self._slots.setdefault(source, Slot())

    def publish(self, source: str, answer: tuple[PodRecord, ...] | Problem) -> None:
        """Put in what ``source`` answered and tell the core."""
        with self._lock:
            slot = self._slots.setdefault(source, Slot())
            self._heard.add(source)
            if isinstance(answer, Problem):
                slot.fail(answer)
            else:
                slot.publish(answer, self._clock.now_s())
            all_heard = self._sent is not None or self._heard >= self._slots.keys()
            message = self._message() if all_heard else None
        if message is not None:
            self._post(message)

    def _message(self) -> object:
        merged, age_s = self._merged()
        before = None if self._sent is None else self._sent.records
        self._sent = ipc.PodsUpdate(merged, age_s)
        self._sent_at_s = self._clock.now_s()
        if merged == before:
            return ipc.PodsStillTrue(age_s)
        if before is None or isinstance(before, Missing) or isinstance(merged, Missing):
            return self._sent
        return _change(before, merged, age_s)

    def _merged(self) -> tuple[tuple[PodRecord, ...] | Missing, float]:
        """One list, and the age of its oldest part. Without the runtime's list the kubelet's
        alone is used, with neither there is none.
        """
        now_s = self._clock.now_s()
        found = {name: slot.latest(now_s) for name, slot in self._slots.items()}
        lists = {name: each.value for name, each in found.items() if isinstance(each, Aged)}
        age_s = max((each.age_s for each in found.values() if isinstance(each, Aged)), default=0.0)
        if found and not lists:
            return next(each for each in found.values() if isinstance(each, Missing)), 0.0
        return merge(lists.get(CRI, ()), lists.get(KUBELET, Missing("no list"))), age_s

    def resend(self) -> ipc.PodsUpdate | None:
        """The newest list for a core that has just connected, with its age."""
        with self._lock:
            if self._sent is None:
                return None
            age_s = self._sent.age_s + self._clock.now_s() - self._sent_at_s
            return ipc.PodsUpdate(self._sent.records, age_s)

    def no_sources(self) -> None:
        """There is neither a runtime nor a kubelet on this host: the list is known, and empty."""
        with self._lock:
            message = self._message()
        self._post(message)


def _change(
    before: tuple[PodRecord, ...], after: tuple[PodRecord, ...], age_s: float
) -> ipc.PodsChange:
    known = {record.uid: record for record in before}
    changed = tuple(record for record in after if known.get(record.uid) != record)
    gone = frozenset(known) - {record.uid for record in after}
    return ipc.PodsChange(changed, gone, age_s)


@dataclass(frozen=True, slots=True)
class FrontParts:
    """What the composition root hands in. ``observe`` counts a report; ``spec`` carries out one
    SpecRequest and returns its error text; ``relist`` asks the pod sources again;
    ``standing_messages`` gives the newest words of the file sources for a fresh connection.
    """

    state: FrontState
    commands: Commands
    audit: AuditWriter
    pods: PodLists
    observe: Callable[[TickReport], None]
    spec: Callable[[ipc.SpecRequest], str]
    relist: Callable[[], None]
    standing_messages: Callable[[], list[object]]


class Front:
    """The main thread: connection to the core, and the queue of what goes there."""

    def __init__(
        self, core_socket: Path, outbox: Outbox, loop: EventLoop, clock: Clock, parts: FrontParts
    ) -> None:
        self._core_socket = core_socket
        self._outbox = outbox
        self._loop = loop
        self._clock = clock
        self._collected_at_s = clock.now_s()
        self._parts = parts
        self._channel: ipc.Channel | None = None
        self._spec_queue: queue.Queue[ipc.SpecRequest] = queue.Queue(maxsize=4096)
        self._stopped = False
        loop.watch(outbox.fd, select.POLLIN, lambda _events: self._send_posted())

    def run(self) -> None:
        """Until ``stop``; reconnects for ever."""
        threading.Thread(target=self._carry_out_specs, name="spec", daemon=True).start()
        while not self._stopped:
            if self._channel is None:
                self._connect()
            self._loop.wait(RECONNECT_S if self._channel is None else 1.0)
            self._collect_garbage()

    def stop(self) -> None:
        self._stopped = True

    def _collect_garbage(self) -> None:
        """What short-lived containers left behind goes back to the kernel."""
        now_s = self._clock.now_s()
        if now_s - self._collected_at_s >= COLLECT_ALL_EVERY_S:
            self._collected_at_s = now_s
            give_back()

    def _connect(self) -> None:
        try:
            channel = ipc.connect(self._core_socket)
        except OSError:
            return
        self._channel = channel
        self._loop.watch(channel.fileno(), select.POLLIN, lambda _events: self._receive())
        first = [ipc.StandingUpdate(self._parts.commands.standing)]
        pods = self._parts.pods.resend()
        for message in (*first, *self._parts.standing_messages(), *([pods] if pods else [])):
            self._send(message)
        self._parts.relist()

    def _lost(self) -> None:
        if self._channel is not None:
            self._loop.forget(self._channel.fileno())
            self._channel.close()
            self._channel = None
            self._parts.state.core_lost()

    def _send(self, message: object) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            channel.send(message)
        except ipc.ChannelClosedError:
            self._lost()
            return
        events = select.POLLIN | (select.POLLOUT if channel.wants_write else 0)
        self._loop.change(channel.fileno(), events)

    def _send_posted(self) -> None:
        for message in self._outbox.take():
            self._send(message)

    def _receive(self) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            channel.flush()
            messages = channel.receive()
        except ipc.ChannelClosedError:
            self._lost()
            return
        self._loop.change(
            channel.fileno(), select.POLLIN | (select.POLLOUT if channel.wants_write else 0)
        )
        for message in messages:
            self._handle(message)

    def _handle(self, message: Any) -> None:
        match message:
            case TickReport():
                self._parts.state.apply(message)
                self._parts.observe(message)
                if message.audit:
                    self._parts.audit.put(message.audit)
                if trouble := self._parts.audit.trouble():
                    self._parts.state.source(trouble)
                self._parts.state.source(
                    SourceStatus("core", SourceState.OK, str(self._core_socket), 0.0)
                )
            case ipc.SpecRequest():
                self._queue_spec(message)
            case ipc.Relist():
                self._parts.relist()
            case ipc.CommandReply():
                self._parts.commands.answered(message)

    def _queue_spec(self, request: ipc.SpecRequest) -> None:
        try:
            self._spec_queue.put_nowait(request)
        except queue.Full:
            self._answer_spec(request, "too many requests wait for the container runtime")

    def _carry_out_specs(self) -> None:
        while True:
            request = self._spec_queue.get()
            self._answer_spec(request, self._parts.spec(request))

    def _answer_spec(self, request: ipc.SpecRequest, error: str) -> None:
        answer = ipc.SpecAnswer(request.container_id, request.knob, request.value, error)
        self._outbox.post(answer)


class Outbox:
    """Messages of any thread for the core, and the descriptor that wakes the main thread."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()

    def post(self, message: object) -> None:
        self._queue.put(message)
        os.eventfd_write(self.fd, 1)

    def take(self) -> list[object]:
        """All messages posted so far; call it from the main thread only."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return []
        messages: list[object] = []
        while not self._queue.empty():
            messages.append(self._queue.get_nowait())
        return messages
