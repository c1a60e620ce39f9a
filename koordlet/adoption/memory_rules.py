"""Memory, IO and number of tasks of tiers, pods, containers and applications. Pure."""

from __future__ import annotations

from koordlet.adoption.asking import (
    BEST_EFFORT,
    BY_KUBELET,
    BY_SPEC,
    OWNER_KNOWS,
    UNTOLD,
    Asking,
    Pristine,
    asked_of,
    contradiction,
    in_spec_too,
    source_of,
    unless_default,
)
from koordlet.adoption.places import Level
from koordlet.model.adoption import RuntimeSpec
from koordlet.model.readings import Missing
from koordlet.protocol.qos import KubeQos

# -- memory ---------------------------------------------------------------------------------------


def memory_limit(asking: Asking) -> Pristine | None:
    """memory.limit_in_bytes, memory.max."""
    place = asking.place
    if place.level is Level.KUBEPODS:
        return None  # the kubelet's, from the node's allocatable
    if place.level is Level.APP:
        return unless_default(asking, OWNER_KNOWS)
    if place.level in (Level.TIER, Level.SANDBOX):
        return asking.default()
    asked, spec = asked_of(place), asking.node.spec_of(place)
    if place.kube_qos is KubeQos.BEST_EFFORT:
        limited = isinstance(spec, RuntimeSpec) and spec.memory_bytes is not None
        note = in_spec_too("a memory limit") if limited else ""
        return Pristine(asking.text(None), BEST_EFFORT, note=note)
    by_kubelet = None if asked is None else asked.limits.memory_bytes
    if isinstance(spec, Missing):
        if asked is None:
            return unless_default(asking, UNTOLD)
        return Pristine(asking.text(by_kubelet), BY_KUBELET)
    if asked is not None and spec.memory_bytes != by_kubelet:
        return Pristine(contradiction("the memory limit", spec.memory_bytes, by_kubelet))
    return Pristine(asking.text(spec.memory_bytes), source_of(spec, asked))


def swap_limit(asking: Asking) -> Pristine | None:
    """Of a container it is the runtime's arithmetic, and no agent writes it."""
    if asking.place.level in (Level.TIER, Level.POD):
        return asking.default()
    return None


def memory_protection(asking: Asking) -> Pristine | None:
    """memory.min, low and high: nobody's, unless the kubelet's MemoryQoS is on."""
    if asking.node.memory_qos:
        return unless_default(asking, Missing("the kubelet's MemoryQoS feature writes it"))
    return _unified(asking) or asking.default()


def oom_group(asking: Asking) -> Pristine | None:
    """The kubelet has it set on containers by itself since 1.28, through the runtime's spec."""
    if asking.place.level is not Level.CONTAINER:
        return asking.default()
    spec = asking.node.spec_of(asking.place)
    if isinstance(spec, Missing):
        return unless_default(asking, Missing("the runtime has not told its spec"))
    return _unified(asking) or asking.default()


def _unified(asking: Asking) -> Pristine | None:
    """A cgroup v2 file that the runtime's spec names."""
    spec = asking.node.spec_of(asking.place)
    if isinstance(spec, Missing):
        return None
    text = spec.unified.get(asking.knob.value)
    if text is None:
        return None
    return Pristine(asking.canonical(text), BY_SPEC)


# -- IO and tasks --------------------------------------------------------------------------------


def io(asking: Asking) -> Pristine | None:
    """io.weight and io.max of cgroup v2."""
    if asking.place.level is Level.APP:
        return unless_default(asking, OWNER_KNOWS)
    spec = asking.node.spec_of(asking.place)
    if isinstance(spec, RuntimeSpec) and spec.limits_io:
        return None  # its runtime class does
    return asking.default()


def pids(asking: Asking) -> Pristine | None:
    """The kubelet and the runtime limit it on kubepods, pods and containers; no agent does."""
    return asking.default() if asking.place.level is Level.TIER else None
