"""Values that live in the container runtime's spec: asked for now, answered later (hazard H8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from koordlet.model.actions import Target
from koordlet.model.knobs import Knob, Value
from koordlet.model.readings import Missing
from koordlet.resexecutor.jobs import Job

ANSWER_WITHIN_S = 10.0


class SpecChannel(Protocol):
    """The way to the runtime's UpdateContainerResources."""

    def original(self, container_id: str, knob: Knob) -> Value | Missing:
        """What the runtime's spec holds now; Missing where that is not known."""
        ...

    def request(self, container_id: str, knob: Knob, value: Value) -> None:
        """Send, not waiting; the answer comes by ``Executor.spec_answered``."""
        ...


@dataclass(slots=True)
class Asked:
    """One request that the runtime has not answered yet, after ``earlier`` ones for its file."""

    job: Job
    at_s: float
    earlier: int


class SpecDesk:
    """Requests under way. One that gets no answer counts as lost after ``ANSWER_WITHIN_S``."""

    def __init__(self, channel: SpecChannel | None) -> None:
        self.channel = channel
        self._asked: dict[Target, Asked] = {}

    def ask(self, job: Job, value: Value, now_s: float) -> None:
        """Send ``job``'s value."""
        if self.channel is None:
            raise RuntimeError("no channel to the container runtime")
        before = self._asked.get(job.key)
        earlier = 0 if before is None else before.earlier + 1
        self._asked[job.key] = Asked(job, now_s, earlier)
        self.channel.request(job.container_id, job.key[1], value)

    def waiting(self, key: Target, now_s: float) -> Job | None:
        """The request for ``key`` that is still to be answered."""
        asked = self._asked.get(key)
        if asked is None:
            return None
        if now_s - asked.at_s >= ANSWER_WITHIN_S:
            del self._asked[key]
            return None
        return asked.job

    def answered(self, container_id: str, knob: Knob) -> Job | None:
        """Take the request that an answer belongs to; answers come in the order of requests.

        None where nobody waits for it: it was forgotten, or a later request overtook it.
        """
        for key, asked in self._asked.items():
            if asked.job.container_id != container_id or key[1] is not knob:
                continue
            if asked.earlier:
                asked.earlier -= 1
                return None
            return self._asked.pop(key).job
        return None

    def drop(self, key: Target) -> None:
        """The cgroup is gone; an answer is no longer of interest."""
        self._asked.pop(key, None)

    def keys(self) -> frozenset[Target]:
        """All targets with a request under way."""
        return frozenset(self._asked)
