"""koord-runtimeproxy as a process, with everything of its own: directories, port, sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from tests.support.koordletd import NotReadyError, free_port

READY_S = 60.0
STOP_S = 20.0
# What systemd does: the listening socket is descriptor 3 of the process that it is meant for.
_ACTIVATED = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
"""


class Proxy:
    """One proxy in front of ``runtime``, a socket path. ``options`` are further ones of ``run``.

    With ``activated``, its listening socket is held here and outlives it, as with a socket unit.
    ``own_cgroups`` are directories that its process is put into.
    """

    def __init__(
        self,
        directory: Path,
        runtime: Path,
        *,
        activated: bool = False,
        own_cgroups: tuple[Path, ...] = (),
        **options: object,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.run_dir = directory / "run"
        self.hooks_dir = directory / "hookserver.d"
        self.hooks_dir.mkdir(mode=0o755, exist_ok=True)
        self.socket = directory / "proxy.sock"
        self.log_path = directory / "proxy.log"
        self.metrics_port = free_port()
        self._own_cgroups = own_cgroups
        self._held = _listening(self.socket) if activated else None
        self._options = {
            "run_dir": self.run_dir,
            "state_dir": directory / "state",
            "socket": self.socket,
            "runtime_endpoint": runtime,
            "hooks_dir": self.hooks_dir,
            "metrics_address": f"127.0.0.1:{self.metrics_port}",
            **options,
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"unix://{self.socket}"

    @property
    def words(self) -> list[str]:
        """The options on the command line."""
        pairs = self._options.items()
        return [f"--{name.replace('_', '-')}={value}" for name, value in pairs]

    def __enter__(self) -> Proxy:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self.process is not None and self.process.poll() is None:
                self.stop()
        finally:
            self._end_children()
            if self._held is not None:
                self._held.close()
            self.socket.unlink(missing_ok=True)

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [sys.executable, "-m", "runtimeproxy", "run", *self.words]
        passed: tuple[int, ...] = ()
        if self._held is not None:
            passed = (self._held.fileno(),)
            command = [sys.executable, "-c", _ACTIVATED, str(passed[0]), *command]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=passed,
            )
        for directory in self._own_cgroups:
            (directory / "cgroup.procs").write_text(str(self.process.pid))
        self._wait_until_ready()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code. What goes on in the background goes on until the context ends."""
        assert self.process is not None
        self.process.send_signal(how)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise NotReadyError(f"did not stop in {STOP_S:g} s: {self.log()}") from None

    def restart(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.stop(how)
        self.start()

    def get(self, name: str) -> dict[str, Any]:
        """``status``, ``hooks`` or ``calls``, as the daemon tells it."""
        connection = http.client.HTTPConnection("localhost", timeout=5)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.closing(connection):
            connection.sock.connect(str(self.run_dir / "api.sock"))
            connection.request("GET", f"/v1/{name}")
            told: dict[str, Any] = json.loads(connection.getresponse().read())
            return told

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")[-4000:]

    def _wait_until_ready(self) -> None:
        assert self.process is not None
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s:
            if self.process.poll() is not None:
                raise NotReadyError(f"ended with {self.process.returncode}: {self.log()}")
            with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                self.get("status")
                return
            time.sleep(0.02)
        raise NotReadyError(f"no answer in {READY_S:g} s: {self.log()}")

    def background(self) -> list[psutil.Process]:
        """Processes that still carry calls of an ended proxy of ours."""
        own = {os.getpid(), self.process.pid if self.process is not None else 0}
        mark = f"--run-dir={self.run_dir}"
        return [
            process
            for process in psutil.process_iter(["pid", "cmdline"])
            if mark in (process.info["cmdline"] or ()) and process.pid not in own
        ]

    def _end_children(self) -> None:
        for process in self.background():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(self.background(), timeout=5)


def _listening(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    sock.listen(128)
    return sock
