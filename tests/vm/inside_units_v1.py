"""Runs inside the systemd guest on cgroup v1: a unit there is governed by shares and quota.

Not collected by its name: it makes units of this machine's systemd.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.koordletd import Koordlet
from tests.support.unitground import RealUnits, drop_ins, run, systemctl
from tests.support.waiting import until

SOON_S = 60.0
CPU = Path("/sys/fs/cgroup/cpu/system.slice/batch.service")
SLO = """
spec:
  resourceUsedThresholdWithBE: {enable: true, cpuSuppressPolicy: cfsQuota}
  resourceQOSStrategy: {beClass: {cpuQOS: {enable: true, schedIdle: 1}}}
"""
APPS = """
apiVersion: koordlet/v1
kind: HostApplications
applications: [{name: batch, qos: BE, systemdUnit: batch.service}]
"""


def text(file: str) -> str:
    path = CPU / file
    return path.read_text().strip() if path.exists() else ""


def governed() -> bool:
    quota = text("cpu.cfs_quota_us")
    return text("cpu.shares") == "2" and quota not in ("", "-1") and int(quota) < 150_000


def test_H06_a_unit_on_cgroup_v1_is_governed_and_given_back_exactly(tmp_path: Path) -> None:
    apps, slo = tmp_path / "hostapps.d", tmp_path / "slo.yaml"
    apps.mkdir()
    (apps / "batch.yaml").write_text(APPS)
    slo.write_text(SLO)
    run("systemd-run", "--quiet", "--unit=batch", "sleep", "infinity")
    systemctl("daemon-reload")  # of itself it changes how systemd shows a transient unit
    before = RealUnits().show("batch.service")
    daemon = Koordlet(
        tmp_path / "koordlet", "/", cri_endpoint="none", host_apps_dir=apps, node_slo=slo
    )
    daemon.start()
    try:
        until(governed, SOON_S, "shares and a quota")
        systemctl("daemon-reload")
        assert governed(), text("cpu.cfs_quota_us")
        told = [problem["what"] for problem in daemon.client.get("status")["problems"]]
        assert any("no property for cpu.idle on cgroup v1" in what for what in told), told
    finally:
        daemon.kill()
    assert governed(), "a crash leaves values in force"
    done = daemon.ctl("rollback")
    assert done.returncode == 0, done.stdout + done.stderr
    assert RealUnits().show("batch.service") == before
    assert drop_ins() == []
    systemctl("stop", "batch.service")
