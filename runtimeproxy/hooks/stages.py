"""The stages of Koordinator's runtime hook protocol."""

from __future__ import annotations

from enum import Enum


class Stage(Enum):
    """Names as in a hook server's file; the rpc has ``Hook`` behind it."""

    PRE_RUN_POD_SANDBOX = "PreRunPodSandbox"
    POST_STOP_POD_SANDBOX = "PostStopPodSandbox"
    PRE_CREATE_CONTAINER = "PreCreateContainer"
    PRE_START_CONTAINER = "PreStartContainer"
    POST_START_CONTAINER = "PostStartContainer"
    POST_STOP_CONTAINER = "PostStopContainer"
    PRE_UPDATE_CONTAINER_RESOURCES = "PreUpdateContainerResources"

    @property
    def is_before(self) -> bool:
        """Whether the runtime has not seen the call yet, so that it can still be kept from it."""
        return self.value.startswith("Pre")

    @property
    def path(self) -> str:
        return f"/runtime.v1alpha1.RuntimeHookService/{self.value}Hook"


TOLERATED = frozenset({"PreRemoveRunPodSandbox"})
"""Named by some hook servers; no call of CRI belongs to it."""


class Policy(Enum):
    """What becomes of a call whose hook server fails."""

    FAIL = "Fail"
    IGNORE = "Ignore"
