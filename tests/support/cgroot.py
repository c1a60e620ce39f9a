"""A cgroup root of one's own, on the real kernel, for tests.

``/koordtest-<pid>-<random>`` is made in every mounted v1 hierarchy and in the unified one, and
removed again with all that lies below it. Nothing outside of it is touched. Where the controllers
are on cgroup v2, that is the only hierarchy; settings are then spelled as v2 spells them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "blkio", "pids")
V2_CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")
_REMOVE_TRIES = 400
_REMOVE_PAUSE_S = 0.005


def hierarchies(mountinfo: str = "/proc/self/mountinfo") -> dict[str, Path]:
    """Mount point by controller; the unified hierarchy is ``unified`` (plain v2 too)."""
    found: dict[str, Path] = {}
    for line in Path(mountinfo).read_text(encoding="ascii", errors="replace").splitlines():
        fields, _, tail = line.partition(" - ")
        kind, _, options = tail.split(" ", 2)
        mount = Path(fields.split(" ")[4])
        if kind == "cgroup2":
            found.setdefault("unified", mount)
        elif kind == "cgroup":
            for controller in set(options.split(",")) & set(CONTROLLERS):
                found.setdefault(controller, mount)
    return found


def why_not() -> str:
    """Why this machine cannot run kernel tests; ``""`` where it can."""
    if os.geteuid() != 0:
        return "needs root"
    mounts = hierarchies()
    if "cpu" in mounts and "cpuset" in mounts:
        top = mounts["cpu"]
    elif "unified" in mounts:
        top = mounts["unified"]
        handed = (top / "cgroup.subtree_control").read_text().split()
        if lacking := [name for name in V2_CONTROLLERS if name not in handed]:
            wanted = " ".join(f"+{name}" for name in lacking)
            return f"needs controllers; remedy: echo {wanted} > {top}/cgroup.subtree_control"
    else:
        return "needs cgroups, v1 or v2, with cpu and cpuset"
    return "" if os.access(top, os.W_OK) else f"{top} is read-only"


def version() -> int:
    """Which version of cgroups carries this machine's cpu controller."""
    return 1 if "cpu" in hierarchies() else 2


def parse_quota(text: str) -> int:
    """Microseconds in the text of cpu.cfs_quota_us or cpu.max; -1 is none."""
    quota = text.split()[0]
    return -1 if quota == "max" else int(quota)


class CgroupRoot:
    """One test's own subtree, called ``root`` (``/koordtest-...``) inside every hierarchy."""

    def __init__(self) -> None:
        self.root = f"/koordtest-{os.getpid()}-{secrets.token_hex(4)}"
        self.mounts = hierarchies()
        self.version = 1 if "cpu" in self.mounts else 2
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> CgroupRoot:
        for mount in set(self.mounts.values()):
            (mount / self.root[1:]).mkdir()
        self._open_cpuset("")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def dir(self, path: str, controller: str = "cpu") -> Path:
        """The directory of ``path`` (relative to the root) in one hierarchy; on v2 the only one."""
        mount = self.mounts["unified" if self.version == 2 else controller]
        return mount / self.root[1:] / path

    def mk(
        self,
        path: str,
        *,
        cpus: str | None = None,
        quota_us: int | None = None,
        shares: int | None = None,
    ) -> str:
        """Make ``path`` with its parents in all hierarchies, and set what is given.

        The cpuset of a new directory is its parent's unless ``cpus`` says otherwise, as runc
        leaves it. On v2 all controllers are handed down to it, so no process can be put into its
        parents any more. Gives the path back.
        """
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            self._mk_one("/".join(parts[:depth]))
        if cpus is not None:
            self.write(path, "cpuset.cpus", cpus, "cpuset")
        if quota_us is not None:
            self.set_quota_us(path, quota_us)
        if shares is not None:
            self.set_shares(path, shares)
        return path

    def _mk_one(self, path: str) -> None:
        made = False
        for mount in set(self.mounts.values()):
            directory = mount / self.root[1:] / path
            if not directory.exists():
                if self.version == 2:
                    self._hand_down(directory.parent)
                directory.mkdir()
                made = True
        if made:
            self._open_cpuset(path)

    def _open_cpuset(self, path: str) -> None:
        """A v1 cpuset is born empty and takes no task until both files are filled."""
        if self.version == 2:
            return
        directory = self.dir(path, "cpuset")
        for name in ("cpuset.mems", "cpuset.cpus"):
            text = (directory.parent / name).read_text()
            (directory / name).write_text(text)

    @staticmethod
    def _hand_down(directory: Path) -> None:
        wanted = " ".join(f"+{name}" for name in V2_CONTROLLERS)
        (directory / "cgroup.subtree_control").write_text(wanted)

    # -- settings, whatever the version ---------------------------------------------------------

    @property
    def quota_file(self) -> str:
        return "cpu.cfs_quota_us" if self.version == 1 else "cpu.max"

    def quota_us(self, path: str) -> int:
        """The cfs quota in microseconds; -1 is none."""
        return parse_quota(self.read(path, self.quota_file))

    def set_quota_us(self, path: str, quota_us: int) -> None:
        """Set the quota, the period stays; -1 is none."""
        unlimited = self.version == 2 and quota_us < 0
        self.write(path, self.quota_file, "max" if unlimited else str(quota_us))

    def set_burst_us(self, path: str, burst_us: int) -> None:
        self.write(
            path, "cpu.cfs_burst_us" if self.version == 1 else "cpu.max.burst", str(burst_us)
        )

    @property
    def weight_file(self) -> str:
        return "cpu.shares" if self.version == 1 else "cpu.weight"

    def weight(self, path: str) -> str:
        """The text of the weight; to be compared with ``weight_of``."""
        return self.read(path, self.weight_file)

    def weight_of(self, shares: int) -> str:
        """The text that holds these cpu.shares; on v2 by the kubelet's and runc's formula."""
        return str(shares if self.version == 1 else 1 + (shares - 2) * 9999 // 262142)

    @property
    def default_weight(self) -> str:
        """What a new cgroup has."""
        return "1024" if self.version == 1 else "100"

    @property
    def idle_weight(self) -> str:
        """What the file shows while cpu.idle is 1."""
        return "3" if self.version == 1 else "0"

    def set_shares(self, path: str, shares: int) -> None:
        self.write(path, self.weight_file, self.weight_of(shares))

    def cpus(self, path: str) -> str:
        """The CPUs that its tasks may use."""
        name = "cpuset.cpus" if self.version == 1 else "cpuset.cpus.effective"
        return self.read(path, name, "cpuset")

    def used_ns(self, path: str) -> int:
        """CPU time that it ever used."""
        if self.version == 1:
            return int(self.read(path, "cpuacct.usage", "cpuacct"))
        lines = self.read(path, "cpu.stat").splitlines()
        return int(dict(map(str.split, lines))["usage_usec"]) * 1_000

    # -- files ----------------------------------------------------------------------------------

    def read(self, path: str, name: str, controller: str = "cpu") -> str:
        """A kernel file's text, stripped."""
        return (self.dir(path, controller) / name).read_text().strip()

    def write(self, path: str, name: str, text: str, controller: str = "cpu") -> None:
        """Write as another program would, in one ``write(2)``."""
        fd = os.open(self.dir(path, controller) / name, os.O_WRONLY)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def spawn(self, path: str, *argv: str) -> subprocess.Popen[bytes]:
        """Start ``argv`` (default: sleep) and put it into ``path`` in every hierarchy."""
        process = subprocess.Popen(argv or ("sleep", "600"), stdin=subprocess.DEVNULL)
        self.processes.append(process)
        for mount in set(self.mounts.values()):
            procs = mount / self.root[1:] / path / "cgroup.procs"
            procs.write_text(str(process.pid))
        return process

    def rm(self, path: str) -> None:
        """Remove ``path`` and all below it in every hierarchy; its processes are killed first."""
        for mount in set(self.mounts.values()):
            _remove_tree(mount / self.root[1:] / path if path else mount / self.root[1:])

    def close(self) -> None:
        """Kill what was started here and remove the whole subtree."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait(timeout=10)
        self.processes.clear()
        self.rm("")


@contextlib.contextmanager
def cgroup_root() -> Iterator[CgroupRoot]:
    """``with cgroup_root() as root: ...``."""
    with CgroupRoot() as root:
        yield root


def _remove_tree(top: Path) -> None:
    if not top.exists():
        return
    for directory, _, _ in os.walk(top, topdown=False):
        _remove_one(Path(directory))


def _remove_one(directory: Path) -> None:
    """rmdir, after killing the members; a cgroup stays busy until its last task has left."""
    for _ in range(_REMOVE_TRIES):
        with contextlib.suppress(FileNotFoundError):
            for pid in (directory / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(_REMOVE_PAUSE_S)
        else:
            return
    raise TimeoutError(f"{directory} stays busy: {(directory / 'cgroup.procs').read_text()!r}")
