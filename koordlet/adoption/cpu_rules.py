"""Weight, quota, burst, idle and cpuset of tiers, pods, containers and applications. Pure."""

from __future__ import annotations

from dataclasses import replace

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
from koordlet.adoption.kubelet import (
    WeightFormula,
    by_systemd,
    milli_to_quota_us,
    milli_to_shares,
    weight_of,
)
from koordlet.adoption.places import Level, Place
from koordlet.model.adoption import RuntimeSpec
from koordlet.model.knobs import Channel
from koordlet.model.pods import Asked
from koordlet.model.readings import Missing
from koordlet.model.topology import CpuManagerPolicy
from koordlet.protocol.cpuset import format_cpuset
from koordlet.protocol.qos import KubeQos, Qos
from koordlet.protocol.resourcestatus import resource_status_cpus
from koordlet.units import SHARES_MIN

# -- weight ---------------------------------------------------------------------------------------


def shares(asking: Asking) -> Pristine | None:
    """cpu.shares, cpu.weight."""
    place = asking.place
    if place.level in (Level.KUBEPODS, Level.SANDBOX):
        return None  # the kubelet and the runtime write it; no agent does
    if place.level is Level.APP:
        return unless_default(asking, OWNER_KNOWS)
    if place.kube_qos is KubeQos.BEST_EFFORT:
        return _least_weight(asking)
    if place.level is Level.TIER:
        return _tier_shares(asking)
    if place.level is Level.CONTAINER:
        return _container_shares(asking)
    asked = asked_of(place)
    if asked is None:
        return _unknown_shares(place)
    return _weight(asking, milli_to_shares(_request_milli(asked)), BY_KUBELET)


def _least_weight(asking: Asking) -> Pristine:
    """Of the BestEffort tier and all in it."""
    tier = asking.place.level is Level.TIER
    found = _weight(asking, SHARES_MIN, "the kubelet's least weight" if tier else BEST_EFFORT)
    spec = asking.node.spec_of(asking.place)
    if isinstance(spec, Missing) or spec.shares in (None, SHARES_MIN):
        return found
    return replace(found, note=in_spec_too(f"{spec.shares} shares"))


def _unknown_shares(place: Place) -> Pristine | None:
    """Agents write the weight of batch work only."""
    return Pristine(UNTOLD) if place.pod is not None and place.pod.qos is Qos.BE else None


def _tier_shares(asking: Asking) -> Pristine:
    burstable = asking.node.burstable
    if isinstance(burstable, Missing):
        return unless_default(asking, burstable)
    source = "the kubelet's sum of the requests of Burstable pods"
    return _weight(asking, milli_to_shares(burstable.cpu_milli), source)


def _container_shares(asking: Asking) -> Pristine | None:
    spec, asked = asking.node.spec_of(asking.place), asked_of(asking.place)
    by_kubelet = None if asked is None else milli_to_shares(_request_milli(asked))
    by_spec = None if isinstance(spec, Missing) else spec.shares
    if by_kubelet is not None and by_spec not in (None, by_kubelet):
        return Pristine(contradiction("cpu.shares", by_spec, by_kubelet))
    known = by_kubelet if by_spec is None else by_spec
    if known is None:
        return _unknown_shares(asking.place)
    return _weight(asking, known, source_of(spec, asked))


def _weight(asking: Asking, wanted: int, source: str) -> Pristine:
    if not asking.is_v2:
        return Pristine(asking.text(wanted), source)
    texts = {formula: str(weight_of(wanted, formula)) for formula in WeightFormula}
    same, formula = frozenset(texts.values()), asking.node.formula
    if len(same) == 1:
        return Pristine(next(iter(same)), source)
    if formula is None:
        lacking = "two formulas are in use, and no other cgroup here tells which one is"
        weights = " or ".join(sorted(same))
        return Pristine(Missing(f"{wanted} shares are a weight of {weights}: {lacking}"), same=same)
    return Pristine(texts[formula], f"{source}, {formula.value}", same)


# -- quota ----------------------------------------------------------------------------------------


def quota(asking: Asking) -> Pristine | None:
    """cpu.cfs_quota_us, the quota in cpu.max."""
    place = asking.place
    if place.level is Level.APP:
        return unless_default(asking, OWNER_KNOWS)
    if place.level in (Level.KUBEPODS, Level.TIER):
        return Pristine(asking.text(None), "the kubelet gives tiers no quota")
    if place.level is Level.SANDBOX:
        return asking.default()
    if place.kube_qos is KubeQos.BEST_EFFORT:
        return _unlimited_quota(asking)
    if place.level is Level.CONTAINER:
        return _container_quota(asking)
    asked = asked_of(place)
    if asked is None:
        return unless_default(asking, UNTOLD)
    by_kubelet = _kubelet_quota_us(asking, asked)
    if _has_exclusive(asking):
        # Newer kubelets lift the quota of pods with CPUs of their own, older ones do not.
        lacking = "the kubelet's version decides whether CPUs of one's own come with a quota"
        return Pristine(
            Missing(lacking), same=frozenset({asking.text(by_kubelet), asking.text(None)})
        )
    return _quota_of(asking, by_kubelet, BY_KUBELET)


def _unlimited_quota(asking: Asking) -> Pristine:
    """A BestEffort pod has no limit; where the runtime's spec says another thing, an agent wrote
    through the runtime.
    """
    spec = asking.node.spec_of(asking.place)
    in_spec = not isinstance(spec, Missing) and spec.quota_us is not None
    channel = Channel.SPEC if in_spec else Channel.FILE
    return Pristine(asking.text(None), BEST_EFFORT, channel=channel)


def _container_quota(asking: Asking) -> Pristine:
    spec, asked = asking.node.spec_of(asking.place), asked_of(asking.place)
    if asked is None:
        if isinstance(spec, Missing):
            return unless_default(asking, UNTOLD)
        return _quota_of(asking, spec.quota_us, BY_SPEC)
    by_kubelet = _kubelet_quota_us(asking, asked)
    if isinstance(spec, Missing) or spec.quota_us == by_kubelet:
        return _quota_of(asking, by_kubelet, source_of(spec, asked))
    if spec.quota_us is None and _has_exclusive(asking):
        return Pristine(asking.text(None), f"{BY_SPEC}: it has CPUs of its own")
    if spec.quota_us is None and _has_allocated(asking.place):
        source = f"{BY_KUBELET}; an agent lifted it in the runtime's spec, with resource-status"
        return Pristine(asking.text(by_kubelet), source, channel=Channel.SPEC)
    return Pristine(contradiction("the quota", spec.quota_us, by_kubelet))


def _quota_of(asking: Asking, quota_us: int | None, source: str) -> Pristine:
    """A quota as it was written, or as systemd rounds it when it writes its units again."""
    text = asking.text(quota_us)
    if quota_us is None:
        return Pristine(text, source)
    rounded = asking.text(by_systemd(quota_us, asking.period_us))
    return Pristine(text, source, frozenset({text, rounded}))


def _kubelet_quota_us(asking: Asking, asked: Asked) -> int | None:
    if not asking.node.cfs_quota:
        return None
    return milli_to_quota_us(asked.limits.cpu_milli, asking.period_us)


# -- CPUs and memory nodes ------------------------------------------------------------------------


def cpus(asking: Asking) -> Pristine | None:
    """cpuset.cpus."""
    place, manager = asking.place, asking.node.cpu_manager
    if place.level is Level.KUBEPODS:
        return None  # the administrator's; what lies below inherits it
    if place.level is Level.APP:
        return Pristine(OWNER_KNOWS, same=frozenset({"", asking.above}))
    if place.level is not Level.CONTAINER:
        return _inherited(asking, asking.node.kubepods_cpus, "inherited from kubepods")
    if manager.policy is CpuManagerPolicy.STATIC:
        return _managed_cpus(asking)
    spec = asking.node.spec_of(place)
    if manager.policy is CpuManagerPolicy.NONE:
        note = "" if isinstance(spec, Missing) or not spec.cpus else in_spec_too(spec.cpus)
        source = "inherited: the kubelet's CPU manager policy is none"
        return _inherited(asking, asking.node.kubepods_cpus, source, note)
    if isinstance(spec, Missing):
        lacking = "neither the kubelet's CPU manager policy nor the runtime's spec is known"
        return Pristine(Missing(lacking), same=frozenset({"", asking.node.kubepods_cpus}))
    return _named_or_inherited(asking, spec.cpus, asking.node.kubepods_cpus)


def _managed_cpus(asking: Asking) -> Pristine:
    manager, pod, container = asking.node.cpu_manager, asking.place.pod, asking.place.container
    own = manager.shared
    if pod is not None and container is not None:
        own = manager.exclusive.get((pod.record.api_uid, container.name), manager.shared)
    if not own:
        return Pristine(Missing("the kubelet's cpu_manager_state names no CPUs for it"))
    return Pristine(format_cpuset(own), "the kubelet's cpu_manager_state")


def mems(asking: Asking) -> Pristine | None:
    """cpuset.mems."""
    place, inherited = asking.place, asking.node.kubepods_mems
    if place.level in (Level.KUBEPODS, Level.APP):
        return None
    if place.level is not Level.CONTAINER:
        return _inherited(asking, inherited, "inherited from kubepods")
    spec = asking.node.spec_of(place)
    if isinstance(spec, Missing):
        lacking = Missing("the runtime has not told its spec")
        return Pristine(lacking, same=frozenset({"", inherited}))
    return _named_or_inherited(asking, spec.mems, inherited)


def _named_or_inherited(asking: Asking, in_spec: str, of_kubepods: str) -> Pristine:
    if in_spec:
        return Pristine(asking.canonical(in_spec), BY_SPEC)
    return _inherited(asking, of_kubepods, f"inherited: {BY_SPEC} names none")


def _inherited(asking: Asking, of_kubepods: str, source: str, note: str = "") -> Pristine:
    """On v1 a copy of what kubepods holds, on v2 the empty set; all that kubepods has is as good
    there: with tasks in it no v2 cpuset is ever emptied again.
    """
    if asking.is_v2:
        return Pristine("", source, frozenset({of_kubepods} - {""}), note=note)
    if not of_kubepods:
        return Pristine(Missing("kubepods holds nothing that could be inherited"))
    return Pristine(of_kubepods, source, note=note)


# -- burst and idle -------------------------------------------------------------------------------


def burst(asking: Asking) -> Pristine | None:
    """cpu.cfs_burst_us, cpu.max.burst."""
    spec = asking.node.spec_of(asking.place)
    if isinstance(spec, RuntimeSpec) and spec.burst_us:
        return Pristine(asking.text(spec.burst_us), BY_SPEC)
    return asking.default()


def idle(asking: Asking) -> Pristine | None:
    """cpu.idle."""
    spec = asking.node.spec_of(asking.place)
    if isinstance(spec, RuntimeSpec) and spec.idle:
        return Pristine(asking.text(spec.idle), BY_SPEC)
    return asking.default()


# -- what is known of a pod -----------------------------------------------------------------------


def _request_milli(asked: Asked) -> int | None:
    """A limit alone is a request of the same size."""
    return asked.requests.cpu_milli or asked.limits.cpu_milli


def _has_exclusive(asking: Asking) -> bool:
    """Whether the kubelet gave the pod, or the container, CPUs of its own."""
    place = asking.place
    if place.pod is None:
        return False
    uid = place.pod.record.api_uid
    owners = asking.node.cpu_manager.exclusive
    if place.container is not None:
        return (uid, place.container.name) in owners
    return any(owner == uid for owner, _ in owners)


def _has_allocated(place: Place) -> bool:
    """Whether the scheduler's resource-status names CPUs: agents then lift the quota."""
    return place.pod is not None and bool(resource_status_cpus(place.pod.record.annotations))
