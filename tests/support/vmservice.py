"""koordlet's service in a guest, and one busy cgroup that it governs there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.vmguest import Guest
from tests.support.waiting import until

UNIT = "koordlet.service"
TIMER = "koordlet-rollback.timer"
DROP_IN = f"/run/systemd/system/{UNIT}.d/koordtest.conf"
WORK = "/sys/fs/cgroup/host-best-effort/crunch"
WEIGHT = "50"
AS_BEFORE = ("max", "0", WEIGHT)
# A guest's CPU is slow; on a machine that does other things it is much slower still.
SOON_S = 90.0
START_S = 240.0

CONFIG = b"kubelet: none\ncriEndpoint: none\n"
NODE_SLO = b"""
resourceUsedThresholdWithBE: {enable: true, cpuSuppressPolicy: cfsQuota}
resourceQOSStrategy: {beClass: {cpuQOS: {enable: true, schedIdle: 1}}}
"""
APPS = b"""
apiVersion: koordlet/v1
kind: HostApplications
applications: [{name: crunch, qos: BE}]
"""
# A unit that uses every controller keeps systemd from taking them away below the root.
MAKE_WORK = f"""
set -e
systemd-run --quiet --unit=koordtest-holder -p CPUWeight=90 -p AllowedCPUs=0-1 \\
  -p MemoryLow=1M -p IOWeight=90 -p Delegate=yes sleep infinity
mkdir -p {WORK}
echo "+cpu +memory" | tee /sys/fs/cgroup/cgroup.subtree_control \\
  /sys/fs/cgroup/host-best-effort/cgroup.subtree_control >/dev/null
echo {WEIGHT} > {WORK}/cpu.weight
systemd-run --quiet --unit=koordtest-work -p Delegate=yes \\
  sh -c 'echo $$ > {WORK}/cgroup.procs; exec sleep infinity'
"""
# koordletctl loads much; on an emulated CPU that takes seconds.
ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect("/run/koordlet/api.sock")
    asked.sendall(b"GET /v1/%s HTTP/1.0\\r\\n\\r\\n" % sys.argv[1].encode())
    answer = b"".join(iter(lambda: asked.recv(1 << 16), b""))
print(answer.partition(b"\\r\\n\\r\\n")[2].decode())
"""
# What the file says, sampled all the time: a gap of a second would not be seen from outside.
WATCH = f"""
: > /run/koordtest-watch
systemd-run --quiet --unit=koordtest-watch sh -c \\
  'while :; do cat {WORK}/cpu.idle >> /run/koordtest-watch; sleep 0.1; done'
"""


class Service:
    """The service, and the one cgroup that it governs."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.ok = guest.ok

    def values(self) -> tuple[str, ...]:
        """Quota, idle, weight of the work."""
        texts = self.ok(f"cat {WORK}/cpu.max {WORK}/cpu.idle {WORK}/cpu.weight").split()
        return texts[0], texts[2], texts[3]

    def governs(self) -> bool:
        quota, idle, _ = self.values()
        return idle == "1" and quota != "max"

    def is_as_before(self) -> bool:
        return self.values() == AS_BEFORE

    def show(self, name: str, unit: str = UNIT) -> str:
        return self.ok(f"systemctl show --value --property={name} {unit}").strip()

    def pid(self) -> int:
        return int(self.show("MainPID"))

    def core(self) -> int:
        return int(self.status()["core"]["pid"])

    def asked(self, what: str) -> dict[str, Any]:
        """The daemon's answer to ``GET /v1/WHAT``: data, with the problems in it."""
        self.guest.put("/run/koordtest-ask.py", ASK.encode())
        said: dict[str, Any] = json.loads(
            self.ok(f"python3 -I -S /run/koordtest-ask.py {what}", SOON_S)
        )
        return {**said["data"], "problems": said["problems"]}

    def status(self) -> dict[str, Any]:
        return self.asked("status")

    def log(self) -> str:
        return self.ok(f"journalctl --no-pager -o cat -u {UNIT}")

    def wait(self, condition: Callable[[], object], within_s: float, what: str) -> None:
        try:
            until(condition, within_s, what)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.values()}\n{self.log()[-4000:]}") from None

    def start(self) -> None:
        """Start it, and wait until it is ready and the work is governed."""
        self.ok(f"systemctl start --no-block {UNIT}")
        self.await_running()
        self.await_governed()

    def await_running(self) -> None:
        self.wait(lambda: self.show("SubState") == "running", START_S, "a daemon that is ready")

    def await_governed(self) -> None:
        self.wait(self.governs, SOON_S, "values in force")

    def await_restart(self, before: int) -> None:
        """Another daemon in the place of the one whose pid was ``before``."""
        came = lambda: self.show("SubState") == "running" and self.pid() != before  # noqa: E731
        self.wait(came, START_S, "another daemon")

    def drop_in(self, text: str) -> None:
        self.guest.put(DROP_IN, text.encode())
        self.ok("systemctl daemon-reload")

    def no_drop_in(self) -> None:
        self.ok(f"rm -f {DROP_IN}; systemctl daemon-reload")

    @contextlib.contextmanager
    def always_governing(self) -> Iterator[None]:
        """AssertionError where the work was not governed for an instant in between."""
        self.await_governed()
        self.ok(WATCH)
        yield
        self.ok("systemctl stop koordtest-watch")
        samples = set(self.ok("cat /run/koordtest-watch").split())
        assert samples == {"1"}, "values were given back for a while"


@contextlib.contextmanager
def governed_work(guest: Guest) -> Iterator[Service]:
    """The work, and a configuration that has koordlet govern it; the service is not there yet."""
    guest.ok(MAKE_WORK)
    guest.put("/etc/koordlet/koordlet.yaml", CONFIG)
    guest.put("/etc/koordlet/nodeslo.yaml", NODE_SLO)
    guest.put("/etc/koordlet/hostapps.d/apps.yaml", APPS)
    try:
        yield Service(guest)
    finally:
        guest.sh(f"systemctl stop {UNIT} koordtest-work koordtest-watch koordtest-holder")
        guest.sh(f"rm -rf /etc/koordlet; rmdir {WORK} {WORK}/..")
