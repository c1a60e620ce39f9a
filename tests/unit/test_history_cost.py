"""What the history costs the front on a node of 110 pods with 3 containers each."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.metrics.readings import FIELDS, EntityKey, Group, Level, Values
from tests.support.historyrig import HistoryRig, cpu

PODS, CONTAINERS = 110, 3
MOST_MIB = 4.0
MINUTES = 2


def keys() -> Iterator[tuple[int, EntityKey]]:
    index = 0
    for pod in range(PODS):
        for container in ("", *(f"c{number}" for number in range(CONTAINERS))):
            level = Level.CONTAINER if container else Level.POD
            yield index, EntityKey(level, "", "shop", f"web-{pod}", f"uid-{pod}", container)
            index += 1


def tick(rig: HistoryRig, rng: random.Random, count: int, second: int) -> None:
    """Every CPU value moves each second, the rest of each every ten: more than a node does."""
    changed: list[tuple[int, int, Values]] = [cpu(index, rng.random()) for index in range(count)]
    changed += [
        (index, int(Group.DETAIL), tuple(rng.random() * 1e9 for _ in FIELDS[Group.DETAIL]))
        for index in range(second % 10, count, 10)
    ]
    rig.tick(*changed)


@pytest.mark.timeout(240)
def test_the_front_needs_a_few_mib_for_a_full_node(tmp_path: Path) -> None:
    rig = HistoryRig(tmp_path)
    rng = random.Random(1)
    all_keys = tuple(keys())
    rig.tick(keys=all_keys)
    tracemalloc.start()
    try:
        for second in range(MINUTES * 60 + 2):
            tick(rig, rng, len(all_keys), second)
            rig.pieces.clear()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_MIB * (1 << 20)
