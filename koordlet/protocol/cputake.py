"""Which CPUs best-effort work may run on, by Koordinator's selection rules with two promises more.

Koordinator's rules: CPUs that belong to LSR pods and the rest (LS) each give their share; within
each, buckets per (NUMA node, socket), the largest first, are visited in turn, and each visit takes
a pair of hyperthreads of one core while more than one CPU is needed. The promises (hazard H22,
case CS-17): one LSR pod never carries all BE work where another CPU is free, and an idle sibling of
a protected CPU is taken last, since two threads of one core slow each other down whatever their
weights are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

FLOOR_CPUS = 2
"""Koordinator's least number of BE CPUs, where the machine has more than two."""


class CpuInfo(Protocol):
    """One online logical CPU; ``core`` is unique within its socket only."""

    @property
    def id(self) -> int: ...
    @property
    def core(self) -> int: ...
    @property
    def socket(self) -> int: ...
    @property
    def numa(self) -> int: ...


class CpuTopology(Protocol):
    """The online CPUs, and those that the kernel keeps out of scheduling (``isolcpus``)."""

    @property
    def cpus(self) -> Sequence[CpuInfo]: ...
    @property
    def isolated(self) -> frozenset[int]: ...


@dataclass(frozen=True, slots=True)
class BeCpus:
    """The CPUs for BE, how many are lacking, and the numbers behind it.

    An empty set means that no cpuset can limit BE here; ``reason`` says why, and the caller uses
    its next rung. With CPUs, ``reason`` names a promise that this machine cannot keep, else "".
    """

    cpus: frozenset[int]
    shortage: int
    reason: str
    terms: tuple[tuple[str, float | int | str], ...]


def floor_cpus(online: int) -> int:
    """The least number of BE CPUs on ``online`` CPUs: min(2, CPUs - 1), at least 1 (case CS-15)."""
    return max(1, min(FLOOR_CPUS, online - 1))


def take_be_cpus(
    topology: CpuTopology,
    wanted: int,
    lsr_pods: Sequence[frozenset[int]],
    excluded: frozenset[int],
) -> BeCpus:
    """Choose ``wanted`` CPUs for BE, raised to the floor. Same input, same choice.

    ``lsr_pods`` holds the cpuset of each LSR pod; where LSR is exclusive, pass none and put their
    CPUs into ``excluded``. ``excluded`` is whatever BE may not touch: reserved CPUs, an exclusive
    SYSTEM cpuset, LSE pods, the kubelet's exclusive CPUs. Where too few CPUs are left, all of
    them are taken and ``shortage`` counts the rest.
    """
    pools = _pools(topology, frozenset(chain.from_iterable(lsr_pods)), excluded)
    floor = floor_cpus(len(topology.cpus))
    need = max(wanted, floor)
    shared = len(pools.lsr) + len(pools.clean) + len(pools.siblings)
    lsr_share = need * len(pools.lsr) // shared if shared else 0
    chosen = _choose(pools, need, lsr_share) if len(topology.cpus) > floor else []
    chosen, reason = _spread(chosen, pools, lsr_pods)
    if not chosen:
        reason = _why_none(topology, floor)
    lsr_ids = {cpu.id for cpu in pools.lsr}
    return BeCpus(
        cpus=frozenset(chosen),
        shortage=need - len(chosen),
        reason=reason,
        terms=(
            ("wanted_cpus", wanted),
            ("floor_cpus", floor),
            ("lsr_pool_cpus", len(pools.lsr)),
            ("ls_pool_cpus", len(pools.clean)),
            ("idle_sibling_cpus", len(pools.siblings)),
            ("excluded_cpus", len(topology.cpus) - shared),
            ("taken_from_lsr_cpus", len(lsr_ids.intersection(chosen))),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Pools:
    """The CPUs that BE may use: of LSR pods, of nobody, and beside a protected hyperthread."""

    lsr: tuple[CpuInfo, ...]
    clean: tuple[CpuInfo, ...]
    siblings: tuple[CpuInfo, ...]

    def in_order(self) -> Iterable[CpuInfo]:
        """All of them, the least harmful first."""
        return chain(self.clean, self.lsr, self.siblings)


def _pools(topology: CpuTopology, lsr: frozenset[int], excluded: frozenset[int]) -> _Pools:
    barred = excluded | topology.isolated
    usable = [cpu for cpu in topology.cpus if cpu.id not in barred]
    guarded = {_core(cpu) for cpu in topology.cpus if cpu.id in lsr or cpu.id in barred}
    rest = [cpu for cpu in usable if cpu.id not in lsr]
    return _Pools(
        lsr=tuple(cpu for cpu in usable if cpu.id in lsr),
        clean=tuple(cpu for cpu in rest if _core(cpu) not in guarded),
        siblings=tuple(cpu for cpu in rest if _core(cpu) in guarded),
    )


def _core(cpu: CpuInfo) -> tuple[int, int]:
    return (cpu.socket, cpu.core)


def _choose(pools: _Pools, need: int, lsr_share: int) -> list[int]:
    """LSR's share and the rest from LS; what one pool lacks comes from the next."""
    from_lsr = _take(pools.lsr, lsr_share)
    from_clean = _take(pools.clean, need - len(from_lsr))
    if len(from_lsr) + len(from_clean) < need:
        from_lsr = _take(pools.lsr, need - len(from_clean))
    lacking = need - len(from_lsr) - len(from_clean)
    return from_clean + from_lsr + _take(pools.siblings, lacking)


def _take(cpus: Sequence[CpuInfo], need: int) -> list[int]:
    """Up to ``need`` CPU ids: pairs in turn over the buckets, then lone threads, then halves."""
    buckets = _buckets(cpus)
    taken: list[int] = []
    for pairs in _round_robin([_split(bucket)[0] for bucket in buckets]):
        if need - len(taken) > 1:
            taken.extend(pairs)
    left = set(taken)
    lone = _round_robin([_split(bucket)[1] for bucket in buckets])
    halves = _round_robin([[(cpu.id,) for cpu in bucket] for bucket in buckets])
    for (cpu_id,) in chain(lone, halves):
        if len(taken) < need and cpu_id not in left:
            left.add(cpu_id)
            taken.append(cpu_id)
    return taken


def _buckets(cpus: Sequence[CpuInfo]) -> list[list[CpuInfo]]:
    by_place: dict[tuple[int, int], list[CpuInfo]] = {}
    for cpu in sorted(cpus, key=lambda cpu: (cpu.core, cpu.id)):
        by_place.setdefault((cpu.numa, cpu.socket), []).append(cpu)
    return sorted(by_place.values(), key=lambda bucket: (-len(bucket), bucket[0].id))


def _split(bucket: Sequence[CpuInfo]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Pairs of one core, and the threads that are alone in their core."""
    threads: dict[tuple[int, int], list[int]] = {}
    for cpu in bucket:
        threads.setdefault(_core(cpu), []).append(cpu.id)
    pairs: list[tuple[int, ...]] = []
    lone: list[tuple[int, ...]] = []
    for ids in threads.values():
        pairs.extend((ids[at], ids[at + 1]) for at in range(0, len(ids) - 1, 2))
        if len(ids) % 2:
            lone.append((ids[-1],))
    return pairs, lone


def _round_robin(queues: Sequence[Sequence[tuple[int, ...]]]) -> list[tuple[int, ...]]:
    longest = max((len(queue) for queue in queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _spread(
    chosen: list[int], pools: _Pools, lsr_pods: Sequence[frozenset[int]]
) -> tuple[list[int], str]:
    """Exchange one CPU where a single LSR pod would carry all BE work."""

    def on_one_pod(cpus: list[int]) -> bool:
        return any(pod.issuperset(cpus) for pod in lsr_pods)

    if not chosen or not on_one_pod(chosen):
        return chosen, ""
    for cpu in pools.in_order():
        exchanged = [*chosen[:-1], cpu.id]
        if cpu.id not in chosen and not on_one_pod(exchanged):
            return exchanged, ""
    return chosen, "every CPU that BE may use belongs to one LSR pod"


def _why_none(topology: CpuTopology, floor: int) -> str:
    online = len(topology.cpus)
    if online <= floor:
        return f"{online} CPU online: the least BE cpuset would be all of them"
    return f"all {online} online CPUs are reserved, exclusive or isolated"
