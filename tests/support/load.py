"""Processes that sleep or burn CPU, many of them, for tests and benchmarks."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.support import loadworker
from tests.support.loadworker import NUMBER, SLOT_BYTES

SLOTS = 4096


class Load:
    """Starts load processes while the context lasts; all end with it."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("koordtest-load")
        os.ftruncate(self._fd, SLOTS * SLOT_BYTES)
        self._shared = mmap.mmap(self._fd, 0)
        self._used = 0
        self._zygote: subprocess.Popen[str] | None = None

    def __enter__(self) -> Load:
        self._zygote = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                str(Path(loadworker.__file__)),
                f"/dev/fd/{self._fd}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self._fd,),
            text=True,
            start_new_session=True,  # Ctrl-C is for whoever started it; the processes end with it
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._zygote is not None
        self._zygote.communicate(timeout=30)
        self._shared.close()
        os.close(self._fd)

    def idle(self) -> int:
        """The id of a new process that sleeps for ever."""
        return self._command("idle")

    def burner(self, cores: float, *, period_s: float = 0.01) -> Burner:
        """A new process that uses ``cores`` (0..1), in one burst a period."""
        slot, self._used = self._used, self._used + 1
        burner = Burner(self._shared, slot)
        burner.use(cores)
        burner.pid = self._command(f"burn {slot} {period_s}")
        return burner

    def cruncher(self) -> Cruncher:
        """A new process that does batch work, as much as it is let."""
        slot, self._used = self._used, self._used + 1
        return Cruncher(self._shared, slot, self._command(f"crunch {slot}"))

    def _command(self, line: str) -> int:
        assert self._zygote is not None
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(line + "\n")
        self._zygote.stdin.flush()
        return int(self._zygote.stdout.readline())


class Burner:
    """One burning process, whose use can be changed at any time."""

    def __init__(self, shared: mmap.mmap, slot: int) -> None:
        self.pid = 0
        self._shared = shared
        self._offset = slot * SLOT_BYTES

    def use(self, cores: float) -> None:
        """Use ``cores`` from the next period on."""
        NUMBER.pack_into(self._shared, self._offset + NUMBER.size, 0.0)
        NUMBER.pack_into(self._shared, self._offset, cores)

    @property
    def changed_s(self) -> float:
        """Monotonic time of the first instruction at the present use; 0 before it."""
        (changed_s,) = NUMBER.unpack_from(self._shared, self._offset + NUMBER.size)
        return float(changed_s)


class Cruncher:
    """One process of batch work, which counts what it gets done."""

    def __init__(self, shared: mmap.mmap, slot: int, pid: int) -> None:
        self.pid = pid
        self._shared = shared
        self._offset = slot * SLOT_BYTES

    @property
    def units(self) -> float:
        """Finished units of work since it was started."""
        (units,) = NUMBER.unpack_from(self._shared, self._offset)
        return float(units)

    def pause(self) -> None:
        """Stop it where it is, until ``resume``."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
