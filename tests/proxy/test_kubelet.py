"""A real kubelet in front of the proxy, whose binary KUBELET names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import machine
from tests.support.containerd import Containerd
from tests.support.hookserver import HookServer, echo, write_server
from tests.support.kubelet import Kubelet
from tests.support.proxyd import Proxy
from tests.support.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(machine.why_no_kubelet_tests()), reason=machine.why_no_kubelet_tests()),
    pytest.mark.timeout(300),
]

POD_S = 60.0
SLEEP = ("sleep", "3600")


@pytest.fixture(scope="module")
def containerd() -> Iterator[Containerd]:
    with Containerd() as runtime:
        yield runtime


@pytest.fixture
def proxy(short_path: Path, containerd: Containerd) -> Iterator[Proxy]:
    socket = Path(containerd.endpoint.removeprefix("unix://"))
    with Proxy(short_path / "p", socket, activated=True) as running:
        yield running
    containerd.client.remove_all()


@pytest.fixture
def kubelet(tmp_path: Path, containerd: Containerd, proxy: Proxy) -> Iterator[Kubelet]:
    with Kubelet(containerd, tmp_path / "kubelet", proxy.endpoint) as running:
        yield running


def test_pods_run_through_restarts_of_all_three(
    containerd: Containerd, proxy: Proxy, kubelet: Kubelet, short_path: Path
) -> None:
    with HookServer(short_path / "h.sock") as hooks:
        write_server(proxy.hooks_dir, "h", hooks.socket, "Fail")
        kubelet.add_pod("first", "LS", SLEEP, cpu_request="100m")
        until(lambda: kubelet.is_running("first"), POD_S, "the first pod")
        assert {"PreRunPodSandbox", "PreCreateContainer"} <= set(hooks.stages_asked())
        proxy.restart()
        kubelet.add_pod("second", "BE", SLEEP)
        until(lambda: kubelet.is_running("second"), POD_S, "a pod after the proxy's restart")
        containerd.restart()
        kubelet.add_pod("third", "BE", SLEEP)
        until(lambda: kubelet.is_running("third"), POD_S, "a pod after the runtime's restart")
        kubelet.stop()
        kubelet.start()
        until(lambda: kubelet.is_running("first"), POD_S, "the first pod after kubelet's restart")
    assert kubelet.lives_for(3.0), kubelet.log_tail()
    assert proxy.get("status")["sandboxes"] == 3


def test_a_hook_sets_values_that_the_kernel_has(
    containerd: Containerd, proxy: Proxy, kubelet: Kubelet, short_path: Path
) -> None:
    def answer(request):  # type: ignore[no-untyped-def]
        reply = echo(request)
        reply.container_resources.cpu_shares = 77
        return reply

    with HookServer(short_path / "h.sock", PreCreateContainer=answer) as hooks:
        write_server(proxy.hooks_dir, "h", hooks.socket, "Fail")
        kubelet.add_pod("weighed", "BE", SLEEP)
        until(lambda: kubelet.is_running("weighed"), POD_S, "the pod")
    root = containerd.cgroups.dir("kubepods/besteffort")
    found = {path.read_text().strip() for path in root.glob("pod*/*/cpu.shares")}
    assert "77" in found
