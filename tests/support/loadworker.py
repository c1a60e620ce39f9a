"""Load processes in the tens of kilobytes: forks of one small interpreter.

Run as a script, ``python -I -S loadworker.py FILE``, by tests.support.load. Commands come on
stdin, one a line: ``idle``, ``burn SLOT PERIOD_S`` or ``crunch SLOT``; the answer is the new
process's id. All end when stdin does. A burner reads how many cores to use from its slot of FILE
(two doubles: cores wanted, and monotonic time of its first instruction at the present value). A
cruncher does real work as fast as it can, and counts finished units in the first of the two.
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
CRUNCH_BYTES, CRUNCH_PRESET = 1 << 17, 1  # one unit of work: so much text through xz


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


def crunch(shared: mmap.mmap, slot: int) -> None:
    """Compress the same text again and again, one unit each time."""
    import lzma
    import random

    offset = slot * SLOT_BYTES
    rng = random.Random(11)
    words = [bytes(rng.choices(b"etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(2000)]
    text = b" ".join(rng.choices(words, k=CRUNCH_BYTES // 4))[:CRUNCH_BYTES]
    units = 0.0
    while True:
        lzma.compress(text, preset=CRUNCH_PRESET)
        units += 1.0
        NUMBER.pack_into(shared, offset, units)


def fork(words: list[str], shared: mmap.mmap) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.close(0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if words[0] == "burn":
        burn(shared, int(words[1]), float(words[2]))
    if words[0] == "crunch":
        crunch(shared, int(words[1]))
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
