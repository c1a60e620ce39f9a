"""After the service has ended: restore, or wait for the next daemon under a dead-man timer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from koordlet import afterstop, journalundo
from koordlet.afterstop import Then, decide
from koordlet.config import Config
from koordlet.journalundo import Undone
from koordlet.model.actions import Outcome, Status
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.protocol.problem import Problem
from koordlet.resexecutor.rollback import DoneBy, RollbackReport

UNIT = "koordlet.service"


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("result", "jobs", "then"),
    [
        ("success", (), Then.RESTORE),  # SIGTERM by hand: nobody starts it again
        ("success", ("stop",), Then.RESTORE),
        ("success", ("restart",), Then.WAIT),
        ("success", ("try-restart",), Then.WAIT),
        ("success", ("stop", "start"), Then.WAIT),
        ("success", None, Then.WAIT),  # systemd did not say
        ("exit-code", (), Then.WAIT),
        ("signal", (), Then.WAIT),
        ("core-dump", (), Then.WAIT),
        ("watchdog", (), Then.WAIT),
        ("timeout", ("stop",), Then.WAIT),
        ("oom-kill", (), Then.WAIT),
        ("", (), Then.WAIT),
    ],
)
def test_H16_only_a_clean_end_with_no_restart_to_come_restores(
    result: str, jobs: Collection[str] | None, then: Then
) -> None:
    assert decide(result, jobs) is then


class Systemd:
    """``systemctl`` with these jobs; what is started is noted in ``started``."""

    def __init__(self, jobs: str | None = "", *, starts: bool = True) -> None:
        self._jobs = jobs
        self._starts = starts
        self.started: list[str] = []

    def __call__(self, *words: str) -> str | None:
        if words[0] == "list-jobs":
            return self._jobs
        self.started.append(words[-1])
        return "" if self._starts else None


class Undo:
    """Stands for the restore; ``report`` is what it comes to."""

    def __init__(self, *outcomes: Outcome, problems: tuple[Problem, ...] = ()) -> None:
        self.report = RollbackReport(DoneBy.JOURNAL, outcomes, problems)
        self.configs: list[Config] = []

    def __call__(self, config: Config, *_: Any) -> Undone:
        self.configs.append(config)
        return Undone(self.report, {})


def outcome(status: Status) -> Outcome:
    return Outcome(CgroupPath("kubepods"), Knob.CPU_SHARES, "be_priority", status)


def run(
    monkeypatch: pytest.MonkeyPatch, systemd: Systemd, undo: Undo, result: str, *options: str
) -> int:
    monkeypatch.setattr(afterstop, "_systemctl", systemd)
    monkeypatch.setattr(journalundo, "undo", undo)
    return afterstop.after_stop([UNIT, *options], {"SERVICE_RESULT": result})


def test_H16_a_crash_arms_the_timer_and_restores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    systemd, undo = Systemd(), Undo()
    assert run(monkeypatch, systemd, undo, "signal") == 0
    assert systemd.started == ["koordlet-rollback.timer"]
    assert undo.configs == []


def test_H16_a_restart_is_seen_by_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = f"  7 other.service start waiting\n 812 {UNIT} restart running\n"
    systemd, undo = Systemd(jobs), Undo()
    assert run(monkeypatch, systemd, undo, "success") == 0
    assert systemd.started == ["koordlet-rollback.timer"]


def test_a_stop_restores_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    systemd = Systemd(f"7 other.service restart running\n812 {UNIT} stop running\n")
    undo = Undo(outcome(Status.RESTORED), outcome(Status.FOREIGN))
    assert run(monkeypatch, systemd, undo, "success") == 0
    assert systemd.started == []
    assert len(undo.configs) == 1


def test_what_could_not_be_restored_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for undo in (
        Undo(problems=(Problem("writer-busy", "lock", "held"),)),
        Undo(outcome(Status.RESTORED), outcome(Status.REFUSED)),
    ):
        systemd = Systemd()
        assert run(monkeypatch, systemd, undo, "success") == 1
        assert systemd.started == ["koordlet-rollback.timer"]


def test_where_no_timer_can_be_armed_everything_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    undo = Undo()
    assert run(monkeypatch, Systemd(None, starts=False), undo, "signal") == 0
    assert len(undo.configs) == 1


def test_a_configuration_that_is_refused_keeps_nothing_from_being_restored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "koordlet.yaml"
    broken.write_text("runDir: [")
    broken.chmod(0o600)
    undo = Undo()
    assert run(monkeypatch, Systemd(), undo, "success", "--config", str(broken)) == 0
    assert [config.run_dir for config in undo.configs] == [Config().run_dir]
