"""koord-runtimeproxy behind its socket unit, in a guest with systemd."""

from __future__ import annotations

import pytest

from tests.support.vmguest import Guest
from tests.support.vmtests import RecordProperty, run_tests

pytestmark = [pytest.mark.vm, pytest.mark.long]


def test_the_proxy_behind_its_socket_unit(
    systemd_guest: Guest, record_property: RecordProperty
) -> None:
    run_tests(systemd_guest, record_property, "tests/vm/inside_proxy.py", limit_s=300)
