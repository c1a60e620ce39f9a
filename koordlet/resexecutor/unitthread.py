"""The thread that talks to systemd: calls may stall, and a tick never waits for one (H10, H11)."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from koordlet.host.cgroup import Cgroups
from koordlet.host.unitowner import Fault, SystemdError, TakeBack, Taken, UnitOwner, UnitState
from koordlet.host.unitprops import PropertyValue
from koordlet.model.actions import Target
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing

IN_FORCE_S = 1.0
"""systemd answers first and writes the files in its next round; so long is waited for them."""

_LOOK_AGAIN_S = 0.01


@dataclass(frozen=True, slots=True)
class UnitOrder:
    """What one unit is to be. ``texts`` is what its files read afterwards, ``before`` what they
    read when this was decided: where another writer was faster, nothing is set.
    """

    path: CgroupPath
    unit: str
    values: Mapping[str, PropertyValue]
    take_back: tuple[TakeBack, ...]
    texts: Mapping[Knob, str]
    before: Mapping[Knob, str]

    def then(self, later: UnitOrder) -> UnitOrder:
        """This order and ``later`` as one."""
        taken = {each.name for each in later.take_back}
        kept = tuple(each for each in self.take_back if each.name not in {*later.values, *taken})
        values = {name: value for name, value in self.values.items() if name not in taken}
        return replace(
            later,
            values={**values, **later.values},
            take_back=(*kept, *later.take_back),
            texts={**self.texts, **later.texts},
            before={**later.before, **self.before},
        )


@dataclass(frozen=True, slots=True)
class UnitResult:
    """What came of an order: ``fault`` None where systemd did as asked, ``foreign`` the properties
    that hold somebody else's value; ``overtaken`` where another writer was faster.
    """

    path: CgroupPath
    texts: Mapping[Knob, str]
    fault: Fault | None = None
    why: str = ""
    foreign: frozenset[str] = frozenset()
    overtaken: str = ""


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """What systemd says of one unit, or why it does not."""

    path: CgroupPath
    state: UnitState | SystemdError


@dataclass(slots=True)
class _Waiting:
    orders: OrderedDict[CgroupPath, UnitOrder] = field(default_factory=OrderedDict)
    questions: OrderedDict[CgroupPath, tuple[str, tuple[str, ...]]] = field(
        default_factory=OrderedDict
    )
    version: bool = True

    def __bool__(self) -> bool:
        return bool(self.orders or self.questions or self.version)


class UnitThread:
    """Carries orders out one after the other; of one unit only the newest that has not begun.

    ``cgroups`` is this thread's own, ``patience_s`` how long a restore of everything waits for it.
    The thread begins with the first request; it never keeps the process from ending.
    """

    def __init__(self, systemd: UnitOwner, cgroups: Cgroups, patience_s: float = 10.0) -> None:
        self.patience_s = patience_s
        self._systemd = systemd
        self._cgroups = cgroups
        self._waiting = _Waiting()
        self._results: list[UnitResult | UnitFacts] = []
        self._in_force: dict[Target, str] = {}
        self._version: str | Missing = Missing("systemd was not asked yet")
        self._busy_since_s: float | None = None
        self._trouble = ""
        self._stopping = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def version(self) -> str | Missing:
        """systemd's version by its last answer; Missing where it could not be reached then."""
        with self._changed:
            return self._version

    @property
    def trouble(self) -> str:
        """Why the last daemon-reload was refused; ``""`` where it was not."""
        with self._changed:
            return self._trouble

    def begin(self) -> None:
        """Start, and ask for the version."""
        with self._changed:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="units", daemon=True)
                self._thread.start()

    def ask_version(self) -> None:
        """Find out whether systemd answers."""
        with self._changed:
            self._waiting.version = True
            self._changed.notify_all()
        self.begin()

    def ask(self, path: CgroupPath, unit: str, names: Iterable[str]) -> None:
        """Find out what ``unit`` is like."""
        with self._changed:
            earlier = self._waiting.questions.get(path, ("", ()))[1]
            self._waiting.questions[path] = (unit, tuple(dict.fromkeys((*earlier, *names))))
            self._changed.notify_all()
        self.begin()

    def submit(self, order: UnitOrder) -> None:
        """Carry ``order`` out."""
        with self._changed:
            earlier = self._waiting.orders.get(order.path)
            self._waiting.orders[order.path] = earlier.then(order) if earlier else order
            self._changed.notify_all()
        self.begin()

    def drain(self) -> tuple[UnitResult | UnitFacts, ...]:
        """What became known since the last call."""
        with self._changed:
            results, self._results = tuple(self._results), []
        return results

    def busy_s(self) -> float:
        """For how long the present request has been with systemd; 0 where none is."""
        with self._changed:
            since_s = self._busy_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until all is done; False where that takes longer."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, timeout=timeout_s)

    def stop(self, timeout_s: float) -> None:
        """Do what is queued, and end; a call that hangs is left behind after ``timeout_s``."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _is_idle(self) -> bool:
        return self._thread is None or (not self._waiting and self._busy_since_s is None)

    # -- on the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._stopping)
                if not self._waiting:
                    return
                waiting, self._waiting = self._waiting, _Waiting(version=False)
                self._busy_since_s = time.monotonic()
            self._work(waiting)
            self._systemd.hang_up()
            with self._changed:
                self._busy_since_s = None
                self._changed.notify_all()

    def _work(self, waiting: _Waiting) -> None:
        """Orders first: somebody waits for protection. One reload for all that is given back."""
        results = [self._carry_out(order) for order in waiting.orders.values()]
        if any(wants_reload for _, wants_reload in results):
            self._reload()
        for result, _ in results:
            self._tell(result)
        for path, (unit, names) in waiting.questions.items():
            self._tell(UnitFacts(path, self._state(unit, names)))
        if waiting.version:
            self._note_version()

    def _reload(self) -> None:
        """Values and files are as they were before; without it systemd lists files that are gone,
        until the next daemon-reload of anybody.
        """
        try:
            self._systemd.reload()
        except SystemdError as error:
            trouble = "" if error.fault is Fault.UNREACHABLE else str(error)
        else:
            trouble = ""
        with self._changed:
            self._trouble = trouble

    def _tell(self, result: UnitResult | UnitFacts) -> None:
        fault: Fault | None = None
        why = ""
        if isinstance(result, UnitResult):
            fault, why = result.fault, result.why
        elif isinstance(result.state, SystemdError):
            fault, why = result.state.fault, str(result.state)
        with self._changed:
            self._results.append(result)
            if fault is Fault.UNREACHABLE:
                self._version = Missing(why)
                self._waiting.version = False
            elif isinstance(self._version, Missing):
                self._waiting.version = True  # it answers again

    def _note_version(self) -> None:
        found: str | Missing
        try:
            found = self._systemd.version()
        except SystemdError as error:
            found = Missing(str(error))
        with self._changed:
            self._version = found

    def _state(self, unit: str, names: Iterable[str]) -> UnitState | SystemdError:
        try:
            return self._systemd.state(unit, names)
        except SystemdError as error:
            return error

    def _carry_out(self, order: UnitOrder) -> tuple[UnitResult, bool]:
        """The result, and whether systemd is to read its files again."""
        overtaken = self._overtaken(order)
        if overtaken:
            return UnitResult(order.path, order.texts, overtaken=overtaken), False
        taken = Taken()
        try:
            if order.values:
                self._systemd.set(order.unit, order.values)
            if order.take_back:
                taken = self._systemd.take_back(order.unit, order.take_back)
        except SystemdError as error:
            return UnitResult(order.path, order.texts, error.fault, str(error)), False
        if taken.is_gone:
            result = UnitResult(order.path, order.texts, Fault.NO_UNIT, "the unit is gone")
            return result, taken.wants_reload
        self._await_files(order)
        for knob, text in order.texts.items():
            self._in_force[order.path, knob] = text
        return UnitResult(order.path, order.texts, foreign=taken.foreign), taken.wants_reload

    def _overtaken(self, order: UnitOrder) -> str:
        """What another writer put there since the order was given; ``""`` where nobody did."""
        if not order.values:
            return ""
        for knob, before in order.before.items():
            text = self._text(order.path, knob)
            ours = (before, order.texts.get(knob), self._in_force.get((order.path, knob)))
            if text is not None and text not in ours:
                return f"another writer made {knob.value} {text!r} this moment"
        return ""

    def _await_files(self, order: UnitOrder) -> None:
        is_idle = order.texts.get(Knob.CPU_IDLE) == "1"  # then the weight is hidden
        shown = {
            knob: text
            for knob, text in order.texts.items()
            if not (is_idle and knob is Knob.CPU_SHARES)
        }
        deadline_s = time.monotonic() + IN_FORCE_S
        while time.monotonic() < deadline_s:
            if all(self._text(order.path, knob) in (None, text) for knob, text in shown.items()):
                return
            time.sleep(_LOOK_AGAIN_S)

    def _text(self, path: CgroupPath, knob: Knob) -> str | None:
        """The file's canonical text; None where it cannot be read."""
        raw = self._cgroups.read_raw(path, knob)
        if isinstance(raw, Missing):
            return None
        try:
            return self._cgroups.canonical(knob, raw)
        except ValueError:
            return None
