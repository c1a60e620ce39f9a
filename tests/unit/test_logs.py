"""Log lines: one an event, for people or as JSON, with what went wrong in them."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator

import pytest
import structlog

from koordlet import logs


@pytest.fixture(autouse=True)
def afterwards_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_json_lines_hold_every_field_and_one_line_an_event() -> None:
    out = io.StringIO()
    logs.configure("info", "json", out)
    try:
        raise ValueError("broken\ntwice")
    except ValueError:
        structlog.get_logger("core").exception("process failed", process="core")
    (line,) = out.getvalue().splitlines()
    entry = json.loads(line)
    assert entry["level"] == "error"
    assert entry["event"] == "process failed"
    assert entry["process"] == "core"
    assert "ValueError: broken" in entry["exception"]
    assert entry["timestamp"].endswith("Z")


def test_console_lines_begin_with_when_how_bad_and_what() -> None:
    out = io.StringIO()
    logs.configure("warning", "console", out)
    log = structlog.get_logger("core")
    log.info("not told at this level")
    log.warning("front disconnected", why="a test")
    (line,) = out.getvalue().splitlines()
    assert line.startswith("timestamp=")
    assert "level='warning' event='front disconnected' why='a test'" in line


def test_a_reader_that_has_gone_costs_the_line_and_not_the_process() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"x")
    with open(writer, "w", buffering=1, encoding="utf-8", closefd=False) as pipe:
        logs.configure("info", "console", pipe)
        structlog.get_logger("core").info("order")
        # What the stream still buffers goes to the null device, not to an error at its close.
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), writer)
    os.close(writer)
