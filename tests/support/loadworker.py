"""Load processes in the tens of kilobytes: forks of one small interpreter.

Run as a script, ``python -I -S loadworker.py FILE``, by tests.support.load. Commands come on
stdin, one a line: ``idle``, or ``burn SLOT PERIOD_S``; the answer is the new process's id. All
end when stdin does. A burner reads how many cores to use from its slot of FILE (two doubles:
cores wanted, and monotonic time of its first instruction at the present value).
"""

import contextlib
import mmap
import os
import signal
import struct
import sys
import time

NUMBER = struct.Struct("d")
SLOT_BYTES = 2 * NUMBER.size


def idle() -> None:
    while True:
        signal.pause()


def burn(shared: mmap.mmap, slot: int, period_s: float) -> None:
    """Use the wanted share of each period, counted in CPU time; one core and more never sleeps."""
    offset = slot * SLOT_BYTES
    present = -1.0
    next_s = time.monotonic()
    while True:
        (cores,) = NUMBER.unpack_from(shared, offset)
        if cores != present:
            NUMBER.pack_into(shared, offset + NUMBER.size, time.monotonic())
            present = cores
        if cores >= 1.0:
            _spin(0.002)
            next_s = time.monotonic()
            continue
        _spin(cores * period_s)
        next_s = max(next_s + period_s, time.monotonic() - period_s)
        time.sleep(max(0.0, next_s - time.monotonic()))


def _spin(cpu_s: float) -> None:
    end_s = time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        pass


def fork(words: list[str], shared: mmap.mmap) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.close(0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if words[0] == "burn":
        burn(shared, int(words[1]), float(words[2]))
    idle()
    return 0


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reaped by the kernel
    pids = []
    with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
        for line in sys.stdin:
            pids.append(fork(line.split(), shared))
            print(pids[-1], flush=True)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
