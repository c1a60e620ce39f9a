"""Runs inside the systemd guest: what koordlet relies on of a real systemd, and units under it.

Not collected by its name: it makes units of this machine's systemd.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.host.systemd import Systemd
from koordlet.host.unitowner import BUS_SOCKET
from tests.contract.test_systemd_contract import *  # noqa: F403 - the same calls
from tests.support.koordletd import Koordlet
from tests.support.unitground import RealUnits, UnitGround, drop_ins, run, systemctl
from tests.support.waiting import until

REPO = Path(__file__).resolve().parents[2]
SOON_S = 60.0
SLICE = Path("/sys/fs/cgroup/system.slice")
BATCH = "batch.service"
CGROUP = f"system.slice/{BATCH}"
SLO = """
spec:
  resourceUsedThresholdWithBE: {enable: true, cpuSuppressPolicy: POLICY}
  resourceQOSStrategy: {beClass: {cpuQOS: {enable: true, schedIdle: IDLE}}}
"""
APPS = """
apiVersion: koordlet/v1
kind: HostApplications
applications:
- {name: batch, qos: BE, systemdUnit: batch.service}
"""
SPIN = "while :; do :; done"


@pytest.fixture  # type: ignore[no-redef]
def ground() -> Iterator[UnitGround]:
    made = RealUnits()
    yield made
    made.close()


# -- the way to systemd ---------------------------------------------------------------------------


def test_the_message_bus_does_where_the_private_socket_is_not_seen(ground: UnitGround) -> None:
    unit = ground.service("koordtest-bus")
    systemd = Systemd(private_socket="/nowhere")
    systemd.set(unit, {"CPUWeight": 3})
    until(lambda: ground.text(unit, "cpu.weight") == "3", SOON_S)
    systemd.hang_up()


@pytest.mark.parametrize("private", ["/run/systemd/private", "/nowhere"])
def test_somebody_else_than_root_is_refused(ground: UnitGround, private: str) -> None:
    unit = ground.service("koordtest-nobody")
    program = (
        "import sys; sys.path[:0] = ['/project']\n"
        "from koordlet.host.systemd import Systemd\n"
        "from koordlet.host.unitowner import SystemdError\n"
        "try:\n"
        f"    Systemd(private_socket={private!r}).set({unit!r}, {{'CPUWeight': 3}})\n"
        "except SystemdError as error: print(error.fault.value, error)\n"
    )
    said = run("setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-c", program)
    assert said.startswith("refused"), said
    assert os.path.exists(BUS_SOCKET)
    assert ground.text(unit, "cpu.weight") is None


# -- under a daemon -------------------------------------------------------------------------------


class Batch:
    """A busy unit, and daemons that govern it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.apps = directory / "hostapps.d"
        self.apps.mkdir()
        (self.apps / "batch.yaml").write_text(APPS)
        self.daemons: list[Koordlet] = []

    def daemon(self, policy: str = "cfsQuota", idle: int = 0) -> Koordlet:
        slo = self.directory / f"{policy}-{idle}.yaml"
        slo.write_text(SLO.replace("POLICY", policy).replace("IDLE", str(idle)))
        made = Koordlet(
            self.directory / "koordlet",
            "/",
            cri_endpoint="none",
            host_apps_dir=self.apps,
            node_slo=slo,
        )
        self.daemons.append(made)
        return made

    def text(self, file: str) -> str | None:
        path = SLICE / BATCH / file
        return path.read_text().rstrip("\n") if path.exists() else None

    def quota_us(self) -> int | None:
        text = self.text("cpu.max") or "max"
        return None if text.startswith("max") else int(text.split()[0])

    def used_cores(self, seconds: float = 3.0) -> float:
        def used_us() -> int:
            stat = (SLICE / BATCH / "cpu.stat").read_text()
            return int(stat.split()[1])

        before_us, started_s = used_us(), time.monotonic()
        time.sleep(seconds)
        return (used_us() - before_us) / 1e6 / (time.monotonic() - started_s)

    def limited(self, most_us: int = 150_000) -> bool:
        quota_us = self.quota_us()
        return quota_us is not None and quota_us < most_us and self.text("cpu.weight") == "1"

    def await_limited(self, daemon: Koordlet, most_us: int = 150_000) -> None:
        try:
            until(lambda: self.limited(most_us), SOON_S)
        except TimeoutError:
            told = daemon.ctl("status").stdout
            raise AssertionError(f"{self.text('cpu.max')}\n{told}\n{daemon.log_tail()}") from None

    def show(self) -> list[str]:
        return RealUnits().show(BATCH)

    def close(self) -> None:
        for daemon in self.daemons:
            if daemon.started:
                daemon.kill()
                daemon.ctl("rollback")
        systemctl("stop", BATCH, may_fail=True)


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[Batch]:
    """A transient unit of one busy process, and latency-sensitive use of one core beside it."""
    made = Batch(tmp_path)
    systemctl("stop", BATCH, "koordtest-busy.service", may_fail=True)
    run("systemd-run", "--quiet", "--unit=batch", "sh", "-c", f"{SPIN} & {SPIN}")
    run("systemd-run", "--quiet", "--unit=koordtest-busy", "sh", "-c", SPIN)
    systemctl("daemon-reload")
    yield made
    made.close()
    systemctl("stop", "koordtest-busy.service", may_fail=True)


def told(daemon: Koordlet, *words: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(daemon.ctl("-o", "json", *words).stdout)
    return said


def kinds(daemon: Koordlet) -> set[str]:
    """The kinds of everything that the audit trail has."""
    return {each["kind"] for each in told(daemon, "audit")["data"]["events"]}


def test_H06_a_declared_unit_is_governed_and_given_back_exactly(batch: Batch) -> None:
    before = batch.show()
    with batch.daemon() as daemon:
        batch.await_limited(daemon)
        assert batch.used_cores() < 1.5
        assert len(drop_ins()) == 2
        (root,) = told(daemon, "status")["data"]["be_roots"]
        assert (root["claimed_by"], root["writable"]) == ("batch", True)
        (known,) = (
            each
            for each in told(daemon, "doctor")["data"]["capabilities"]
            if each["name"] == "systemd-units"
        )
        assert known["works"], known
        assert "systemd 252" in known["detail"]
        shown = daemon.ctl("explain", str(SLICE / BATCH / "cpu.weight")).stdout
        assert "written by unit" in shown, shown
    assert batch.show() == before
    assert drop_ins() == []
    assert batch.used_cores() > 0.9


def test_CQ_12_daemon_reload_takes_nothing_of_it_away(batch: Batch) -> None:
    with batch.daemon(idle=1) as daemon:
        until(lambda: batch.text("cpu.idle") == "1" and batch.quota_us(), SOON_S)
        for _ in range(3):
            systemctl("daemon-reload")
            assert (batch.text("cpu.idle"), batch.text("cpu.weight")) == ("1", "0")
            assert batch.quota_us() is not None
        time.sleep(3)
        assert "reset" not in kinds(daemon)


def test_H06_the_cpuset_policy_reaches_a_unit(batch: Batch) -> None:
    before = batch.show()
    with batch.daemon("cpuset") as daemon:
        until(lambda: batch.text("cpuset.cpus") in ("0", "1"), SOON_S, daemon.log_tail())
    assert batch.show() == before


def test_H07_what_an_administrator_sets_is_the_new_original(batch: Batch) -> None:
    with batch.daemon() as daemon:
        batch.await_limited(daemon)
        systemctl("set-property", "--runtime", BATCH, "CPUQuota=170%", "CPUWeight=300")
        wish = [line for line in batch.show() if "50-CPU" in line or line.startswith("CPU")]
        batch.await_limited(daemon)
        assert "rebased" in kinds(daemon)
    shown = [line for line in batch.show() if "50-CPU" in line or line.startswith("CPU")]
    assert shown == wish
    assert batch.text("cpu.max") == "170000 100000"


def test_release_gives_the_unit_back_and_resume_takes_it_again(batch: Batch) -> None:
    before = batch.show()
    with batch.daemon() as daemon:
        batch.await_limited(daemon)
        assert daemon.ctl("release").returncode == 0
        until(lambda: batch.show() == before, SOON_S, "everything as before")
        assert daemon.ctl("resume").returncode == 0
        batch.await_limited(daemon)


def test_H06_rollback_without_a_daemon_is_exact(batch: Batch) -> None:
    before = batch.show()
    daemon = batch.daemon(idle=1).start()
    until(lambda: batch.text("cpu.idle") == "1" and batch.quota_us(), SOON_S)
    daemon.kill()
    time.sleep(1)
    assert batch.text("cpu.idle") == "1"  # values stay in force (H16)
    dry = daemon.ctl("rollback", "--dry-run")
    assert dry.returncode == 0, dry.stdout + dry.stderr
    assert batch.text("cpu.idle") == "1"
    done = daemon.ctl("rollback")
    assert done.returncode == 0, done.stdout + done.stderr
    assert batch.show() == before
    assert drop_ins() == []


def sandboxed(*words: str, writable: Path) -> str:
    """Run a command locked up as the dead-man timer's service is."""
    text = (REPO / "systemd/koordlet-rollback.service").read_text()
    keys = ("Capability", "NoNew", "Protect", "PrivateDev", "ReadWrite", "Restrict", "SystemCall")
    settings = [line for line in text.splitlines() if line.startswith(keys)]
    settings += [f"ReadWritePaths={writable} /run/koordlet-locks", "Slice=system.slice"]
    options = [word for setting in settings for word in ("-p", setting)]
    return run("systemd-run", "--quiet", "--wait", "--pipe", *options, *words)


def test_H06_a_rollback_in_the_services_sandbox_is_exact(batch: Batch) -> None:
    before = batch.show()
    daemon = batch.daemon().start()
    batch.await_limited(daemon)
    daemon.kill()
    run("mkdir", "-p", "/run/systemd/system.control")  # as tmpfiles does
    sandboxed(*daemon.ctl_command("rollback"), writable=batch.directory)
    assert batch.show() == before
    assert drop_ins() == []


def test_H16_the_next_daemon_takes_a_unit_over(batch: Batch) -> None:
    before = batch.show()
    batch.await_limited(daemon := batch.daemon().start())
    daemon.kill()
    with batch.daemon() as daemon:
        batch.await_limited(daemon)
        time.sleep(2)
    assert batch.show() == before


def test_a_stopped_unit_is_let_go_and_governed_again_when_it_starts(
    batch: Batch, ground: UnitGround
) -> None:
    systemctl("stop", BATCH)
    assert ground.service("batch") == BATCH  # one with a file of its own
    before = batch.show()
    with batch.daemon() as daemon:
        batch.await_limited(daemon)
        ground.stop(BATCH)
        until(lambda: drop_ins() == [], SOON_S, "no drop-in of a stopped unit")
        ground.start(BATCH)
        batch.await_limited(daemon)
        subprocess.run(["systemctl", "restart", BATCH], check=True)
        batch.await_limited(daemon)
    assert drop_ins() == []
    cpu = [line for line in batch.show() if line.startswith(("CPU", "DropIn", "NeedDaemon"))]
    assert cpu == [line for line in before if line.startswith(("CPU", "DropIn", "NeedDaemon"))]


def test_H06_what_a_unit_delegates_is_written_by_file(batch: Batch) -> None:
    run("systemd-run", "--quiet", "--unit=koordtest-parent", "-p", "Delegate=yes", "sleep", "inf")
    part = SLICE / "koordtest-parent.service" / "part"
    part.mkdir()
    (batch.apps / "batch.yaml").write_text(
        APPS.replace(
            "systemdUnit: batch.service",
            "cgroupPath: {base: CgroupRoot, parentDir: system.slice/koordtest-parent.service,"
            " relativePath: part}",
        )
    )
    (part.parent / "leaf").mkdir()
    for pid in (part.parent / "cgroup.procs").read_text().split():
        (part.parent / "leaf" / "cgroup.procs").write_text(pid)
    (part.parent / "cgroup.subtree_control").write_text("+cpu +cpuset +memory")
    try:
        with batch.daemon():
            until(lambda: (part / "cpu.weight").read_text() == "1\n", SOON_S)
            until(lambda: not (part / "cpu.max").read_text().startswith("max"), SOON_S)
            assert drop_ins() == []
        assert (part / "cpu.weight").read_text() == "100\n"
    finally:
        systemctl("stop", "koordtest-parent.service", may_fail=True)
