"""One suite, several hosts: the fake in every layout, and this machine's kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cgroot import cgroup_root, version
from tests.support.fakehost import FakeHost, fake_host
from tests.support.kernelhost import KernelHost

Host = FakeHost | KernelHost

KERNEL = pytest.param("kernel", marks=pytest.mark.kernel)


def build(layout: str, *, wanted: int | None = None) -> Iterator[Host]:
    """A host that holds at least two CPUs and nothing in its managed root.

    ``wanted`` is the version of cgroups that the test is about.
    """
    if layout != "kernel":
        yield fake_host(layout, cpus="0-1", root="/koordtest-1")
        return
    if wanted not in (None, version()):
        pytest.skip(f"about cgroup v{wanted}; this machine's controllers are on v{version()}")
    with cgroup_root() as ground:
        kernel = KernelHost(ground)
        yield kernel
        kernel.close()


@pytest.fixture(params=["v1", "v1-together", "hybrid", "v2", KERNEL])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    """Every host."""
    yield from build(request.param)


@pytest.fixture(params=["v1", "v1-together", "hybrid", KERNEL])
def v1_host(request: pytest.FixtureRequest) -> Iterator[Host]:
    """Hosts whose controllers are v1."""
    yield from build(request.param, wanted=1)


@pytest.fixture(params=["v2", KERNEL])
def v2_host(request: pytest.FixtureRequest) -> Iterator[Host]:
    """Hosts whose controllers are v2."""
    yield from build(request.param, wanted=2)
