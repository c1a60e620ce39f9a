"""What is asked of a rule, and what a rule may answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from koordlet.adoption.kubelet import WeightFormula
from koordlet.adoption.places import Place
from koordlet.model.adoption import RuntimeSpec
from koordlet.model.knobs import Channel, Knob, Value
from koordlet.model.pods import Asked, Resources
from koordlet.model.readings import Missing
from koordlet.model.topology import CpuManagerPolicy

KERNEL_DEFAULT = "the kernel's default"
BEST_EFFORT = "the kubelet asks for nothing for a BestEffort pod"
UNTOLD = Missing("no kubelet has told what it asks for, or a resize of its pod is under way")
OWNER_KNOWS = Missing("only its owner knows what it is to be; the kernel's default is not taken")


class Spelling(Protocol):
    """How values of knobs are spelled on this host. Nothing is read."""

    def text(self, knob: Knob, value: Value) -> str:
        """``value`` in canonical form."""
        ...

    def canonical(self, knob: Knob, raw: str) -> str:
        """A file's text in canonical form."""
        ...

    def default(self, knob: Knob) -> str | None:
        """What a new cgroup holds, canonical; None where that depends on its parent."""
        ...

    def is_v2(self, knob: Knob) -> bool:
        """Whether cgroup v2 carries the knob here."""
        ...


@dataclass(frozen=True, slots=True)
class Pristine:
    """One file's value without any agent, canonical, or why it is not known.

    ``same`` are other texts that are as good: a file that holds one of them was not left behind.
    ``channel`` is SPEC where the runtime's own spec holds the leftover, too (hazard H8).
    """

    text: str | Missing
    source: str = ""
    same: frozenset[str] = frozenset()
    channel: Channel = Channel.FILE
    note: str = ""


@dataclass(frozen=True, slots=True)
class CpuManager:
    """The kubelet's CPU manager; ``exclusive`` by (pod uid, container name). UNKNOWN: no kubelet
    and no state file.
    """

    policy: CpuManagerPolicy = CpuManagerPolicy.UNKNOWN
    shared: frozenset[int] = frozenset()
    exclusive: Mapping[tuple[str, str], frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Node:
    """What is known of the node beside its cgroups.

    ``kubepods_cpus`` and ``kubepods_mems`` are what everything in kubepods inherits, on cgroup v1
    as a copy. ``burstable`` is the sum of the requests of all Burstable pods. ``formula`` is the
    one that this node's weights were made by, None where nothing tells. ``specs`` are by
    container id.
    """

    kubepods_cpus: str
    kubepods_mems: str
    cpu_manager: CpuManager = field(default_factory=CpuManager)
    burstable: Resources | Missing = field(default_factory=lambda: UNTOLD)
    formula: WeightFormula | None = None
    cfs_quota: bool = True
    memory_qos: bool = False
    specs: Mapping[str, RuntimeSpec | Missing] = field(default_factory=dict)

    def spec_of(self, place: Place) -> RuntimeSpec | Missing:
        """The runtime's word on a container."""
        if place.container is None:
            return Missing("no container")
        return self.specs.get(place.container.id, Missing("the runtime was not asked"))


@dataclass(frozen=True, slots=True)
class Asking:
    """One question: a knob of a place on a node.

    ``period_us`` is the present cfs period, ``above`` the CPUs of the directory above, for the
    cpuset of an application.
    """

    place: Place
    knob: Knob
    node: Node
    spelling: Spelling
    period_us: int
    above: str = ""

    def text(self, value: Value) -> str:
        """``value`` as the file would read."""
        return self.spelling.text(self.knob, value)

    def canonical(self, raw: str) -> str:
        """A text that is known from elsewhere, as the file would read."""
        return self.spelling.canonical(self.knob, raw)

    @property
    def is_v2(self) -> bool:
        return self.spelling.is_v2(self.knob)

    def default(self) -> Pristine:
        """The kernel's default."""
        text = self.spelling.default(self.knob)
        if text is None:
            return Pristine(Missing("it depends on its parent"))
        return Pristine(text, KERNEL_DEFAULT)


def unless_default(asking: Asking, why: Missing) -> Pristine:
    """Not known; but a file that holds the kernel's default is nothing that anybody left."""
    text = asking.default().text
    return Pristine(why, same=frozenset() if isinstance(text, Missing) else frozenset({text}))


def asked_of(place: Place) -> Asked | None:
    """What the kubelet counts for a pod or container; None where nobody told."""
    if place.container is not None:
        return place.container.record.native
    return None if place.pod is None else place.pod.record.native


BY_SPEC = "the runtime's spec"
BY_KUBELET = "the kubelet's formula"
BY_BOTH = "the runtime's spec, as the kubelet's formula has it"


def source_of(spec: RuntimeSpec | Missing, asked: Asked | None) -> str:
    """Who tells a container's value."""
    if isinstance(spec, Missing):
        return BY_KUBELET
    return BY_SPEC if asked is None else BY_BOTH


def in_spec_too(what: str) -> str:
    """A leftover that a file's write alone does not end (hazard H8)."""
    return (
        f"the runtime's spec holds {what} too, and CRI cannot take that back: the runtime's next"
        " update of the container writes it again, until the container is made anew"
    )


def contradiction(what: str, in_spec: int | None, by_kubelet: int | None) -> Missing:
    spec, kubelet = ("unlimited" if each is None else str(each) for each in (in_spec, by_kubelet))
    return Missing(
        f"the runtime's spec has {spec} for {what}, the kubelet's formula {kubelet}: written"
        " through the runtime, or resized; make the container anew, or set it by hand"
    )
