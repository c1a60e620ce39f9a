"""H19: the socket is inherited, or made without taking one that is served."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from koordlet.protocol.problem import RefusedError
from runtimeproxy import listener


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def test_H19_a_socket_of_our_own_comes_and_goes(path: Path) -> None:
    made = listener.bind(path)
    assert connects(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert {each.name for each in path.parent.iterdir()} == {"s.sock", "s.sock.lock"}
    made.close()
    made.close()
    assert not path.exists()


def test_H19_a_live_socket_is_never_taken_over(path: Path) -> None:
    made = listener.bind(path)
    with pytest.raises(RefusedError, match="another process serves"):
        listener.bind(path)
    assert connects(path)
    made.close()
    with socket.socket(socket.AF_UNIX) as other:  # one that knows nothing of our lock
        other.bind(str(path))
        other.listen(0)
        inode = path.stat().st_ino
        with pytest.raises(RefusedError, match="another process serves"):
            listener.bind(path)
        with contextlib.ExitStack() as stack:
            code = 0
            while code == 0:  # a full queue is no dead socket
                queued = stack.enter_context(socket.socket(socket.AF_UNIX))
                queued.setblocking(False)
                code = queued.connect_ex(str(path))
            with pytest.raises(RefusedError, match="another process serves"):
                listener.bind(path)
        assert path.stat().st_ino == inode


def test_H19_a_dead_socket_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    made = listener.bind(path)
    assert connects(path)
    made.close()


def test_what_is_no_socket_stays(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(RefusedError, match="something else"):
        listener.bind(path)
    assert path.read_text() == "precious"


def test_the_successors_socket_is_not_removed(path: Path) -> None:
    made = listener.bind(path)
    path.unlink()
    path.write_text("another's")
    made.close()
    assert path.exists()


def test_rights_are_the_runtimes(path: Path, tmp_path: Path) -> None:
    runtime = tmp_path / "runtime.sock"
    runtime.touch(mode=0o600)
    runtime.chmod(0o660)
    made = listener.bind(path)
    assert made.copy_rights(runtime) == ""
    assert path.stat().st_mode & 0o777 == 0o660
    assert "No such file" in made.copy_rights(tmp_path / "absent")
    made.close()


def test_nothing_is_inherited_by_somebody_else() -> None:
    mine = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDNAMES": "x"}
    assert listener.inherited(mine, os.getpid()) is None
    assert not mine
    assert listener.inherited({}, os.getpid()) is None
    with pytest.raises(RefusedError, match="2 sockets"):
        listener.inherited({"LISTEN_FDS": "2", "LISTEN_PID": "7"}, 7)
