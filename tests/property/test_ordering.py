"""The kernel takes every step of an ordering, and every prefix of it is where one may stop."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.model.actions import Target
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.protocol.cpuset import format_cpuset
from koordlet.resexecutor.ordering import Change, order
from tests.support.fakehost import FakeHost, fake_host

PATHS = ("be", "be/p1", "be/p1/a", "be/p1/b", "be/p2", "be/p2/c")
FILES = {Knob.CPUSET_CPUS: "cpuset.cpus", Knob.CPU_QUOTA: "cpu.cfs_quota_us"}
SETS = st.sets(st.integers(0, 3), min_size=1)
QUOTAS = st.one_of(st.just(-1), st.integers(1_000, 400_000))


def nested_sets(raw: list[set[int]]) -> dict[str, str]:
    """Sets that lie within their parents': the state that v1 keeps at all times."""
    found: dict[str, frozenset[int]] = {}
    for path, wanted in zip(PATHS, raw, strict=True):
        parent = found.get(path.rpartition("/")[0], frozenset(range(4)))
        found[path] = frozenset(wanted) & parent or parent
    return {path: format_cpuset(cpus) for path, cpus in found.items()}


def nested_quotas(raw: list[int]) -> dict[str, str]:
    """Quotas not above that of the nearest limited ancestor."""
    found: dict[str, int] = {}
    for path, wanted in zip(PATHS, raw, strict=True):
        limit = -1
        above = path.rpartition("/")[0]
        while above and limit < 0:
            limit = found[above]
            above = above.rpartition("/")[0]
        found[path] = min(wanted, limit) if wanted >= 0 and limit >= 0 else wanted
    return {path: str(quota) for path, quota in found.items()}


def build(states: dict[Knob, dict[str, str]]) -> FakeHost:
    host = fake_host("v1", cpus="0-3", cgroups={})
    for path in PATHS:
        host.make(path, {"tasks": 1})
        for knob, texts in states.items():
            host.set_text(path, FILES[knob], texts[path])
    return host


def changes_to(wanted: dict[str, str], knob: Knob) -> list[Change]:
    return [Change(CgroupPath(path), knob, text) for path, text in wanted.items()]


def run(host: FakeHost, changes: list[Change], knobs: tuple[Knob, ...], stop_at: float) -> None:
    """Order from what the host says now, and write; OSError where the kernel says no."""
    now: dict[Target, str] = {
        (CgroupPath(path), knob): host.text(path, FILES[knob]) for path in PATHS for knob in knobs
    }
    steps = order(changes, now, dict.fromkeys(Knob, 1))
    for step in steps[: int(len(steps) * stop_at)]:
        host.foreign_write(str(step.target), FILES[step.knob], step.text)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(SETS, min_size=6, max_size=6),
    st.lists(SETS, min_size=6, max_size=6),
    st.floats(0, 1),
)
def test_v1_cpusets_reach_any_valid_state_from_any_point(
    before: list[set[int]], after: list[set[int]], stop_at: float
) -> None:
    host = build({Knob.CPUSET_CPUS: nested_sets(before)})
    wanted = nested_sets(after)
    changes = changes_to(wanted, Knob.CPUSET_CPUS)
    run(host, changes, (Knob.CPUSET_CPUS,), stop_at)
    run(host, changes, (Knob.CPUSET_CPUS,), 1.0)
    assert {path: host.text(path, "cpuset.cpus") for path in PATHS} == wanted
    now = {change.key: change.text for change in changes}
    assert order(changes, now, dict.fromkeys(Knob, 1)) == ()


@settings(max_examples=120, deadline=None)
@given(
    st.lists(QUOTAS, min_size=6, max_size=6),
    st.lists(QUOTAS, min_size=6, max_size=6),
    st.floats(0, 1),
)
def test_v1_quotas_reach_any_valid_state_from_any_point(
    before: list[int], after: list[int], stop_at: float
) -> None:
    host = build({Knob.CPU_QUOTA: nested_quotas(before)})
    wanted = nested_quotas(after)
    changes = changes_to(wanted, Knob.CPU_QUOTA)
    run(host, changes, (Knob.CPU_QUOTA,), stop_at)
    run(host, changes, (Knob.CPU_QUOTA,), 1.0)
    assert {path: host.text(path, "cpu.cfs_quota_us") for path in PATHS} == wanted


@settings(max_examples=80, deadline=None)
@given(QUOTAS, st.integers(0, 400_000), QUOTAS, st.integers(0, 400_000), st.sampled_from([1, 2]))
def test_a_quota_and_its_burst_reach_any_valid_pair(
    quota: int, burst: int, quota_after: int, burst_after: int, version: int
) -> None:
    host = fake_host("v1" if version == 1 else "v2", cgroups={"c": {}})
    v1 = version == 1
    names = ("cpu.cfs_quota_us", "cpu.cfs_burst_us") if v1 else ("cpu.max", "cpu.max.burst")
    host.foreign_write("c", names[0], spelled(quota, version))
    host.foreign_write("c", names[1], str(within(burst, quota)))
    cg = CgroupPath("c")
    changes = [
        Change(cg, Knob.CPU_QUOTA, spelled(quota_after, version)),
        Change(cg, Knob.CPU_BURST, str(within(burst_after, quota_after))),
    ]
    now = {
        (cg, Knob.CPU_QUOTA): host.text("c", names[0]).split()[0],
        (cg, Knob.CPU_BURST): host.text("c", names[1]),
    }
    files = dict(zip((Knob.CPU_QUOTA, Knob.CPU_BURST), names, strict=True))
    for step in order(changes, now, dict.fromkeys(Knob, version)):
        host.foreign_write("c", files[step.knob], step.text)
    assert host.text("c", names[0]).split()[0] == changes[0].text
    assert host.text("c", names[1]) == changes[1].text


def spelled(quota: int, version: int) -> str:
    return "max" if quota < 0 and version == 2 else str(quota)


def within(burst: int, quota: int) -> int:
    return burst if quota < 0 else min(burst, quota)
