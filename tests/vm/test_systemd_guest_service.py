"""koordlet as a service, from ``make install`` to ``make uninstall``, in a guest with systemd.

One life, told in order: each test begins where the one before it ended. The work that is governed
is one cgroup with a busy process in it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.support.vmguest import Guest
from tests.support.vmservice import (
    AS_BEFORE,
    CONFIG,
    SOON_S,
    START_S,
    TIMER,
    UNIT,
    Service,
    governed_work,
)

pytestmark = [pytest.mark.vm, pytest.mark.long]

INSTALL_S = 840.0
DRILL_S = 840.0
DEAD_MAN_S = 30.0
MOST_EXPOSED = 4.0
PLACES = "/etc /usr/local /run/systemd/system /var/lib /run /dev/shm"


@pytest.fixture(scope="module")
def service(systemd_guest: Guest) -> Iterator[Service]:
    with governed_work(systemd_guest) as made:
        yield made


@pytest.fixture
def always_governed(service: Service) -> Iterator[None]:
    """The work was governed at every instant of the test."""
    with service.always_governing():
        yield


def files(guest: Guest) -> set[str]:
    """Whatever lies where an installation or a daemon could leave something."""
    skipped = "-path /run/systemd/units -o -path /run/systemd/transient -o -path /run/udev"
    found = guest.ok(f"find {PLACES} \\( {skipped} \\) -prune -o -name '*koord*' -print")
    return {line for line in found.splitlines() if "koordtest" not in line}


# -- the life of a service ------------------------------------------------------------------------


def test_make_install_starts_nothing_and_keeps_the_configuration(service: Service) -> None:
    guest = service.guest
    before_s = time.monotonic()
    said = guest.ok("cd /project && make install WHEELS=/wheels", INSTALL_S)
    print(f"installed in {time.monotonic() - before_s:.0f} s: {said}")
    assert service.show("ActiveState") == "inactive"
    assert guest.get("/etc/koordlet/koordlet.yaml") == CONFIG
    assert guest.ok("command -v koordlet").strip() == "/usr/local/bin/koordlet"
    verified = guest.sh(f"systemd-analyze verify {UNIT} {TIMER}")
    assert (verified.code, verified.out, verified.err) == (0, "", "")


def test_it_starts_is_ready_and_says_what_it_does(service: Service) -> None:
    service.ok(f"systemctl enable --now {UNIT}", START_S)
    service.status()  # it is ready once the API answers
    service.await_governed()
    service.wait(lambda: "values in force" in service.show("StatusText"), SOON_S, "a status")


def test_it_is_locked_up_and_still_writes(service: Service) -> None:
    said = service.ok(f"systemd-analyze security --no-pager {UNIT}")
    exposed = re.search(r"exposure level for \S+: ([\d.]+)", said)
    assert exposed is not None
    print(exposed[0])
    assert float(exposed[1]) <= MOST_EXPOSED
    assert service.governs()


def test_it_is_kept_alive_where_memory_and_descriptors_are_short(service: Service) -> None:
    pid = service.pid()
    assert service.ok(f"cat /proc/{pid}/oom_score_adj").strip() == "-900"
    assert re.search(r"open files +65536 +65536", service.ok(f"cat /proc/{pid}/limits"))
    own = f"/sys/fs/cgroup{service.show('ControlGroup')}"
    assert own.startswith("/sys/fs/cgroup/koord.slice/")
    assert int(service.ok(f"cat {own}/memory.min")) > 0
    assert int(service.ok("cat /sys/fs/cgroup/koord.slice/cpu.weight")) == 1000


def test_H25_settings_are_proven_in_its_own_cgroup(service: Service) -> None:
    def proven() -> bool:
        found = service.asked("capabilities")["capabilities"]
        proofs = {one["name"]: one["proof"] for one in found}
        return proofs["cpu.quota"] == proofs["cpu.idle"] == proofs["memory.limit"] == "proven"

    service.wait(proven, SOON_S, "proofs")
    own = f"/sys/fs/cgroup{service.show('ControlGroup')}"
    assert service.ok(f"cat {own}/cgroup.procs").split() == []
    assert str(service.pid()) in service.ok(f"cat {own}/daemon/cgroup.procs").split()
    assert service.guest.sh(f"ls {own}/scratch").code != 0


# -- ends after which it comes again --------------------------------------------------------------


def test_H16_after_SIGKILL_values_stay_and_the_next_one_takes_them_over(
    service: Service, always_governed: None
) -> None:
    before = service.pid()
    service.ok(f"kill -KILL {before}")
    service.await_restart(before)
    assert "journal taken over" in service.log()
    service.wait(lambda: service.show("ActiveState", TIMER) == "inactive", SOON_S, "no timer")
    assert service.status()["core"]["takeover"]
    assert service.governs()


def test_H11_a_tick_that_hangs_ends_in_a_restart(service: Service, always_governed: None) -> None:
    before = service.pid()
    service.ok(f"kill -STOP {service.core()}")
    service.await_restart(before)
    assert "Watchdog timeout" in service.ok(
        "journalctl --no-pager -o cat -u init.scope -u koordlet"
    )


def test_H16_a_restart_keeps_values(service: Service, always_governed: None) -> None:
    before = service.pid()
    service.ok(f"systemctl restart {UNIT}", START_S)
    assert service.pid() != before
    assert service.show("ActiveState", TIMER) == "inactive"
    service.await_governed()


# -- reload ---------------------------------------------------------------------------------------


def reload(service: Service, text: str) -> None:
    service.guest.put("/etc/koordlet/koordlet.yaml", CONFIG + text.encode())
    before = service.log().count("configuration read again")
    service.ok(f"systemctl reload {UNIT}")
    read = lambda: service.log().count("configuration read again") > before  # noqa: E731
    service.wait(read, SOON_S, "a reload")


def test_a_reload_takes_what_can_change_and_names_the_rest(
    service: Service, always_governed: None
) -> None:
    before = service.pid()
    reload(service, "reservedCPUs: '0'\nmetricsAddress: none\n")
    service.wait(lambda: service.status()["node"]["reserved_cpus"] == "0", SOON_S, "live keys")
    (told,) = (p for p in service.status()["problems"] if p["code"] == "config-needs-restart")
    assert "metricsAddress" in told["where"]
    assert "restart" in told["remedy"]
    reload(service, "reservedCPUs: [\n")
    assert any("koordlet.yaml" in p["where"] for p in service.status()["problems"])
    assert service.status()["node"]["reserved_cpus"] == "0"
    reload(service, "")
    assert not any("koordlet.yaml" in p["where"] for p in service.status()["problems"])
    assert service.pid() == before


def test_H14_a_second_koordlet_is_refused(service: Service, always_governed: None) -> None:
    refused = service.guest.sh("koordlet run --run-dir /run/koordtest-second", SOON_S)
    assert refused.code == 1
    assert "manages /sys/fs/cgroup already" in refused.err


# -- ends after which none comes ------------------------------------------------------------------


def test_H16_where_no_daemon_comes_the_dead_man_timer_restores(service: Service) -> None:
    service.drop_in("[Service]\nRestartSec=1h\n")
    service.ok(f"kill -KILL {service.pid()}")
    service.wait(lambda: service.show("ActiveState", TIMER) == "active", SOON_S, "a timer")
    assert service.governs()
    assert service.show("SubState") == "auto-restart"
    service.wait(service.is_as_before, DEAD_MAN_S + SOON_S, "everything given back")
    service.no_drop_in()
    service.start()


def test_H16_a_configuration_that_is_refused_at_a_start_restores_at_once(service: Service) -> None:
    service.guest.put("/etc/koordlet/koordlet.yaml", b"runDir: [\n")
    assert service.guest.sh(f"systemctl restart {UNIT}", START_S).code != 0
    service.wait(lambda: service.show("ActiveState") == "failed", SOON_S, "a failed unit")
    service.wait(service.is_as_before, SOON_S, "everything given back")
    service.guest.put("/etc/koordlet/koordlet.yaml", CONFIG)
    service.ok(f"systemctl reset-failed {UNIT}")
    service.start()


def test_a_stop_restores_at_once(service: Service) -> None:
    service.ok(f"systemctl stop {UNIT}", START_S)
    assert service.values() == AS_BEFORE
    assert service.show("Result") == "success"
    assert service.show("ActiveState", TIMER) == "inactive"
    assert service.guest.sh("ls /run/koordlet/journal.db").code == 0


def test_SIGTERM_by_hand_is_a_stop(service: Service) -> None:
    service.start()
    service.ok(f"kill -TERM {service.pid()}")
    service.wait(lambda: service.show("ActiveState") == "inactive", SOON_S, "its end")
    assert service.values() == AS_BEFORE


# -- the drill ------------------------------------------------------------------------------------


def test_the_drill_through_the_unit_restores_everything(service: Service) -> None:
    ran = service.guest.sh(
        "cd /project && /venv/bin/python -m tests.benchmarks.rollback_drill"
        f" --unit {UNIT} --kills 5 --json",
        DRILL_S,
    )
    assert ran.out, ran.err
    figures = json.loads(ran.out)
    print({name: value for name, value in figures.items() if name != "runs"})
    assert figures["kills"] == 5, ran.err
    assert (figures["unrestored"], figures["foreign_overwritten"]) == (0, 0), ran.err
    assert figures["takeovers"] == 1


# -- the end of it --------------------------------------------------------------------------------


def test_make_uninstall_gives_everything_back_and_leaves_nothing(service: Service) -> None:
    guest = service.guest
    service.start()
    guest.ok("cd /project && make uninstall PURGE=1", START_S)
    assert service.values() == AS_BEFORE
    assert files(guest) == set()
    assert guest.ok("systemctl list-unit-files --no-legend 'koord*'").strip() == ""
    assert guest.ok("systemctl list-units --all --no-legend 'koordlet*' koord.slice").strip() == ""
