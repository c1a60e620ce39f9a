"""A private containerd whose runc asks systemd for cgroups, as the kubelet's default driver does.

Its pods lie in the slices that a kubelet would use, so it is for machines that are the test's own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from types import TracebackType
from typing import ClassVar

from tests.support.cgroot import CgroupRoot
from tests.support.containerd import Containerd


class Slices(CgroupRoot):
    """The whole machine's cgroups; what is made are slices, and systemd makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.root = ""

    def __enter__(self) -> Slices:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing was made that systemd does not look after."""

    def mk(
        self,
        path: str,
        *,
        cpus: str | None = None,
        quota_us: int | None = None,
        shares: int | None = None,
    ) -> str:
        """Start the slice ``path``; its settings are systemd's matter."""
        assert (cpus, quota_us, shares) == (None, None, None)
        subprocess.run(["systemctl", "start", path.rpartition("/")[2]], check=True)
        return path


class SystemdContainerd(Containerd):
    """As Containerd, with the systemd driver."""

    tiers: ClassVar[Mapping[str, str]] = {
        "LS": "kubepods.slice/kubepods-burstable.slice",
        "BE": "kubepods.slice/kubepods-besteffort.slice",
    }
    driver = "systemd"

    def __init__(self) -> None:
        super().__init__(Slices())

    def parent(self, tier: str) -> str:
        stem = tier.rpartition("/")[2].removesuffix(".slice")
        return f"{stem}-pod{{slice_uid}}.slice"

    def cgroup_of(self, tier: str, uid: str, container_id: str = "") -> str:
        pod = f"{tier}/{self.parent(tier).format(slice_uid=uid.replace('-', '_'))}"
        return pod + (f"/cri-containerd-{container_id}.scope" if container_id else "")

    def _sweep_cgroups(self) -> None:
        """systemd does."""
