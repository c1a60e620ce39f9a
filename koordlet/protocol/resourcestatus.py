"""The scheduler's resource-status annotation: CPUs that a pod was given."""

from __future__ import annotations

import json
from collections.abc import Mapping

from koordlet.protocol.cpuset import CpuSetError, parse_cpuset
from koordlet.protocol.names import ANNOTATION_RESOURCE_STATUS


def resource_status_cpus(annotations: Mapping[str, str]) -> frozenset[int]:
    """``cpuset`` of resource-status; nothing where it is absent or cannot be read (hazard H26)."""
    try:
        document = json.loads(annotations.get(ANNOTATION_RESOURCE_STATUS) or "{}")
        text = document.get("cpuset", "") if isinstance(document, dict) else ""
        return parse_cpuset(text) if isinstance(text, str) else frozenset()
    except (json.JSONDecodeError, RecursionError, CpuSetError):
        return frozenset()
