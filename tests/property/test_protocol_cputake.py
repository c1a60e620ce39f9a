"""What holds for every machine and every division of its CPUs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koordlet.model.topology import Cpu, Topology
from koordlet.protocol.cputake import floor_cpus, take_be_cpus


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Up to two sockets of up to six cores with one, two or four threads; some CPUs offline."""
    cpus: list[Cpu] = []
    for socket in range(draw(st.integers(1, 2))):
        for core in range(draw(st.integers(1, 6))):
            for _ in range(draw(st.sampled_from([1, 2, 2, 4]))):
                cpus.append(Cpu(len(cpus), core, socket, numa=socket, l3=None))
    online = [cpu for cpu in cpus if draw(st.integers(0, 9)) > 0]
    isolated = draw(st.frozensets(st.integers(0, 50), max_size=2))
    return Topology(tuple(online), isolated)


CPU_SETS = st.frozensets(st.integers(0, 50), max_size=20)


@given(machines(), st.integers(-2, 60), st.lists(CPU_SETS, max_size=3), CPU_SETS)
def test_the_choice_is_legal_and_as_large_as_it_can_be(
    topology: Topology, wanted: int, pods: list[frozenset[int]], excluded: frozenset[int]
) -> None:
    be = take_be_cpus(topology, wanted, pods, excluded)
    usable = topology.online - excluded - topology.isolated
    floor = floor_cpus(len(topology.cpus))
    need = max(wanted, floor)
    assert be.cpus <= usable
    assert be.shortage == need - len(be.cpus)
    if len(topology.cpus) > floor:
        assert len(be.cpus) == min(need, len(usable))
    if not be.cpus:
        assert be.reason
    assert be == take_be_cpus(topology, wanted, pods, excluded)


@given(machines(), st.integers(1, 60), st.lists(CPU_SETS, max_size=3), CPU_SETS)
def test_H22_no_single_lsr_pod_carries_all_where_it_can_be_avoided(
    topology: Topology, wanted: int, pods: list[frozenset[int]], excluded: frozenset[int]
) -> None:
    be = take_be_cpus(topology, wanted, pods, excluded)
    usable = topology.online - excluded - topology.isolated
    if be.cpus and any(be.cpus <= pod for pod in pods):
        assert be.reason
        if len(be.cpus) == 1:
            assert all(any(cpu in pod for pod in pods) for cpu in usable)


@given(machines(), st.integers(1, 60), CPU_SETS)
def test_order_of_the_pods_does_not_change_the_size(
    topology: Topology, wanted: int, excluded: frozenset[int]
) -> None:
    pods = [frozenset({0, 1}), frozenset({2, 3})]
    one = take_be_cpus(topology, wanted, pods, excluded)
    other = take_be_cpus(topology, wanted, pods[::-1], excluded)
    assert one == other
