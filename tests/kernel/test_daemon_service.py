"""The daemon as a service manager's child: what it leaves, what it tells, what it reads again."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cgroot import CgroupRoot, cgroup_root
from tests.support.koordletd import Koordlet, free_port
from tests.support.waiting import until

pytestmark = pytest.mark.kernel

APP = "host-best-effort/crunch"
SLO = "resourceQOSStrategy: {beClass: {cpuQOS: {enable: true, schedIdle: 1}}}"
APPS = """
apiVersion: koordlet/v1
kind: HostApplications
applications: [{name: crunch, qos: BE}]
"""


class Rig:
    """Daemons of one node, one after the other, and the socket that they tell things to."""

    def __init__(self, root: CgroupRoot, directory: Path) -> None:
        self.root = root
        self._directory = directory
        self.config = directory / "koordlet.yaml"
        self.put_config("")
        self._write("nodeslo.yaml", SLO)
        self._write("hostapps.d/a.yaml", APPS)
        self.told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.told.bind(str(directory / "notify"))
        self.told.setblocking(False)
        self._words: list[str] = []
        self.daemons: list[Koordlet] = []

    def _write(self, name: str, text: str) -> None:
        path = self._directory / name
        path.parent.mkdir(exist_ok=True, mode=0o755)
        path.write_text(text)
        path.chmod(0o644)

    def put_config(self, text: str) -> None:
        self._write("koordlet.yaml", text)

    def start(self) -> Koordlet:
        daemon = Koordlet(
            self._directory,
            self.root.root,
            config=self.config,
            node_slo=self._directory / "nodeslo.yaml",
            host_apps_dir=self._directory / "hostapps.d",
            cri_endpoint="none",
            on_sigterm="leave",
        )
        self.daemons.append(daemon)
        return daemon.start()

    def words(self) -> list[str]:
        """All lines told so far."""
        while True:
            try:
                self._words += self.told.recv(4096).decode().split("\n")
            except BlockingIOError:
                return self._words

    def is_idle(self) -> bool:
        return self.root.read(APP, "cpu.idle") == "1"

    def close(self) -> None:
        for daemon in self.daemons:
            if daemon.exit_code() is None:
                daemon.stop(signal.SIGINT)
        self.told.close()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    with cgroup_root() as root:
        root.mk(APP, shares=1024)
        made = Rig(root, tmp_path)
        yield made
        made.close()


def test_H16_SIGTERM_leaves_values_and_the_next_daemon_takes_them_over(rig: Rig) -> None:
    first = rig.start()
    until(rig.is_idle, 20, "a value in force")
    assert first.stop(signal.SIGTERM) == 0
    assert rig.is_idle()
    second = rig.start()
    assert second.status()["core"]["takeover"]
    assert rig.is_idle()
    assert second.stop(signal.SIGINT) == 0
    assert rig.root.read(APP, "cpu.idle") == "0"
    assert rig.root.weight(APP) == rig.root.weight_of(1024)


def test_H16_a_core_that_is_down_at_such_a_stop_leaves_values_too(rig: Rig) -> None:
    daemon = rig.start()
    until(rig.is_idle, 20, "a value in force")
    os.kill(int(daemon.status()["core"]["pid"]), signal.SIGKILL)
    assert daemon.stop(signal.SIGTERM) == 0
    assert rig.is_idle()
    assert daemon.ctl("rollback").returncode == 0
    assert rig.root.read(APP, "cpu.idle") == "0"


def test_ready_is_told_once_ticks_feed_the_watchdog_and_a_stuck_core_does_not(rig: Rig) -> None:
    daemon = rig.start()
    until(lambda: "READY=1" in rig.words(), 20, "READY=1")
    until(
        lambda: any(word.endswith("values in force, 1 BE roots") for word in rig.words()),
        20,
        "a status",
    )
    before = rig.words().count("WATCHDOG=1")
    until(lambda: rig.words().count("WATCHDOG=1") > before + 1, 10, "two beats")
    core = int(daemon.status()["core"]["pid"])
    os.kill(core, signal.SIGSTOP)
    try:
        stopped = rig.words().count("WATCHDOG=1")
        with pytest.raises(TimeoutError):
            until(lambda: rig.words().count("WATCHDOG=1") > stopped, 3, "no beat")
    finally:
        os.kill(core, signal.SIGCONT)
    assert rig.words().count("READY=1") == 1


def test_a_reload_takes_live_keys_names_the_others_and_keeps_the_last_good_file(rig: Rig) -> None:
    daemon = rig.start()

    def problems() -> list[str]:
        (source,) = (one for one in daemon.status()["sources"] if one["name"] == "config")
        return [one["where"] for one in source["problems"]]

    def reserved() -> str:
        return str(daemon.status()["node"]["reserved_cpus"])

    rig.put_config(f"reservedCPUs: '0'\nmetricsAddress: 127.0.0.1:{free_port()}\ndryRun: true\n")
    os.kill(daemon.pid, signal.SIGHUP)
    until(lambda: reserved() == "0", 20, "the live key")
    assert problems() == [f"{rig.config}: dryRun"]  # the metrics address is an option here
    rig.put_config("reservedCPUs: [")
    os.kill(daemon.pid, signal.SIGHUP)
    until(lambda: problems() == [str(rig.config)], 20, "a refusal")
    assert reserved() == "0"
    rig.put_config("")
    os.kill(daemon.pid, signal.SIGHUP)
    until(lambda: (problems(), reserved()) == ([], ""), 20, "the defaults")
    assert [word for word in rig.words() if word == "RELOADING=1"] == ["RELOADING=1"] * 3
    audited = daemon.ctl("audit", "--owner", "reload", "-o", "json").stdout
    assert "changed reservedCPUs" in audited
    # A core that is started after a reload begins with what is in force.
    rig.put_config("reservedCPUs: '0'")
    os.kill(daemon.pid, signal.SIGHUP)
    until(lambda: reserved() == "0", 20, "the live key")
    core = int(daemon.status()["core"]["pid"])
    os.kill(core, signal.SIGKILL)
    until(lambda: daemon.status()["core"]["pid"] != core, 20, "another core")
    assert reserved() == "0"
