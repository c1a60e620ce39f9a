"""A source of workloads that could not answer."""

from __future__ import annotations

from koordlet.protocol.problem import Problem


class SourceError(Exception):
    """A source gave no usable answer; ``problem`` says what, where and the remedy."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem
