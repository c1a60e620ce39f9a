"""systemd's units as workloads, in guests with systemd: the D-Bus contract, and a daemon."""

from __future__ import annotations

import pytest

from tests.support.vmguest import Guest, Kind
from tests.support.vmtests import RecordProperty, run_tests
from tests.vm.conftest import StartGuest

pytestmark = [pytest.mark.vm, pytest.mark.long]

LIMIT_S = 600.0


def test_units_are_governed_through_systemd(
    systemd_guest: Guest, record_property: RecordProperty
) -> None:
    run_tests(systemd_guest, record_property, "tests/vm/inside_units.py", limit_s=LIMIT_S)


def test_units_are_governed_on_cgroup_v1(
    start_guest: StartGuest, record_property: RecordProperty
) -> None:
    guest = start_guest(Kind.SYSTEMD_V1)
    run_tests(guest, record_property, "tests/vm/inside_units_v1.py", limit_s=LIMIT_S)
