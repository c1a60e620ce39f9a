"""Directory changes: by inotify, by comparing where there is none, and by both together."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator

import pytest

from koordlet.host.watch import Change, Event, Watch, WatchUnavailable
from koordlet.model.paths import ROOT, CgroupPath
from koordlet.protocol.problem import Problem
from koordlet.treewatch import TreeWatch, scan
from tests.support.cgroot import CgroupRoot, cgroup_root
from tests.support.fakehost import FakeHost, fake_host

TIER = CgroupPath("kubepods/besteffort")
NO_ROOM = Problem("inotify-unavailable", "/sys", "no inotify watches: No space left on device")


class FakeWatch:
    """inotify on a fake host: ``room`` is how many watches there are."""

    fd = 7

    def __init__(self, host: FakeHost, room: int = 1_000) -> None:
        self.host = host
        self.room = room
        self.watched: set[str] = set()
        self.events: list[Event] = []

    def add(self, directory: str) -> bool:
        if not self.host.files.exists(directory):
            return False
        if len(self.watched) >= self.room:
            raise WatchUnavailable(NO_ROOM)
        self.watched.add(directory)
        return True

    def remove(self, directory: str) -> None:
        self.watched.discard(directory)

    def read(self) -> tuple[Event, ...]:
        events, self.events = tuple(self.events), []
        return events

    def tell(self, change: Change, path: str) -> None:
        directory, _, name = path.rpartition("/")
        self.events.append(Event(change, directory, name))


@pytest.fixture
def host() -> FakeHost:
    return fake_host("v1", cgroups={"kubepods": {"besteffort": {"poda": {}, "podb": {}}}})


def _watched(host: FakeHost, watch: FakeWatch) -> TreeWatch:
    return TreeWatch(host.cgroups(), watch)  # type: ignore[arg-type]


def _dir(path: str) -> str:
    return f"/sys/fs/cgroup/cpu/{path}".rstrip("/")


def test_exactly_the_wanted_directories_are_watched(host: FakeHost) -> None:
    watch = FakeWatch(host)
    tree = _watched(host, watch)
    assert tree.follow([ROOT, TIER, TIER.child("poda")])
    assert watch.watched == {_dir(""), _dir(TIER), _dir(f"{TIER}/poda")}
    assert not tree.follow([ROOT, TIER])
    assert watch.watched == {_dir(""), _dir(TIER)}
    assert tree.fd == 7
    assert not tree.is_blind
    assert not tree.drain()
    watch.tell(Change.CREATED, _dir(f"{TIER}/podc"))
    assert tree.drain()
    assert not tree.drain()


def test_a_directory_made_anew_is_watched_anew(host: FakeHost) -> None:
    watch = FakeWatch(host)
    tree = _watched(host, watch)
    pod = TIER.child("poda")
    tree.follow([TIER, pod])
    host.remove(pod)
    host.make(pod)
    watch.watched.discard(_dir(pod))  # the kernel drops the watch with the directory
    watch.tell(Change.REMOVED, _dir(pod))
    watch.tell(Change.CREATED, _dir(pod))
    assert tree.drain()
    assert tree.follow([TIER, pod])
    assert _dir(pod) in watch.watched


def test_one_that_is_not_there_yet_is_tried_again(host: FakeHost) -> None:
    watch = FakeWatch(host)
    tree = _watched(host, watch)
    pod = TIER.child("podc")
    assert not tree.follow([pod])
    host.make(pod)
    assert tree.follow([pod])
    assert watch.watched == {_dir(pod)}


def test_lost_events_have_everything_watched_anew(host: FakeHost) -> None:
    watch = FakeWatch(host)
    tree = _watched(host, watch)
    tree.follow([ROOT, TIER])
    watch.events.append(Event(Change.OVERFLOW))
    assert tree.drain()
    assert tree.follow([ROOT, TIER])
    assert len(watch.watched) == 2


def test_H18_what_finds_no_watch_is_compared_and_said_so(host: FakeHost) -> None:
    watch = FakeWatch(host, room=2)
    tree = _watched(host, watch)
    wanted = [ROOT, TIER, TIER.child("poda"), TIER.child("podb")]
    tree.follow(wanted)
    assert watch.watched == {_dir(""), _dir(TIER)}  # tiers first
    assert tree.problem == NO_ROOM
    assert tree.is_blind
    assert tree.fd == 7  # and those that are watched still call
    assert not tree.drain()
    host.make(TIER.child("poda").child("c1"))
    assert tree.drain()
    assert not tree.drain()
    watch.tell(Change.CREATED, _dir(f"{TIER}/podc"))
    assert tree.drain()
    watch.room = 10
    tree.follow(wanted)
    assert tree.problem is None
    assert not tree.is_blind
    assert len(watch.watched) == 4


def test_H18_without_any_inotify_all_is_compared(host: FakeHost) -> None:
    tree = TreeWatch(host.cgroups(), None, NO_ROOM)
    assert tree.fd is None
    tree.follow([ROOT, TIER])
    assert tree.is_blind
    assert tree.problem == NO_ROOM
    assert not tree.drain()
    host.make(TIER.child("podc"))
    assert tree.drain()
    host.remove(TIER.child("podc"))
    assert tree.drain()
    host.remove(TIER)
    assert tree.drain()
    assert not tree.drain()
    tree.close()


def test_scan_lists_every_directory_below_the_roots(host: FakeHost) -> None:
    host.make(f"{TIER}/poda/c1/nested")
    found = scan(host.cgroups(), [TIER, CgroupPath("host-best-effort/gone")])
    pod = TIER.child("poda")
    assert found == {
        TIER: (pod, TIER.child("podb")),
        pod: (pod.child("c1"),),
        pod.child("c1"): (pod.child("c1").child("nested"),),
        pod.child("c1").child("nested"): (),
        TIER.child("podb"): (),
    }


# -- the kernel's own -----------------------------------------------------------------------------


@pytest.fixture
def root() -> Iterator[CgroupRoot]:
    with cgroup_root() as made:
        made.mk("kubepods/besteffort")
        yield made


@pytest.mark.kernel
@pytest.mark.parametrize("with_inotify", [True, False])
def test_a_new_directory_is_noticed_at_once(root: CgroupRoot, *, with_inotify: bool) -> None:
    from koordlet.host.machine import open_machine
    from koordlet.host.mounts import Roots

    machine = open_machine(Roots(cgroup=root.root), keeps_fds=False)
    tree = TreeWatch(machine.cgroups, Watch() if with_inotify else None)
    tree.follow([ROOT, CgroupPath("kubepods"), TIER])
    assert not tree.drain()
    for change in (lambda: root.mk(f"{TIER}/poda"), lambda: root.rm(f"{TIER}/poda")):
        change()
        assert _noticed_within(tree, 0.2)
        while tree.drain():
            pass
    root.rm(TIER)
    root.mk(TIER)
    tree.drain()
    tree.follow([ROOT, CgroupPath("kubepods"), TIER])
    root.mk(f"{TIER}/podb")
    assert _noticed_within(tree, 0.2)
    tree.close()
    machine.files.close()


def _noticed_within(tree: TreeWatch, seconds: float) -> bool:
    deadline_s = time.monotonic() + seconds
    woken_by = [] if tree.fd is None else [tree.fd]
    while not tree.drain():
        if time.monotonic() > deadline_s:
            return False
        select.select(woken_by, [], [], seconds if woken_by else 0.005)
    return True
