"""Guests for these tests: each is started once and serves all that ask for it.

Never two at once: starting one ends the other, so tests are put in order by the guest they use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.support.vmguest import Guest, Hardware, Kind

# The first start may have to build the images.
LIMIT_S = 900
_ORDER = ("v2_guest", "systemd_guest", "start_guest")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.get_closest_marker("vm") is not None]
    for item in ours:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S))
    others = [item for item in items if item not in ours]
    items[:] = others + sorted(ours, key=_guest_number)


def _guest_number(item: pytest.Item) -> int:
    names = getattr(item, "fixturenames", ())
    return next((n for n, name in enumerate(_ORDER) if name in names), len(_ORDER))


StartGuest = Callable[..., Guest]


@pytest.fixture(scope="session")
def start_guest() -> Iterator[StartGuest]:
    """``start_guest(Kind.V1, Hardware(...))``: a guest, in the place of the one that ran before."""
    with contextlib.ExitStack() as stack:

        def start(kind: Kind, hardware: Hardware | None = None) -> Guest:
            stack.close()
            return stack.enter_context(Guest(kind, hardware))

        yield start


@pytest.fixture(scope="session")
def v2_guest(start_guest: StartGuest) -> Guest:
    """A small guest on cgroup v2 with nothing but an agent in it."""
    return start_guest(Kind.V2)


@pytest.fixture(scope="session")
def systemd_guest(start_guest: StartGuest) -> Guest:
    """A guest with systemd as its first process, on cgroup v2."""
    return start_guest(Kind.SYSTEMD)
