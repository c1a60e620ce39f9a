"""The API's questions and orders: what is asked, what is valid, what is answered. No sockets."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import UnionType
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from koordlet import ipc
from koordlet.api import adopting, ranges
from koordlet.api.views.audit import audit_data
from koordlet.api.views.common import Envelope, envelope
from koordlet.api.views.doctor import doctor_data
from koordlet.api.views.explain import NoSuchTargetError, explain_data, find_pods
from koordlet.api.views.metrics import history_data, metrics_data
from koordlet.api.views.modes import modes_data
from koordlet.api.views.plan import plan_data
from koordlet.api.views.pods import pods_data
from koordlet.api.views.scopes import owned_in_scope, resolve_released, resolve_scope
from koordlet.api.views.settings import strategies
from koordlet.api.views.slo import slo_data
from koordlet.api.views.status import status_data, view_problems
from koordlet.api.views.ticks import ticks_data
from koordlet.api.views.undo import UndoData, undo_data, would_restore
from koordlet.history.query import RangeAnswer, RangeQuery
from koordlet.model.actions import Mode, Outcome, Owned, Status
from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem, RefusedError, Severity
from koordlet.report import NodeView
from koordlet.resexecutor.audit import AuditEvent, AuditQuery
from koordlet.standing import ALL

BODY_LIMIT_BYTES = 64 << 10
AUDIT_LIMIT_DEFAULT = 100
AUDIT_LIMIT_MAX = 10_000
FOR_MAX_S = 366 * 86_400
_END_OF_TIME_S = 253_402_300_800  # the year 10000


class Commands(Protocol):
    """Carries an operator's order to the core; blocks up to 10 s for its answer."""

    def send(self, order: ipc.Order, uid: int) -> ipc.CommandReply: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """What the answers are made from. ``view`` gives the node's picture at this instant."""

    view: Callable[[], NodeView]
    commands: Commands
    audit: Callable[[AuditQuery], tuple[AuditEvent, ...]]
    history: Callable[[RangeQuery], RangeAnswer]
    adoptions: adopting.Adoptions


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the peer ``uid``; ``target`` is the path with its query."""

    method: str
    target: str
    body: bytes
    uid: int


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP status and the envelope; ``allow`` lists the methods after a 405."""

    status: HTTPStatus
    body: Envelope
    allow: str = ""


class RequestError(Exception):
    """A request that cannot be answered."""

    def __init__(self, status: HTTPStatus, problem: Problem, allow: str = "") -> None:
        super().__init__(str(problem))
        self.status = status
        self.problem = problem
        self.allow = allow


Said = tuple[str, Any, tuple[Problem, ...]]
"""The command whose schema the data follows, the data, and what is not as it should be."""

Params = Mapping[str, str]
Question = Callable[[NodeView, Params, "Backend"], Said]
Order = Callable[[NodeView, dict[str, Any], int, "Backend"], Said]


def answer(request: Request, backend: Backend) -> Answer:
    """The answer to one request; what is wrong with it comes back as problems, never as raise."""
    view = backend.view()
    try:
        command, data, problems = _dispatch(request, view, backend)
    except RequestError as error:
        return Answer(error.status, _error_body(view, (error.problem,)), error.allow)
    except NoSuchTargetError as error:
        return Answer(HTTPStatus.NOT_FOUND, _error_body(view, (error.problem,)))
    except RefusedError as error:
        return Answer(HTTPStatus.BAD_REQUEST, _error_body(view, error.problems))
    return Answer(
        HTTPStatus.CONFLICT if _failed(request, problems) else HTTPStatus.OK,
        envelope(command, data, node=view.node, taken_wall_s=view.taken_wall_s, problems=problems),
    )


def _failed(request: Request, problems: tuple[Problem, ...]) -> bool:
    """An order with an error was not obeyed; a question is answered whatever it reports."""
    return request.method == "POST" and any(p.severity is Severity.ERROR for p in problems)


def _dispatch(request: Request, view: NodeView, backend: Backend) -> Said:
    try:
        parts = urlsplit(request.target)
    except ValueError as error:
        raise _bad("request", str(error), "a path, e.g. /v1/status") from None
    path = parts.path.removeprefix("/v1/") if parts.path.startswith("/v1/") else ""
    if path in QUESTIONS:
        _check_method(request, "GET")
        allowed, question = QUESTIONS[path]
        return question(view, _params(parts.query, allowed), backend)
    if path in ORDERS:
        _check_method(request, "POST")
        _params(parts.query, frozenset())
        fields, order = ORDERS[path]
        return order(view, _body(request.body, fields), request.uid, backend)
    raise RequestError(
        HTTPStatus.NOT_FOUND,
        Problem(
            "api-no-such-path",
            parts.path[:200],
            "the API has no such path",
            limit=", ".join(f"/v1/{name}" for name in (*QUESTIONS, *ORDERS)),
            remedy="use one of them",
        ),
    )


def _check_method(request: Request, allowed: str) -> None:
    if request.method != allowed:
        problem = Problem(
            "api-wrong-method", request.target[:200], f"{request.method} is not answered", allowed
        )
        raise RequestError(HTTPStatus.METHOD_NOT_ALLOWED, problem, allow=allowed)


def _params(query: str, allowed: frozenset[str]) -> dict[str, str]:
    """The query's parameters, each at most once and each known."""
    given = parse_qs(query, keep_blank_values=True)
    for name, values in given.items():
        if name not in allowed:
            raise _bad(name[:200], "unknown parameter", _listed(allowed))
        if len(values) > 1:
            raise _bad(name, "given more than once", "once")
    return {name: values[0] for name, values in given.items()}


def _body(body: bytes, fields: Mapping[str, type | UnionType]) -> dict[str, Any]:
    """The JSON object of an order; unknown fields and wrong types are refused."""
    try:
        given = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise _bad("body", f"no JSON: {error}", "a JSON object") from None
    if not isinstance(given, dict):
        raise _bad("body", f"a JSON {type(given).__name__}", "a JSON object")
    for name, value in given.items():
        if name not in fields:
            raise _bad(name[:200], "unknown field", _listed(fields))
        if not isinstance(value, fields[name]) or (
            isinstance(value, bool) != (fields[name] is bool)
        ):
            raise _bad(name, f"a JSON {type(value).__name__}", f"{fields[name]}")
    return given


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _bad(where: str, what: str, limit: str) -> RequestError:
    problem = Problem("api-bad-request", where, what, limit, "see docs/cli.md")
    return RequestError(HTTPStatus.BAD_REQUEST, problem)


def _error_body(view: NodeView, problems: tuple[Problem, ...]) -> Envelope:
    return envelope(
        "error", None, node=view.node, taken_wall_s=view.taken_wall_s, problems=problems
    )


# -- questions ------------------------------------------------------------------------------------


def _status(view: NodeView, params: Params, backend: Backend) -> Said:
    return "status", status_data(view), view_problems(view)


def _doctor(view: NodeView, params: Params, backend: Backend) -> Said:
    return "doctor", doctor_data(view), view_problems(view)


def _pods(view: NodeView, params: Params, backend: Backend) -> Said:
    return "pods", pods_data(view), ()


def _metrics(view: NodeView, params: Params, backend: Backend) -> Said:
    if not params:
        return "metrics", metrics_data(view), ()
    query = ranges.range_query(
        params,
        since_s=_wall_s(params, "since"),
        until_s=_wall_s(params, "until"),
        now_s=view.taken_wall_s,
    )
    try:
        found = backend.history(query)
    except sqlite3.Error as error:
        raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, history_unreadable(error)) from error
    return "metrics", history_data(found, query), found.problems


def history_unreadable(error: sqlite3.Error) -> Problem:
    """The store of roll-ups cannot be read."""
    remedy = "see the problems in koordletctl status; a daemon that has just started opens it soon"
    return Problem("history-unreadable", "history.db", str(error), remedy=remedy)


def _plan(view: NodeView, params: Params, backend: Backend) -> Said:
    return "plan", plan_data(view), view_problems(view)


def _explain(view: NodeView, params: Params, backend: Backend) -> Said:
    target = params.get("target", "").strip()
    if not target:
        raise _bad("target", "missing", "a pod, container, host application, strategy or file")
    return "explain", explain_data(view, target), ()


def _slo(view: NodeView, params: Params, backend: Backend) -> Said:
    return "slo", slo_data(view), ()


def _ticks(view: NodeView, params: Params, backend: Backend) -> Said:
    return "ticks", ticks_data(view), ()


def _audit(view: NodeView, params: Params, backend: Backend) -> Said:
    query = AuditQuery(
        since_s=_wall_s(params, "since"),
        until_s=_wall_s(params, "until"),
        pod=_pod_uid(view, params.get("pod", "")),
        knob=params.get("knob", ""),
        owner=params.get("owner", ""),
        path=params.get("file", ""),
        limit=_limit(params),
    )
    return "audit", audit_data(backend.audit(query), query.limit), ()


def _wall_s(params: Params, name: str) -> float | None:
    text = params.get(name)
    if text is None:
        return None
    try:
        wall_s = float(text)
    except ValueError:
        wall_s = math.nan
    if not math.isfinite(wall_s) or not 0 <= wall_s < _END_OF_TIME_S:
        raise _bad(name, f"{text!r} is no time", "seconds since the epoch")
    return wall_s


def _limit(params: Params) -> int:
    text = params.get("limit", str(AUDIT_LIMIT_DEFAULT))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= AUDIT_LIMIT_MAX:
        raise _bad("limit", f"{text[:20]!r} is no limit", f"a whole number, 1 to {AUDIT_LIMIT_MAX}")
    return int(text)


def _pod_uid(view: NodeView, wanted: str) -> str:
    """The UID of a pod that is still known; any other text is taken for the UID of a past one."""
    if not wanted or isinstance(view.workloads, Missing):
        return wanted
    found = find_pods(view.workloads.known_pods(), wanted)
    return found[-1].uid if found else wanted


QUESTIONS: Mapping[str, tuple[frozenset[str], Question]] = {
    "status": (frozenset(), _status),
    "capabilities": (frozenset(), _doctor),
    "pods": (frozenset(), _pods),
    "metrics": (ranges.PARAMS, _metrics),
    "plan": (frozenset(), _plan),
    "explain": (frozenset({"target"}), _explain),
    "audit": (
        frozenset({"since", "until", "pod", "knob", "owner", "file", "limit"}),
        _audit,
    ),
    "slo": (frozenset(), _slo),
    "ticks": (frozenset(), _ticks),
}


# -- orders ---------------------------------------------------------------------------------------


def _release(view: NodeView, body: dict[str, Any], uid: int, backend: Backend) -> Said:
    scope = resolve_scope(view, body.get("scope", ALL))
    owned = owned_in_scope(view, scope)
    if body.get("dry_run", False):
        return "rollback", _undo(view, scope, would_restore(owned), dry_run=True), ()
    reply = backend.commands.send(ipc.ReleaseCommand(scope), uid)
    found = {outcome.key: outcome for outcome in reply.result.get("outcomes", ())}
    outcomes = [found.get(entry.key) or _unanswered(entry) for entry in owned]
    return "rollback", _undo(view, scope, outcomes, dry_run=False), reply.problems


def _undo(view: NodeView, scope: str, outcomes: list[Outcome], *, dry_run: bool) -> UndoData:
    note = "" if dry_run else "released: only observed until koordletctl resume"
    return undo_data(
        outcomes, view.paths, done_by="daemon", scope=scope, dry_run=dry_run, note=note
    )


def _unanswered(entry: Owned) -> Outcome:
    return Outcome(
        target=entry.target,
        knob=entry.knob,
        owner=entry.owner,
        status=Status.PENDING,
        before=entry.last_written,
        why="not restored at once; koordletctl explain FILE tells what it waits for",
    )


def _resume(view: NodeView, body: dict[str, Any], uid: int, backend: Backend) -> Said:
    text = body.get("scope", "")
    scope = "" if text in ("", ALL) else resolve_released(view, text)
    reply = backend.commands.send(ipc.ResumeCommand(scope), uid)
    return "modes", modes_data(backend.view(), changed=f"resumed {scope or ALL}"), reply.problems


def _mode(view: NodeView, body: dict[str, Any], uid: int, backend: Backend) -> Said:
    order = ipc.ModeCommand(body.get("strategy", ""), _wanted_mode(body), _for_s(body))
    known = [strategy.name for strategy in strategies(view)]
    if order.strategy and known and order.strategy not in known:
        raise _bad("strategy", f"no strategy {order.strategy!r}", ", ".join(known))
    reply = backend.commands.send(order, uid)
    until = "" if order.for_s is None else f" for {order.for_s:g} s"
    changed = f"{order.strategy or 'all strategies'}: {order.mode.value}{until}"
    return "modes", modes_data(backend.view(), changed=changed), reply.problems


def _wanted_mode(body: dict[str, Any]) -> Mode:
    try:
        return Mode(body.get("mode"))
    except ValueError:
        limit = ", ".join(mode.value for mode in Mode)
        raise _bad("mode", f"{body.get('mode')!r} is no mode", limit) from None


def _for_s(body: dict[str, Any]) -> float | None:
    for_s = body.get("for_s")
    if for_s is None:
        return None
    if not 1 <= for_s <= FOR_MAX_S:
        raise _bad("for_s", f"{for_s} s", f"1 to {FOR_MAX_S} seconds")
    return float(for_s)


def _adopt(view: NodeView, body: dict[str, Any], uid: int, backend: Backend) -> Said:
    desk = backend.adoptions
    if body.get("dry_run", False):
        data, problems = adopting.listed(view, desk, body.get("scope", ""))
    else:
        data, problems = adopting.ordered(view, desk, body, uid, backend.commands)
    return "adopt", data, problems


ORDERS: Mapping[str, tuple[Mapping[str, type | UnionType], Order]] = {
    "release": ({"scope": str, "dry_run": bool}, _release),
    "resume": ({"scope": str}, _resume),
    "mode": ({"strategy": str, "mode": str, "for_s": int | float}, _mode),
    "adopt": ({"scope": str, "dry_run": bool, "list": str, "force": bool}, _adopt),
}
