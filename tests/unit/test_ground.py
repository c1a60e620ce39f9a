"""The check that the tests leave nothing behind can itself fail."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from tests.support.ground import MARK, Ground, Surveyor
from tests.support.waiting import until


def test_a_process_that_inherited_the_mark_is_seen_and_others_are_not(tmp_path: Path) -> None:
    run = 4_000_000  # no process has this number
    surveyor = Surveyor(run, str(tmp_path))
    before = surveyor.look()
    marked = subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: str(run)})
    unmarked = subprocess.Popen(["sleep", "60"], env={MARK: "1", "PATH": os.environ["PATH"]})
    try:
        # An exec closes the pipe that Popen waits for before the environment can be read.
        until(lambda: surveyor.look().left_behind(before), 10, "a process seen")
        left = surveyor.look().left_behind(before)
    finally:
        for process in (marked, unmarked):
            process.kill()
            process.wait()
    assert left == [f"process: {marked.pid} sleep 60"]
    assert surveyor.look().left_behind(before) == []


def test_a_socket_below_the_scratch_directory_is_seen(tmp_path: Path) -> None:
    surveyor = Surveyor(os.getpid(), str(tmp_path))
    before = surveyor.look()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "api.sock"))
        left = surveyor.look().left_behind(before)
    assert left == [f"socket: {tmp_path}/api.sock"]


def test_a_changed_root_qdisc_is_told_with_both_texts() -> None:
    before = Ground(qdiscs={"eth0": "qdisc fq\n", "gone": "qdisc fq\n"})
    after = Ground(qdiscs={"eth0": "qdisc htb\n", "new": "qdisc fq\n"})
    assert after.left_behind(before) == [
        "qdisc of eth0: 'qdisc fq\\n' became 'qdisc htb\\n'",
    ]


def test_only_what_is_new_counts() -> None:
    before = Ground(things={"mount": frozenset({"/a", "/b"})})
    after = Ground(things={"mount": frozenset({"/b", "/c"})})
    assert after.left_behind(before) == ["mount: /c"]
