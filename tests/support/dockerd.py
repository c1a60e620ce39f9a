"""A private dockerd, for as long as a ``with`` block lasts; nothing of it stays."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from types import TracebackType

from tests.support.cgroot import hierarchies
from tests.support.waiting import until

DOCKERD, DOCKER = "/usr/sbin/dockerd", "/usr/bin/docker"
IMAGE = "koordtest:1"
START_S, STOP_S, COMMAND_S = 20.0, 20.0, 60.0
_ENVIRONMENT = {"PATH": "/usr/bin:/usr/sbin:/bin:/sbin"}
_APPLETS = ("sh", "cat", "sleep", "echo", "tar", "mkdir")
# What dockerd makes whatever it is told.
_SHARED = (Path("/etc/docker"), Path("/run/docker"))
_OPTIONS = (
    *("--iptables=false", "--ip6tables=false", "--ip-masq=false", "--ip-forward=false"),
    *("--bridge=none", "--userland-proxy=false", "--storage-driver=vfs"),
    "--exec-opt=native.cgroupdriver=cgroupfs",
)


class Dockerd:
    """``socket`` is where it serves; it has one image, of busybox."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._directory = Path()

    @property
    def socket(self) -> Path:
        return self._directory / "d.sock"

    def __enter__(self) -> Dockerd:
        with contextlib.ExitStack() as stack:
            for path in _SHARED:
                if not path.exists():
                    stack.callback(shutil.rmtree, path, ignore_errors=True)
            stack.callback(_remove_cgroups, _docker_cgroups())
            name = tempfile.mkdtemp(prefix="koordtest-", dir="/tmp")
            stack.callback(shutil.rmtree, name)
            self._directory = Path(name)
            stack.callback(self._unmount)
            self._start(stack)
            self.docker("import", "-", IMAGE, given=_root_files())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def docker(
        self, *words: str, socket: Path | None = None, given: bytes = b"", code: int = 0
    ) -> str:
        """What the client prints; AssertionError where it does not exit with ``code``."""
        done = subprocess.run(
            [DOCKER, f"--host=unix://{socket or self.socket}", *words],
            input=given,
            capture_output=True,
            timeout=COMMAND_S,
            env=_ENVIRONMENT,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode} {done.stderr.decode()}"
        return done.stdout.decode(errors="replace").strip()

    def remove_cgroups(self, root: str) -> None:
        """What containers below the cgroup parent ``root`` left, in every hierarchy."""
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields, _, tail = line.partition(" - ")
            if tail.startswith("cgroup"):
                for directory, _, _ in os.walk(fields.split(" ")[4] + root, topdown=False):
                    Path(directory).rmdir()

    def _start(self, stack: contextlib.ExitStack) -> None:
        directory = self._directory
        (directory / "daemon.json").write_text("{}")
        with open(directory / "log", "wb") as log:
            process = subprocess.Popen(
                [
                    DOCKERD,
                    f"--config-file={directory}/daemon.json",
                    f"--data-root={directory}/data",
                    f"--exec-root={directory}/exec",
                    f"--pidfile={directory}/pid",
                    f"--host=unix://{self.socket}",
                    *_OPTIONS,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_ENVIRONMENT,
            )
        stack.callback(_end, process)
        until(self._answers, START_S, f"dockerd; its log is {directory}/log")

    def _answers(self) -> bool:
        with contextlib.suppress(AssertionError):
            self.docker("version")
            return True
        return False

    def _unmount(self) -> None:
        point = f"{self._directory}/exec/netns/default"
        subprocess.run(["umount", point], capture_output=True, check=False)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _root_files() -> bytes:
    """busybox, and names for what tests need of it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(str(shutil.which("busybox")), "bin/busybox")
        for name in _APPLETS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        directory = tarfile.TarInfo("tmp")
        directory.type, directory.mode = tarfile.DIRTYPE, 0o777
        archive.addfile(directory)
    return packed.getvalue()


def _docker_cgroups() -> set[Path]:
    return {mount / "docker" for mount in hierarchies().values() if (mount / "docker").exists()}


def _remove_cgroups(before: set[Path]) -> None:
    """The cgroup of containers without a parent, unless it was there before."""
    for path in _docker_cgroups() - before:
        with contextlib.suppress(OSError):
            path.rmdir()
