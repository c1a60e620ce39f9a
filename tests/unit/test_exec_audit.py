"""The audit store."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.model.paths import CgroupPath
from koordlet.resexecutor.audit import AuditEvent, AuditQuery, AuditStore
from koordlet.resexecutor.tell import pod_uid_in

DAY = 86_400


def event(at_s: float, **rest: object) -> AuditEvent:
    fields: dict[str, object] = {"kind": "write", "owner": "cpu_suppress", "knob": "cpu.quota"}
    return AuditEvent(at_s, **(fields | rest))  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> AuditStore:
    return AuditStore(tmp_path / "audit.db", keep_days=2, keep_bytes=256 << 10)


def test_an_event_comes_back_as_it_was(store: AuditStore) -> None:
    whole = AuditEvent(
        10.5, "write", "be_priority", "be/pod", "cpu.shares", "/sys/x", "uid-1", "1024", "2",
        "a reason", (("budget_cores", 1.5), ("policy", "cpuset")), "applied",
    )  # fmt: skip
    assert store.append([whole]) == 1
    assert store.query(AuditQuery()) == (whole,)


def test_by_time_pod_knob_owner_and_file(store: AuditStore) -> None:
    store.append(
        [
            event(1, pod="p1"),
            event(2, pod="p2", owner="be_priority", knob="cpu.shares"),
            event(3, path="/sys/fs/cgroup/cpu/be/cpu.shares", target="be"),
        ]
    )

    def at(**query: object) -> list[float]:
        return [e.at_wall_s for e in store.query(AuditQuery(**query))]  # type: ignore[arg-type]

    assert at(since_s=2, until_s=3) == [2]
    assert at(pod="p1") == [1]
    assert at(knob="cpu.quota") == [1, 3]
    assert at(owner="be_priority") == [2]
    assert at(path="/sys/fs/cgroup/cpu/be/cpu.shares") == [3]
    assert at(path="/be") == [3]
    assert at(limit=2) == [2, 3]


def test_old_events_leave(store: AuditStore) -> None:
    store.append([event(0), event(DAY), event(3 * DAY)])
    assert store.prune(3 * DAY + 1) == 2
    assert [e.at_wall_s for e in store.query(AuditQuery())] == [3 * DAY]


def test_the_oldest_leave_where_the_store_grows_too_large(
    store: AuditStore, tmp_path: Path
) -> None:
    for batch in range(10):
        store.append([event(batch * 1000 + n, reason="x" * 200) for n in range(300)])
    assert store.size_bytes() > 256 << 10
    assert store.prune(0) > 0
    assert store.size_bytes() <= 256 << 10
    assert (tmp_path / "audit.db").stat().st_size <= 256 << 10, "what is free is given back"
    newest = store.query(AuditQuery(limit=1))[0]
    assert newest.at_wall_s == 9_299
    assert store.prune(0) == 0


def test_events_survive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    first = AuditStore(path)
    first.append([event(1)])
    first.close()
    assert len(AuditStore(path).query(AuditQuery())) == 1


@pytest.mark.parametrize(
    ("path", "uid"),
    [
        ("kubepods/besteffort/pod1234-ab/c", "1234-ab"),
        (
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab.slice/x.scope",
            "12-ab",
        ),
        ("kubepods.slice/kubepods-pod12_ab.slice", "12-ab"),
        ("kubepods/besteffort", ""),
        ("host-best-effort/podcast", ""),
    ],
)
def test_the_pod_is_read_from_the_path(path: str, uid: str) -> None:
    assert pod_uid_in(CgroupPath(path)) == uid


def test_H18_a_name_that_is_no_utf8_is_stored_as_far_as_it_is_text(store: AuditStore) -> None:
    store.append([event(1, target="be/a\udcffb")])
    (told,) = store.query(AuditQuery())
    assert told.target == "be/a?b"
