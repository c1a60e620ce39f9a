"""Runs inside the systemd guest: what koordlet relies on of a real systemd, and units under it.

Not collected by its name: it makes units of this machine's systemd.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordlet.host.systemd import Systemd
from koordlet.host.unitowner import BUS_SOCKET
from tests.contract.test_systemd_contract import *  # noqa: F403 - the same calls
from tests.support.koordletd import Koordlet
from tests.support.unitground import RealUnits, UnitGround, drop_ins, run, systemctl
from tests.support.waiting import until

REPO = Path(__file__).resolve().parents[2]
SOON_S = 60.0
MOST_US = 80_000
SLICE = Path("/sys/fs/cgroup/system.slice")
BATCH = "batch.service"
SLO = """
spec:
  resourceUsedThresholdWithBE:
    {enable: true, cpuSuppressPolicy: POLICY, cpuSuppressThresholdPercent: 30}
  resourceQOSStrategy: {beClass: {cpuQOS: {enable: true, schedIdle: IDLE}}}
"""
APPS = """
apiVersion: koordlet/v1
kind: HostApplications
applications:
- {name: batch, qos: BE, systemdUnit: batch.service}
"""
PART = """
apiVersion: koordlet/v1
kind: HostApplications
applications:
- name: part
  qos: BE
  cgroupPath: {parentDir: system.slice/koordtest-parent.service, relativePath: part}
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
    """A busy transient unit, and daemons that govern it. A guest is slow: daemons are few."""

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

    def limited(self) -> bool:
        quota_us = self.quota_us()
        return quota_us is not None and quota_us < MOST_US and self.text("cpu.weight") == "1"

    def idles(self) -> bool:
        return self.text("cpu.idle") == "1" and self.quota_us() is not None

    def show(self) -> list[str]:
        return RealUnits().show(BATCH)

    def cpu(self) -> list[str]:
        """What concerns CPUs, and the drop-ins."""
        return [line for line in self.show() if "50-CPU" in line or line.startswith("CPU")]

    def wait(self, daemon: Koordlet, condition: Callable[[], object], what: str) -> None:
        try:
            until(condition, SOON_S, what)
        except TimeoutError as error:
            files = [self.text(file) for file in ("cpu.max", "cpu.weight", "cpu.idle")]
            problems = daemon.client.get("status")["problems"]
            raise AssertionError(f"{error}: {files}\n{problems}\n{daemon.log_tail()}") from None

    def await_limited(self, daemon: Koordlet) -> None:
        self.wait(daemon, self.limited, "a low quota, the least weight")

    def close(self) -> None:
        for daemon in self.daemons:
            if daemon.started and (daemon.exit_code() is None or drop_ins()):
                daemon.kill()
                daemon.ctl("rollback")
        systemctl("stop", BATCH, may_fail=True)


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[Batch]:
    systemctl("stop", BATCH, may_fail=True)
    run("systemd-run", "--quiet", "--unit=batch", "sh", "-c", SPIN)
    systemctl("daemon-reload")  # of itself it changes how systemd shows a transient unit
    made = Batch(tmp_path)
    yield made
    made.close()


def kinds(daemon: Koordlet) -> set[str]:
    """The kinds of everything that the audit trail has."""
    return {each["kind"] for each in daemon.client.get("audit")["data"]["events"]}


def test_H06_a_unit_from_declaration_to_undo(batch: Batch) -> None:
    before = batch.show()
    with batch.daemon() as daemon:
        batch.await_limited(daemon)
        assert batch.used_cores() < 0.8
        assert [path.name for path in drop_ins()] == ["50-CPUQuota.conf", "50-CPUWeight.conf"]
        (root,) = daemon.status()["be_roots"]
        assert (root["claimed_by"], root["writable"]) == ("batch", True)
        told = daemon.client.get("capabilities")["data"]["capabilities"]
        (known,) = (each for each in told if each["name"] == "systemd-units")
        assert known["works"] and "systemd 252" in known["detail"], known
        shown = daemon.ctl("explain", str(SLICE / BATCH / "cpu.weight")).stdout
        assert "written by unit" in shown, shown

        for _ in range(2):  # CQ-12: nothing of it is lost, so nothing has to be put back
            systemctl("daemon-reload")
            assert batch.limited()
        time.sleep(2)
        assert "reset" not in kinds(daemon)

        daemon.client.post("release", {})
        batch.wait(daemon, lambda: batch.show() == before, "everything as before")
        assert drop_ins() == []
        daemon.client.post("resume", {})
        batch.await_limited(daemon)

        systemctl("set-property", "--runtime", BATCH, "CPUQuota=170%", "CPUWeight=300")
        wish = batch.cpu()
        batch.wait(daemon, lambda: "rebased" in kinds(daemon), "the owner's wish seen (H7)")
        batch.await_limited(daemon)
    assert batch.cpu() == wish
    assert batch.text("cpu.max") == "170000 100000"


def sandboxed(*words: str, writable: Path) -> str:
    """Run a command locked up as the dead-man timer's service is."""
    text = (REPO / "systemd/koordlet-rollback.service").read_text()
    keys = ("Capability", "NoNew", "Protect", "PrivateDev", "ReadWrite", "Restrict", "SystemCall")
    settings = [line for line in text.splitlines() if line.startswith(keys)]
    settings += [f"ReadWritePaths={writable} /run/koordlet-locks"]
    options = [word for setting in settings for word in ("-p", setting)]
    return run("systemd-run", "--quiet", "--wait", "--pipe", *options, *words)


def test_H16_units_that_come_and_go_a_crash_and_a_rollback_as_the_service_does_it(
    batch: Batch, ground: UnitGround
) -> None:
    systemctl("stop", BATCH)
    assert ground.service("batch") == BATCH  # one with a file of its own
    before = batch.cpu()
    part = _delegated_part()
    (batch.apps / "part.yaml").write_text(PART)
    daemon = batch.daemon(idle=1).start()
    try:
        batch.wait(daemon, batch.idles, "cpu.idle and a quota")
        batch.wait(daemon, lambda: (part / "cpu.idle").read_text() == "1\n", "the part")
        assert {path.parent.name for path in drop_ins()} == {f"{BATCH}.d"}
        ground.stop(BATCH)
        batch.wait(daemon, lambda: drop_ins() == [], "no drop-in of a stopped unit")
        ground.start(BATCH)
        batch.wait(daemon, batch.idles, "the unit governed again")
        daemon.kill()
        assert batch.idles(), "a crash leaves values in force"
        run("mkdir", "-p", "/run/systemd/system.control")  # as tmpfiles does
        sandboxed(*daemon.ctl_command("rollback"), writable=batch.directory)
        assert batch.cpu() == before
        assert drop_ins() == []
        assert (part / "cpu.idle").read_text() == "0\n"
    finally:
        systemctl("stop", "koordtest-parent.service", may_fail=True)


def _delegated_part() -> Path:
    """A cgroup below a unit with Delegate=yes, with controllers."""
    run("systemd-run", "--quiet", "--unit=koordtest-parent", "-p", "Delegate=yes", "sleep", "inf")
    parent = SLICE / "koordtest-parent.service"
    for name in ("part", "leaf"):
        (parent / name).mkdir()
    for pid in (parent / "cgroup.procs").read_text().split():
        (parent / "leaf" / "cgroup.procs").write_text(pid)
    (parent / "cgroup.subtree_control").write_text("+cpu +memory")
    return parent / "part"
