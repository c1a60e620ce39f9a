"""The parameters of a range of the history, as they come over HTTP and from koordletctl."""

from __future__ import annotations

from collections.abc import Mapping

from koordlet.history.query import DEFAULT_SINCE_S, RangeQuery
from koordlet.metrics.readings import Level
from koordlet.protocol.problem import Problem, RefusedError

PARAMS = frozenset({"since", "until", "step_s", "target", "level", "series", "percentiles"})
MOST_PERCENTILES = 8
MOST_SERIES = 64


def range_query(
    params: Mapping[str, str], *, since_s: float | None, until_s: float | None, now_s: float
) -> RangeQuery:
    """The query of ``params``, times read already; raises RefusedError for what cannot be read."""
    until_s = now_s if until_s is None else until_s
    return RangeQuery(
        since_s=until_s - DEFAULT_SINCE_S if since_s is None else since_s,
        until_s=until_s,
        step_s=_step_s(params.get("step_s")),
        target=params.get("target", "").strip(),
        level=_level(params.get("level")),
        series=_words("series", params.get("series", ""), MOST_SERIES),
        percentiles=_percentiles(params.get("percentiles", "50,95,99")),
    )


def _step_s(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise _bad("step_s", f"{text[:20]!r} is no step", "whole seconds, a multiple of 60")
    return int(text)


def _level(text: str | None) -> Level | None:
    try:
        return None if text is None else Level(text)
    except ValueError:
        limit = ", ".join(level.value for level in Level)
        raise _bad("level", f"{text!r} is no level", limit) from None


def _percentiles(text: str) -> tuple[float, ...]:
    words = _words("percentiles", text, MOST_PERCENTILES)
    try:
        return tuple(map(float, words))
    except ValueError:
        raise _bad("percentiles", f"{text[:80]!r} has no numbers", "e.g. 50,95,99.9") from None


def _words(name: str, text: str, most: int) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if len(words) > most:
        raise _bad(name, f"{len(words)} of them", f"at most {most}")
    return words


def _bad(where: str, what: str, limit: str) -> RefusedError:
    return RefusedError((Problem("api-bad-request", where, what, limit, "see docs/cli.md"),))
