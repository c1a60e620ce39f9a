"""systemd's units as workloads, in a guest with systemd: the D-Bus contract, and a daemon."""

from __future__ import annotations

import pytest

from tests.support.vmguest import Guest
from tests.support.vmtests import RecordProperty, run_tests

pytestmark = pytest.mark.vm

LIMIT_S = 600.0


def test_units_are_governed_through_systemd(
    systemd_guest: Guest, record_property: RecordProperty
) -> None:
    run_tests(systemd_guest, record_property, "tests/vm/inside_units.py", limit_s=LIMIT_S)
