"""A raw runtime, and a proxy in front of it under socket activation, for all tests of a module.

Each test finds them as new: no hook servers, nothing seen, the module's own answers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.proxyd import Proxy
from tests.support.rawruntime import RawClient, RawRuntime


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory for sockets, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="koordtest-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def module_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="koordtest-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def module_runtime(module_path: Path) -> Iterator[RawRuntime]:
    with RawRuntime(module_path / "runtime.sock") as serving:
        yield serving


@pytest.fixture(scope="module")
def module_proxy(module_path: Path, module_runtime: RawRuntime) -> Iterator[Proxy]:
    with Proxy(module_path / "p", module_runtime.socket, activated=True) as running:
        yield running


@pytest.fixture
def runtime(module_runtime: RawRuntime) -> Iterator[RawRuntime]:
    unary, streams = dict(module_runtime.unary), dict(module_runtime.streams)
    yield module_runtime
    module_runtime.unary, module_runtime.streams = unary, streams
    module_runtime.seen.clear()


@pytest.fixture
def proxy(module_proxy: Proxy, runtime: RawRuntime) -> Iterator[Proxy]:
    yield module_proxy
    for path in module_proxy.hooks_dir.iterdir():
        path.unlink()


@pytest.fixture
def client(proxy: Proxy) -> Iterator[RawClient]:
    with RawClient(proxy.socket) as connected:
        yield connected
