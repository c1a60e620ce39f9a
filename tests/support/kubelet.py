"""A real kubelet, standalone, over a private containerd: static pods, no API server."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.containerd import Containerd
from tests.support.koordletd import free_port
from tests.support.oci import IMAGE
from tests.support.waiting import until

READY_S = 60.0
STOP_S = 20.0
_CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: {port}
readOnlyPort: {read_only_port}
healthzPort: 0
authentication:
  anonymous: {{enabled: true}}
  webhook: {{enabled: false}}
authorization: {{mode: AlwaysAllow}}
cgroupDriver: cgroupfs
cgroupRoot: {cgroup_root}
containerRuntimeEndpoint: {endpoint}
staticPodPath: {static}
failCgroupV1: false
failSwapOn: false
evictionHard: {{}}
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
enableControllerAttachDetach: false
"""


class Kubelet:
    """``with Kubelet(runtime, directory) as kubelet: kubelet.add_pod(...)``.

    ``endpoint`` is what it is pointed at; the runtime by default.
    """

    def __init__(self, runtime: Containerd, directory: Path, endpoint: str = "") -> None:
        self._runtime = runtime
        self._endpoint = endpoint or runtime.endpoint
        self._directory = directory
        self._static = directory / "static"
        self._port, self._read_only_port = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.log_path = directory / "kubelet.log"

    @property
    def url(self) -> str:
        """Where its pod list is read."""
        return f"http://127.0.0.1:{self._read_only_port}"

    def __enter__(self) -> Kubelet:
        self._static.mkdir(parents=True)
        self._make_named_cgroup()
        (self._directory / "config.yaml").write_text(
            _CONFIG.format(
                port=self._port,
                read_only_port=self._read_only_port,
                cgroup_root=self._runtime.cgroups.root,
                endpoint=self._endpoint,
                static=self._static,
            )
        )
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        # Newer kubelets bind their directory onto itself, and leave it so.
        root = str(self._directory / "root")
        if f" {root} " in Path("/proc/self/mountinfo").read_text():
            subprocess.run(["umount", "--lazy", root], check=True)

    def _make_named_cgroup(self) -> None:
        """The kubelet wants its root in the systemd hierarchy, too; it goes with the others."""
        named = Path("/sys/fs/cgroup/systemd")
        if named.is_dir():
            (named / self._runtime.cgroups.root[1:]).mkdir(exist_ok=True)

    def start(self) -> None:
        """Start it and wait for its pod list."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(os.environ["KUBELET"], "--config", str(self._directory / "config.yaml")),
                    *("--root-dir", str(self._directory / "root")),
                    *("--hostname-override", "testnode"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(self._answers, READY_S, f"the kubelet's pod list:\n{self.log_tail()}")

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"kubelet ended: {self._process.returncode}\n{self.log_tail()}")
        try:
            self.pods()
        except (OSError, urllib.error.URLError):
            return False
        return True

    def stop(self) -> None:
        """End it; its pods live on."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(STOP_S)

    def lives_for(self, seconds: float) -> bool:
        """Whether it still runs after this time."""
        assert self._process is not None
        time.sleep(seconds)
        return self._process.poll() is None

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def pods(self) -> list[dict[str, Any]]:
        """Its own pod list."""
        with urllib.request.urlopen(f"{self.url}/pods", timeout=5) as answer:
            items: list[dict[str, Any]] = json.load(answer)["items"] or []
        return items

    def is_running(self, name: str) -> bool:
        """Whether every container of a static pod runs."""
        return any(
            pod["metadata"]["name"].startswith(name)
            and pod.get("status", {}).get("phase") == "Running"
            for pod in self.pods()
        )

    def add_pod(
        self,
        name: str,
        qos: str,
        command: tuple[str, ...],
        cpu_request: str = "",
        limits: Mapping[str, str] | None = None,
    ) -> None:
        """A marked static pod of one container; with neither request nor limits it is BestEffort,
        with limits for CPU and memory and no request it is Guaranteed.
        """
        resources: dict[str, Mapping[str, str]] = {}
        if cpu_request:
            resources["requests"] = {"cpu": cpu_request}
        if limits:
            resources["limits"] = limits
        container = {
            "name": "main",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": list(command),
            "resources": resources,
        }
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"koordinator.sh/qosClass": qos}},
            "spec": {
                "hostNetwork": True,
                "terminationGracePeriodSeconds": 1,
                "containers": [container],
            },
        }
        (self._static / f"{name}.yaml").write_text(json.dumps(manifest))
