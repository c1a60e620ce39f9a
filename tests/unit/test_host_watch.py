from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.host import watch as watching
from koordlet.host.watch import Change, Event, Watch, WatchUnavailable
from tests.support.cgroot import cgroup_root


@pytest.fixture
def watch() -> Iterator[Watch]:
    made = Watch()
    yield made
    made.close()


def test_directories_made_and_removed_are_told_files_are_not(watch: Watch, tmp_path: Path) -> None:
    assert watch.read() == ()
    assert watch.add(str(tmp_path))
    (tmp_path / "pod1").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "pod1").rmdir()
    assert watch.read() == (
        Event(Change.CREATED, str(tmp_path), "pod1"),
        Event(Change.REMOVED, str(tmp_path), "pod1"),
    )
    assert watch.read() == ()


def test_the_fd_becomes_readable(watch: Watch, tmp_path: Path) -> None:
    watch.add(str(tmp_path))
    assert select.select([watch.fd], [], [], 0)[0] == []
    (tmp_path / "pod").mkdir()
    assert select.select([watch.fd], [], [], 5)[0] == [watch.fd]


def test_what_is_not_there_is_not_watched(watch: Watch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not watch.add(f"{tmp_path}/none")
    assert not watch.add(f"{tmp_path}/file")
    watch.remove(f"{tmp_path}/none")


def test_a_removed_directory_can_be_watched_anew(watch: Watch, tmp_path: Path) -> None:
    pod = tmp_path / "pod"
    for _ in range(3):
        pod.mkdir()
        assert watch.add(str(pod))
        (pod / "c").mkdir()
        assert watch.read() == (Event(Change.CREATED, str(pod), "c"),)
        (pod / "c").rmdir()
        pod.rmdir()
        watch.read()
    assert not watch._paths
    assert not watch._ids


def test_removing_a_watch_ends_its_events(watch: Watch, tmp_path: Path) -> None:
    watch.add(str(tmp_path))
    watch.remove(str(tmp_path))
    (tmp_path / "pod").mkdir()
    assert watch.read() == ()


def test_names_with_colons_and_of_any_length(watch: Watch, tmp_path: Path) -> None:
    watch.add(str(tmp_path))
    names = ["x", "test.slice:cri-containerd:" + "0" * 64, "a" * 255]
    for name in names:
        (tmp_path / name).mkdir()
    assert [event.name for event in watch.read()] == names


def test_a_lost_event_is_told(watch: Watch) -> None:
    overflow = watching._HEADER.pack(-1, watching._IN_Q_OVERFLOW, 0, 0)
    assert watch._events(overflow) == [Event(Change.OVERFLOW)]


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        (errno.EMFILE, "fs.inotify.max_user_instances"),
        (errno.ENOSPC, "fs.inotify.max_user_watches"),
    ],
)
def test_H18_exhaustion_names_the_limit_and_the_remedy(code: int, limit: str) -> None:
    error = WatchUnavailable(watching._problem("/sys/fs/cgroup/cpu/kubepods", code))
    assert limit in error.problem.limit
    assert limit in error.problem.remedy
    assert os.strerror(code) in str(error)
    assert "polling" in error.problem.what


def test_H18_other_refusals_are_told_too(watch: Watch) -> None:
    with pytest.raises(WatchUnavailable) as caught:
        watch.add("/" + "x" * 5_000)
    assert os.strerror(errno.ENAMETOOLONG) in str(caught.value)


@pytest.mark.kernel
def test_cgroups_made_and_removed_are_told_at_once(watch: Watch) -> None:
    with cgroup_root() as ground:
        directory = str(ground.dir("", "cpu"))
        assert watch.add(directory.rstrip("/"))
        ground.mk("pod1")
        ground.rm("pod1")
        assert watch.read() == (
            Event(Change.CREATED, directory.rstrip("/"), "pod1"),
            Event(Change.REMOVED, directory.rstrip("/"), "pod1"),
        )
