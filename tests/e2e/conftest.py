"""One private containerd for all end-to-end tests; each test starts with none of its pods."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.containerd import Containerd


@pytest.fixture(scope="session")
def shared_containerd() -> Iterator[Containerd]:
    with Containerd() as runtime:
        yield runtime


@pytest.fixture
def containerd(shared_containerd: Containerd) -> Iterator[Containerd]:
    """A real runtime with no pods; what a test leaves in it is removed."""
    yield shared_containerd
    shared_containerd.client.remove_all()
