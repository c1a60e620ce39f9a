"""koordletctl metrics and top: what is asked, what is drawn, and how they end."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from koordlet.api.views.common import envelope
from koordlet.api.views.plan import plan_data
from koordlet.api.views.pods import pods_data
from koordlet.api.views.status import status_data, view_problems
from koordlet.ctl.output import console
from koordlet.ctl.render.ranges import BARS, PLAIN_BARS, bars_for, sparkline
from koordlet.ctl.render.tables import show
from koordlet.ctl.render.top import Look, TopOptions, column_widths, top_parts
from koordlet.history.codec import pack_steady
from koordlet.history.rollup import Row, Subject
from koordlet.history.store import HistoryStore
from koordlet.metrics.readings import Level
from koordlet.report import NodeView
from tests.support import views
from tests.support.ctl import PaperDaemon, ctl, paper_daemon
from tests.unit.test_api_views import validator

REPO = Path(__file__).resolve().parents[2]
STEERING = set("\x1b\x07\x9b\u202e\r")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaperDaemon]:
    with paper_daemon(tmp_path_factory.mktemp("run")) as one:
        yield one


@pytest.fixture
def daemon(served: PaperDaemon) -> PaperDaemon:
    served.reset()
    return served


# -- metrics --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "target", "level", "series"),
    [
        ((), "", None, ()),
        (("--node",), "", Level.NODE, ()),
        (("shop/web",), "shop/web", None, ()),
        (("cpu", "shop/web", "throttled_ratio"), "shop/web", None, ("cpu", "throttled_ratio")),
        (("--tier", "besteffort"), "besteffort", Level.TIER, ()),
        (("--level", "container", "shop/web"), "shop/web", Level.CONTAINER, ()),
        (("--level", "host_application"), "", Level.APP, ()),
    ],
)
def test_words_are_series_or_a_target(
    daemon: PaperDaemon,
    words: tuple[str, ...],
    target: str,
    level: Level | None,
    series: tuple[str, ...],
) -> None:
    assert daemon.ctl("metrics", *words).code == 0
    (query,) = daemon.ranges
    assert (query.target, query.level, query.series) == (target, level, series)
    assert query.percentiles == (50.0, 95.0, 99.0)


def test_a_range_reaches_the_store(daemon: PaperDaemon) -> None:
    words = ("--since", "1767225600", "--until", "1767229200", "--step", "10m")
    assert daemon.ctl("metrics", *words, "--percentiles", "90, 99.9").code == 0
    (query,) = daemon.ranges
    assert (query.since_s, query.until_s, query.step_s) == (1_767_225_600, 1_767_229_200, 600)
    assert query.percentiles == (90.0, 99.9)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("a/b", "c/d"), "2 targets"),
        (("--node", "--tier", "x"), "exclude one another"),
        (("--node", "a/b"), "exclude one another"),
        (("--since", "yesterday"), "no time"),
        (("--step", "often"), "no duration"),
        (("--step", "90s"), "no step"),
        (("--percentiles", "half"), "no numbers"),
        (("--percentiles", "1,2,3,4,5,6,7,8,9"), "9 of them"),
        (("--level", "cluster"), "cluster"),
        (("--since", "1h", "--until", "2h"), "ends before"),
    ],
)
def test_what_cannot_be_asked_ends_with_2(
    daemon: PaperDaemon, tmp_path: Path, words: tuple[str, ...], what: str
) -> None:
    said = daemon.ctl("metrics", *words)
    if not said.err:  # the paper daemon has no store that refuses a range
        HistoryStore(tmp_path / "history.db").close()
        dirs = ("--run-dir", str(tmp_path), "--state-dir", str(tmp_path))
        said = ctl("metrics", *words, *dirs)
    assert said.code == 2
    assert what in said.err


def test_json_follows_the_schema_and_is_the_range(daemon: PaperDaemon) -> None:
    said = daemon.ctl("metrics", "-o", "json")
    validator("metrics")(said.body)
    found = said.body["data"]
    assert found["readings"] == []
    assert found["range"]["percentile_error_ratio"] == 1 / 64
    node, batch = found["range"]["lines"]
    assert (node["level"], batch["pod"], batch["qos"]) == ("node", "batch-1", "BE")
    assert [len(line["points"]) for line in (node, batch)] == [3, 2]


def test_csv_has_a_row_for_each_point_and_none_for_a_gap(daemon: PaperDaemon) -> None:
    said = daemon.ctl("metrics", "-o", "csv", "--percentiles", "50,99.9")
    head, *rows = csv.reader(io.StringIO(said.out))
    assert head[0] == "at" and head[-2:] == ["p50", "p99.9"]
    assert len(rows) == 5
    first = dict(zip(head, rows[0], strict=True))
    assert (first["level"], first["series"], first["mean"]) == ("node", "used_cpu_cores", "0.5")
    assert all(row[0].endswith("Z") for row in rows)


def test_the_table_shows_the_range_as_one_and_its_course(daemon: PaperDaemon) -> None:
    said = daemon.ctl("metrics")
    lines = said.out.splitlines()
    assert lines[1].split()[:9] == [
        "of",
        "series",
        "min",
        "mean",
        "p50",
        "p95",
        "p99",
        "max",
        "seen",
    ]
    assert any(line.startswith("pod default/batch-1") for line in lines)
    assert "percentiles are within 1.6 %" in lines[-1]


def test_csv_is_for_metrics_alone_and_nothing_is_done_before_that_is_said(
    daemon: PaperDaemon,
) -> None:
    said = daemon.ctl("release", "-o", "csv")
    assert said.code == 2
    assert "csv is no form of this command" in said.err
    assert daemon.orders == []
    assert daemon.ctl("top", "-o", "json", "--once").code == 2


WEB = Subject(Level.POD, "", "shop", "web", "uid-1", "")


@pytest.fixture
def left_behind(tmp_path: Path) -> Path:
    """The state directory of a daemon that ran until a minute ago."""
    store = HistoryStore(tmp_path / "history.db")
    data = pack_steady(store.numbers["used_cpu_cores"], 0.5, 60)
    store.append(int(time.time() // 60) - 1, {WEB: Row(data, None)})
    store.close()
    return tmp_path


def test_without_a_daemon_the_history_is_read_from_what_it_left(left_behind: Path) -> None:
    dirs = ("--run-dir", str(left_behind / "run"), "--state-dir", str(left_behind))
    said = ctl("metrics", "shop/web", "-o", "json", *dirs)
    assert said.code == 0
    (line,) = said.body["data"]["range"]["lines"]
    assert line["whole"]["mean"] == 0.5
    assert said.body["problems"][0]["code"] == "daemon-not-running"
    assert said.body["problems"][0]["severity"] == "info"
    validator("metrics")(said.body)


def test_without_a_daemon_and_without_a_history_the_exit_code_is_3(tmp_path: Path) -> None:
    said = ctl("metrics", "--run-dir", str(tmp_path), "--state-dir", str(tmp_path))
    assert said.code == 3
    assert "no such socket" in said.err


def test_a_history_that_cannot_be_read_fails_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "history.db").write_bytes(b"no database at all" * 100)
    said = ctl("metrics", "--run-dir", str(tmp_path), "--state-dir", str(tmp_path))
    assert said.code == 1
    assert "history.db: file is not a database" in said.err


def test_a_sparkline_starts_at_zero_and_shows_gaps_as_blanks() -> None:
    assert sparkline([0.0, None, 0.5, 1.0]) == "▁ ▅█"
    assert sparkline([]) == ""
    assert sparkline([None, None]) == ""
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([9.0, 10.0], PLAIN_BARS) == "#@"
    wide = sparkline([1.0] * 119 + [2.0])
    assert len(wide) == 60 and wide[-1] == "█"


def test_a_terminal_without_bars_gets_plain_ones() -> None:
    assert bars_for("utf-8") == BARS
    assert bars_for("ascii") == bars_for(None) == bars_for("no such encoding") == PLAIN_BARS


# -- top ------------------------------------------------------------------------------------------


def look_at(view: NodeView) -> Look:
    """Three answers as they come over the socket."""

    def told(command: str, data: Any, problems: Any = ()) -> Any:
        said = envelope(
            command, data, node=view.node, taken_wall_s=view.taken_wall_s, problems=problems
        )
        return json.loads(json.dumps(said))

    return Look(
        told("status", status_data(view), view_problems(view)),
        told("pods", pods_data(view)),
        told("plan", plan_data(view)),
    )


def drawn(
    view: NodeView, columns: int, lines: int | None = None, options: TopOptions | None = None
) -> list[str]:
    stream = io.StringIO()
    parts = top_parts(look_at(view), options or TopOptions(), columns, lines)
    show(console(stream, width=columns), parts)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("width", [200, 100, 80, 40, 20])
@pytest.mark.parametrize("kind", views.ALL_VIEWS)
def test_nothing_is_wider_than_the_terminal_and_nothing_steers_it(kind: str, width: int) -> None:
    lines = drawn(views.ALL_VIEWS[kind](), width)
    assert max(Text(line).cell_len for line in lines) <= width
    assert not set("".join(lines)) & STEERING


GOLDEN = REPO / "tests" / "fixtures" / "top"


@pytest.mark.parametrize(
    ("name", "view", "columns", "lines"),
    [
        ("wide", views.node_view, 140, None),
        ("narrow", views.node_view, 80, 16),
        ("tiny", views.node_view, 40, 12),
        ("observing", views.observing, 140, None),
        ("nothing-known", views.everything_missing, 80, None),
    ],
)
def test_the_screen_is_as_it_was(
    name: str, view: Callable[[], NodeView], columns: int, lines: int | None
) -> None:
    """tests/fixtures/top/NAME.txt: look at a difference, then take it over."""
    assert drawn(view(), columns, lines) == (GOLDEN / f"{name}.txt").read_text().splitlines()


def names(lines: list[str]) -> list[str]:
    """The workloads of a list, without tiers."""
    first = next(n for n, line in enumerate(lines) if line.startswith("of ")) + 1
    rows = [line for line in lines[first:-1] if not line.startswith("tier ")]
    return [row.split()[0] for row in rows]


def test_the_one_that_uses_most_stands_first_and_the_unknown_last() -> None:
    view = views.node_view()
    by_cpu = names(drawn(view, 200))
    assert by_cpu[-1] == "default/liar-1"
    assert set(by_cpu[:2]) <= {"default/web-1", "encoder", "default/batch-1"}
    by_name = names(drawn(view, 200, options=TopOptions(sort="name")))
    assert by_name == sorted(by_name)
    assert names(drawn(view, 200, options=TopOptions(sort="memory")))[0] == "default/batch-1"
    assert names(drawn(view, 200, options=TopOptions(sort="throttled")))[0] == "default/batch-1"


def test_only_the_classes_that_were_asked_for() -> None:
    lines = drawn(views.node_view(), 200, options=TopOptions(qos=frozenset({"BE"})))
    assert "default/batch-1" in names(lines)
    assert "default/web-1" not in names(lines)


def test_rows_fit_the_terminal_and_the_rest_is_counted() -> None:
    view = views.node_view()
    whole = drawn(view, 120)
    assert len(drawn(view, 120, lines=len(whole) + 1)) == len(whole)
    shorter = drawn(view, 120, lines=len(whole))
    assert len(shorter) == len(whole) - 1
    assert "1 more below" in shorter[-1]
    assert len(names(drawn(view, 120, options=TopOptions(rows=2)))) == 2


def test_a_narrow_terminal_keeps_name_and_use_and_drops_reasons_first() -> None:
    wide, middle, narrow, least = (column_widths(width, 24, 40) for width in (160, 90, 60, 12))
    assert list(wide) == ["of", "qos", "cpu", "memory", "throttled", "done", "why"]
    assert list(middle) == ["of", "qos", "cpu", "memory", "throttled", "done"]
    assert list(narrow) == ["of", "qos", "cpu", "memory", "throttled"]
    assert list(least) == ["of"]
    for columns in range(1, 200):
        found = column_widths(columns, 40, 60)
        assert sum(found.values()) + 2 * (len(found) - 1) <= max(columns, 1)


def test_once_is_one_plain_look(daemon: PaperDaemon) -> None:
    said = daemon.ctl("top", "--once", "--rows", "1", "--qos", "be")
    assert said.code == 0
    assert said.out.count("koordlet on node-1") == 1
    assert not set(said.out) & STEERING


@pytest.mark.parametrize("words", [("--interval", "2h"), ("--interval", "x"), ("--sort", "x")])
def test_what_top_cannot_do_ends_with_2(daemon: PaperDaemon, words: tuple[str, ...]) -> None:
    assert daemon.ctl("top", "--once", *words).code == 2


def test_top_without_a_daemon_ends_with_3(tmp_path: Path) -> None:
    assert ctl("top", "--run-dir", str(tmp_path)).code == 3


def command(daemon: PaperDaemon, *words: str) -> list[str]:
    return [sys.executable, "-m", "koordlet.ctl.app", "--run-dir", str(daemon.run_dir), *words]


class OnTerminal:
    """koordletctl on a terminal of its own; reads what it draws."""

    def __init__(self, daemon: PaperDaemon, *words: str) -> None:
        self._master, slave = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        self.process = subprocess.Popen(
            command(daemon, *words), stdin=slave, stdout=slave, stderr=slave, cwd=REPO, env=env
        )
        os.close(slave)
        self.text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                found = os.read(self._master, 4096)
            except OSError:
                return
            self.text += found.decode(errors="replace")

    def wait_for(self, text: str) -> None:
        deadline_s = time.monotonic() + 20
        while text not in self.text:
            assert time.monotonic() < deadline_s, self.text[-2000:]
            time.sleep(0.05)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def end(self) -> int:
        code = self.process.wait(20)
        self._reader.join(5)
        os.close(self._master)
        return code


def test_q_quits(daemon: PaperDaemon) -> None:
    screen = OnTerminal(daemon, "top", "--interval", "1s")
    screen.wait_for("default/batch-1")
    screen.press("xq")
    assert screen.end() == 0


def test_ctrl_c_quits(daemon: PaperDaemon) -> None:
    screen = OnTerminal(daemon, "top", "--interval", "60s")
    screen.wait_for("default/batch-1")
    screen.process.send_signal(signal.SIGINT)
    assert screen.end() == 0
    assert "Traceback" not in screen.text


def test_a_daemon_that_goes_is_waited_for(tmp_path: Path) -> None:
    with paper_daemon(tmp_path) as daemon:
        screen = OnTerminal(daemon, "top", "--interval", "1s")
        screen.wait_for("default/batch-1")
    screen.wait_for("no such socket")
    with paper_daemon(tmp_path) as daemon:
        daemon.view = replace(daemon.view, node="node-2")
        screen.wait_for("koordlet on node-2")
        screen.press("q")
        assert screen.end() == 0


def test_without_a_terminal_it_prints_on_until_it_is_stopped(daemon: PaperDaemon) -> None:
    with subprocess.Popen(
        command(daemon, "top", "--interval", "1s"), stdout=subprocess.PIPE, text=True, cwd=REPO
    ) as process:
        assert process.stdout is not None
        looks = 0
        for line in process.stdout:
            looks += line.startswith("koordlet on node-1")
            if looks == 2:
                process.send_signal(signal.SIGINT)
                break
        assert process.wait(20) == 0
