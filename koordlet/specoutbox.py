"""The core's way to the container runtime: requests that the front carries out (hazard H8)."""

from __future__ import annotations

from collections.abc import Callable

from koordlet import ipc
from koordlet.model.knobs import Knob, Value
from koordlet.model.pods import ContainerRecord, Workloads
from koordlet.model.readings import Missing


class SpecOutbox:
    """Collects requests within a tick; the core sends them when it ends."""

    def __init__(self, workloads: Callable[[], Workloads]) -> None:
        self._workloads = workloads
        self._requests: list[ipc.SpecRequest] = []

    def original(self, container_id: str, knob: Knob) -> Value | Missing:
        """What the runtime's spec holds by the newest pod list."""
        if knob is not Knob.CPU_QUOTA:
            return Missing(f"the runtime's value of {knob.value} is not read")
        for record in self._records():
            if record.id == container_id:
                if record.spec_period_us is None:
                    return Missing("the runtime has not told this container's resources")
                return record.spec_quota_us
        return Missing(f"no container {container_id[:12]} in the newest pod list")

    def request(self, container_id: str, knob: Knob, value: Value) -> None:
        """Queue one change of the spec."""
        self._requests.append(ipc.SpecRequest(container_id, knob, value))

    def take(self) -> list[ipc.SpecRequest]:
        """The requests queued since the last call."""
        taken, self._requests = self._requests, []
        return taken

    def _records(self) -> tuple[ContainerRecord, ...]:
        pods = self._workloads().known_pods()
        return tuple(container.record for pod in pods for container in pod.containers)
