"""A virtual machine for tests: QEMU without KVM, a fresh disk each time, commands by a virtio port.

``with Guest(Kind.V2) as guest: guest.ok("uname -r")``. It has no network, no fixed names or ports,
and ends with the process that started it. One guest runs at a time, in this clone: a second one
waits for the first to end.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import platform
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tests.support import vmagent, vmimage

BOOT_LIMIT_S = 180.0  # where the machine is busy; about 5 s otherwise, 10 s with systemd
GRACE_S = 60.0  # for an answer, on top of a command's own limit
_PUT_BYTES = 256 << 10
_CONSOLE_CHARS = 3000
_QEMU = "qemu-system-x86_64"
_TOOLS = (_QEMU, "mmdebstrap", "mke2fs", "cpio", "depmod", "setpriv")
# Nothing of these: they cost time and are not asked about.
_KERNEL_WORDS = "console=ttyS0 root=/dev/vda rw quiet panic=1 mitigations=off guest.agent"


class GuestError(RuntimeError):
    """The guest did not start, did not answer or was ended; holds the end of its console."""


class Kind(Enum):
    """Which init runs the guest, and with which cgroups."""

    V2 = "small init, cgroup v2"
    V1 = "small init, cgroup v1"
    SYSTEMD = "systemd, cgroup v2"
    SYSTEMD_V1 = "systemd, cgroup v1"

    @property
    def kernel_words(self) -> str:
        return {
            Kind.V2: "init=/usr/local/sbin/guestinit",
            Kind.V1: "init=/usr/local/sbin/guestinit guest.cgroup=v1",
            Kind.SYSTEMD: "",
            Kind.SYSTEMD_V1: (
                "systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1"
            ),
        }[self]


@dataclass(frozen=True)
class Hardware:
    """What the guest sees. CPUs and memory are shared out evenly over ``numa_nodes``."""

    cores: int = 2
    threads_per_core: int = 1
    numa_nodes: int = 1
    memory_mib: int = 2048

    def arguments(self) -> list[str]:
        """QEMU's words for it."""
        cpus = self.cores * self.threads_per_core
        layout = f"sockets=1,cores={self.cores},threads={self.threads_per_core}"
        words = ["-smp", f"{cpus},{layout}", "-m", str(self.memory_mib)]
        for node in range(self.numa_nodes if self.numa_nodes > 1 else 0):
            memory = (
                f"memory-backend-ram,id=memory{node},size={self.memory_mib // self.numa_nodes}M"
            )
            first, beyond = (cpus * each // self.numa_nodes for each in (node, node + 1))
            placed = f"node,nodeid={node},cpus={first}-{beyond - 1},memdev=memory{node}"
            words += ["-object", memory, "-numa", placed]
        return words


@dataclass(frozen=True)
class Ran:
    """What a command gave. 124 is also the code of one that was killed at its time limit."""

    code: int
    out: str
    err: str


class Guest:
    """One running virtual machine."""

    def __init__(self, kind: Kind, hardware: Hardware | None = None) -> None:
        self.kind = kind
        self._hardware = hardware or Hardware()
        self._stack = contextlib.ExitStack()
        self._channel: socket.socket | None = None
        self._console = Path("/nonexistent/console")  # until it starts
        self._received = b""
        self._requests = 0
        self.boot_s = 0.0

    def __enter__(self) -> Guest:
        with contextlib.ExitStack() as stack:
            stack.enter_context(vmimage.alone("guest"))
            # Only now: while it waited another recipe may have replaced them.
            system, python = vmimage.system_image(), vmimage.python_disk()
            directory = Path(tempfile.mkdtemp(prefix=f"koordtest-{os.getpid()}-guest-"))
            stack.callback(shutil.rmtree, directory)
            self._console = directory / "console"
            disks = {
                "root": system.root,
                "python": python,
                "project": vmimage.project_disk(system, directory),
            }
            started_s = time.monotonic()
            self._start(stack, system, disks)
            self._await_boot()
            self.boot_s = time.monotonic() - started_s
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it, as if by pulling the plug; nothing of it stays."""
        self._channel = None
        self._stack.close()

    # -- what tests do with it ------------------------------------------------------------------

    def sh(self, command: str, timeout_s: float = 60) -> Ran:
        """Run shell text as root; its processes in the background go on afterwards."""
        got = self._request({"run": command, "timeout_s": timeout_s}, timeout_s)
        return Ran(got["code"], got["out"], got["err"])

    def ok(self, command: str, timeout_s: float = 60) -> str:
        """What ``command`` prints; AssertionError where it fails."""
        ran = self.sh(command, timeout_s)
        assert ran.code == 0, f"{command} ended with {ran.code}:\n{ran.out}\n{ran.err}"
        return ran.out

    def put(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Write a file, with its directories."""
        for start in range(0, max(1, len(content)), _PUT_BYTES):
            data = base64.b64encode(content[start : start + _PUT_BYTES]).decode()
            request = {"put": path, "data": data, "mode": mode, "append": start > 0}
            self._request(request, 0)

    def get(self, path: str) -> bytes:
        """A file's content."""
        content = b""
        while True:
            got = self._request({"get": path, "offset": len(content)}, 0)
            part = base64.b64decode(got["data"])
            content += part
            if len(part) < vmagent.GET_BYTES:
                return content

    def console(self) -> str:
        """The end of what it printed on its serial line."""
        with contextlib.suppress(FileNotFoundError):
            return self._console.read_text(errors="replace")[-_CONSOLE_CHARS:]
        return ""

    # -- how ------------------------------------------------------------------------------------

    def _start(
        self, stack: contextlib.ExitStack, system: vmimage.Image, disks: dict[str, Path]
    ) -> None:
        ours, theirs = socket.socketpair()
        stack.callback(ours.close)
        command = [
            *("setpriv", "--pdeathsig", "KILL", _QEMU),
            *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
            *("-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"),
            *self._hardware.arguments(),
            *("-kernel", str(system.kernel), "-initrd", str(system.initramfs)),
            *("-append", f"{_KERNEL_WORDS} {self.kind.kernel_words}"),
            *("-serial", f"file:{self._console}", "-device", "virtio-rng-pci"),
            *("-device", "virtio-serial-pci"),
            *("-chardev", f"socket,id=agent,fd={theirs.fileno()}"),
            *("-device", f"virtserialport,chardev=agent,name={vmagent.PORT}"),
        ]
        for serial, disk in disks.items():
            source = f"file={disk},if=none,id={serial},format=raw,snapshot=on,cache=unsafe"
            device = f"virtio-blk-pci,drive={serial},serial={serial}"
            command += ["-drive", source, "-device", device]
        with theirs, open(self._console.with_name("qemu.log"), "wb") as log:
            qemu = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for the tests; they end it
            )
        stack.callback(_end, qemu)
        self._channel = ours

    def _await_boot(self) -> None:
        self._answer(0, BOOT_LIMIT_S)
        if self.kind in (Kind.SYSTEMD, Kind.SYSTEMD_V1):
            self.sh("systemctl is-system-running --wait", BOOT_LIMIT_S)

    def _request(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        if self._channel is None:
            raise GuestError("this guest was ended; another one may have been started since")
        self._requests += 1
        line = json.dumps({"id": self._requests, **request}).encode() + b"\n"
        self._channel.settimeout(GRACE_S)
        try:
            self._channel.sendall(line)
        except OSError as error:
            raise self._lost(f"it cannot be asked: {error}") from None
        got = self._answer(self._requests, timeout_s + GRACE_S)
        if "error" in got:
            raise GuestError(got["error"])
        return got

    def _answer(self, number: int, timeout_s: float) -> dict[str, Any]:
        assert self._channel is not None
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            self._channel.settimeout(max(0.01, deadline_s - time.monotonic()))
            try:
                part = self._channel.recv(1 << 20)
            except TimeoutError:
                raise self._lost(f"no answer in {timeout_s:g} s") from None
            if not part:
                raise self._lost("QEMU ended")
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        got: dict[str, Any] = json.loads(line)
        if got["id"] != number:
            raise self._lost(f"answer {got['id']} came for request {number}")
        return got

    def _lost(self, why: str) -> GuestError:
        log = self._console.with_name("qemu.log")
        said = log.read_text(errors="replace") if log.exists() else ""
        return GuestError(f"{why}\n{said}\nend of the guest's console:\n{self.console()}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def why_impossible() -> str:
    """Why this machine can have no guest, whatever is installed on it; ``""`` where it can."""
    if platform.machine() != "x86_64":
        return f"guests are x86_64, this machine is {platform.machine()}"
    if os.geteuid() != 0:
        return "needs root to build the guests' images"
    return ""


def why_not() -> str:
    """Why no guest can run here now; ``""`` where one can."""
    if impossible := why_impossible():
        return impossible
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}; remedy: make test-vm installs them"
    return ""
