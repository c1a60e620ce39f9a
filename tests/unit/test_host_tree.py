from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.host.beneath import Opener
from koordlet.host.tree import Confinement, Tree, WriteRefusedError, fd_budget, raise_fd_limit
from koordlet.model.readings import Missing


@pytest.fixture(params=[True, False], ids=["openat2", "by-component"])
def opener(request: pytest.FixtureRequest) -> Opener:
    found = Opener()
    if request.param and not found.native:
        pytest.skip("this kernel has no openat2")
    return Opener(native=request.param)


@pytest.fixture
def tree(tmp_path: Path, opener: Opener) -> Iterator[Tree]:
    """Directory ``m`` is confined and ``m/own`` managed; ``plain`` is neither."""
    (tmp_path / "m/own/a").mkdir(parents=True)
    (tmp_path / "plain").mkdir()
    made = Tree(8, opener=opener)
    made.confine([Confinement(f"{tmp_path}/m", f"{tmp_path}/m/own")])
    yield made
    made.close()


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_kept_fd_reads_what_is_there_now(tree: Tree, tmp_path: Path) -> None:
    file = tmp_path / "m/own/a/f"
    file.write_text("1\n")
    assert tree.read(str(file)) == b"1\n"
    file.write_text("22\n")
    assert tree.read(str(file)) == b"22\n"
    assert (tree.reads, tree.opens, tree.kept) == (2, 1, 1)


@pytest.mark.parametrize("size", [1_023, 1_024, 4_095, 4_096, 4_097, 70_000, 200_000])
def test_long_files_are_read_to_their_end(tree: Tree, tmp_path: Path, size: int) -> None:
    for place in ("m/own/a/f", "plain/f"):
        file = tmp_path / place
        file.write_bytes(b"x" * size)
        assert tree.read(str(file)) == b"x" * size
        file.write_bytes(b"y" * (size + 5_000))
        assert tree.read(str(file)) == b"y" * (size + 5_000)


def test_what_is_not_there_is_missing_with_its_errno(tree: Tree, tmp_path: Path) -> None:
    for path in (f"{tmp_path}/m/own/a/none", f"{tmp_path}/plain/none"):
        found = tree.read(path)
        assert isinstance(found, Missing)
        assert found.errno == errno.ENOENT
        assert path in found.why
        assert not tree.exists(path)
        assert isinstance(tree.list(path), Missing)
        assert isinstance(tree.identity(path), Missing)
    found = tree.read(f"{tmp_path}/m/own")
    assert isinstance(found, Missing)
    assert found.errno == errno.EISDIR


def test_files_replaced_by_a_rename_are_never_read_stale(tree: Tree, tmp_path: Path) -> None:
    file = tmp_path / "plain/state"
    for text in ("old", "new"):
        (tmp_path / "plain/next").write_text(text)
        (tmp_path / "plain/next").rename(file)
        assert tree.read(str(file)) == text.encode()
    assert tree.kept == 0


def test_the_tap_sees_every_answer(tree: Tree, tmp_path: Path) -> None:
    seen: list[tuple[str, bytes | Missing]] = []
    tree.tap = lambda path, answer: seen.append((path, answer))
    (tmp_path / "m/own/a/f").write_text("1")
    tree.read(f"{tmp_path}/m/own/a/f")
    tree.read(f"{tmp_path}/m/own/a/none")
    assert [path.rpartition("/")[2] for path, _ in seen] == ["f", "none"]
    assert seen[0][1] == b"1"
    assert isinstance(seen[1][1], Missing)


def test_list_gives_directories_sorted(tree: Tree, tmp_path: Path) -> None:
    for name in ("b", "a:x", "c"):
        (tmp_path / "m/own/a" / name).mkdir()
    (tmp_path / "m/own/a/file").write_text("")
    (tmp_path / "m/own/a/link").symlink_to(tmp_path)
    assert tree.list(f"{tmp_path}/m/own/a") == ("a:x", "b", "c")
    assert tree.list(f"{tmp_path}/m") == ("own",)


def test_H29_the_files_read_most_keep_their_fd(tree: Tree, tmp_path: Path) -> None:
    paths = [f"{tmp_path}/m/own/a/f{number:02}" for number in range(20)]
    for path in paths:
        Path(path).write_text("1")
    hot = paths[12:]
    for _ in range(60):
        for path in paths:
            tree.read(path)
        for _ in range(5):
            for path in hot:
                tree.read(path)
    assert tree.kept == 8
    opens = tree.opens
    for path in hot:
        tree.read(path)
    assert tree.opens == opens


def test_more_files_than_budget_never_thrash(tree: Tree, tmp_path: Path) -> None:
    paths = [f"{tmp_path}/m/own/a/f{number:02}" for number in range(16)]
    for path in paths:
        Path(path).write_text("1")
    for _ in range(100):
        for path in paths:
            tree.read(path)
    assert tree.kept == 8
    opens = tree.opens
    for path in paths:
        tree.read(path)
    assert tree.opens - opens <= 8


def test_a_tree_without_budget_keeps_nothing(tmp_path: Path) -> None:
    tree = Tree(0)
    (tmp_path / "f").write_text("1")
    tree.confine([Confinement(str(tmp_path), str(tmp_path))])
    assert [tree.read(f"{tmp_path}/f") for _ in range(3)] == [b"1"] * 3
    assert tree.kept == 0
    tree.close()


def test_OPS_03_ten_thousand_cgroups_leave_nothing_behind(tree: Tree, tmp_path: Path) -> None:
    directory = tmp_path / "m/own/a/pod"
    before = open_fds()
    for number in range(10_000):
        directory.mkdir()
        (directory / "f").write_text("1")
        tree.read(f"{directory}/f")
        tree.drop(str(directory))
        (directory / "f").unlink()
        directory.rmdir()
        directory = directory.with_name(f"pod{number}")
    assert open_fds() <= before  # others' garbage may hold some that go meanwhile
    parts = (*vars(tree).values(), *vars(vars(tree)["_kept"]).values())
    tables = [value for value in parts if isinstance(value, dict)]
    assert sum(len(table) for table in tables) < 20


def test_drop_closes_the_whole_subtree_and_nothing_else(tree: Tree, tmp_path: Path) -> None:
    for name in ("a/f", "a/b/f", "a/b/c/f", "ab/f"):
        file = tmp_path / "m/own" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("1")
        tree.read(str(file))
    tree.drop(f"{tmp_path}/m/own/a/b")
    assert tree.kept == 2
    tree.drop(f"{tmp_path}/m/own/a")
    assert tree.kept == 1
    tree.drop(f"{tmp_path}/m/own/never-seen")


def test_H27_reads_below_a_mount_follow_no_link(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "plain/secret").write_text("1")
    (tmp_path / "m/own/link").symlink_to(tmp_path / "plain/secret")
    (tmp_path / "m/own/dir").symlink_to(tmp_path / "plain")
    for path in ("m/own/link", "m/own/dir/secret"):
        assert isinstance(tree.read(f"{tmp_path}/{path}"), Missing)
    escape = tree.read(f"{tmp_path}/m/../plain/secret")
    assert isinstance(escape, Missing)
    assert escape.errno == errno.EXDEV


def test_H27_writes_follow_no_link_and_never_leave(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "plain/secret").write_text("1")
    (tmp_path / "m/own/a/link").symlink_to(tmp_path / "plain/secret")
    (tmp_path / "m/own/dir").symlink_to(tmp_path / "plain")
    for path in ("m/own/a/link", "m/own/dir/secret"):
        with pytest.raises(OSError) as caught:
            tree.write(f"{tmp_path}/{path}", "2")
        assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR, errno.EXDEV)
    for path in ("m/own/a/../../../plain/secret", "plain/secret", "m/own/f", "m/f"):
        with pytest.raises(WriteRefusedError) as refused:
            tree.write(f"{tmp_path}/{path}", "2")
        assert refused.value.errno == errno.EPERM
        assert "nothing was written" in str(refused.value)
    assert (tmp_path / "plain/secret").read_text() == "1"


def test_H27_another_mount_below_is_not_entered(opener: Opener) -> None:
    if not os.path.ismount("/dev/shm"):
        pytest.skip("needs a mount on /dev/shm")
    tree = Tree(0, opener=opener)
    tree.confine([Confinement("/dev", "/dev")])
    crossing = tree.list("/dev/shm")
    assert isinstance(crossing, Missing)
    assert crossing.errno == errno.EXDEV
    tree.close()


def test_nothing_can_be_written_before_mounts_are_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("1")
    tree = Tree(1)
    with pytest.raises(WriteRefusedError):
        tree.write(f"{tmp_path}/f", "2")


def test_a_write_is_one_write_and_an_empty_one_an_error(tree: Tree, tmp_path: Path) -> None:
    file = tmp_path / "m/own/a/f"
    file.write_text("....")
    tree.write(str(file), "ab")
    assert file.read_text() == "ab.."
    with pytest.raises(ValueError, match="newline"):
        tree.write(str(file), "")


def test_writes_never_create_files(tree: Tree, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tree.write(f"{tmp_path}/m/own/a/none", "1")


def test_directories_are_made_and_removed_below_the_managed_root(
    tree: Tree, tmp_path: Path
) -> None:
    tree.make_dir(f"{tmp_path}/m/own/new")
    assert tree.list(f"{tmp_path}/m/own") == ("a", "new")
    tree.remove_dir(f"{tmp_path}/m/own/new")
    for path in ("m/new", "m/own", "m/own/../new"):
        with pytest.raises(WriteRefusedError):
            tree.make_dir(f"{tmp_path}/{path}")
        with pytest.raises(WriteRefusedError):
            tree.remove_dir(f"{tmp_path}/{path}")


def test_many_record_files_are_read_to_their_end() -> None:
    tree = Tree(4)
    tree.confine([], keep_below=("/proc",))
    for path in ("/proc/self/maps", "/proc/self/mountinfo"):
        found = tree.read(path)
        assert isinstance(found, bytes)
        assert found.endswith(b"\n")
        assert len(found.splitlines()) == len(Path(path).read_bytes().splitlines())
    tree.close()


def test_H29_budget_is_a_share_of_the_hard_limit() -> None:
    assert fd_budget(1_024) == 614
    assert fd_budget(128) == 56
    assert fd_budget(64) == 0
    assert fd_budget(20_000) == 8_192
    assert fd_budget(resource.RLIM_INFINITY) == 8_192


def test_the_soft_fd_limit_is_lifted_to_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert raise_fd_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
