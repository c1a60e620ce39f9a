"""On a real cgroup v2 kernel: the rules that decisions rely on, the kernel tests, real pods.

The tests run inside the guest, all in one pytest. They are those of this machine; left out is what
measures time, since a guest's CPU is emulated and about fifteen times slower, and what says nothing
new about cgroup v2.
"""

from __future__ import annotations

import pytest

from tests.support.vmguest import Guest
from tests.support.vmtests import InnerRun, RecordProperty, inner_run

pytestmark = pytest.mark.vm

LIMIT_S = 420.0
KERNEL = (
    "test_adopt.py::test_H14_proposals_for_this_kernels_files_are_adopted_and_given_back",
    "test_ctl_rollback.py::test_the_journal_alone_restores_everything",
    "test_ctl_rollback.py::test_a_foreign_value_is_left_and_ends_with_4",
    "test_daemon_stop.py::test_H02_a_clean_stop_gives_weight_idle_and_quota_back",
    "test_daemon_stop.py::test_H16_a_killed_core_comes_back_and_takes_its_values_over",
    "test_exec_drill.py",
    "test_host_tree.py",
    "test_metrics_cpu.py",
    "test_oneshot.py",
    "test_pressure.py",
)
PODS = (
    "test_suppression_is_in_the_kernel_file_and_in_the_throughput",
    "test_CQ_01_a_foreign_reset_is_put_back_within_a_tick_and_without_a_ramp",
    "test_H05_a_clean_stop_restores_all_and_widens_what_was_born_narrow",
)
TIMED = "not within_10_ms and not is_cheap and not system_calls"


PARTS = {
    "test_the_contract_suite_holds": ("tests/contract/test_contract.py",),
    "test_a_real_runtime_is_as_the_fake_one": ("tests/contract/test_cri_contract.py",),
    "test_the_kernel_tests_pass": tuple(f"tests/kernel/{name}" for name in KERNEL),
    "test_real_pods_are_governed": tuple(
        f"tests/e2e/test_daemon_containerd.py::{name}" for name in PODS
    ),
}


@pytest.fixture(scope="module")
def inside(v2_guest: Guest, request: pytest.FixtureRequest) -> InnerRun:
    """All that the tests of this run ask about: to start a pytest takes a guest long."""
    asked = {item.name for item in request.session.items}
    words = [word for test, words in PARTS.items() if test in asked for word in words]
    return inner_run(v2_guest, "-m", "kernel or e2e", "-k", TIMED, *words, limit_s=LIMIT_S)


def test_the_guest_has_every_controller_on_cgroup_v2(v2_guest: Guest) -> None:
    controllers = v2_guest.ok("cat /sys/fs/cgroup/cgroup.subtree_control").split()
    assert {"cpu", "cpuset", "io", "memory", "pids"} <= set(controllers)
    assert "cgroup2" in v2_guest.ok("findmnt --noheadings --output FSTYPE /sys/fs/cgroup")


def test_the_contract_suite_holds(inside: InnerRun, record_property: RecordProperty) -> None:
    inside.check("tests.contract.test_contract", record_property)


def test_a_real_runtime_is_as_the_fake_one(
    inside: InnerRun, record_property: RecordProperty
) -> None:
    inside.check("tests.contract.test_cri_contract", record_property)


@pytest.mark.long
def test_the_kernel_tests_pass(inside: InnerRun, record_property: RecordProperty) -> None:
    inside.check("tests.kernel", record_property)


def test_real_pods_are_governed(inside: InnerRun, record_property: RecordProperty) -> None:
    inside.check("tests.e2e", record_property)
