"""What a person calls a release's scope, as the form that the core obeys."""

from __future__ import annotations

from koordlet.api.views.explain import find_pods
from koordlet.api.views.settings import strategies
from koordlet.model.actions import Owned
from koordlet.model.pods import Pod
from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem, RefusedError
from koordlet.report import CoreStatus, NodeView
from koordlet.standing import ALL, SCOPE_KINDS


def resolve_scope(view: NodeView, text: str) -> str:
    """``all``, ``owner:NAME``, ``pod:UID`` or ``file:PATH`` for what a person wrote.

    Without a kind, a path is a file, a strategy's name an owner, anything else a pod by
    ``namespace/name``, name, UID or a prefix of one. Raises RefusedError (or the pod look-up's
    NoSuchTargetError) for what names nothing.
    """
    wanted = text.strip()
    if wanted in ("", ALL):
        return ALL
    kind, colon, name = wanted.partition(":")
    if not colon or kind not in SCOPE_KINDS:
        kind, name = _kind_of(view, wanted), wanted
    if kind == "pod":
        return f"pod:{_one_pod(view, name).uid}"
    if kind == "owner":
        _check_owner(view, name)
    elif not name.startswith("/"):
        raise _refused(text, "a file is named by its absolute path")
    return f"{kind}:{name}"


def owned_in_scope(view: NodeView, scope: str) -> tuple[Owned, ...]:
    """The journaled values that a release of ``scope`` would restore."""
    kind, _, name = scope.partition(":")
    if scope == ALL:
        return view.owned
    if kind == "owner":
        return tuple(entry for entry in view.owned if entry.owner == name)
    if kind == "file":
        return tuple(entry for entry in view.owned if view.paths.get(entry.key) == name)
    cgroups = [pod.cgroup for pod in _pods(view) if pod.uid == name]
    return tuple(
        entry
        for entry in view.owned
        if any(not isinstance(cg, Missing) and entry.target.is_at_or_below(cg) for cg in cgroups)
    )


def resolve_released(view: NodeView, text: str) -> str:
    """The released scope that a person means; the pod may be gone, its release is not."""
    released = view.core.released if isinstance(view.core, CoreStatus) else ()
    wanted = text.strip()
    for scope in released:
        if wanted in (scope, scope.partition(":")[2]):
            return scope
    return resolve_scope(view, wanted)


def _kind_of(view: NodeView, wanted: str) -> str:
    if wanted.startswith("/"):
        return "file"
    return "owner" if wanted in {strategy.name for strategy in strategies(view)} else "pod"


def _one_pod(view: NodeView, name: str) -> Pod:
    pods = find_pods(_pods(view), name)
    if len(pods) == 1:
        return pods[0]
    if not pods:
        raise _refused(name, "no pod of that name, UID or prefix, and no strategy either")
    raise _refused(name, "names several pods: " + ", ".join(pod.uid for pod in pods))


def _check_owner(view: NodeView, name: str) -> None:
    known = [strategy.name for strategy in strategies(view)]
    if known and name not in known:
        raise _refused(name, f"no strategy of that name; strategies: {', '.join(known)}")


def _pods(view: NodeView) -> tuple[Pod, ...]:
    return () if isinstance(view.workloads, Missing) else view.workloads.known_pods()


def _refused(where: str, what: str) -> RefusedError:
    return RefusedError(
        (
            Problem(
                "scope-unknown",
                where,
                what,
                limit="all, owner:STRATEGY, pod:NAMESPACE/NAME, pod:UID or file:PATH",
                remedy="koordletctl plan lists files and owners, koordletctl pods lists pods",
            ),
        )
    )
