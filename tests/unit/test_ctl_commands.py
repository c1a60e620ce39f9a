"""koordletctl's commands: what they print, and how they end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from koordlet import ipc
from koordlet.ctl import asking
from koordlet.model.actions import Mode, Outcome, Status
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import DEFAULT_NODESLO
from koordlet.protocol.problem import Problem, RefusedError
from koordlet.resexecutor.audit import AuditEvent
from tests.support import views
from tests.support.ctl import PaperDaemon, ctl, paper_daemon
from tests.unit.test_api_views import validator

TIER_FILE = views.file_path(views.TIER_QUOTA)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaperDaemon]:
    with paper_daemon(tmp_path_factory.mktemp("run")) as one:
        yield one


@pytest.fixture
def daemon(served: PaperDaemon) -> PaperDaemon:
    """One server for all tests, everything remembered forgotten: a stop takes half a second."""
    served.reset()
    return served


QUESTIONS = {
    "status": ("status",),
    "doctor": ("doctor",),
    "pods": ("pods",),
    "plan": ("plan",),
    "explain": ("explain", "default/batch-1"),
    "audit": ("audit",),
    "modes": ("mode",),
    "slo": ("slo", "show"),
}


@pytest.mark.parametrize("command", QUESTIONS)
def test_json_is_one_object_of_the_published_schema(daemon: PaperDaemon, command: str) -> None:
    daemon.events = (AuditEvent(views.WALL_S, "write", "cpu_suppress"),)
    said = daemon.ctl(*QUESTIONS[command], "-o", "json")
    assert list(said.body) == ["schema", "node", "taken_at", "data", "problems"]
    assert said.body["schema"] == f"koordletctl.{command}/v1"
    validator(command)(said.body)


@pytest.mark.parametrize("command", QUESTIONS)
def test_yaml_is_the_same_object(daemon: PaperDaemon, command: str) -> None:
    as_json = daemon.ctl(*QUESTIONS[command], "-o", "json")
    as_yaml = daemon.ctl(*QUESTIONS[command], "--output", "yaml")
    assert yaml.safe_load(as_yaml.out) == as_json.body


@pytest.mark.parametrize("command", QUESTIONS)
@pytest.mark.parametrize("kind", views.ALL_VIEWS)
def test_tables_of_every_kind_of_host_hold_no_control_character(
    daemon: PaperDaemon, kind: str, command: str
) -> None:
    daemon.view = views.ALL_VIEWS[kind]()
    nasty = views.NASTY_NAME
    daemon.events = (
        AuditEvent(views.WALL_S, nasty, nasty, nasty, nasty, nasty, nasty, nasty, nasty, nasty),
    )
    words = QUESTIONS[command]
    if command == "explain":
        words = ("explain", "encoder" if kind != "nasty-names" else "22222222")
    said = daemon.ctl(*words)
    assert said.out or said.err
    assert not set(said.out + said.err) & set("\x1b\x07\x9b\u202e\r")
    assert "\udc80" not in said.out + said.err


def test_without_a_terminal_there_is_no_colour(daemon: PaperDaemon) -> None:
    assert "\x1b" not in daemon.ctl("status").out


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("pods",),
        ("explain", "x"),
        ("audit",),
        ("mode",),
        ("mode", "off"),
        ("release",),
        ("resume",),
        ("slo", "show"),
        ("status", "--watch"),
    ],
)
def test_without_a_daemon_the_exit_code_is_3(tmp_path: Path, words: tuple[str, ...]) -> None:
    said = ctl(*words, "--run-dir", str(tmp_path))
    assert said.code == 3
    assert said.out == ""
    assert f"error: {tmp_path}/api.sock: no such socket" in said.err
    assert "  remedy: start koordlet" in said.err


def test_a_failure_is_an_object_too_where_one_was_asked_for(tmp_path: Path) -> None:
    said = ctl("status", "-o", "json", "--run-dir", str(tmp_path))
    assert said.code == 3
    assert said.body["data"] is None
    assert said.body["problems"][0]["code"] == "daemon-not-running"
    validator("error")(said.body)


@pytest.mark.parametrize(
    "words",
    [
        ("nothing",),
        ("status", "--nothing"),
        ("status", "-o", "xml"),
        ("explain",),
        ("audit", "--limit", "0"),
        ("audit", "--since", "yesterday"),
        ("mode", "sometimes"),
        ("mode", "a", "b", "off"),
        ("mode", "off", "--for", "soon"),
        ("mode", "--for", "30m"),
        ("mode", "nobody", "off"),
        ("explain", "nobody"),
        ("release", "owner:nobody"),
        ("status", "--watch", "-o", "json"),
        ("completion", "tcsh"),
    ],
)
def test_bad_usage_and_bad_input_end_with_2(daemon: PaperDaemon, words: tuple[str, ...]) -> None:
    options = () if words[0] in ("completion", "nothing") else ("--run-dir", str(daemon.run_dir))
    said = ctl(*words, *options)
    assert said.code == 2
    assert said.err
    assert daemon.orders == []


def test_an_unreadable_configuration_ends_with_2(tmp_path: Path) -> None:
    config = tmp_path / "koordlet.yaml"
    config.write_text("runDirectory: /run/x\n")
    config.chmod(0o600)
    said = ctl("status", "--config", str(config))
    assert said.code == 2
    assert "runDirectory" in said.err
    assert "runDir" in said.err


def test_options_may_stand_before_the_command_and_later_ones_win(daemon: PaperDaemon) -> None:
    run_dir = str(daemon.run_dir)
    before = ctl("--run-dir", run_dir, "-o", "json", "status")
    assert before.body["node"] == "node-1"
    both = ctl("--run-dir", "/nowhere", "-o", "json", "status", "--run-dir", run_dir, "-o", "yaml")
    assert yaml.safe_load(both.out)["node"] == "node-1"


# -- doctor and plan ------------------------------------------------------------------------------


def test_doctor_ends_with_4_where_a_needed_capability_is_missing(daemon: PaperDaemon) -> None:
    said = daemon.ctl("doctor")
    assert said.code == 4
    assert "MISSING" in said.out
    assert "Linux 5.15 or newer" in said.out


def test_doctor_ends_with_0_where_everything_needed_is_there(daemon: PaperDaemon) -> None:
    daemon.view = replace(daemon.view, slo=replace(views.slo_status(), slo=DEFAULT_NODESLO))
    assert daemon.ctl("doctor").code == 0


def test_doctor_ends_with_4_where_nothing_could_be_probed(daemon: PaperDaemon) -> None:
    daemon.view = replace(daemon.view, capabilities=Missing("not probed yet"))
    assert daemon.ctl("doctor").code == 4


def test_doctor_and_plan_work_without_a_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dry = replace(views.core_status(), dry_run=True)
    seen = replace(views.node_view(), core=dry, owned=(), outcomes={})
    monkeypatch.setattr(asking, "_look", lambda config: seen)
    doctor = ctl("doctor", "-o", "json", "--run-dir", str(tmp_path))
    assert doctor.code == 4
    assert doctor.body["data"]["answered_by"] == "one-shot"
    assert doctor.body["problems"][0]["code"] == "daemon-not-running"
    assert doctor.body["problems"][0]["severity"] == "info"
    validator("doctor")(doctor.body)
    plan = ctl("plan", "-o", "json", "--run-dir", str(tmp_path))
    assert plan.code == 0
    assert {entry["state"] for entry in plan.body["data"]["settings"]} >= {"planned", "held"}
    validator("plan")(plan.body)


def test_H14_doctor_names_another_agent_and_ends_with_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = replace(views.node_view(), slo=replace(views.slo_status(), slo=DEFAULT_NODESLO))
    monkeypatch.setattr(asking, "_look", lambda config: off)
    words = ("doctor", "--run-dir", str(tmp_path), "--proc-root", str(tmp_path))
    assert ctl(*words).code == 0
    (tmp_path / "4711").mkdir()
    (tmp_path / "4711" / "comm").write_text("koordlet\n")
    (tmp_path / "4711" / "exe").symlink_to("/koordlet")
    said = ctl(*words)
    assert said.code == 4
    assert "Koordinator's koordlet runs as process 4711" in said.err


def test_doctor_does_not_guess_where_a_daemon_refuses_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem("daemon-not-allowed", "api.sock", "uid 1000 may not connect")

    def refuse(self: object, endpoint: str) -> None:
        raise asking.UnreachableError(problem)

    monkeypatch.setattr(asking.Client, "get", refuse)
    said = ctl("doctor", "--run-dir", str(tmp_path))
    assert said.code == 3
    assert "may not connect" in said.err


def test_a_host_without_cgroups_is_told_not_thrown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(config: object) -> None:
        raise RefusedError((Problem("no-cgroups", "/proc", "nothing is mounted"),))

    monkeypatch.setattr(asking, "_look", refuse)
    said = ctl("plan", "--run-dir", str(tmp_path))
    assert said.code == 2
    assert "nothing is mounted" in said.err


# -- audit ----------------------------------------------------------------------------------------


def test_audit_asks_by_time_pod_knob_and_owner(
    daemon: PaperDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = daemon.ctl(
        *("audit", "--since", "2026-01-01T00:00:00Z", "--until", "2026-01-01T01:00:00Z"),
        *("--pod", "default/batch-1", "--knob", "cpu.quota", "--owner", "cpu_suppress"),
        *("--limit", "7"),
    )
    assert said.code == 0
    (query,) = daemon.queries
    assert (query.since_s, query.until_s) == (views.WALL_S, views.WALL_S + 3_600)
    assert query.pod == "22222222-aaaa-bbbb-cccc-000000000002"
    assert (query.knob, query.owner, query.limit) == ("cpu.quota", "cpu_suppress", 7)


def test_audit_shows_events_newest_last(daemon: PaperDaemon) -> None:
    daemon.events = (
        AuditEvent(views.WALL_S, "write", "cpu_suppress", path="/x/a", reason="first"),
        AuditEvent(views.WALL_S + 1, "restore", "cpu_suppress", path="/x/b", outcome="refused"),
    )
    out = daemon.ctl("audit").out
    assert out.index("/x/a") < out.index("/x/b")
    assert "refused" in out


# -- orders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (("mode", "observe"), ipc.ModeCommand("", Mode.OBSERVE, None)),
        (("mode", "cpu_suppress", "off"), ipc.ModeCommand("cpu_suppress", Mode.OFF, None)),
        (("mode", "enforce", "--for", "30m"), ipc.ModeCommand("", Mode.ENFORCE, 1_800.0)),
        (("release",), ipc.ReleaseCommand("all")),
        (("release", "cpu_suppress"), ipc.ReleaseCommand("owner:cpu_suppress")),
        (("release", TIER_FILE), ipc.ReleaseCommand(f"file:{TIER_FILE}")),
        (("resume",), ipc.ResumeCommand("")),
        (("resume", "owner:be_priority"), ipc.ResumeCommand("owner:be_priority")),
        (("rollback",), ipc.ReleaseCommand("all")),
    ],
)
def test_H17_orders_reach_the_core(
    daemon: PaperDaemon, words: tuple[str, ...], order: object
) -> None:
    restored = [
        Outcome(*entry.key, entry.owner, Status.RESTORED, entry.last_written, entry.original)
        for entry in views.owned()
    ]
    daemon.reply = ipc.CommandReply(1, {"outcomes": tuple(restored)})
    said = daemon.ctl(*words)
    assert said.code == 0
    assert daemon.orders == [order]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Status.RESTORED, 0),
        (Status.GONE, 0),
        (Status.PENDING, 0),
        (Status.FOREIGN, 4),
        (Status.REFUSED, 1),
    ],
)
@pytest.mark.parametrize("word", ["release", "rollback"])
def test_undo_ends_by_what_became_of_the_files(
    daemon: PaperDaemon, word: str, status: Status, code: int
) -> None:
    outcome = Outcome(*views.TIER_QUOTA, "cpu_suppress", status, "70000", why="why")
    daemon.view = replace(daemon.view, owned=views.owned()[:1])
    daemon.reply = ipc.CommandReply(1, {"outcomes": (outcome,)})
    said = daemon.ctl(word)
    assert said.code == code
    assert TIER_FILE in said.out
    assert status.value in said.out


def test_an_order_that_was_not_obeyed_ends_with_1(daemon: PaperDaemon) -> None:
    problem = Problem("order-refused", "order", "the core did not answer within 10 s")
    daemon.reply = ipc.CommandReply(1, {}, (problem,))
    said = daemon.ctl("mode", "off")
    assert said.code == 1
    assert "did not answer" in said.err


def test_a_dry_rollback_orders_nothing(daemon: PaperDaemon) -> None:
    said = daemon.ctl("rollback", "--dry-run", "-o", "json")
    assert said.code == 0
    assert daemon.orders == []
    assert said.body["data"]["dry_run"] is True
    assert len(said.body["data"]["files"]) == len(views.owned())
    validator("rollback")(said.body)


def test_H16_rollback_if_no_daemon_leaves_a_daemon_alone(daemon: PaperDaemon) -> None:
    said = daemon.ctl("rollback", "--if-no-daemon", "-o", "json")
    assert said.code == 0
    assert daemon.orders == []
    assert said.body["data"]["done_by"] == "nobody"
    assert "koordlet runs" in said.body["data"]["note"]
    validator("rollback")(said.body)


# -- NodeSLO --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "code", "word"),
    [
        ("{}", 0, "clean"),
        ("resourceUsedThresholdWithBE: {enable: true, cpuSupressPolicy: cpuset}", 4, "warnings"),
        ("resourceUsedThresholdWithBE: {enable: 7}", 2, "refused"),
        ("[1, 2]", 2, "refused"),
        (":\n\t{", 2, "refused"),
    ],
)
def test_slo_check_ends_with_0_4_or_2(tmp_path: Path, content: str, code: int, word: str) -> None:
    file = tmp_path / "slo.yaml"
    file.write_text(content)
    said = ctl("slo", "check", str(file))
    assert said.code == code
    assert word in said.out
    body = ctl("slo", "check", "-o", "json", "-", stdin=content).body
    assert body["data"]["verdict"] == word
    validator("slo-check")(body)


def test_slo_check_of_what_is_no_text_or_not_there(tmp_path: Path) -> None:
    assert ctl("slo", "check", str(tmp_path / "none")).code == 2
    assert ctl("slo", "check", str(tmp_path)).code == 2
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    said = ctl("slo", "check", str(binary))
    assert said.code == 2
    assert "UTF-8" in said.out


def test_slo_defaults_can_be_checked_and_change_nothing(tmp_path: Path) -> None:
    said = ctl("slo", "defaults")
    assert said.code == 0
    checked = ctl("slo", "check", "-o", "json", "-", stdin=said.out)
    assert checked.code == 0
    assert checked.body["data"]["changed"] == []
    validator("slo-defaults")(ctl("slo", "defaults", "-o", "json").body)


def test_slo_show_prints_a_document(daemon: PaperDaemon) -> None:
    document = yaml.safe_load(daemon.ctl("slo", "show").out.partition("warning:")[0])
    assert document["resourceUsedThresholdWithBE"]["enable"] is True


# -- help and completion --------------------------------------------------------------------------


def test_help_names_every_command_and_the_exit_codes() -> None:
    said = ctl("--help")
    assert said.code == 0
    for command in [
        "doctor",
        "status",
        "pods",
        "plan",
        "explain",
        "audit",
        "mode",
        "release",
        "resume",
        "rollback",
        "slo",
        "completion",
    ]:
        assert f"  {command} " in said.out
    assert "Exit codes: 0 done; 1 failed; 2 bad usage" in said.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    said = ctl("completion", shell)
    assert said.code == 0
    assert "_KOORDLETCTL_COMPLETE" in said.out


def test_json_is_ascii(daemon: PaperDaemon) -> None:
    daemon.view = views.nasty_names()
    said = daemon.ctl("pods", "-o", "json")
    assert said.out.isascii()
    assert json.loads(said.out)["data"]["pods"][0]["name"] == views.NASTY_NAME
