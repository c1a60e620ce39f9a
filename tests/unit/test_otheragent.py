"""H14: Koordinator's own agent on this node, by its process or its hook socket."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordlet import daemon
from koordlet.config import Config
from koordlet.host import otheragent
from koordlet.host.otheragent import find_other_agent
from koordlet.model.pods import PodRecord
from koordlet.protocol.problem import Problem, RefusedError

RUN_DIR = "/run/our-koordlet"
KOORDLET = {"koord-app": "koordlet"}


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otheragent, "KOORDINATOR_SOCKETS", ())


def _process(proc: Path, pid: int, comm: str, exe: str | None) -> None:
    directory = proc / str(pid)
    directory.mkdir(parents=True)
    (directory / "comm").write_text(f"{comm}\n")
    if exe is not None:
        (directory / "exe").symlink_to(exe)


def test_H14_a_koordlet_that_is_no_python_program_is_another_agent(tmp_path: Path) -> None:
    _process(tmp_path, 1, "systemd", "/usr/lib/systemd/systemd")
    _process(tmp_path, 4321, "koordlet", "/koordlet")
    (tmp_path / "self").mkdir()
    problem = find_other_agent(str(tmp_path), RUN_DIR)
    assert problem is not None
    assert problem.code == "other-agent"
    assert "4321" in problem.where
    assert problem.remedy


def test_H14_we_and_our_namesakes_are_not(tmp_path: Path) -> None:
    _process(tmp_path, 10, "koordlet", "/usr/bin/python3.11")
    _process(tmp_path, 11, "koordletctl", "/usr/bin/koordletctl")
    _process(tmp_path, 12, "koordlet", None)  # left while we looked
    (tmp_path / "13").mkdir()
    assert find_other_agent(str(tmp_path), RUN_DIR) is None


@pytest.mark.parametrize(
    ("options", "refuses"),
    [({}, True), ({"dry_run": True}, False), ({"other_agent": "ignore"}, False)],
)
def test_H14_koordlet_does_not_start_beside_another_agent_unless_it_only_looks_or_was_told(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], refuses: bool
) -> None:
    found = Problem(otheragent.OTHER_AGENT, "process 7", "runs")
    monkeypatch.setattr(daemon, "find_other_agent", lambda proc_root, run_dir: found)
    one = daemon._Daemon(Config(**options), (), summary=False)
    if refuses:
        with pytest.raises(RefusedError) as refused:
            one._refuse_beside_another_agent()
        assert refused.value.problems == (found,)
    else:
        one._refuse_beside_another_agent()


def test_a_proc_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    assert find_other_agent(str(tmp_path / "none"), RUN_DIR) is None


def test_H14_an_answering_hook_socket_is_another_agent_a_left_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "koordlet.sock"
    monkeypatch.setattr(otheragent, "KOORDINATOR_SOCKETS", (str(path),))
    assert find_other_agent(str(tmp_path), RUN_DIR) is None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        problem = find_other_agent(str(tmp_path), RUN_DIR)
        assert problem is not None
        assert problem.where == str(path)
        assert find_other_agent(str(tmp_path), str(tmp_path)) is None  # our own run directory
    assert path.exists()
    assert find_other_agent(str(tmp_path), RUN_DIR) is None
    os.unlink(path)


def test_H14_its_running_pod_is_another_agent(tmp_path: Path) -> None:
    pod = PodRecord(
        uid="u", api_uid="u", namespace="koordinator-system", name="koordlet-x", labels=KOORDLET
    )
    problem = find_other_agent(str(tmp_path), RUN_DIR, (pod,))
    assert problem is not None
    assert problem.where == "pod koordinator-system/koordlet-x"
    assert find_other_agent(str(tmp_path), RUN_DIR, (replace(pod, running=False),)) is None
    assert find_other_agent(str(tmp_path), RUN_DIR, (replace(pod, terminating=True),)) is None
    assert find_other_agent(str(tmp_path), RUN_DIR, (replace(pod, labels={}),)) is None


def test_H14_our_own_socket_is_ours_by_every_name_of_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "var").symlink_to(tmp_path / "run")
    path = tmp_path / "var" / "koordlet.sock"
    monkeypatch.setattr(otheragent, "KOORDINATOR_SOCKETS", (str(path),))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert find_other_agent(str(tmp_path), str(tmp_path / "run")) is None
        assert find_other_agent(str(tmp_path), RUN_DIR) is not None
