"""Tables on narrow terminals, the live summary, and the process around them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from koordlet.api.client import Client
from koordlet.api.views.audit import audit_data
from koordlet.api.views.doctor import doctor_data
from koordlet.api.views.explain import explain_data
from koordlet.api.views.modes import modes_data
from koordlet.api.views.plan import plan_data
from koordlet.api.views.pods import pods_data
from koordlet.api.views.slo import slo_data
from koordlet.api.views.status import status_data
from koordlet.api.views.undo import undo_data
from koordlet.ctl import screen
from koordlet.ctl.output import console
from koordlet.ctl.render.others import (
    draw_audit,
    draw_doctor,
    draw_modes,
    draw_slo,
    draw_undo,
    undo_summary,
)
from koordlet.ctl.render.settings import draw_explain, draw_plan
from koordlet.ctl.render.status import budget, draw_status, head_parts
from koordlet.ctl.render.workloads import draw_pods, qos_word
from koordlet.report import NodeView
from tests.support import gendocs_cli, views
from tests.support.ctl import PaperDaemon, paper_daemon

REPO = Path(__file__).resolve().parents[2]


def _explained(view: NodeView) -> Any:
    pods = pods_data(view)["pods"]
    subjects = [
        subject
        for pod in (pods if isinstance(pods, list) else [])
        for subject in explain_data(view, pod["uid"])["subjects"]
    ]
    return {"target": "all", "subjects": subjects}


DRAWN: dict[str, tuple[Callable[[Any, Console], None], Callable[[NodeView], Any]]] = {
    "status": (draw_status, status_data),
    "pods": (draw_pods, pods_data),
    "plan": (draw_plan, plan_data),
    "explain": (draw_explain, _explained),
    "doctor": (draw_doctor, doctor_data),
    "modes": (draw_modes, modes_data),
    "slo": (draw_slo, slo_data),
    "audit": (draw_audit, lambda view: audit_data([views.audit_event()], 1)),
    "undo": (
        draw_undo,
        lambda view: undo_data(view.outcomes.values(), view.paths, done_by="journal"),
    ),
}


def drawn(name: str, view: NodeView, width: int) -> str:
    """What a person sees of one answer on a terminal of ``width`` columns."""
    draw, shape = DRAWN[name]
    stream = io.StringIO()
    draw(json.loads(json.dumps(shape(view))), console(stream, width=width))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("kind", views.ALL_VIEWS)
def test_nothing_is_wider_than_the_terminal(kind: str, name: str, width: int) -> None:
    text = drawn(name, views.ALL_VIEWS[kind](), width)
    if name != "slo":  # a document keeps its lines, to be copied
        assert max((Text(line).cell_len for line in text.splitlines()), default=0) <= width
    assert not set(text) & set("\x1b\x07\x9b\u202e\r")


def test_status_shows_use_budget_with_its_terms_roots_and_holds() -> None:
    text = drawn("status", views.node_view(), 200)
    assert "2.30 cores used: pods 0.90, apps 0.00, BE 1.20, system 0.20" in text
    assert (
        "1.20 cores = 4 x 65 % - 0.90 pods - 0.00 apps - max(0.20 system, 0.50 reserved),"
        " at least 0.00" in text
    )
    assert "host-best-effort/encoder" in text
    assert "held, refused" in text
    assert "cpu_suppress for 12s: the use of this node is not known" in drawn(
        "status", views.observing(), 200
    )
    assert "SILENT" in drawn("status", views.core_gone(), 200)


def test_a_budget_of_other_terms_is_shown_as_it_is() -> None:
    terms = [{"name": "safe_percent", "value": 10}, {"name": "budget_cores", "value": 0.4}]
    data = {"budget": terms, "floor_bound": True}
    assert budget(data) == "safe_percent = 10, budget_cores = 0.4; floor-bound"
    assert budget({"budget": [], "floor_bound": False}) == "nothing calculates one"


def test_nothing_marked_says_what_to_label_or_declare() -> None:
    text = drawn("status", views.no_workloads(), 200)
    assert "koordinator.sh/qosClass: BE" in text
    assert "/etc/koordlet/hostapps.d/batch.yaml" in text


def test_qos_marks() -> None:
    plain = {"effective": "BE", "refused": "", "marked": True}
    assert qos_word(plain) == "BE"
    assert qos_word({**plain, "marked": False}) == "BE*"
    assert qos_word({**plain, "refused": "why"}) == "BE!"


def test_explain_shows_every_value_and_the_numbers_in_order() -> None:
    text = drawn("explain", views.node_view(), 200)
    for line in ("wanted    80000 us", "present   80000", "original  -1", "we wrote  80000"):
        assert line in text
    assert text.index("capacity_cores = 4") < text.index("budget_cores = 1.2")
    assert "LSR (from label) refused" in text


@pytest.mark.parametrize("width", [80, 200])
def test_an_event_is_a_row_where_there_is_room_and_lines_elsewhere(width: int) -> None:
    text = drawn("audit", views.node_view(), width)
    assert ("-1 -> 80000" in text) == (width == 80)
    assert views.file_path(views.TIER_QUOTA) in text
    assert "2026-01-01" not in text
    assert "2025-12-31 23:59:59Z" in text


def test_undo_is_summed_up_in_one_line() -> None:
    data = undo_data(views.outcomes().values(), {}, done_by="daemon", note="released until resume")
    assert undo_summary(data) == "3 restored, 1 failed (by daemon); released until resume"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaperDaemon]:
    with paper_daemon(tmp_path_factory.mktemp("run")) as one:
        one.events = (views.audit_event(),)
        yield one


def stop_after(looks: int) -> Callable[[], bool]:
    """A stop that comes after so many looks."""
    left = iter([False] * looks)
    return lambda: next(left, True)


def test_the_summary_is_one_plain_line_without_a_terminal(
    daemon: PaperDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    screen.run(daemon.run_dir / "api.sock", stop_after(1))
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("2026-01-01T00:00:00.000Z cpu 2.30/4, be 1.20, budget 1.20, memory")
    assert "roots 2, files 7, held 0, problems 1" in line


def test_the_summary_on_a_terminal_shows_status_writes_and_problems(
    daemon: PaperDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "80")
    monkeypatch.setenv("TERM", "xterm")
    screen.run(daemon.run_dir / "api.sock", stop_after(1))
    text = stream.getvalue()
    for part in ("koordlet on node-1", "BE budget", "Last writes", "budget", "Problems"):
        assert part in text


def test_a_daemon_that_has_just_started_is_waited_for_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(screen, "STOP_LOOK_S", 0.0)
    screen.run(tmp_path / "api.sock", stop_after(3))
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(screen, "START_S", 0.0)
    screen.run(tmp_path / "api.sock", stop_after(1))
    assert "no such socket" in capsys.readouterr().out


def test_a_mode_that_keeps_a_strategy_from_writing_stands_at_the_head() -> None:
    data: Any = status_data(views.no_workloads())
    data["strategies"][0] |= {"mode": "observe", "mode_until": None}
    stream = io.StringIO()
    Console(file=stream, width=80).print(*head_parts(data))
    assert f"{data['strategies'][0]['name']} observe" in stream.getvalue()


def test_the_summary_waits_for_a_daemon_and_names_every_wait(tmp_path: Path) -> None:
    client = Client(tmp_path / "api.sock")
    (part,) = screen.screen_parts(client, columns=80)
    assert "no such socket" in str(part)
    said, known = screen.line(client)
    assert "no such socket" in said and not known
    data: Any = status_data(views.no_workloads())
    data["waiting_for"] = ["two CPU samples"]
    line = screen.status_line(data, 0)
    assert "waiting for two CPU samples" in line
    assert "koordinator.sh/qosClass: BE" in line


# -- the process ----------------------------------------------------------------------------------


def command(daemon: PaperDaemon, *words: str) -> list[str]:
    """koordletctl as a process."""
    return [sys.executable, "-m", "koordlet.ctl.app", "--run-dir", str(daemon.run_dir), *words]


def test_a_broken_pipe_is_no_traceback(daemon: PaperDaemon) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            command(daemon, "plan", "-o", "json"),
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPO,
            check=False,
        )
    finally:
        os.close(writer)
    assert done.returncode == 1
    assert done.stderr == ""


def test_names_outside_the_terminals_encoding_are_spelled_out(daemon: PaperDaemon) -> None:
    daemon.view = views.nasty_names()
    done = subprocess.run(
        command(daemon, "pods"),
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
        cwd=REPO,
        check=False,
    )
    daemon.view = views.node_view()
    assert done.returncode == 0, done.stderr
    assert b"\\u540d" in done.stdout


def test_the_page_of_the_command_line_is_up_to_date() -> None:
    assert (REPO / "docs" / "cli.md").read_text(encoding="utf-8") == gendocs_cli.render()


def test_completion_answers_the_shell(daemon: PaperDaemon) -> None:
    asked = {"_KOORDLETCTL_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", "from koordlet.ctl.app import main; main()"],
        capture_output=True,
        env={**os.environ, **asked, "COMP_WORDS": "koordletctl mode o"},
        text=True,
        cwd=REPO,
        check=False,
    )
    assert done.stdout.split() == ["off", "observe"]
