"""The resources in a container's OCI spec, from the verbose status that runtimes tell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from koordlet.model.adoption import RuntimeSpec
from koordlet.model.readings import Missing


def parse_runtime_spec(info: Mapping[str, str]) -> RuntimeSpec | Missing:
    """``info`` of a verbose ContainerStatus; containerd and CRI-O put the spec they keep there."""
    try:
        document = json.loads(info.get("info", "{}"))
    except (ValueError, RecursionError) as error:
        return Missing(f"the runtime's verbose status is no JSON: {error}")
    spec = _dict(document).get("runtimeSpec")
    if not isinstance(spec, dict):
        return Missing("the runtime's verbose status names no runtimeSpec")
    resources = _dict(_dict(spec.get("linux")).get("resources"))
    cpu, memory = _dict(resources.get("cpu")), _dict(resources.get("memory"))
    unified = _dict(resources.get("unified"))
    return RuntimeSpec(
        shares=_positive(cpu.get("shares")),
        quota_us=_positive(cpu.get("quota")),
        cpus=_text(cpu.get("cpus")),
        mems=_text(cpu.get("mems")),
        burst_us=_positive(cpu.get("burst")),
        idle=_positive(cpu.get("idle")),
        memory_bytes=_positive(memory.get("limit")),
        limits_io=bool(resources.get("blockIO")),
        unified={name: _text(text) for name, text in unified.items()},
    )


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _positive(value: Any) -> int | None:
    """0 and what is negative mean "not limited", as absence does."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and value > 0 else None
