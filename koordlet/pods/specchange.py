"""One value in the runtime's stored spec, changed through CRI."""

from __future__ import annotations

from koordlet.model.knobs import Knob, Value
from koordlet.pods.cri import CriClient
from koordlet.pods.source import SourceError


def change_spec(client: CriClient | None, container_id: str, knob: Knob, value: Value) -> str:
    """Ask the runtime for ``value``; "" on success, else what stood in the way.

    Only the quota is changed this way: None is unlimited, which CRI spells -1.
    """
    if client is None:
        return "no container runtime is configured"
    if knob is not Knob.CPU_QUOTA or isinstance(value, str | frozenset):
        return f"{knob.value} is not changed through the runtime"
    try:
        client.update_resources(container_id, cpu_quota_us=-1 if value is None else value)
    except SourceError as error:
        return str(error.problem)
    return ""
