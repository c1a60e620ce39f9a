"""A guest with systemd: it is whole, and pods of the systemd cgroup driver are governed in it."""

from __future__ import annotations

import pytest

from tests.support.vmguest import Guest
from tests.support.vmtests import RecordProperty, run_tests

pytestmark = pytest.mark.vm


def test_systemd_runs_and_no_unit_failed(systemd_guest: Guest) -> None:
    state = systemd_guest.sh("systemctl is-system-running").out.strip()
    assert state == "running", systemd_guest.sh("systemctl --failed --no-pager").out
    assert systemd_guest.ok("cat /proc/1/comm").strip() == "systemd"
    assert "cgroup2" in systemd_guest.ok("findmnt --noheadings --output FSTYPE /sys/fs/cgroup")


def test_pods_of_the_systemd_driver_are_governed(
    systemd_guest: Guest, record_property: RecordProperty
) -> None:
    run_tests(systemd_guest, record_property, "tests/vm/inside_systemd.py", limit_s=300)
