"""Docker's API through the proxy, in front of a real dockerd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import debian
from tests.support.cgroot import CgroupRoot
from tests.support.dockerd import IMAGE, Dockerd
from tests.support.hookserver import HookServer, echo, write_server
from tests.support.proxyd import Proxy
from tests.support.rawruntime import RawRuntime

pytestmark = pytest.mark.e2e


@pytest.fixture
def dockerd() -> Iterator[Dockerd]:
    try:
        debian.ensure("docker.io")
    except debian.PackagesError as error:
        pytest.skip(f"no dockerd: {error}")
    with Dockerd() as serving:
        yield serving


@pytest.fixture
def cgroup_root(dockerd: Dockerd) -> Iterator[str]:
    with CgroupRoot() as cgroups:
        yield cgroups.root
    dockerd.remove_cgroups(cgroups.root)


def test_CRI_10_CRI_11_the_client_cannot_tell_and_kubelets_containers_are_hooked(
    dockerd: Dockerd, short_path: Path, cgroup_root: str
) -> None:
    def answer(request: Any) -> Any:
        reply = echo(request)
        reply.container_resources.cpu_shares = 77
        reply.container_envs["GIVEN"] = "yes"
        return reply

    through = short_path / "x.sock"
    with (
        RawRuntime(short_path / "r.sock") as runtime,
        Proxy(
            short_path / "p",
            runtime.socket,
            docker_socket=through,
            docker_endpoint=dockerd.socket,
        ) as proxy,
        HookServer(short_path / "h.sock", PreCreateContainer=answer) as hooks,
    ):
        write_server(proxy.hooks_dir, "h", hooks.socket, "Fail")

        def docker(*words: str, **options: Any) -> str:
            return dockerd.docker(*words, socket=through, **options)

        def run(name: str, *labels: str) -> str:
            parent = f"--cgroup-parent={cgroup_root}/kubepods/burstable/poduid-1"
            given = [f"--label={label}" for label in labels]
            return docker(
                *("run", "-d", "--network=none", f"--name={name}", parent, *given),
                *(IMAGE, "sleep", "600"),
            )

        assert docker("run", "--rm", "--network=none", IMAGE, "echo", "plain") == "plain"
        sandbox = run("k8s_POD_web_default_uid-1_0", "io.kubernetes.docker.type=podsandbox")
        container = run(
            "k8s_main_web_default_uid-1_0",
            "io.kubernetes.docker.type=container",
            f"io.kubernetes.sandbox.id={sandbox}",
        )
        shown = docker("inspect", "--format={{.HostConfig.CpuShares}}", container)
        assert shown == "77"
        assert docker("exec", container, "sh", "-c", "echo $GIVEN; exit 4", code=4) == "yes"
        assert docker("exec", "-i", container, "cat", given=b"piped") == "piped"
        (short_path / "file").write_text("copied")
        docker("cp", str(short_path / "file"), f"{container}:/tmp/file")
        assert docker("exec", container, "cat", "/tmp/file") == "copied"
        assert "copied" in docker("cp", f"{container}:/tmp/file", "-")
        docker("update", "--cpu-quota=50000", container)
        docker("rm", "-f", container, sandbox)
        assert hooks.stages_asked()[:3] == [
            "PreRunPodSandbox",
            "PreCreateContainer",
            "PreStartContainer",
        ]
        hooks.wait_for("PreUpdateContainerResources")
        assert "fault" not in proxy.log()
