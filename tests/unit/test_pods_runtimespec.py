"""H14: the resources in a runtime's spec, as verbose statuses tell them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordlet.model.adoption import RuntimeSpec
from koordlet.model.readings import Missing
from koordlet.pods.runtimespec import parse_runtime_spec


def info(resources: Any) -> dict[str, str]:
    return {"info": json.dumps({"pid": 1, "runtimeSpec": {"linux": {"resources": resources}}})}


def test_H14_everything_that_a_spec_says() -> None:
    told = info(
        {
            "cpu": {
                "shares": 512,
                "quota": 50_000,
                "period": 100_000,
                "cpus": "0-3",
                "mems": "0",
                "burst": 7,
                "idle": 1,
            },
            "memory": {"limit": 1 << 30, "swap": 1 << 30},
            "blockIO": {"weight": 10},
            "unified": {"memory.oom.group": "1"},
        }
    )
    assert parse_runtime_spec(told) == RuntimeSpec(
        shares=512,
        quota_us=50_000,
        cpus="0-3",
        mems="0",
        burst_us=7,
        idle=1,
        memory_bytes=1 << 30,
        limits_io=True,
        unified={"memory.oom.group": "1"},
    )


@pytest.mark.parametrize(
    "resources",
    [None, {}, [], {"cpu": {"quota": -1, "shares": 0}}, {"cpu": {"quota": True, "cpus": 3}}],
)
def test_what_a_spec_leaves_out_is_not_limited(resources: Any) -> None:
    assert parse_runtime_spec(info(resources)) == RuntimeSpec()


@pytest.mark.parametrize(
    "told", [{}, {"info": "["}, {"info": "[]"}, {"info": "{}"}, {"info": "[" * 99_999}]
)
def test_a_runtime_that_tells_no_spec_is_not_taken_for_an_empty_one(told: dict[str, str]) -> None:
    assert isinstance(parse_runtime_spec(told), Missing)
