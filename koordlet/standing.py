"""Standing orders of the operator: modes of strategies and releases, as values.

The front persists them, the core obeys them; both come back after a restart of either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from koordlet.model.actions import Mode
from koordlet.model.paths import CgroupPath

ALL = "all"
SCOPE_KINDS = ("owner", "pod", "file")


class ScopeError(ValueError):
    """A release scope that names nothing we know."""


@dataclass(frozen=True, slots=True)
class ModeOrder:
    """``strategy`` "" means every strategy; ``until_wall_s`` None means until told otherwise."""

    strategy: str
    mode: Mode
    until_wall_s: float | None


@dataclass(frozen=True, slots=True)
class Standing:
    """All orders in force, the newest of each strategy."""

    modes: tuple[ModeOrder, ...] = ()
    released: tuple[str, ...] = ()

    def order_for(self, strategy: str, wall_s: float) -> ModeOrder | None:
        """The order that holds for ``strategy`` now: its own before one for all."""
        live = [o for o in self.modes if o.until_wall_s is None or o.until_wall_s > wall_s]
        own = [order for order in live if order.strategy == strategy]
        everyone = [order for order in live if order.strategy == ""]
        return next(iter((*own, *everyone)), None)

    def mode_of(self, strategy: str, wall_s: float) -> Mode:
        """OFF, OBSERVE or ENFORCE; a released owner only observes."""
        order = self.order_for(strategy, wall_s)
        mode = order.mode if order else Mode.ENFORCE
        released = ALL in self.released or f"owner:{strategy}" in self.released
        return Mode.OBSERVE if released and mode is Mode.ENFORCE else mode

    def with_mode(self, order: ModeOrder) -> Standing:
        """``order`` in force; an order for all replaces those of single strategies."""
        kept = (
            ()
            if order.strategy == ""
            else tuple(other for other in self.modes if other.strategy != order.strategy)
        )
        return replace(self, modes=(order, *kept))

    def with_release(self, scope: str) -> Standing:
        """``scope`` released; releasing everything swallows the smaller releases."""
        checked = check_scope(scope)
        if checked == ALL:
            return replace(self, released=(ALL,))
        return replace(self, released=tuple(dict.fromkeys((*self.released, checked))))

    def without_release(self, scope: str) -> Standing:
        """``scope`` taken back; "" or "all" takes back every release."""
        if scope in ("", ALL):
            return replace(self, released=())
        checked = check_scope(scope)
        if checked not in self.released:
            raise ScopeError(f"{checked!r} is not released; released: {list(self.released)}")
        return replace(self, released=tuple(s for s in self.released if s != checked))


def check_scope(scope: str) -> str:
    """A valid scope, or ScopeError naming the forms."""
    kind, colon, name = scope.partition(":")
    if scope == ALL or (colon and kind in SCOPE_KINDS and name):
        return scope
    raise ScopeError(f"scope {scope!r}: use all, owner:NAME, pod:UID or file:PATH")


@dataclass(frozen=True, slots=True)
class Withheld:
    """Targets that releases of pods and files take out of every plan."""

    below: tuple[CgroupPath, ...]
    files: frozenset[str]

    def covers(self, target: CgroupPath, file_path: str) -> bool:
        """True when a value at ``target``, kept in ``file_path``, was released."""
        return file_path in self.files or any(target.is_at_or_below(cg) for cg in self.below)
