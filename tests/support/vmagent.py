#!/usr/bin/python3
"""Inside a guest: does what the host asks for over a virtio port, one JSON object a line.

Requests carry ``id`` and one of ``run`` (shell text, ``timeout_s``), ``put`` (path, ``data`` in
base64, ``mode``, ``append``), ``get`` (path, ``offset``); so do the answers, which hold ``error``
where the request itself could not be carried out. Runs alone in the guest: Python 3.11, no project.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

PORT = "koordtest.agent"
DISKS = {"project": "/project", "python": "/python"}  # mount point by the disk's serial number
TIMED_OUT = 124
MOST_BYTES = 4 << 20  # of an output, the end of it
GET_BYTES = 1 << 20
ENVIRONMENT = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
Request = dict[str, Any]


def run(request: Request) -> Request:
    """The command's exit code and what it printed.

    What it leaves in the background goes on. After ``timeout_s`` its process group is killed.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            ["/bin/bash", "-c", request["run"]],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd="/",
            env=ENVIRONMENT,
            start_new_session=True,
        )
        try:
            code = process.wait(request["timeout_s"])
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = TIMED_OUT
            err.write(f"\nkilled after {request['timeout_s']:g} s\n".encode())
        return {"code": code, "out": _end_of(out), "err": _end_of(err)}


def _end_of(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MOST_BYTES))
    return file.read().decode(errors="replace")


def put(request: Request) -> Request:
    """Write or append to a file, its directories made where they are missing."""
    path = Path(request["put"])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab" if request["append"] else "wb") as file:
        file.write(base64.b64decode(request["data"]))
    path.chmod(request["mode"])
    return {}


def get(request: Request) -> Request:
    """A part of a file; the last one is shorter than GET_BYTES."""
    with open(request["get"], "rb") as file:
        file.seek(request["offset"])
        return {"data": base64.b64encode(file.read(GET_BYTES)).decode()}


KINDS: dict[str, Callable[[Request], Request]] = {"run": run, "put": put, "get": get}


def answer(line: bytes) -> bytes:
    """The answer to one line."""
    request: Request = json.loads(line)
    (work,) = (work for kind, work in KINDS.items() if kind in request)
    try:
        done = work(request)
    except OSError as error:
        done = {"error": str(error)}
    return json.dumps({"id": request["id"], **done}).encode() + b"\n"


def serve(fd: int) -> None:
    """Answer line by line until the other side closes."""
    pending = b""
    while True:
        received = os.read(fd, 1 << 16)
        if not received:
            return
        pending += received
        *lines, pending = pending.split(b"\n")
        for line in lines:
            send(fd, answer(line))


def send(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def find_port() -> str:
    """The device of our port; udev, which would name it, is not in every guest."""
    while True:
        for name in Path("/sys/class/virtio-ports").glob("*/name"):
            device = f"/dev/{name.parent.name}"
            if name.read_text().strip() == PORT and os.path.exists(device):
                return device
        time.sleep(0.02)


def mount_disks() -> None:
    for serial in Path("/sys/block").glob("*/serial"):
        point = DISKS.get(serial.read_text().strip())
        if point is not None:
            subprocess.run(["mount", f"/dev/{serial.parent.name}", point], check=True)


def main() -> None:
    fd = os.open(find_port(), os.O_RDWR)
    mount_disks()
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    send(fd, json.dumps({"id": 0, "uptime_s": uptime_s}).encode() + b"\n")
    serve(fd)


if __name__ == "__main__":
    main()
