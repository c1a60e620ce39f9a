"""Whatever was planned, wherever it was killed, and whatever others did: all of ours comes back."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.model.actions import Plan, SetValue
from koordlet.model.knobs import Knob
from koordlet.resexecutor.executor import Executor
from koordlet.resexecutor.journal import Journal
from tests.support.execrig import BOOT, HandClock, Rig, want
from tests.support.fakehost import CgroupTree, FakeHost, fake_host

PATHS = ("be", "be/p1", "be/p1/a", "be/p2", "be/p2/b")
TREE: CgroupTree = {
    "be": {
        "tasks": 1,
        "p1": {"a": {"tasks": 1}},
        "p2": {"b": {"tasks": 1}},
    },
    "ls": {"tasks": 1},
}


class Killed(BaseException):
    """SIGKILL, as a test sees it."""


@st.composite
def plans(draw: st.DrawFn) -> tuple[SetValue, ...]:
    """A plan as the strategies make them: one cpuset for all, quota at the root, weights."""
    cpus = frozenset(draw(st.sets(st.integers(0, 3), min_size=1)))
    actions: list[SetValue] = []
    if draw(st.booleans()):
        actions += [want(path, Knob.CPUSET_CPUS, cpus) for path in PATHS]
    if draw(st.booleans()):
        actions.append(want("be", Knob.CPU_QUOTA, draw(st.integers(1_000, 400_000))))
        actions += [want(path, Knob.CPU_QUOTA, None) for path in PATHS[1:]]
    for path in PATHS:
        if draw(st.booleans()):
            actions.append(want(path, Knob.CPU_SHARES, 2))
        if draw(st.booleans()):
            actions.append(want(path, Knob.CPU_IDLE, draw(st.integers(0, 1))))
    return tuple(actions)


def photo(host: FakeHost) -> dict[str, str]:
    return {
        f"{group.path}/{name}": (group.setting if name == "cpuset.cpus" else group.read)(name)
        for hierarchy in host.files.hierarchies
        for group in hierarchy.root.walk()
        for name in group.files
    }


def kill_at(host: FakeHost, count: int) -> None:
    real, left = type(host.files).write, [count]

    def dies(path: str, text: str) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise Killed
        real(host.files, path, text)

    host.files.write = dies  # type: ignore[method-assign]


def restore(host: FakeHost, path: Path) -> None:
    """What ``rollback`` does, without the lock."""
    clock = HandClock(1_000.0)
    opened = Journal.open(path, boot_id=BOOT, managed_root="/")
    executor = Executor(host.cgroups(), opened.journal, clock)
    executor.adopt_inherited(executor.cpuset_tree(), clock.at_s)
    executor.restore_all("rollback", clock.at_s)
    opened.journal.close()


@settings(deadline=None, max_examples=60)
@given(
    layout=st.sampled_from(["v1", "v2"]),
    shares=st.lists(st.integers(2, 2_000), min_size=5, max_size=5),
    lives=st.lists(st.tuples(st.lists(plans(), min_size=1, max_size=3), st.integers(1, 40))),
    births=st.integers(0, 2),
    half=st.integers(1, 12),
)
def test_rollback_restores_byte_for_byte(
    layout: str,
    shares: list[int],
    lives: list[tuple[list[tuple[SetValue, ...]], int]],
    births: int,
    half: int,
) -> None:
    host = fake_host(layout, cgroups=TREE)
    weight = "cpu.shares" if layout == "v1" else "cpu.weight"
    for path, share in zip(PATHS, shares, strict=True):
        host.set_text(path, weight, str(share))
    if layout == "v1":
        host.set_text("be/p1/a", "cpu.cfs_quota_us", "90000")
        host.set_text("be/p1/a", "cpu.cfs_burst_us", "30000")
    before = photo(host)
    with tempfile.TemporaryDirectory(prefix="koordtest-") as directory:
        rig = Rig(host, Path(directory))
        for planned, count in lives:
            kill_at(host, count)
            with suppress(Killed):
                for plan in planned:
                    rig.tick(*plan)
            host.files.__dict__.pop("write")
            rig.restart()
        rig.crash()
        born = [str(host.make(f"be/p2/born{number}/c", {"tasks": 1})) for number in range(births)]
        kill_at(host, half)
        with suppress(Killed):
            restore(host, rig.path)
        host.files.__dict__.pop("write")
        restore(host, rig.path)
    for path in born:
        assert host.text(path, "cpuset.cpus") == host.text("ls", "cpuset.cpus")
    for number in range(births):
        host.remove(f"be/p2/born{number}")
    assert photo(host) == before


@settings(deadline=None, max_examples=40)
@given(layout=st.sampled_from(["v1", "v2"]), planned=st.lists(plans(), min_size=1, max_size=3))
def test_a_second_apply_writes_nothing(layout: str, planned: list[tuple[SetValue, ...]]) -> None:
    host = fake_host(layout, cgroups=TREE)
    with tempfile.TemporaryDirectory(prefix="koordtest-") as directory:
        rig = Rig(host, Path(directory))
        for plan in planned:
            rig.tick(*plan)
            assert host.files.refused == []
            host.files.writes.clear()
            rig.executor.apply(Plan(plan), rig.clock.at_s)
            rig.tick(*plan)
            assert host.files.writes == []
        rig.crash()
