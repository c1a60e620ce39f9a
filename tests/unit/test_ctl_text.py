"""Values as words, and times as people write them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.ctl import text
from koordlet.ctl.times import TimeError, parse_duration, parse_time
from tests.support.views import NASTY_NAME, WALL_S


@given(st.text())
def test_cleaned_text_steers_no_terminal_and_reorders_nothing(raw: str) -> None:
    cleaned = text.clean(raw)
    categories = {unicodedata.category(char) for char in cleaned}
    assert not categories & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert "\n" not in cleaned
    cleaned.encode("utf-8")


def test_clean_keeps_what_is_harmless() -> None:
    assert text.clean("default/web-1 名前 é") == "default/web-1 名前 é"
    assert text.clean(NASTY_NAME).startswith("evil\\x1b[31m")
    assert text.clean("a\u202eb\udc80") == "a\\u202eb\\udc80"
    assert text.clean_lines("a\x1b\nb") == "a\\x1b\nb"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (16 << 30, "16.0 GiB"),
        (None, "unlimited"),
        ({"missing": "x"}, "?"),
    ],
)
def test_sizes(value: object, words: str) -> None:
    assert text.size(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0.0s"),
        (0.44, "0.4s"),
        (59.9, "59s"),
        (60, "1m"),
        (3_725, "1h 2m"),
        (90_061, "1d 1h"),
        ({"missing": "x"}, "?"),
    ],
)
def test_durations(value: object, words: str) -> None:
    assert text.duration(value) == words


def test_unknown_null_and_switches_are_told_apart() -> None:
    assert [text.known(value) for value in ({"missing": "x"}, None, True, False, 0)] == [
        "?",
        "-",
        "yes",
        "no",
        "0",
    ]
    assert text.reasoned({"missing": "no tick yet"}) == "unknown: no tick yet"
    assert text.missing_why({"missing": "x", "more": 1}) is None
    assert text.cores({"missing": "x"}) == text.ratio(None) == "?"
    assert (text.milli(1500), text.milli(None), text.milli({"missing": "x"})) == ("1.5", "-", "?")


def test_wanted_values_carry_their_unit() -> None:
    assert text.wanted(80_000, "us") == "80000 us"
    assert text.wanted(None, "us") == "unlimited"
    assert text.wanted(1 << 30, "bytes") == "1073741824 bytes (1.0 GiB)"
    assert text.wanted("0-2", "cpus") == "0-2"
    assert text.wanted({"missing": "x"}, "us") == "-"


def test_moments_are_utc_to_the_second() -> None:
    assert text.moment("2026-01-01T00:30:00.000Z") == "2026-01-01 00:30:00Z"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90s", 90),
        ("30m", 1_800),
        ("1h30m", 5_400),
        ("2d", 172_800),
        ("1w", 604_800),
        (" 1H ", 3_600),
    ],
)
def test_durations_as_written(written: str, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize("written", ["", "30", "m", "-1m", "1.5h", "0s", "1x", "٣m", "1m 2"])
def test_what_is_no_duration_says_which_forms_are(written: str) -> None:
    with pytest.raises(TimeError, match="use"):
        parse_duration(written)


@pytest.mark.parametrize(
    ("written", "wall_s"),
    [
        ("now", WALL_S),
        ("10m", WALL_S - 600),
        ("1767225600.5", 1_767_225_600.5),
        ("2026-01-01T00:00:00Z", WALL_S),
        ("2026-01-01T01:00:00+01:00", WALL_S),
    ],
)
def test_times_as_written(written: str, wall_s: float) -> None:
    assert parse_time(written, now_wall_s=WALL_S) == wall_s


def test_a_time_alone_is_todays() -> None:
    half_past = parse_time("9:30", now_wall_s=WALL_S)
    assert parse_time("09:30:00", now_wall_s=WALL_S) == half_past
    assert abs(half_past - WALL_S) < 2 * 86_400


@pytest.mark.parametrize(
    "written", ["yesterday", "25:00", "2026-13-01", "", "1e400", "9999999999-1"]
)
def test_what_is_no_time_says_which_forms_are(written: str) -> None:
    with pytest.raises(TimeError, match="10m"):
        parse_time(written, now_wall_s=WALL_S)
