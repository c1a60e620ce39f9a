"""H14: another agent that comes while we run."""

from __future__ import annotations

from koordlet import ipc
from koordlet.agentwatch import AgentWatch
from koordlet.protocol.problem import Problem

AGENT = Problem("other-agent", "pod kube-system/koordlet-x", "runs")


def test_H14_the_core_hears_of_another_agent_when_it_comes_and_when_it_goes() -> None:
    found: list[Problem | None] = [None]
    posted: list[object] = []
    watch = AgentWatch(lambda: found[0], posted.append, lambda: None)
    assert watch.message() == ipc.OtherAgentUpdate(None)
    assert watch.check() is None
    assert posted == []
    found[0] = AGENT
    assert watch.check() == AGENT
    assert watch.check() == AGENT
    assert watch.message() == ipc.OtherAgentUpdate(AGENT)
    found[0] = None
    watch.check()
    assert posted == [ipc.OtherAgentUpdate(AGENT), ipc.OtherAgentUpdate(None)]
