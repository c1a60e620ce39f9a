"""Calls while everything around them is restarted, killed and hung.

Under socket activation, with a real containerd and a hook server under Ignore: reads at a Poisson
rate, and lives of pods, while the proxy is restarted (SIGTERM) and killed, the hook server is
killed and hung, and containerd is restarted, one after the other. A call that fails is put down
to what was going on when it ended. ``failed_calls_runtime_other`` leaves out UNAVAILABLE while
containerd is away, which is the truth. ``stuck_calls`` are those without an answer a second after
their deadline.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from koordpb import cri_v1_pb2 as pb

from runtimeproxy.store import Store
from tests.benchmarks import common
from tests.benchmarks.common import Bench, CannotMeasureError
from tests.benchmarks.usage import OwnCgroup
from tests.support import machine
from tests.support.containerd import Containerd
from tests.support.criclient import RuntimeClient
from tests.support.hookserver import write_server
from tests.support.proxyd import Proxy
from tests.support.rawruntime import SERVICE, RawClient
from tests.support.waiting import until

STUCK_S = 1.0
READS = ("Version", "ListPodSandbox", "ListContainers", "Status")
HANG_S = 1.5
BACK_WITHIN_S = 2.0


@dataclass
class Failure:
    """One call that failed: when it ended (monotonic), with what."""

    ended_s: float
    method: str
    code: str
    details: str


@dataclass
class Tally:
    """What became of all calls."""

    calls: int = 0
    failures: list[Failure] = field(default_factory=list)
    stuck: int = 0
    lives: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def failed(self, method: str, error: grpc.RpcError) -> None:
        with self.lock:
            self.failures.append(
                Failure(time.monotonic(), method, error.code().name, str(error.details())[:160])
            )


@dataclass
class Event:
    """What was done from ``began_s`` on, until the next event. ``away``: no runtime meanwhile."""

    kind: str
    began_s: float
    away: tuple[float, float] = (0.0, 0.0)


def arguments() -> argparse.ArgumentParser:
    made = common.parser("cri_proxy_chaos", __doc__)
    made.add_argument("--seconds", type=float, default=180.0)
    made.add_argument("--restarts", type=int, default=20, help="of the proxy, by SIGTERM")
    made.add_argument("--kills", type=int, default=5, help="of the proxy, by SIGKILL")
    made.add_argument("--hook-faults", type=int, default=20, help="kills and hangs by turns")
    made.add_argument("--runtime-restarts", type=int, default=5)
    made.add_argument("--rate", type=float, default=200.0, help="reads a second")
    made.add_argument("--deadline", type=float, default=5.0, help="of each read, in seconds")
    made.add_argument("--lives", type=float, default=2.0, help="pods a second")
    return made


def measure(bench: Bench) -> None:
    """Fill in ``bench.figures``."""
    if why_not := machine.why_no_runtime_tests():
        raise CannotMeasureError(why_not)
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(Containerd())
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="koordtest-")))
        own = stack.enter_context(OwnCgroup())
        bench.quiet.own(own.cpuacct, runtime.cgroups.dir("", "cpuacct"))
        socket = Path(runtime.endpoint.removeprefix("unix://"))
        directories = (own.cpuacct,)
        proxy = stack.enter_context(
            Proxy(scratch / "p", socket, activated=True, own_cgroups=directories)
        )
        hook = stack.enter_context(HookProcess(scratch / "hook.sock", own.cpuacct))
        write_server(proxy.hooks_dir, "chaos", hook.socket)
        _run(bench, runtime, proxy, hook)


class HookProcess:
    """A hook server that can be killed and hung."""

    def __init__(self, socket: Path, cpuacct: Path) -> None:
        self.socket = socket
        self._cpuacct = cpuacct
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> HookProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.hookecho", str(self.socket)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        (self._cpuacct / "cgroup.procs").write_text(str(self._process.pid))
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()
        self.socket.unlink(missing_ok=True)

    def hang(self, seconds: float) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)


def _run(bench: Bench, runtime: Containerd, proxy: Proxy, hook: HookProcess) -> None:
    tally, end = Tally(), threading.Event()
    parent = runtime.parent("kubepods/besteffort")
    threads = [
        threading.Thread(target=_reads, args=(bench, proxy, tally, end)),
        *(
            threading.Thread(target=_lives, args=(bench, proxy, parent, tally, end, number))
            for number in range(max(1, round(bench.options.lives)))
        ),
    ]
    for thread in threads:
        thread.start()
    try:
        events, back_s = _events(bench, runtime, proxy, hook)
    finally:
        end.set()
        for thread in threads:
            thread.join()
    _figures(bench, tally, events, back_s)
    bench.figures["store_equals_runtime"] = _equal(proxy, runtime)
    bench.figures["proxy_processes_left"] = len(proxy.background())


# -- load -----------------------------------------------------------------------------------------


def _reads(bench: Bench, proxy: Proxy, tally: Tally, end: threading.Event) -> None:
    """Open loop: a call is made when it is due, whatever became of the others."""
    with RawClient(proxy.socket) as client:
        due_s = time.monotonic()
        while not end.is_set():
            due_s += bench.rng.expovariate(bench.options.rate)
            time.sleep(max(0.0, due_s - time.monotonic()))
            name = bench.rng.choice(READS)
            future = client.future(SERVICE + name, timeout=bench.options.deadline)
            tally.calls += 1
            future.add_done_callback(lambda done, name=name: _done(tally, name, done))
            _watch_stuck(tally, future, bench.options.deadline + STUCK_S)
            last = future
        until(last.done, bench.options.deadline + 2 * STUCK_S, "the last answer")


def _done(tally: Tally, name: str, future: Any) -> None:
    error = future.exception()
    if error is not None:
        tally.failed(name, error)


def _watch_stuck(tally: Tally, future: Any, limit_s: float) -> None:
    def look() -> None:
        if not future.done():
            tally.stuck += 1

    timer = threading.Timer(limit_s, look)
    timer.daemon = True
    future.add_done_callback(lambda _: timer.cancel())
    timer.start()


def _lives(
    bench: Bench, proxy: Proxy, parent: str, tally: Tally, end: threading.Event, number: int
) -> None:
    """One pod after the other, each with one container; steps are tried again as kubelet does."""
    pause_s = max(1.0, round(bench.options.lives)) / bench.options.lives
    count = 0
    with RuntimeClient(proxy.endpoint) as client:
        due_s = time.monotonic()
        while not end.is_set():
            due_s = max(due_s + pause_s, time.monotonic())
            time.sleep(max(0.0, due_s - time.monotonic()))
            count += 1
            _life(client, f"chaos-{number}-{count}", parent, tally)


def _life(client: RuntimeClient, name: str, parent: str, tally: Tally) -> None:
    attempts = Counter[str]()

    def step(method: str, make: Callable[[], Any]) -> Any:
        while True:
            tally.calls += 1
            try:
                return make()
            except grpc.RpcError as error:
                tally.failed(method, error)
                attempts[method] += 1
                if error.code() is not grpc.StatusCode.UNAVAILABLE or attempts[method] > 40:
                    raise
                time.sleep(0.25)

    with contextlib.suppress(grpc.RpcError):
        pod = step(
            "RunPodSandbox",
            lambda: client.run_pod(name, cgroup_parent=parent, attempt=attempts["RunPodSandbox"]),
        )
        container = step(
            "CreateContainer",
            lambda: client.run_container(pod, "c", attempt=attempts["CreateContainer"]),
        )
        step("StopContainer", lambda: client.stop_container(container))
        step("RemoveContainer", lambda: client.remove_container(container))
        step("RemovePodSandbox", lambda: client.remove_pod(pod.id))
        tally.lives += 1


# -- events ---------------------------------------------------------------------------------------


def _events(
    bench: Bench, runtime: Containerd, proxy: Proxy, hook: HookProcess
) -> tuple[list[Event], list[float]]:
    """Everything that is done, in a random order at even distances; how long until it was back."""
    options = bench.options
    kinds = (
        ["restart"] * options.restarts
        + ["kill"] * options.kills
        + [f"hook {('kill', 'hang')[number % 2]}" for number in range(options.hook_faults)]
        + ["runtime"] * options.runtime_restarts
    )
    bench.rng.shuffle(kinds)
    pause_s = options.seconds / (len(kinds) + 1)
    events = [Event("none", time.monotonic())]
    back_s: list[float] = []
    due_s = time.monotonic()
    for number, kind in enumerate(kinds):
        due_s += pause_s
        time.sleep(max(0.0, due_s - time.monotonic()))
        bench.log(f"{number + 1} of {len(kinds)}: {kind}")
        event = Event(kind, time.monotonic())
        events.append(event)
        _do(kind, event, runtime, proxy, hook, back_s)
    time.sleep(pause_s)
    return events, back_s


def _do(
    kind: str,
    event: Event,
    runtime: Containerd,
    proxy: Proxy,
    hook: HookProcess,
    back_s: list[float],
) -> None:
    if kind == "restart":
        proxy.restart()
    elif kind == "kill":
        proxy.restart(signal.SIGKILL)
    elif kind == "hook kill":
        hook.kill()
        time.sleep(HANG_S / 2)
        hook.start()
    elif kind == "hook hang":
        hook.hang(HANG_S)
    else:
        began_s = time.monotonic()
        runtime.restart()
        served_s = time.monotonic()
        with RawClient(proxy.socket) as client:
            until(lambda: _works(client), 20.0, "a call through the proxy")
        back_s.append(time.monotonic() - served_s)
        event.away = (began_s, time.monotonic())


def _works(client: RawClient) -> bool:
    with contextlib.suppress(grpc.RpcError):
        client.call(SERVICE + "Version", timeout=1.0)
        return True
    return False


# -- figures --------------------------------------------------------------------------------------


def _figures(bench: Bench, tally: Tally, events: list[Event], back_s: list[float]) -> None:
    by_kind: dict[str, list[Failure]] = {kind: [] for kind in _KINDS}
    for failure in tally.failures:
        event = max((one for one in events if one.began_s <= failure.ended_s), key=_began)
        if _tells_the_truth(failure, events):
            by_kind["truth"].append(failure)
        else:
            by_kind[event.kind].append(failure)
    figures = {
        "calls": tally.calls,
        "pod_lives": tally.lives,
        "failed_calls_proxy_restart": len(by_kind["restart"]),
        "failed_calls_proxy_kill": len(by_kind["kill"]),
        "failed_calls_hook_faults": len(by_kind["hook kill"]) + len(by_kind["hook hang"]),
        "failed_calls_runtime_other": len(by_kind["runtime"]),
        "failed_calls_quiet": len(by_kind["none"]),
        "unavailable_while_runtime_away": len(by_kind["truth"]),
        "stuck_calls": tally.stuck,
        "back_after_runtime_s_max": round(max(back_s), 2) if back_s else None,
    }
    bench.figures |= figures
    bench.require(
        not back_s or max(back_s) <= BACK_WITHIN_S, "calls came back late after the runtime"
    )
    for kind, failures in by_kind.items():
        if kind != "truth":
            told = Counter(f"{one.method} {one.code} {one.details}" for one in failures)
            bench.runs += [{"during": kind, "count": n, "what": w} for w, n in told.most_common(5)]


_BEGINNING = "server is not initialized yet"
_KINDS = ("none", "restart", "kill", "hook kill", "hook hang", "runtime", "truth")


def _began(event: Event) -> float:
    return event.began_s


def _tells_the_truth(failure: Failure, events: list[Event]) -> bool:
    """UNAVAILABLE while there is no runtime, and what a runtime says that has just begun."""
    away = any(event.away[0] <= failure.ended_s <= event.away[1] for event in events)
    return away and (failure.code == "UNAVAILABLE" or _BEGINNING in failure.details)


def _equal(proxy: Proxy, runtime: Containerd) -> bool:
    """Whether the checkpoint has the pods and containers of the runtime, and their places."""
    direct = runtime.client
    kept = [
        direct.run_pod(f"kept-{n}", cgroup_parent=runtime.parent("kubepods/burstable"))
        for n in range(3)
    ]
    for pod in kept[:2]:
        direct.run_container(pod, "c", quota_us=40_000)

    def same() -> bool:
        store = Store(proxy.directory / "state" / "store.db")
        store.open()
        store.close()
        pods = {one.id for one in direct.call("ListPodSandbox", pb.ListPodSandboxRequest()).items}
        listed = direct.call("ListContainers", pb.ListContainersRequest()).containers
        parents = {pod.id: pod.config.linux.cgroup_parent for pod in kept}
        known = {
            pod: store.sandboxes[pod].config.linux.cgroup_parent
            for pod in parents
            if pod in store.sandboxes
        }
        quotas = [
            one.config.linux.resources.cpu_quota
            for one in store.containers.values()
            if one.sandbox_id in parents
        ]
        return (
            set(store.sandboxes) == pods
            and set(store.containers) == {one.id for one in listed}
            and known == parents
            and quotas == [40_000, 40_000]
        )

    try:
        proxy.restart()  # the next proxy compares at once
        until(same, 10.0, "the same in both")
    except TimeoutError:
        return False
    return True


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(common.main("cri_proxy_chaos", arguments(), measure))
