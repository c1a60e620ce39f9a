"""Counters to rates: resets, gaps, clocks that step, readings that are missing."""

from __future__ import annotations

import pytest

from koordlet.metrics.series import CounterRing, step_rate

CEILING = 4e9  # four CPUs, in nanoseconds a second


def ring(
    *samples: tuple[float, float | None], capacity: int = 16, gap_s: float = 5.0
) -> CounterRing:
    made = CounterRing(capacity, (CEILING,), gap_s)
    for now_s, raw in samples:
        made.push(now_s, (raw,))
    return made


def test_a_step_gives_the_rate_between_two_readings() -> None:
    assert step_rate(1e9, 3e9, 2.0, CEILING) == pytest.approx(1e9)
    assert step_rate(1e9, 1e9, 2.0, CEILING) == 0.0


def test_PP_15_a_counter_that_restarted_gives_no_rate() -> None:
    assert step_rate(5_000_000_000, 0, 1.0, CEILING) is None


def test_counter_went_back_by_25160_is_a_dropped_delta() -> None:
    """Unsigned arithmetic would make 18446744073709526456 of it."""
    assert step_rate(1_000_000, 1_000_000 - 25_160, 1.0, CEILING) is None


def test_PP_17_no_time_or_time_going_back_gives_no_rate() -> None:
    assert step_rate(1e9, 2e9, 0.0, CEILING) is None
    assert step_rate(1e9, 2e9, -5.0, CEILING) is None


def test_a_step_that_no_machine_can_make_is_dropped_and_a_late_read_is_not() -> None:
    assert step_rate(0, 18_446_744_073_709_526_456, 1.0, CEILING) is None
    assert step_rate(0, 6e9, 1.0, CEILING) == CEILING  # read up to a second late


def test_a_missing_reading_gives_no_rate() -> None:
    assert step_rate(None, 1e9, 1.0, CEILING) is None
    assert step_rate(1e9, None, 1.0, CEILING) is None


def test_an_empty_ring_knows_nothing() -> None:
    empty = ring()
    assert len(empty) == 0
    assert empty.newest_s is None
    assert empty.steps_back(0, 1.0) is None
    assert empty.rate_within(0, 10.0) is None


def test_the_shortest_window_that_is_long_enough_is_chosen() -> None:
    made = ring(*((n * 0.2, n * 2e8) for n in range(12)))
    steps = made.steps_back(0, 0.99)
    assert steps == 5
    assert made.age_s(steps) == pytest.approx(1.0)
    assert made.gained(0, steps) == pytest.approx(1e9)


def test_a_ring_keeps_its_newest_samples_only() -> None:
    made = ring(*((n * 1.0, n * 1e9) for n in range(40)), capacity=8)
    assert len(made) == 8
    assert made.steps_back(0, 7.0) == 7
    assert made.steps_back(0, 7.5) is None
    assert made.gained(0, 7) == pytest.approx(7e9)


def test_PP_15_a_reset_inside_a_window_adds_nothing_and_loses_nothing_else() -> None:
    made = ring((0, 7e9), (1, 8e9), (2, 0), (3, 1e9))
    assert made.gained(0, 3) == pytest.approx(2e9)


def test_a_gap_starts_a_new_baseline() -> None:
    made = ring((0, 0), (1, 1e9), (11, 9e9))
    assert len(made) == 1
    made.push(12, (10e9,))
    assert made.gained(0, 1) == pytest.approx(1e9)


def test_PP_17_a_sample_that_is_not_later_is_ignored() -> None:
    made = ring((10, 0), (11, 1e9))
    made.push(6, (2e9,))
    made.push(11, (3e9,))
    assert made.newest_s == 11
    assert made.gained(0, 1) == pytest.approx(1e9)


def test_a_hole_in_the_readings_is_bridged_where_the_counter_stayed() -> None:
    made = ring((0, 0), (1, None), (2, 2e9))
    assert made.gained(0, 2) == pytest.approx(2e9)
    assert made.steps_back(0, 0.5) == 2  # the sample between has no such counter


def test_what_left_is_not_the_baseline_of_what_comes() -> None:
    made = ring((0, 0), (1, 1e9))
    made.push(2, (None,))
    made.rebase(0)
    made.push(3, (5e9,))
    assert made.gained(0, 3) == pytest.approx(1e9)


def test_a_newcomer_counts_from_its_first_sight() -> None:
    made = ring((0, None), (1, 90e9), (2, 91e9))
    assert made.gained(0, 2) == pytest.approx(1e9)


def test_the_longest_span_within_a_window_gives_the_mean() -> None:
    made = ring(*((n * 1.0, (n % 2) * 5e8 + n * 1e9) for n in range(15)))
    assert made.rate_within(0, 10.0) == pytest.approx(1e9)
    assert ring((0, 0)).rate_within(0, 10.0) is None
    assert ring((0, 0), (1, None)).rate_within(0, 10.0) is None
