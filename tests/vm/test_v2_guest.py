"""On a real cgroup v2 kernel: the rules that decisions rely on, the kernel tests, real pods.

The tests run inside the guest. They are those of this machine; left out is what measures time,
since a guest's CPU is emulated and about fifteen times slower.
"""

from __future__ import annotations

import pytest

from tests.support.vmguest import Guest
from tests.support.vmtests import RecordProperty, run_tests

pytestmark = pytest.mark.vm


def test_the_guest_has_every_controller_on_cgroup_v2(v2_guest: Guest) -> None:
    controllers = v2_guest.ok("cat /sys/fs/cgroup/cgroup.subtree_control").split()
    assert {"cpu", "cpuset", "io", "memory", "pids"} <= set(controllers)
    assert "cgroup2" in v2_guest.ok("findmnt --noheadings --output FSTYPE /sys/fs/cgroup")


def test_the_contract_suite_holds(v2_guest: Guest, record_property: RecordProperty) -> None:
    words = ("-m", "kernel", "tests/contract/test_contract.py")
    run_tests(v2_guest, record_property, *words, limit_s=120)


@pytest.mark.long
def test_the_kernel_tests_pass(v2_guest: Guest, record_property: RecordProperty) -> None:
    names = ("ctl_rollback", "daemon_stop", "exec_drill", "host_tree", "metrics_cpu", "oneshot")
    files = [f"tests/kernel/test_{name}.py" for name in (*names, "pressure")]
    timed = "not within_10_ms and not is_cheap and not system_calls"
    run_tests(v2_guest, record_property, "-m", "kernel", "-k", timed, *files, limit_s=300)


@pytest.mark.long
def test_a_node_is_taken_over(v2_guest: Guest, record_property: RecordProperty) -> None:
    words = ("-m", "kernel", "-k", "proposals", "tests/kernel/test_adopt.py")
    run_tests(v2_guest, record_property, *words, limit_s=120)


def test_real_pods_are_governed(v2_guest: Guest, record_property: RecordProperty) -> None:
    chosen = "suppression or CQ_01 or clean_stop or cri_contract"
    files = ("tests/e2e/test_daemon_containerd.py", "tests/contract/test_cri_contract.py")
    run_tests(v2_guest, record_property, "-m", "e2e", "-k", chosen, *files, limit_s=300)
