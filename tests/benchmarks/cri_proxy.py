"""What the proxy adds to a call: time, and nothing else.

Client, proxy and a canned runtime, three processes. Blocks of 250 calls go to the runtime directly
and through the proxy in turn; ``added_ms_pXX`` is pXX proxied minus pXX direct. ``calls_per_s`` is
a closed loop with 16 calls in flight. Hooked calls are CreateContainer with a hook server that
changes one value (``hook_server`` says which). Where containerd runs here, its own ListContainers
is reported, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
from koordpb import cri_v1_pb2 as pb

from tests.benchmarks import common
from tests.benchmarks.common import Bench, CannotMeasureError, quantile
from tests.benchmarks.usage import OwnCgroup
from tests.support import machine
from tests.support.cannedruntime import ECHO, REPLY, listed
from tests.support.containerd import Containerd
from tests.support.hookserver import write_server
from tests.support.proxyd import Proxy
from tests.support.rawruntime import SERVICE, UNLIMITED, RawClient, pod_config

BLOCK, WARM_UP = 250, 500
SIZES = {"": 4096, "_200b": 200, "_64k": 65_536}
IN_FLIGHT = 16
MESSAGES = 1000
LARGE = (16 << 20) - 4096
KUBELET_MIX = ("Version", "ListPodSandbox", "ListContainers")
KUBELET_PAUSE_S = 0.05


class RssWatch:
    """The resident size of a process once a second while the context lasts, in MiB."""

    def __init__(self, pid: int) -> None:
        self.samples: list[float] = []
        self._status = Path(f"/proc/{pid}/status")
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> RssWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            text = self._status.read_text()
            self.samples.append(int(text.partition("VmRSS:")[2].split()[0]) / 1024)
            if self._end.wait(1.0):
                return


@dataclass(frozen=True)
class World:
    """The two ways to the same runtime."""

    direct: Path
    proxy: Proxy
    rss: RssWatch

    @property
    def sockets(self) -> dict[str, Path]:
        return {"direct": self.direct, "proxied": self.proxy.socket}


def arguments() -> argparse.ArgumentParser:
    made = common.parser("cri_proxy", __doc__)
    made.add_argument("--calls", type=int, default=5000, help="of each kind, each way")
    made.add_argument("--seconds", type=float, default=20.0, help="of the closed loop, each way")
    return made


def measure(bench: Bench) -> None:
    """Fill in ``bench.figures``."""
    with _world(bench) as world:
        with _kubelet_beside(world.proxy.socket):
            for suffix, size in SIZES.items():
                bench.log(f"{bench.options.calls} calls each way, replies of {size} bytes")
                calls = bench.options.calls if not suffix else bench.options.calls // 5
                _added(bench, world.sockets, suffix, REPLY, b"%d" % size, calls)
        bench.log("hooked calls")
        _hooked(bench, world)
        bench.log(f"closed loop, {IN_FLIGHT} in flight")
        _throughput(bench, world)
        bench.figures["identical_bytes"] = _identical(bench.rng, world)
        bench.figures["list_16mib_ok"] = _large(world)
        bench.figures["rss_mib"] = round(max(world.rss.samples), 1)
    _real(bench)


@contextlib.contextmanager
def _world(bench: Bench) -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="koordtest-")))
        own = _own_cgroup(bench, stack)
        direct = scratch / "runtime.sock"
        stack.enter_context(_process(own, "tests.support.cannedruntime", str(direct)))
        directories = () if own is None else (own.cpuacct,)
        proxy = stack.enter_context(
            Proxy(scratch / "p", direct, activated=True, own_cgroups=directories)
        )
        hook = scratch / "hook.sock"
        stack.enter_context(_process(own, "tests.benchmarks.hookecho", str(hook)))
        bench.figures["hook_server"] = "one that changes cpu.shares"
        write_server(proxy.hooks_dir, "bench", hook, "Fail", ("PreCreateContainer",))
        assert proxy.process is not None
        yield World(direct, proxy, stack.enter_context(RssWatch(proxy.process.pid)))


def _own_cgroup(bench: Bench, stack: contextlib.ExitStack) -> OwnCgroup | None:
    """So that our processes do not count as other work on the machine."""
    if machine.why_no_kernel_tests():
        return None
    own = stack.enter_context(OwnCgroup())
    bench.quiet.own(own.cpuacct)
    return own


def _move(own: OwnCgroup | None, pid: int) -> None:
    if own is not None:
        (own.cpuacct / "cgroup.procs").write_text(str(pid))


@contextlib.contextmanager
def _process(own: OwnCgroup | None, module: str, socket: str) -> Iterator[None]:
    """A server of ours, once it says that it serves."""
    process = subprocess.Popen([sys.executable, "-m", module, socket], stdout=subprocess.PIPE)
    try:
        _move(own, process.pid)
        assert process.stdout is not None
        if not process.stdout.readline():
            raise CannotMeasureError(f"{module} did not start")
        yield
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def _kubelet_beside(socket: Path) -> Iterator[None]:
    """Somebody else's calls through the same proxy meanwhile."""
    end = threading.Event()

    def calls() -> None:
        with RawClient(socket) as client:
            while not end.wait(KUBELET_PAUSE_S):
                for name in KUBELET_MIX:
                    client.call(SERVICE + name)

    thread = threading.Thread(target=calls)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _added(
    bench: Bench,
    sockets: Mapping[str, Path],
    suffix: str,
    path: str,
    message: bytes,
    calls: int,
) -> None:
    """Blocks by turns, so that whatever else goes on meets both ways alike."""
    took_s: dict[str, list[float]] = {"direct": [], "proxied": []}
    with contextlib.ExitStack() as stack:
        ways = {way: stack.enter_context(RawClient(socket)) for way, socket in sockets.items()}
        for client in ways.values():
            for _ in range(min(WARM_UP, calls)):
                client.call(path, message)
        while len(took_s["direct"]) < calls:
            order = list(ways) if bench.rng.random() < 0.5 else list(reversed(ways))
            for way in order:
                for _ in range(min(BLOCK, calls)):
                    began_s = time.perf_counter()
                    ways[way].call(path, message)
                    took_s[way].append(time.perf_counter() - began_s)
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        direct_ms = quantile(took_s["direct"], share) * 1000
        proxied_ms = quantile(took_s["proxied"], share) * 1000
        prefix = "hooked_" if suffix == "hooked" else ""
        end = "" if prefix else suffix
        bench.figures[f"{prefix}added_ms_{name}{end}"] = round(proxied_ms - direct_ms, 3)
        bench.figures[f"{prefix}direct_ms_{name}{end}"] = round(direct_ms, 3)


def _hooked(bench: Bench, world: World) -> None:
    config = pod_config(labels={"koordinator.sh/qosClass": "BE"})
    linux = pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(cpu_shares=512))
    message = pb.CreateContainerRequest(
        pod_sandbox_id="p",
        config=pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name="c"),
            envs=[pb.KeyValue(key=f"K{number}", value=b"v" * 30) for number in range(20)],
            linux=linux,
        ),
        sandbox_config=config,
    ).SerializeToString()
    calls = max(BLOCK, bench.options.calls // 5)
    _added(bench, world.sockets, "hooked", SERVICE + "CreateContainer", message, calls)
    asked = world.proxy.get("hooks")["servers"][0]
    bench.require(
        asked["changes"] >= calls and not asked["failed"], f"hooks did not answer: {asked}"
    )


def _throughput(bench: Bench, world: World) -> None:
    rates: dict[str, list[float]] = {"": [], "_direct": []}
    seconds = bench.options.seconds / 2
    for _ in range(2):
        for name, socket in (("", world.proxy.socket), ("_direct", world.direct)):
            rates[name].append(asyncio.run(_closed_loop(socket, seconds)))
    for name, measured in rates.items():
        bench.figures[f"calls_per_s{name}"] = round(statistics.mean(measured), 1)
        bench.runs.append({f"calls_per_s{name}": measured})


async def _closed_loop(socket: Path, seconds: float) -> float:
    request = b"%d" % SIZES[""]
    async with grpc.aio.insecure_channel(f"unix://{socket}", options=UNLIMITED) as channel:
        call = channel.unary_unary(REPLY, request_serializer=bytes, response_deserializer=bytes)
        await call(request)
        began_s = time.perf_counter()
        end_s = began_s + seconds

        async def one() -> int:
            count = 0
            while time.perf_counter() < end_s:
                await call(request, timeout=10)
                count += 1
            return count

        counts = await asyncio.gather(*(one() for _ in range(IN_FLIGHT)))
        return sum(counts) / (time.perf_counter() - began_s)


def _identical(rng: random.Random, world: World) -> bool:
    """Random messages: unknown fields, no messages at all, of all sizes."""
    with RawClient(world.proxy.socket) as client:
        for _ in range(MESSAGES):
            message = rng.randbytes(int(2 ** rng.uniform(0, 17)))
            if client.call(ECHO, message) != message:
                return False
    return True


def _large(world: World) -> bool:
    """A ListContainers reply of just under 16 MiB."""
    count = LARGE // len(listed(100)) * 100
    request = pb.ListContainersRequest(filter=pb.ContainerFilter(pod_sandbox_id=str(count)))
    expected = listed(count)
    with RawClient(world.proxy.socket) as client:
        got = client.call(SERVICE + "ListContainers", request.SerializeToString(), timeout=60)
    return got == expected and len(got) > 15 << 20


def _real(bench: Bench) -> None:
    """ListContainers of a real containerd, for comparison; no figure where there is none."""
    if why_not := machine.why_no_runtime_tests():
        bench.log(f"no containerd: {why_not}")
        return
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(Containerd())
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="koordtest-")))
        socket = Path(runtime.endpoint.removeprefix("unix://"))
        proxy = stack.enter_context(Proxy(scratch / "p", socket, activated=True))
        path = SERVICE + "ListContainers"
        calls = max(BLOCK, bench.options.calls // 5)
        _added(bench, {"direct": socket, "proxied": proxy.socket}, "_containerd", path, b"", calls)


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(common.main("cri_proxy", arguments(), measure))
