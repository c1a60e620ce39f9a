"""A private containerd with runc, for as long as a ``with`` block lasts.

It has its own root, state and sockets in a temporary directory; its pods live below a cgroup root
of their own. Whatever happens, nothing of it stays: pods, shims, mounts, cgroups, files.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar

import grpc
from koordpb import cri_v1_pb2 as pb

from tests.support.cgroot import CgroupRoot
from tests.support.criclient import RuntimeClient
from tests.support.oci import PAUSE_IMAGE, write_image

START_LIMIT_S = 30.0
STOP_LIMIT_S = 15.0
_MNT_DETACH = 2
# Made by shims whatever root and state say.
_SOCKETS = Path("/run/containerd/s")
_RUNC = Path("/run/containerd/runc/k8s.io")
_SHARED = (
    _SOCKETS,
    _RUNC,
    _RUNC.parent,
    Path("/run/containerd/fifo"),
    Path("/run/containerd"),
)
_CONFIG = """\
version = 2
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "{directory}/containerd.sock"
[ttrpc]
  address = "{directory}/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  disable_tcp_service = true
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{directory}/cni/bin"
    conf_dir = "{directory}/cni/conf"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = {systemd}
"""


class ContainerdError(RuntimeError):
    """The private containerd did not do what it must; holds the end of its log."""


class Containerd:
    """``with Containerd() as runtime: runtime.client.run_pod(...)``.

    ``cgroups`` is the root below which all its pods must be made, ``parent(...)`` a parent there.
    """

    tiers: ClassVar[Mapping[str, str]] = {"LS": "kubepods/burstable", "BE": "kubepods/besteffort"}
    driver = "cgroupfs"

    def __init__(self, cgroups: CgroupRoot | None = None) -> None:
        self.cgroups = cgroups or CgroupRoot()
        self._stack = contextlib.ExitStack()
        self._directory = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self.client: RuntimeClient

    @property
    def endpoint(self) -> str:
        return f"unix://{self._directory}/containerd.sock"

    def parent(self, tier: str) -> str:
        """A cgroup parent for pods of ``tier``, e.g. ``kubepods/besteffort``."""
        return f"{self.cgroups.root}/{tier}/pod{{uid}}"

    def cgroup_of(self, tier: str, uid: str, container_id: str = "") -> str:
        """The cgroup of a pod or of one of its containers, below the root."""
        return f"{tier}/pod{uid}" + (f"/{container_id}" if container_id else "")

    def __enter__(self) -> Containerd:
        with contextlib.ExitStack() as stack:
            before = {path for path in _SHARED if path.exists()}
            stack.callback(_remove_empty, before)
            stack.callback(self._sweep_cgroups)
            stack.enter_context(self.cgroups)
            # Short: a unix socket's path is limited to 107 bytes.
            name = tempfile.mkdtemp(prefix=f"koordtest-{os.getpid()}-", dir="/tmp")
            self._directory = Path(name)
            stack.callback(shutil.rmtree, name)
            stack.callback(_detach_mounts, name)
            stack.callback(_remove_run_files, name, self.cgroups.root)
            stack.callback(_end_shims, name)
            stack.callback(self._stop)
            self._start()
            self.client = stack.enter_context(RuntimeClient(self.endpoint))
            stack.callback(self._remove_pods)
            self._wait_until_ready()
            self._import_image()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        config = self._directory / "config.toml"
        systemd = "true" if self.driver == "systemd" else "false"
        config.write_text(
            _CONFIG.format(directory=self._directory, pause=PAUSE_IMAGE, systemd=systemd)
        )
        with open(self._directory / "containerd.log", "wb") as log:
            self._process = subprocess.Popen(
                ["containerd", "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        """Kill containerd; its pods live on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Kill containerd and start it again."""
        self.kill()
        self._start()
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        process = self._process

        def answers() -> bool:
            if process.poll() is not None:
                raise ContainerdError(f"containerd ended with {process.returncode}: {self._log()}")
            with contextlib.suppress(grpc.RpcError):
                self.client.call("Version", pb.VersionRequest())
                return True
            return False

        if not _until(answers, START_LIMIT_S):
            raise ContainerdError(f"no answer in {START_LIMIT_S:g} s: {self._log()}")

    def _import_image(self) -> None:
        image = self._directory / "image.tar"
        write_image(image)
        address = f"{self._directory}/containerd.sock"
        command = ["ctr", "--address", address, "--namespace", "k8s.io", "images", "import"]
        done = subprocess.run(
            [*command, "--snapshotter", "native", str(image)], capture_output=True, check=False
        )
        if done.returncode != 0:
            raise ContainerdError(f"image import failed: {done.stderr.decode()} {self._log()}")

    def _remove_pods(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            self.client.remove_all()

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _sweep_cgroups(self) -> None:
        """Remove what runc left in hierarchies that CgroupRoot does not look after."""
        for kind, mount in _mounts():
            if kind in ("cgroup", "cgroup2"):
                for directory, _, _ in os.walk(mount + self.cgroups.root, topdown=False):
                    Path(directory).rmdir()

    def _log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self._directory / "containerd.log").read_text(errors="replace")[-2000:]
        return ""


def _until(done: Callable[[], bool], limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def _end_shims(directory: str) -> None:
    """Kill the shims of this containerd, known by its socket in their command line."""

    def none_left() -> bool:
        left = list(_shims(directory))
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    if not _until(none_left, STOP_LIMIT_S):
        raise ContainerdError(f"shims of {directory} do not end: {list(_shims(directory))}")


def _shims(directory: str) -> Iterator[int]:
    address = f"{directory}/containerd.sock".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"containerd-shim" in words[0] and address in words:
                yield int(entry.name)


def _remove_run_files(directory: str, root: str) -> None:
    """Remove runc's state of containers below ``root``, and the sockets of their shims.

    Only where containerd was killed there are any. A shim's socket is named after a digest of
    containerd's address, the namespace and the sandbox.
    """
    for state in _RUNC.glob("*/state.json"):
        if f"{root}/" not in state.read_text():
            continue
        name = f"{directory}/containerd.sock/k8s.io/{state.parent.name}"
        (_SOCKETS / hashlib.sha256(name.encode()).hexdigest()).unlink(missing_ok=True)
        shutil.rmtree(state.parent)


def _mounts(mountinfo: str = "/proc/self/mountinfo") -> Iterator[tuple[str, str]]:
    """Kind and mount point of each mount, oldest first."""
    for line in Path(mountinfo).read_text(errors="replace").splitlines():
        fields, _, tail = line.partition(" - ")
        yield tail.split(" ", 1)[0], fields.split(" ")[4]


def _detach_mounts(directory: str) -> None:
    """Unmount all below ``directory``, the newest mount first."""
    umount = ctypes.CDLL(None, use_errno=True).umount2
    for _, point in reversed(list(_mounts())):
        if point.startswith(f"{directory}/"):
            umount(point.encode(), _MNT_DETACH)


def _remove_empty(before: set[Path]) -> None:
    for path in _SHARED:
        if path not in before:
            with contextlib.suppress(OSError):
                path.rmdir()
