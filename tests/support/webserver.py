"""A real nginx in a cgroup: it serves one page, compressed anew for each request."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from tests.support.waiting import until

PACKAGE = "nginx"
READY_S = 10.0
STOP_S = 10.0
REQUEST = (
    "GET /page.html HTTP/1.1\r\nHost: demo\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"
)
REPLY_START = "HTTP/1.1 200 "

_PROGRAM = "/usr/sbin/nginx"
# It joins its cgroups before there are workers; a test that is killed leaves none of them behind.
_LAUNCHER = """
for procs in $PROCS; do echo $$ > "$procs"; done
unset PROCS
exec setpriv --pdeathsig TERM "$@"
"""
_CONFIG = """
daemon off;
user root;
worker_processes {workers};
worker_rlimit_nofile 8192;
pid {directory}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  default_type text/html;
  gzip on;
  gzip_comp_level 6;
  client_body_temp_path {directory}/client;
  proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  server {{
    listen unix:{directory}/http.sock backlog=4096;
    root {directory}/pages;
  }}
}}
"""
_WORDS = 3000


class WebServer:
    """nginx with ``workers`` processes, its files in ``directory``, itself in ``cgroups``.

    The listening socket is shared: whichever worker is free takes the next connection.
    """

    def __init__(self, directory: Path, cgroups: Iterable[Path], workers: int) -> None:
        self._directory = directory
        self._cgroups = tuple(cgroups)
        self._workers = workers
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> Path:
        """Its unix socket."""
        return self._directory / "http.sock"

    def set_page(self, size_bytes: int) -> None:
        """The page from now on: a text of so many bytes, always the same."""
        pages = self._directory / "pages"
        new = pages / "page.new"
        new.write_text(text(size_bytes), encoding="ascii")
        new.replace(pages / "page.html")

    def __enter__(self) -> WebServer:
        (self._directory / "pages").mkdir(parents=True)
        config = self._directory / "nginx.conf"
        config.write_text(_CONFIG.format(directory=self._directory, workers=self._workers))
        self._process = subprocess.Popen(
            [
                *("sh", "-c", _LAUNCHER, "nginx"),
                *(_PROGRAM, "-e", "stderr", "-p", str(self._directory), "-c", str(config)),
            ],
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                "PROCS": " ".join(str(each / "cgroup.procs") for each in self._cgroups),
            },
            start_new_session=True,  # Ctrl-C is for whoever started it
        )
        try:
            until(self.address.is_socket, READY_S, "nginx listens; see its messages above")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def text(size_bytes: int) -> str:
    """A text that compresses about as well as prose; the same for the same size."""
    rng = random.Random(7)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    weights = [26 - index for index in range(26)]
    words = ["".join(rng.choices(letters, weights, k=rng.randint(2, 9))) for _ in range(_WORDS)]
    by_rank = [1 / (1 + rank) for rank in range(_WORDS)]
    chosen = rng.choices(words, by_rank, k=size_bytes // 3)
    return " ".join(chosen)[:size_bytes]
