"""koordlet as its console script, with everything of its own: directories, ports, cgroup."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from koordlet.api.client import AnswerError, Client, UnreachableError
from tests.support.waiting import PATIENCE

READY_S = 30.0 * PATIENCE
STOP_S = 30.0 * PATIENCE
CTL_S = 60.0 * PATIENCE
# A run that is killed leaves no daemon behind.
_LAUNCHER = """
limit=$1; shift
[ "$limit" = - ] || ulimit -n "$limit"
for procs in $PROCS; do echo $$ > "$procs"; done
unset PROCS
exec setpriv --pdeathsig KILL "$@"
"""


class NotReadyError(RuntimeError):
    """The daemon ended, or did not answer in time; carries the end of its log."""


def script(name: str) -> str:
    """A console script of the environment that runs this test."""
    return str(Path(sys.executable).with_name(name))


def free_port() -> int:
    """A TCP port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Koordlet:
    """One daemon below ``directory``, managing the cgroups below ``cgroup_root``.

    ``options`` are further ones, ``node_slo`` for --node-slo; None leaves a default out and True
    is a bare switch. ``own_cgroups`` are directories that its processes are put into, ``wrapper``
    a command in front of it.
    """

    def __init__(
        self,
        directory: Path,
        cgroup_root: str,
        *,
        own_cgroups: tuple[Path, ...] = (),
        nofile: int | None = None,
        wrapper: tuple[str, ...] = (),
        **options: object,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.run_dir = directory / "run"
        self.log_path = directory / "koordlet.log"
        self.metrics_port = free_port()
        self.client = Client(self.run_dir / "api.sock", timeout_s=15.0)
        self._own_cgroups = own_cgroups
        self._nofile = nofile
        self._wrapper = wrapper
        self._process: subprocess.Popen[bytes] | None = None
        self._cgroup_root = cgroup_root
        defaults: dict[str, object] = {
            "run_dir": self.run_dir,
            "state_dir": directory / "state",
            "cgroup_root": cgroup_root or "/",
            "host_apps_dir": directory / "hostapps.d",
            "metrics_address": f"127.0.0.1:{self.metrics_port}",
            "node_name": "testnode",
            "kubelet": "none",
        }
        self._options = {**defaults, **options}

    def arguments(self) -> list[str]:
        """The command line without the program."""
        words: list[str] = []
        for key, value in self._options.items():
            option = f"--{key.replace('_', '-')}"
            if value is True:
                words.append(option)
            elif value is not None:
                words += [option, str(value)]
        return words

    @property
    def started(self) -> bool:
        """Whether it was ever started."""
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True) -> Koordlet:
        """Start it; with ``wait``, until ``GET /v1/status`` answers with a core."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("sh", "-c", _LAUNCHER, "koordlet"),
                    str(self._nofile or "-"),
                    *self._wrapper,
                    script("koordlet"),
                    *self.arguments(),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PROCS": " ".join(map(self._procs, self._own_cgroups))},
            )
        if wait:
            self.wait_ready()
        return self

    @staticmethod
    def _procs(directory: Path) -> str:
        return str(directory / "cgroup.procs")

    def wait_ready(self, timeout_s: float = READY_S) -> None:
        """Until the API answers and the core has reported; NotReadyError with the log's end."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self.exit_code() is not None:
                raise NotReadyError(f"koordlet ended with {self.exit_code()}:\n{self.log_tail()}")
            with contextlib.suppress(UnreachableError, AnswerError):
                if "missing" not in self.status().get("core", {"missing": "not told"}):
                    return
            time.sleep(0.02)
        raise NotReadyError(f"koordlet gave no status in {timeout_s} s:\n{self.log_tail()}")

    def status(self) -> dict[str, Any]:
        """The data of ``GET /v1/status``."""
        data: dict[str, Any] = self.client.get("status")["data"]
        return data

    def ticks(self) -> list[dict[str, Any]]:
        """The kept ticks, oldest first."""
        ticks: list[dict[str, Any]] = self.client.get("ticks")["data"]["ticks"]
        return ticks

    def exit_code(self) -> int | None:
        """None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def log_tail(self, lines: int = 40) -> str:
        """The end of what it printed."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def tree(self) -> tuple[int, ...]:
        """Process ids of the daemon, parents before children."""
        return tree_of(self.pid)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask for a clean stop, wait for it, and return the exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            tree = self.tree()
            os.kill(tree[1] if self._wrapper else tree[0], number)
        return self._process.wait(STOP_S)

    def kill(self, tree: tuple[int, ...] = ()) -> None:
        """SIGKILL for all its processes at once, and wait until none is left.

        ``tree`` is what ``tree()`` told before, where the instant of the kill matters.
        """
        assert self._process is not None
        tree = tree or (self.tree() if self._process.poll() is None else ())
        _kill_all(tree)
        self._process.wait(STOP_S)
        deadline_s = time.monotonic() + STOP_S
        while any(_runs(pid) for pid in tree):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"processes survive SIGKILL: {tree}")
            time.sleep(0.001)

    def ctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run koordletctl against this daemon's directories."""
        return subprocess.run(
            self.ctl_command(*words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=CTL_S,
        )

    def ctl_command(self, *words: str) -> list[str]:
        """The command line of ``ctl``."""
        return [script("koordletctl"), "--run-dir", str(self.run_dir), *words]

    def __enter__(self) -> Koordlet:
        try:
            return self.start()
        except NotReadyError:
            self.kill()
            raise

    def __exit__(self, *_: object) -> None:
        """Stop it if it still runs; kill it where that does not work."""
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.kill()
            raise


def tree_of(pid: int) -> tuple[int, ...]:
    """``pid`` and all its descendants, parents before children."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return (pid, *(child.pid for child in psutil.Process(pid).children(recursive=True)))
    return ()


def kill_tree(pid: int) -> None:
    """SIGKILL for ``pid`` and all its descendants."""
    _kill_all(tree_of(pid))


def _kill_all(tree: tuple[int, ...]) -> None:
    for pid in reversed(tree):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _runs(pid: int) -> bool:
    """Whether the process still runs; a zombie that nobody reaped yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


@contextlib.contextmanager
def running(directory: Path, cgroup_root: str, **options: Any) -> Iterator[Koordlet]:
    """``with running(tmp_path, root.root, node_slo=...) as koordlet: ...``."""
    with Koordlet(directory, cgroup_root, **options) as koordlet:
        yield koordlet
