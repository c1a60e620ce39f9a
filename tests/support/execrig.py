"""An executor over a fake host, with a clock that tests turn by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koordlet.model.actions import Outcome, Plan, Restore, SetValue, Status, Target
from koordlet.model.knobs import Channel, Direction, Knob, Value
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.resexecutor.executor import Executor
from koordlet.resexecutor.journal import Journal
from koordlet.resexecutor.review import Review
from tests.support.fakehost import FakeHost

BOOT = "boot-1"
OWNER = "cpu_suppress"


class HandClock:
    """A clock that stands until it is moved."""

    def __init__(self, now_s: float = 100.0) -> None:
        self.at_s = now_s

    def now_s(self) -> float:
        return self.at_s

    def wall_s(self) -> float:
        return 1_700_000_000.0 + self.at_s


@dataclass
class FakeRuntime:
    """A container runtime: keeps specs, answers when told."""

    specs: dict[tuple[str, Knob], Value] = field(default_factory=dict)
    asked: list[tuple[str, Knob, Value]] = field(default_factory=list)

    def original(self, container_id: str, knob: Knob) -> Value | Missing:
        return self.specs.get((container_id, knob), Missing("not known"))

    def request(self, container_id: str, knob: Knob, value: Value) -> None:
        self.asked.append((container_id, knob, value))


def key(path: str, knob: Knob) -> Target:
    return (CgroupPath(path), knob)


def want(path: str, knob: Knob, value: Value, **rest: Any) -> SetValue:
    """A planned value, with an owner and a reason."""
    rest.setdefault("owner", OWNER)
    rest.setdefault("reason", "a test wants it")
    return SetValue(CgroupPath(path), knob, value, **rest)


def cpus(*ids: int) -> frozenset[int]:
    return frozenset(ids)


class Rig:
    """One executor; ``restart`` puts another one on the same journal, as after a crash."""

    def __init__(self, host: FakeHost, directory: Path, **options: Any) -> None:
        self.host = host
        self.path = directory / "run" / "journal.db"
        self.path.parent.parent.mkdir(exist_ok=True)
        self.clock = HandClock()
        self.options = options
        self.runtime = FakeRuntime()
        self.problems: tuple[object, ...] = ()
        self.review = Review()
        self.start()

    def start(self) -> None:
        opened = Journal.open(self.path, boot_id=BOOT, managed_root="/", pid=1)
        self.journal, self.problems = opened.journal, opened.problems
        self.executor = Executor(
            self.host.cgroups(),
            self.journal,
            self.clock,
            spec_channel=self.runtime,
            **self.options,
        )

    def crash(self) -> None:
        """The process is gone; nothing was said or done."""
        self.journal.close()

    def restart(self) -> None:
        self.crash()
        self.start()

    def tick(self, *writes: SetValue, restores: tuple[Restore, ...] = ()) -> dict[Target, Outcome]:
        """One second later: review and apply. Values that the plan does not name stay."""
        self.clock.at_s += 1.0
        self.review = self.executor.review(self.clock.at_s)
        outcomes = self.executor.apply(Plan(writes, restores), self.clock.at_s)
        return {outcome.key: outcome for outcome in outcomes}

    def restore(self, *keys: Target) -> dict[Target, Outcome]:
        """One second later: give ``keys`` back."""
        owned = self.executor.owned()
        restores = tuple(
            Restore(
                *each,
                owned[each].owner if each in owned else OWNER,
                "switched off",
                owned[each].channel if each in owned else Channel.FILE,
                owned[each].container_id if each in owned else "",
            )
            for each in keys
        )
        return self.tick(restores=restores)

    def restore_all(self) -> dict[Target, Outcome]:
        self.clock.at_s += 1.0
        outcomes = self.executor.restore_all("clean stop", self.clock.at_s)
        return {outcome.key: outcome for outcome in outcomes}

    def written(self) -> list[tuple[str, str]]:
        """(file below the mount, text) of all writes since the last call, and forget them."""
        depth = 4 if self.host.hierarchies.v1.get("cpu") is None else 5
        taken = [(path.split("/", depth)[-1], text) for path, text in self.host.files.writes]
        self.host.files.writes.clear()
        return taken

    def events(self) -> list[str]:
        """Kinds of audit events since the last call."""
        return [event.kind for event in self.executor.take_events()]


def statuses(outcomes: dict[Target, Outcome]) -> dict[str, Status]:
    """Status by path (one knob a path)."""
    return {str(path): outcome.status for (path, _), outcome in outcomes.items()}


__all__ = [
    "BOOT",
    "OWNER",
    "Direction",
    "FakeRuntime",
    "HandClock",
    "Rig",
    "cpus",
    "key",
    "statuses",
    "want",
]
