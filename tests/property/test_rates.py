"""No sequence of readings, however broken, makes a rate that is negative or above the machine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koordlet.metrics.series import CounterRing, step_rate

CPUS = 8
CEILING = CPUS * 1e9
U64 = 2**64

counters = st.one_of(
    st.none(),
    st.integers(0, U64 - 1),
    st.sampled_from((0, 1, U64 - 1, U64 - 25_160, 2**32 - 1, 5_000_000_000)),
)
steps_s = st.one_of(
    st.floats(-10.0, 20.0), st.sampled_from((0.0, 0.2, 1e-9, 5.0, 86_400.0, float(2**31)))
)


@given(before=counters, after=counters, elapsed_s=steps_s)
def test_PP_15_PP_17_a_step_is_possible_or_none(
    before: int | None, after: int | None, elapsed_s: float
) -> None:
    rate = step_rate(before, after, elapsed_s, CEILING)
    assert rate is None or 0.0 <= rate <= CEILING


@given(samples=st.lists(st.tuples(steps_s, counters), max_size=60), window_s=st.floats(0.0, 30.0))
def test_PP_15_PP_17_a_ring_never_tells_the_impossible(
    samples: list[tuple[float, int | None]], window_s: float
) -> None:
    ring = CounterRing(8, (CEILING,), 5.0)
    now_s = 0.0
    for elapsed_s, raw in samples:
        now_s += elapsed_s
        ring.push(now_s, (raw,))
        rate = ring.rate_within(0, window_s)
        assert rate is None or 0.0 <= rate <= CEILING
        steps = ring.steps_back(0, window_s)
        if steps is not None:
            assert ring.age_s(steps) > 0.0
            gained = ring.gained(0, steps)
            assert 0.0 <= gained <= CEILING * ring.age_s(steps) * (1 + 1e-9)


@given(
    uses=st.lists(st.integers(0, 200_000_000 * CPUS), min_size=2, max_size=40),
    start=st.integers(0, 2**60),
    resets=st.sets(st.integers(1, 38)),
)
def test_a_healthy_counter_loses_only_the_intervals_of_its_resets(
    uses: list[int], start: int, resets: set[int]
) -> None:
    """At 5 Hz; a reset restarts the counter at 0, and what it gained since is not known."""
    ring = CounterRing(64, (CEILING,), 5.0)
    raw, expected = start, 0
    ring.push(0.0, (raw,))
    for number, used_ns in enumerate(uses, start=1):
        if number in resets and raw > 0:
            raw = 0
        else:
            raw += used_ns
            expected += used_ns
        ring.push(number * 0.2, (raw,))
    gained = ring.gained(0, len(uses))
    assert abs(gained - expected) <= 1e-6 * max(expected, 1) + 256 * len(uses)
