"""What another agent left in the cgroups of this node, against what its files would hold without
one. Reads, never writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from koordlet.adoption.asking import Asking, CpuManager, Node, Pristine
from koordlet.adoption.kubelet import WeightFormula, milli_to_shares, weight_of
from koordlet.adoption.places import Children, Level, Place, places
from koordlet.adoption.pristine import RULES, pristine
from koordlet.host.cgroup import Cgroups
from koordlet.model.actions import Owned, Target
from koordlet.model.adoption import Adoption, RuntimeSpec
from koordlet.model.knobs import Channel, Knob, Value
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import KubeLayout, Pod, Resources, Workloads
from koordlet.model.readings import Missing
from koordlet.protocol.qos import KubeQos
from koordlet.units import BASE_PERIOD_US

SpecOf = Callable[[str], RuntimeSpec | Missing]
"""The runtime's spec of a container id."""

_WEIGHT_UNTOLD = Pristine(Missing("nobody tells it"))
_COPIED = "copied from the directory above when it was made"
_ORDER = {knob: number for number, knob in enumerate(RULES)}


@dataclass(frozen=True, slots=True)
class Kubelet:
    """What the survey must know of the kubelet: whether one was found, its CPU manager, whether it
    enforces cfs quotas, and whether its MemoryQoS feature is on.
    """

    is_found: bool = False
    cpu_manager: CpuManager = field(default_factory=CpuManager)
    cfs_quota: bool = True
    memory_qos: bool = False


@dataclass(frozen=True, slots=True)
class Leftover:
    """One file that does not hold what it would without an agent; texts are canonical.

    ``held``: koordlet governs it already, and ``found`` is what it took for the original.
    ``original`` is Missing where that cannot be known: such a file is never adopted.
    """

    place: Place
    knob: Knob
    file: str
    found: str
    original: str | Missing
    source: str
    inode: int
    held: bool = False
    channel: Channel = Channel.FILE
    side_effect: bool = False
    note: str = ""

    @property
    def key(self) -> Target:
        return (self.place.path, self.knob)

    def adoption(self) -> Adoption | None:
        """The same as an order; None where the original is not known."""
        if isinstance(self.original, Missing):
            return None
        container = self.place.container
        return Adoption(
            target=self.place.path,
            knob=self.knob,
            found=self.found,
            original=self.original,
            source=self.source,
            inode=self.inode,
            channel=self.channel,
            container_id=container.id if container and self.channel is Channel.SPEC else "",
            side_effect=self.side_effect,
        )


@dataclass(frozen=True, slots=True)
class Survey:
    """All leftovers, parents first; how many files were compared, in which cgroups."""

    leftovers: tuple[Leftover, ...]
    compared: int
    paths: tuple[CgroupPath, ...]


def survey(
    cgroups: Cgroups,
    workloads: Workloads,
    owned: Mapping[Target, Owned],
    kubelet: Kubelet,
    spec_of: SpecOf,
    children: Children | None = None,
) -> Survey:
    """Compare every file that an agent may have written. ``owned`` is what koordlet governs.

    ``spec_of`` is asked once for each container that has a cgroup. ``children`` bounds the look;
    without it everything below kubepods and applications is compared.
    """
    found = tuple(places(workloads, children or partial(_children, cgroups)))
    node = _node(cgroups, workloads, found, kubelet, spec_of)
    return _Comparison(cgroups, node, owned).run(found)


def _children(cgroups: Cgroups, path: CgroupPath) -> tuple[CgroupPath, ...]:
    found = cgroups.children(path)
    return () if isinstance(found, Missing) else found


# -- the node -------------------------------------------------------------------------------------


def _node(
    cgroups: Cgroups,
    workloads: Workloads,
    found: tuple[Place, ...],
    kubelet: Kubelet,
    spec_of: SpecOf,
) -> Node:
    layout = workloads.layout
    node = Node(
        kubepods_cpus="" if isinstance(layout, Missing) else _cpus_of(cgroups, layout.kubepods),
        kubepods_mems=_kubepods_mems(cgroups, layout),
        cpu_manager=kubelet.cpu_manager,
        burstable=_burstable(workloads, kubelet),
        cfs_quota=kubelet.cfs_quota,
        memory_qos=kubelet.memory_qos,
        specs={each.container.id: spec_of(each.container.id) for each in found if each.container},
    )
    return replace(node, formula=_formula(cgroups, found))


def _cpus_of(cgroups: Cgroups, path: CgroupPath) -> str:
    """What everything in a directory may use."""
    is_v2 = cgroups.version_of(Knob.CPUSET_CPUS) == 2
    text = _text(cgroups, (path, Knob.CPUSET_CPUS_EFFECTIVE if is_v2 else Knob.CPUSET_CPUS))
    return "" if isinstance(text, Missing) else text


def _kubepods_mems(cgroups: Cgroups, layout: KubeLayout | Missing) -> str:
    if isinstance(layout, Missing):
        return ""
    text = _text(cgroups, (layout.kubepods, Knob.CPUSET_MEMS))
    return "" if isinstance(text, Missing) else text


def _burstable(workloads: Workloads, kubelet: Kubelet) -> Resources | Missing:
    """What all Burstable pods request, as the kubelet sums it up for their tier."""
    layout = workloads.layout
    if isinstance(layout, Missing) or isinstance(workloads.pods, Missing):
        return Missing("the pods of this node are not known")
    pods = [each for each in workloads.pods if each.record.running and _is_burstable(each, layout)]
    if not pods and not kubelet.is_found:
        return Missing("no kubelet was found, so nobody says that there are no Burstable pods")
    total = 0
    for pod in pods:
        if pod.record.native is None:
            return Missing(f"no kubelet has told what pod {pod.full_name} requests")
        total += pod.record.native.requests.cpu_milli or 0
    return Resources(cpu_milli=total)


def _is_burstable(pod: Pod, layout: KubeLayout) -> bool:
    if isinstance(pod.cgroup, Missing):
        return pod.kube_qos is KubeQos.BURSTABLE
    return pod.cgroup.parent == layout.burstable


def _formula(cgroups: Cgroups, found: tuple[Place, ...]) -> WeightFormula | None:
    """The formula that all weights fit whose shares the kubelet tells, where there are any."""
    fits = {formula: 0 for formula in WeightFormula}
    for place in found:
        if place.level is not Level.POD or place.pod is None or place.pod.record.native is None:
            continue
        if place.kube_qos is KubeQos.BEST_EFFORT:
            continue
        shares = milli_to_shares(place.pod.record.native.requests.cpu_milli)
        weights = {weight_of(shares, formula): formula for formula in WeightFormula}
        if len(weights) == 1:
            continue
        text = _text(cgroups, (place.path, Knob.CPU_SHARES))
        hit = weights.get(int(text)) if isinstance(text, str) and text.isdigit() else None
        if hit is not None:
            fits[hit] += 1
    seen = [formula for formula, count in fits.items() if count]
    return seen[0] if len(seen) == 1 else None


# -- the comparison -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Comparison:
    """Goes through all places once; ``_cpus`` are leftover cpusets by path, for their copies."""

    cgroups: Cgroups
    node: Node
    owned: Mapping[Target, Owned]
    _compared: int = 0
    _cpus: dict[CgroupPath, Leftover] = field(default_factory=dict)

    def run(self, found: tuple[Place, ...]) -> Survey:
        leftovers = [leftover for place in found for leftover in self._of(place)]
        leftovers.sort(key=lambda each: (each.place.path, _ORDER[each.knob]))
        return Survey(tuple(leftovers), self._compared, tuple(place.path for place in found))

    def _of(self, place: Place) -> Iterator[Leftover]:
        if place.level is Level.NESTED:
            yield from self._copied(place)
            return
        found = [each for knob in RULES if (each := self._compare(place, knob)) is not None]
        for leftover in found:
            if leftover.knob is Knob.CPUSET_CPUS:
                self._cpus[place.path] = leftover
            if leftover.knob is Knob.CPU_IDLE:
                yield from self._with_hidden_weight(leftover)
            else:
                yield leftover

    def _compare(self, place: Place, knob: Knob) -> Leftover | None:
        key = (place.path, knob)
        row = self.owned.get(key)
        found = row.original if row is not None else _text(self.cgroups, key)
        if isinstance(found, Missing):
            return None
        told = pristine(self._asking(place, knob))
        self._compared += told is not None
        if told is None or found == told.text or found in told.same:
            return None
        if self._is_masked(key, found) and row is None:
            return None  # told together with the cpu.idle that hides it
        return self._leftover(place, knob, found, told, row)

    def _asking(self, place: Place, knob: Knob) -> Asking:
        above = ""
        if place.level is Level.APP and knob is Knob.CPUSET_CPUS:
            above = _cpus_of(self.cgroups, place.path.parent)
        period_us = _period_us(self.cgroups, place.path) if knob is Knob.CPU_QUOTA else 0
        return Asking(place, knob, self.node, _Spelling(self.cgroups), period_us, above)

    def _is_masked(self, key: Target, found: str) -> bool:
        spec = self.cgroups.spec(key[1])
        if spec is None or spec.masked_by is None or found != spec.masked_text:
            return False
        return _text(self.cgroups, (key[0], spec.masked_by)) == "1"

    def _leftover(
        self, place: Place, knob: Knob, found: str, told: Pristine, row: Owned | None
    ) -> Leftover:
        identity = self.cgroups.identity(place.path, knob)
        return Leftover(
            place=place,
            knob=knob,
            file=str(self.cgroups.path_of(place.path, knob)),
            found=found,
            original=told.text,
            source=told.source,
            inode=0 if isinstance(identity, Missing) else identity.ino,
            held=row is not None,
            channel=told.channel,
            side_effect=row is not None and row.side_effect,
            note=told.note,
        )

    def _with_hidden_weight(self, idle: Leftover) -> Iterator[Leftover]:
        """A ``cpu.idle`` that goes back to 0 takes the weight with it (hazard H2): both or none."""
        place, key = idle.place, (idle.place.path, Knob.CPU_SHARES)
        hidden = _text(self.cgroups, key)
        if idle.held or key in self.owned or isinstance(hidden, Missing):
            yield idle
            return
        told = pristine(self._asking(place, Knob.CPU_SHARES)) or _WEIGHT_UNTOLD
        if isinstance(told.text, Missing):
            why = f"the weight that would come back with it is not known: {told.text.why}"
            yield replace(idle, original=Missing(why))
            return
        weight = self._leftover(place, Knob.CPU_SHARES, hidden, told, None)
        yield replace(weight, side_effect=True, note="hidden while cpu.idle is 1")
        yield idle

    def _copied(self, place: Place) -> Iterator[Leftover]:
        """cgroup v1: a directory that was made below a narrow cpuset holds a copy (hazard H5)."""
        above = self._cpus.get(place.path.parent)
        key = (place.path, Knob.CPUSET_CPUS)
        if above is None or self.cgroups.version_of(Knob.CPUSET_CPUS) != 1 or key in self.owned:
            return
        text = _text(self.cgroups, key)
        if text != above.found or isinstance(text, Missing):
            return
        told = Pristine(above.original, _COPIED)
        copy = self._leftover(place, Knob.CPUSET_CPUS, text, told, None)
        self._cpus[place.path] = copy
        yield copy


@dataclass(frozen=True, slots=True)
class _Spelling:
    """``Cgroups`` as the rules see it: what it knows, and nothing that it could read."""

    cgroups: Cgroups

    def text(self, knob: Knob, value: Value) -> str:
        return self.cgroups.canonical(knob, self.cgroups.encode(knob, value))

    def canonical(self, knob: Knob, raw: str) -> str:
        return self.cgroups.canonical(knob, raw)

    def default(self, knob: Knob) -> str | None:
        spec = self.cgroups.spec(knob)
        if spec is None or spec.default_text is None:
            return None
        return self.cgroups.canonical(knob, spec.default_text)

    def is_v2(self, knob: Knob) -> bool:
        return self.cgroups.version_of(knob) == 2


def _text(cgroups: Cgroups, key: Target) -> str | Missing:
    raw = cgroups.read_raw(*key)
    if isinstance(raw, Missing):
        return raw
    try:
        return cgroups.canonical(key[1], raw)
    except ValueError as error:
        return Missing(str(error))


def _period_us(cgroups: Cgroups, path: CgroupPath) -> int:
    period = cgroups.read(path, Knob.CPU_PERIOD)
    return period if isinstance(period, int) and period > 0 else BASE_PERIOD_US
