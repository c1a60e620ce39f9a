"""Ranges of the history: from the daemon, or from its file where none runs."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from koordlet.api.client import NOT_ALLOWED, UnreachableError
from koordlet.api.views.common import envelope
from koordlet.ctl.options import Common
from koordlet.ctl.output import CtlError, ExitCode
from koordlet.protocol.problem import Problem, Severity

if TYPE_CHECKING:
    from koordlet.config import Config


def history(common: Common, params: Mapping[str, str]) -> dict[str, Any]:
    """The envelope of a range. Without a daemon it is read from the state directory, by root."""
    try:
        return common.client().get("metrics", **params)
    except UnreachableError as error:
        if error.problem.code == NOT_ALLOWED:
            raise
        config = common.load_config()
        if not _is_there(config):
            raise
        return _read(config, params, replace(error.problem, severity=Severity.INFO))


def _is_there(config: Config) -> bool:
    path = config.state_dir / "history.db"
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError as error:
        what = error.strerror or str(error)
        remedy = "run the command as root"
        problem = Problem("history-unreadable", str(path), what, remedy=remedy)
        raise CtlError(ExitCode.FAILED, problem) from None


def _read(config: Config, params: Mapping[str, str], why: Problem) -> dict[str, Any]:
    from koordlet.api.ranges import range_query
    from koordlet.api.views.metrics import history_data
    from koordlet.history.query import HistoryReader

    path, now_s = config.state_dir / "history.db", time.time()
    query = range_query(
        params,
        since_s=_seconds(params.get("since")),
        until_s=_seconds(params.get("until")),
        now_s=now_s,
    )
    try:
        answer = HistoryReader(path).query(query)
    except sqlite3.Error as error:
        problem = Problem("history-unreadable", str(path), str(error))
        raise CtlError(ExitCode.FAILED, problem) from None
    problems = (why, *answer.problems)
    data = history_data(answer, query)
    node = config.node_name
    return dict(envelope("metrics", data, node=node, taken_wall_s=now_s, problems=problems))


def _seconds(text: str | None) -> float | None:
    return None if text is None else float(text)
