"""One suite, several hosts: the fake in every layout, and this machine's kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cgroot import cgroup_root
from tests.support.fakehost import FakeHost, fake_host
from tests.support.kernelhost import KernelHost

Host = FakeHost | KernelHost


@pytest.fixture(
    params=[
        "v1",
        "v1-together",
        "hybrid",
        "v2",
        pytest.param("kernel", marks=pytest.mark.kernel),
    ]
)
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    """A host that holds at least two CPUs and nothing in its managed root."""
    if request.param != "kernel":
        yield fake_host(request.param, cpus="0-1", root="/koordtest-1")
        return
    with cgroup_root() as ground:
        kernel = KernelHost(ground)
        yield kernel
        kernel.close()
