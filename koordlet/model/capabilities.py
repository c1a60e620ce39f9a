"""What this host can do, and why not (hazard H25)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from koordlet.model.knobs import Knob

NEW_CONTAINERS = "cfs-quota-new-containers"
"""The ability that cgroup v1 lacks: a child's quota may not exceed the lowered tier's (H4)."""


class Proof(Enum):
    """How a capability was found out."""

    UNPROVEN = "unproven"  # the file is there; nobody has written it yet
    PROVEN = "proven"  # written in a scratch cgroup of our own
    ABSENT = "absent"
    REFUSED = "refused"  # the kernel or a permission said no


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing a host may be able to do; ``why`` and ``remedy`` speak where it cannot."""

    name: str
    proof: Proof
    why: str = ""
    remedy: str = ""
    detail: str = ""

    @property
    def usable(self) -> bool:
        return self.proof in (Proof.UNPROVEN, Proof.PROVEN)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Probed abilities: one per knob, and the others by name (``psi``, ``psi-trigger``,
    ``inotify``, ``tmpfs``, ..., installed strategies). ``cgroup_versions`` is 1 or 2 by controller.
    """

    cgroup_versions: Mapping[str, int] = field(default_factory=dict)
    knobs: Mapping[Knob, Capability] = field(default_factory=dict)
    others: Mapping[str, Capability] = field(default_factory=dict)

    def knob(self, knob: Knob) -> Capability:
        """The capability of ``knob``; absent where it was never probed."""
        return self.knobs.get(knob, Capability(knob.value, Proof.ABSENT, why="not probed"))

    def version_of(self, controller: str) -> int | None:
        """1 or 2, or None where the controller is not mounted."""
        return self.cgroup_versions.get(controller)
