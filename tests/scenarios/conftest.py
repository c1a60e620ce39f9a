"""Pipelines over fake hosts, closed when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipeline import Pipeline

MakePipeline = Callable[..., Pipeline]


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[MakePipeline]:
    """``pipeline("v2", slo=...)`` as ``Pipeline`` takes it; one a test."""
    with ExitStack() as stack:

        def make(layout: str = "v1", **rest: Any) -> Pipeline:
            return stack.enter_context(Pipeline(tmp_path, layout, **rest))

        yield make
