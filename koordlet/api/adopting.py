"""Lists of what another agent left, kept so that exactly what was shown is what is taken over."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from koordlet import ipc
from koordlet.adoption.strays import Stray
from koordlet.adoption.survey import Leftover
from koordlet.api.views.adopt import AdoptData, adopt_data
from koordlet.api.views.scopes import resolve_scope
from koordlet.leftovers import Found
from koordlet.model.adoption import Adoption
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem, RefusedError, Severity
from koordlet.report import NodeView
from koordlet.standing import ALL

LISTS_KEPT = 4
_TAKEN = "what no strategy asks for gets its original back, a bounded number of files a tick"


@dataclass(frozen=True, slots=True)
class Listing:
    """What was found for one scope; ``id`` is the same for the same list."""

    id: str
    scope: str
    leftovers: tuple[Leftover, ...]
    strays: tuple[Stray, ...]
    compared: int
    problems: tuple[Problem, ...]

    @property
    def adoptions(self) -> tuple[Adoption, ...]:
        """Those whose original is known."""
        found = (leftover.adoption() for leftover in self.leftovers)
        return tuple(each for each in found if each is not None)


class Adoptions:
    """Makes lists and remembers the newest; for any thread.

    ``look`` surveys the node, ``other_agent`` finds another agent at work now.
    """

    def __init__(
        self, look: Callable[[NodeView], Found], other_agent: Callable[[], Problem | None]
    ) -> None:
        self._look = look
        self.other_agent = other_agent
        self._lock = threading.Lock()
        self._lists: OrderedDict[str, Listing] = OrderedDict()

    def take(self, view: NodeView, scope: str) -> Listing:
        """Look now; ``scope`` is ``all``, ``pod:UID`` or ``file:PATH``."""
        with self._lock:  # one at a time: a look reads every file of the node
            made = listing(view, scope, self._look(view))
            self._lists[made.id] = made
            while len(self._lists) > LISTS_KEPT:
                self._lists.popitem(last=False)
        return made

    def known(self, list_id: str) -> Listing | None:
        """A list that was made before."""
        with self._lock:
            return self._lists.get(list_id)


def listing(view: NodeView, scope: str, found: Found) -> Listing:
    """What of ``found`` lies in ``scope``."""
    within = tuple(each for each in found.leftovers if _covers(view, scope, each))
    strays = found.strays if scope == ALL else ()
    texts = (f"{e.file} {e.found!r} {e.original!r} {e.held}" for e in within)
    digest = hashlib.sha256("\n".join((scope, *texts)).encode(errors="replace")).hexdigest()[:16]
    return Listing(digest, scope, within, strays, found.compared, found.problems)


def _covers(view: NodeView, scope: str, leftover: Leftover) -> bool:
    kind, _, name = scope.partition(":")
    if kind == "file":
        return leftover.file == name
    if kind == "pod":
        cgroup = _pod_cgroup(view, name)
        return cgroup is not None and leftover.place.path.is_at_or_below(cgroup)
    return True


def _pod_cgroup(view: NodeView, uid: str) -> CgroupPath | None:
    if isinstance(view.workloads, Missing):
        return None
    for pod in view.workloads.known_pods():
        if pod.uid == uid and not isinstance(pod.cgroup, Missing):
            return pod.cgroup
    return None


class Sender(Protocol):
    """Carries an order to the core."""

    def send(self, order: ipc.AdoptCommand, uid: int) -> ipc.CommandReply: ...


def listed(view: NodeView, desk: Adoptions, scope: str) -> tuple[AdoptData, tuple[Problem, ...]]:
    """What would be taken over, and what stands in the way of it."""
    found = desk.take(view, _scope(view, scope))
    agent = desk.other_agent()
    problems = found.problems if agent is None else (_warned(agent), *found.problems)
    return _data(found), problems


def ordered(
    view: NodeView, desk: Adoptions, body: Mapping[str, Any], uid: int, commands: Sender
) -> tuple[AdoptData, tuple[Problem, ...]]:
    """Take over what the list ``body["list"]`` showed, or what a look finds now.

    Refused beside another agent at work, unless ``body["force"]``: its next write would make its
    own values the owner's wish again.
    """
    list_id = body.get("list", "")
    found = desk.known(list_id) if list_id else desk.take(view, _scope(view, body.get("scope", "")))
    if found is None:
        raise RefusedError((_no_such_list(list_id),))
    agent = desk.other_agent()
    if agent is not None and not body.get("force", False):
        return _data(found), (agent,)
    reply = commands.send(ipc.AdoptCommand(found.scope, found.adoptions), uid)
    return _data(found, reply), (*reply.problems, *found.problems)


def _data(found: Listing, reply: ipc.CommandReply | None = None) -> AdoptData:
    result = {} if reply is None else reply.result
    adopted = {each.key: each for each in result.get("adopted", ())}
    return adopt_data(
        found.leftovers,
        found.strays,
        scope=found.scope,
        compared=found.compared,
        list_id=found.id,
        adopted=None if reply is None else adopted,
        outcomes={outcome.key: outcome for outcome in result.get("outcomes", ())},
        note="" if reply is None else _TAKEN,
    )


def _scope(view: NodeView, text: str) -> str:
    scope = resolve_scope(view, text)
    if scope.startswith("owner:"):
        what = "leftovers are of no strategy of ours"
        limit = "all, pod:NAMESPACE/NAME, pod:UID or file:PATH"
        raise RefusedError((Problem("scope-unknown", text, what, limit),))
    return scope


def _warned(agent: Problem) -> Problem:
    return replace(agent, severity=Severity.WARNING)


def _no_such_list(list_id: str) -> Problem:
    return Problem(
        "adopt-list-unknown",
        list_id[:40],
        "this list is not known any more",
        limit=f"the newest {LISTS_KEPT} lists since the daemon started",
        remedy="look again: koordletctl adopt --dry-run",
    )
