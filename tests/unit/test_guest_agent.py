"""What a guest's agent answers, and what the host makes of it; without a guest."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import vmagent
from tests.support.vmguest import Guest, GuestError, Hardware, Kind


class Rig(Guest):
    """A guest whose agent is a thread of this process."""

    def __init__(self) -> None:
        super().__init__(Kind.V2)
        ours, self._theirs = socket.socketpair()
        self._channel = ours
        agent = threading.Thread(target=vmagent.serve, args=(self._theirs.fileno(),))
        agent.start()
        self._stack.callback(self._theirs.close)
        self._stack.callback(agent.join)
        self._stack.callback(ours.close)


@pytest.fixture
def guest() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.stop()


def ask(**request: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(vmagent.answer(json.dumps({"id": 7, **request}).encode()))
    assert answer.pop("id") == 7
    return answer


def test_code_and_both_outputs_come_back(guest: Rig) -> None:
    ran = guest.sh("echo said; echo complained >&2; exit 3")
    assert (ran.code, ran.out, ran.err) == (3, "said\n", "complained\n")
    assert guest.ok("printf %s 'ü'") == "ü"
    with pytest.raises(AssertionError, match="complained"):
        guest.ok("echo complained >&2; false")


def test_a_command_ends_at_its_limit_with_what_it_said(guest: Rig) -> None:
    started_s = time.monotonic()
    ran = guest.sh("echo started; sleep 60", timeout_s=0.2)
    assert time.monotonic() - started_s < 10
    assert (ran.code, ran.out) == (vmagent.TIMED_OUT, "started\n")
    assert "killed after 0.2 s" in ran.err


def test_what_goes_on_in_the_background_is_not_waited_for(guest: Rig, tmp_path: Path) -> None:
    started_s = time.monotonic()
    pid = guest.ok("sleep 60 & echo $!")
    assert time.monotonic() - started_s < 10
    guest.ok(f"kill {pid}")


def test_files_of_every_size_go_and_come_whole(guest: Rig, tmp_path: Path) -> None:
    for size in (0, 1, vmagent.GET_BYTES, vmagent.GET_BYTES + 1):
        content = (b"0123456789abcdef" * (size // 16 + 1))[:size]
        path = str(tmp_path / "new" / f"file-{size}")
        guest.put(path, content, mode=0o600)
        assert guest.get(path) == content
        assert Path(path).stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_not_there_is_an_error_that_names_it(guest: Rig) -> None:
    with pytest.raises(GuestError, match="/nowhere/at/all"):
        guest.get("/nowhere/at/all")
    assert guest.ok("echo alive") == "alive\n"


def test_a_guest_that_was_ended_says_so(guest: Rig) -> None:
    guest.stop()
    with pytest.raises(GuestError, match="was ended"):
        guest.sh("true")


def test_a_guest_that_goes_away_is_no_failed_command(guest: Rig) -> None:
    guest._theirs.shutdown(socket.SHUT_RDWR)
    with pytest.raises(GuestError, match=r"cannot be asked|QEMU ended"):
        guest.sh("true")


def test_only_the_end_of_an_endless_output_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vmagent, "MOST_BYTES", 10)
    assert ask(run="seq 1 1000", timeout_s=10)["out"] == "\n999\n1000\n"


def test_put_appends_where_it_is_told_to(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    for append in (False, True):
        data = base64.b64encode(b"ab").decode()
        assert ask(put=path, data=data, mode=0o644, append=append) == {}
    assert Path(path).read_bytes() == b"abab"


def test_numa_nodes_share_out_cpus_and_memory() -> None:
    words = Hardware(cores=2, threads_per_core=2, numa_nodes=2, memory_mib=2048).arguments()
    assert words[:4] == ["-smp", "4,sockets=1,cores=2,threads=2", "-m", "2048"]
    assert "memory-backend-ram,id=memory1,size=1024M" in words
    assert "node,nodeid=1,cpus=2-3,memdev=memory1" in words
    assert "-numa" not in Hardware().arguments()
