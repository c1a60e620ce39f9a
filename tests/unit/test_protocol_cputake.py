"""Which CPUs BE gets: Koordinator's selection, with its weak spots fixed."""

from __future__ import annotations

import pytest

from koordlet.model.topology import Cpu, Topology
from koordlet.protocol.cputake import floor_cpus, take_be_cpus

NONE: frozenset[int] = frozenset()


def flat(count: int) -> Topology:
    """One socket, no hyperthreads."""
    return Topology(tuple(Cpu(id=i, core=i, socket=0, numa=0, l3=None) for i in range(count)))


def smt(cores: int, sockets: int = 1) -> Topology:
    """Hyperthreads as most x86 machines number them: the sibling of i is i + all cores."""
    total = cores * sockets
    return Topology(
        tuple(
            Cpu(i, core=i % cores, socket=i % total // cores, numa=i % total // cores, l3=0)
            for i in range(2 * total)
        )
    )


def test_CS_17_exclusive_cpus_are_never_taken() -> None:
    be = take_be_cpus(flat(8), 6, lsr_pods=(), excluded=frozenset({4, 5, 6, 7}))
    assert be.cpus == {0, 1, 2, 3}
    assert be.shortage == 2
    assert be.reason == ""


def test_CS_17_lsr_cpus_are_shared_by_proportion() -> None:
    be = take_be_cpus(flat(8), 6, lsr_pods=(frozenset({4, 5, 6, 7}),), excluded=NONE)
    assert be.cpus == {0, 1, 2, 4, 5, 6}
    assert be.shortage == 0
    assert dict(be.terms)["taken_from_lsr_cpus"] == 3


def test_H22_one_lsr_pod_never_carries_all_be_work() -> None:
    first, second = frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7})
    be = take_be_cpus(smt(4), 2, lsr_pods=(first, second), excluded=NONE)
    assert len(be.cpus) == 2
    assert not be.cpus <= first
    assert not be.cpus <= second


def test_H22_where_all_cpus_belong_to_one_lsr_pod_it_is_said() -> None:
    be = take_be_cpus(flat(4), 2, lsr_pods=(frozenset(range(4)),), excluded=NONE)
    assert len(be.cpus) == 2
    assert "one LSR pod" in be.reason


def test_H22_idle_siblings_of_lsr_are_taken_last() -> None:
    lsr = frozenset({0, 1})  # their siblings 4 and 5 idle
    four = take_be_cpus(smt(4), 4, lsr_pods=(lsr,), excluded=NONE)
    assert four.cpus.isdisjoint({4, 5})
    six = take_be_cpus(smt(4), 6, lsr_pods=(lsr,), excluded=NONE)
    assert six.cpus == {0, 1, 2, 3, 6, 7}
    seven = take_be_cpus(smt(4), 7, lsr_pods=(lsr,), excluded=NONE)
    assert len(seven.cpus & {4, 5}) == 1


def test_H22_a_lone_be_cpu_is_no_lsr_cpu_while_a_sibling_is_idle() -> None:
    topology = Topology(smt(1).cpus)
    be = take_be_cpus(topology, 1, lsr_pods=(frozenset({0}),), excluded=NONE)
    assert be.cpus == {1}


def test_pairs_of_one_core_come_first_in_turn_over_the_sockets() -> None:
    topology = smt(cores=2, sockets=2)  # siblings: (0, 4) (1, 5) | (2, 6) (3, 7)
    assert take_be_cpus(topology, 2, (), NONE).cpus == {0, 4}
    assert take_be_cpus(topology, 4, (), NONE).cpus == {0, 4, 2, 6}
    assert take_be_cpus(topology, 6, (), NONE).cpus == {0, 4, 2, 6, 1, 5}
    assert take_be_cpus(topology, 3, (), NONE).cpus == {0, 4, 2}


def test_the_larger_socket_comes_first() -> None:
    be = take_be_cpus(smt(cores=2, sockets=2), 2, (), excluded=frozenset({0, 4}))
    assert be.cpus == {2, 6}


def test_CS_12_reserved_cpus_on_a_hybrid_chip() -> None:
    performance = tuple(Cpu(i, core=i // 2, socket=0, numa=0, l3=0) for i in range(4))
    efficient = tuple(Cpu(i, core=i, socket=0, numa=0, l3=0) for i in range(4, 8))
    hybrid = Topology(performance + efficient)
    be = take_be_cpus(hybrid, 4, (), excluded=frozenset({0}))
    assert be.cpus == {2, 3, 4, 5}, "0 is reserved, and 1 is its idle sibling"
    seven = take_be_cpus(hybrid, 8, (), excluded=frozenset({0}))
    assert seven.cpus == frozenset(range(1, 8))
    assert seven.shortage == 1


@pytest.mark.parametrize(("online", "floor"), [(1, 1), (2, 1), (3, 2), (4, 2), (128, 2)])
def test_H30_the_floor_leaves_a_cpu_to_others(online: int, floor: int) -> None:
    assert floor_cpus(online) == floor


@pytest.mark.parametrize("wanted", [-3, 0, 1])
def test_CS_15_be_never_gets_less_than_the_floor(wanted: int) -> None:
    assert take_be_cpus(flat(2), wanted, (), NONE).cpus == {0}
    assert len(take_be_cpus(flat(8), wanted, (), NONE).cpus) == 2


def test_H30_on_one_cpu_a_cpuset_limits_nothing() -> None:
    be = take_be_cpus(flat(1), 1, (), NONE)
    assert be.cpus == frozenset()
    assert "all of them" in be.reason


def test_CS_01_with_every_cpu_taken_the_set_is_empty_with_a_reason() -> None:
    be = take_be_cpus(flat(4), 2, (), excluded=frozenset(range(4)))
    assert be.cpus == frozenset()
    assert be.shortage == 2
    assert "exclusive" in be.reason


def test_isolated_cpus_are_never_taken() -> None:
    topology = Topology(flat(4).cpus, isolated=frozenset({0, 1}))
    assert take_be_cpus(topology, 4, (), NONE).cpus == {2, 3}


def test_a_short_lsr_pool_is_filled_from_the_rest() -> None:
    be = take_be_cpus(flat(4), 4, lsr_pods=(frozenset({3}),), excluded=NONE)
    assert be.cpus == {0, 1, 2, 3}
    assert be.shortage == 0


def test_offline_cpus_of_a_pod_do_not_count() -> None:
    be = take_be_cpus(flat(4), 2, lsr_pods=(frozenset({9}),), excluded=frozenset({8}))
    assert be.cpus == {0, 1}
