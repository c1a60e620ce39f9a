"""Parsers take whatever a kernel, a vendor or a torn read prints, and lose nothing they know."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koordlet.host import counters, formats, procfs, psi
from koordlet.host.cpumanager import parse_cpu_manager_state
from koordlet.host.knobtable import specs
from koordlet.host.mounts import parse_mountinfo
from koordlet.model.knobs import Knob, Value

PAGE = 4_096
INTS = st.integers(min_value=0, max_value=2**63)
CPUS = st.frozensets(st.integers(min_value=0, max_value=255), max_size=40)
VALUES: dict[Knob, st.SearchStrategy[Value]] = {
    Knob.CPU_QUOTA: st.none() | st.integers(min_value=1_000, max_value=10**9),
    Knob.CPU_BURST: st.integers(min_value=0, max_value=10**8),
    Knob.CPU_IDLE: st.integers(min_value=0, max_value=1),
    Knob.CPUSET_CPUS: CPUS.filter(bool),
    Knob.CPUSET_MEMS: CPUS.filter(bool),
    Knob.MEMORY_LIMIT: st.none() | st.integers(min_value=0, max_value=2**45),
    Knob.MEMORY_SWAP_LIMIT: st.none() | st.integers(min_value=0, max_value=2**45),
    Knob.MEMORY_HIGH: st.none() | st.integers(min_value=0, max_value=2**45),
    Knob.PIDS_MAX: st.none() | st.integers(min_value=0, max_value=2**22),
}
# rubbish, and rubbish made of the tokens that the parsers look for
TOKENS = st.sampled_from(
    [
        *(b"some ", b"full ", b"avg10=", b"total=", b"cpu ", b"MemTotal:", b"usage_usec ", b"8:0 "),
        *(b"Read ", b"rbytes=", b" kB", b" - cgroup cgroup rw,cpu", b"0.00", b"1", b"-1", b"max"),
        *(b"\n", b" ", b"\t", b"\0", b"0-3", b",", b"\xb2", "²".encode(), b'{"entries":', b"}"),
    ]
)
TEXTS = st.binary(max_size=80) | st.lists(TOKENS, max_size=30).map(b"".join)


@given(st.data(), st.sampled_from(sorted(VALUES, key=lambda knob: knob.value)))
def test_a_value_survives_writing_and_reading(data: st.DataObject, knob: Knob) -> None:
    value = data.draw(VALUES[knob])
    for version in (1, 2):
        spec = specs(version)[knob]
        text = spec.format(value)
        assert spec.parse(text) == value
        assert spec.parse(f"{text}\n".encode()) == value


@given(st.data(), st.sampled_from(sorted(VALUES, key=lambda knob: knob.value)))
def test_the_canonical_form_is_its_own(data: st.DataObject, knob: Knob) -> None:
    value = data.draw(VALUES[knob])
    for version in (1, 2):
        spec = specs(version)[knob]
        once = spec.canonical(spec.format(value), PAGE)
        assert spec.canonical(once, PAGE) == once
        assert spec.canonical(f" {once}\n".encode(), PAGE) == once
        held = spec.parse(once)
        if spec.in_pages and isinstance(value, int):
            assert isinstance(held, int)
            assert 0 <= value - held < PAGE
        else:
            assert held == value


@given(st.integers(min_value=2, max_value=262_144))
def test_shares_become_a_weight_within_its_range(shares: int) -> None:
    weight = int(formats.format_weight(shares))
    assert 1 <= weight <= 10_000
    assert 0 <= shares - formats.parse_weight(str(weight).encode()) <= 28


@given(TEXTS)
def test_knob_parsers_give_a_value_or_a_value_error(text: bytes) -> None:
    for version in (1, 2):
        for spec in specs(version).values():
            try:
                value = spec.parse(text)
                spec.canonical(text, PAGE)
            except ValueError:
                continue
            assert value is None or isinstance(value, int | str | frozenset)


@given(TEXTS, TEXTS)
def test_counter_parsers_give_a_value_or_a_value_error(text: bytes, other: bytes) -> None:
    parsers = (
        lambda: counters.parse_cpu_stat_v1(1, text),
        lambda: counters.parse_cpu_stat_v2(text),
        lambda: counters.parse_memory(10, text, version=1),
        lambda: counters.parse_memory(10, text, version=2),
        lambda: counters.parse_io_v1(text, other),
        lambda: counters.parse_io_v2(text),
        lambda: psi.parse_psi(text),
        lambda: procfs.parse_stat(text),
        lambda: procfs.parse_meminfo(text),
        lambda: procfs.parse_net_dev(text),
        lambda: procfs.parse_diskstats(text),
        lambda: procfs.parse_own_cgroups(text),
        lambda: parse_mountinfo(text),
    )
    for parse in parsers:
        try:
            parse()
        except ValueError:
            continue


@given(TEXTS)
def test_the_cpu_manager_state_is_read_or_refused(text: bytes) -> None:
    try:
        parse_cpu_manager_state(text)
    except (ValueError, AttributeError, TypeError):
        return


@given(st.dictionaries(st.sampled_from(["cache", "rss", "a_b", "x1"]), INTS), st.booleans())
def test_flat_keyed_text_survives_lines_of_vendors(values: dict[str, int], vendor: bool) -> None:
    lines = [f"{key} {number}" for key, number in values.items()]
    lines[len(lines) // 2 : len(lines) // 2] = ["Anon:\t101436 kB", ""] if vendor else []
    text = "\n".join(lines).encode()
    expected = {key.encode(): number for key, number in values.items()}
    assert formats.parse_flat_keyed(text) == expected
    assert formats.pick_flat_keyed(text, [b"cache", b"rss", b"a_b", b"x1"]) == expected


@given(INTS, INTS, INTS, INTS, INTS, INTS)
def test_memory_is_never_negative_and_flagged_where_parts_exceed_the_whole(
    usage: int, inactive_anon: int, active_anon: int, inactive_file: int, file: int, fixed: int
) -> None:
    text = (
        f"inactive_anon {inactive_anon}\nactive_anon {active_anon}\n"
        f"inactive_file {inactive_file}\nactive_file {file}\nunevictable {fixed}\n"
    ).encode()
    memory = counters.parse_memory(usage, text, version=2)
    assert 0 <= memory.working_set_bytes <= usage
    assert 0 <= memory.anon_bytes <= usage
    fits = inactive_anon + active_anon + fixed <= usage and inactive_file <= usage
    assert memory.consistent == fits


@given(
    st.sampled_from(["some", "full"]),
    st.floats(min_value=0, max_value=100).map(lambda number: round(number, 2)),
    INTS,
)
def test_pressure_round_trips(kind: str, average: float, total: int) -> None:
    row = f"{kind} avg10={average:.2f} avg60={average:.2f} avg300={average:.2f} total={total}\n"
    found = psi.parse_psi(row.encode())
    line = found.some if kind == "some" else found.full
    assert line == psi.PsiLine(average, average, average, total)
