"""What this host can do, found without writing; proven, where asked, in a scratch cgroup (H25)."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from koordlet.host.cgroup import Cgroups
from koordlet.host.knobtable import KnobSpec
from koordlet.host.mounts import Roots, parse_mountinfo
from koordlet.host.psi import PsiResource, node_psi
from koordlet.host.watch import Watch, WatchUnavailable
from koordlet.model.capabilities import NEW_CONTAINERS, Capabilities, Capability, Proof
from koordlet.model.knobs import Knob
from koordlet.model.paths import ROOT, CgroupPath
from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem, Severity

CAP_SYS_RESOURCE = 24
_LOOK_AT = 64  # cgroups tried, per level, until one has the file
_MEBIBYTE = 1 << 20


def probe(cgroups: Cgroups, roots: Roots, *, run_dir: str) -> Capabilities:
    """Find out by looking: files, their modes, mounts, what procfs says. Writes nothing.

    A file that is there is UNPROVEN. ``run_dir`` is where the journal is to lie.
    """
    others = (
        _psi(cgroups, roots),
        _psi_of_cgroups(cgroups),
        _psi_trigger(cgroups, roots),
        _inotify(),
        _tmpfs(cgroups, roots, run_dir),
        _sys_resource(cgroups, roots),
        _quota_for_new_containers(cgroups),
    )
    return Capabilities(
        cgroup_versions=cgroups.hierarchies.versions(),
        knobs={knob: _knob(cgroups, knob) for knob in Knob},
        others={each.name: each for each in others},
    )


def shortcomings(capabilities: Capabilities) -> tuple[Problem, ...]:
    """One problem for each thing that this host cannot do: to be logged once, whatever the number
    of cgroups (case OPS-01).
    """
    everything = (*capabilities.knobs.values(), *capabilities.others.values())
    return tuple(
        Problem(
            code=f"capability-{each.proof.value}",
            where=each.name,
            what=each.why,
            remedy=each.remedy,
            severity=Severity.INFO,
        )
        for each in everything
        if not each.usable
    )


# -- knobs --------------------------------------------------------------------------------------


def _knob(cgroups: Cgroups, knob: Knob) -> Capability:
    spec = cgroups.spec(knob)
    name = knob.value
    if spec is None:
        return Capability(
            name,
            Proof.ABSENT,
            why="no mounted cgroup hierarchy has a file for it",
            remedy="mount the controller, or boot with cgroup v2",
        )
    detail = f"cgroup v{spec.version}: {spec.file}"
    hierarchy = cgroups.hierarchies.of(spec.controller)
    if hierarchy is not None and hierarchy.read_only:
        why = f"{hierarchy.mount} is mounted read-only"
        return Capability(name, Proof.REFUSED, why, "mount it writable", detail)
    sample = _sample(cgroups, spec)
    if isinstance(sample, Missing):
        return Capability(name, Proof.ABSENT, sample.why, _remedy_for(spec), detail)
    return Capability(name, Proof.UNPROVEN, detail=detail)


def _sample(cgroups: Cgroups, spec: KnobSpec) -> CgroupPath | Missing:
    """A cgroup that has the file of ``spec``: the roots of hierarchies lack many files."""
    looked = 0
    for cg in _nearby(cgroups, spec.controller):
        directory = cgroups.dir_of(cg, spec.controller)
        if not isinstance(directory, Missing) and cgroups.files.exists(f"{directory}/{spec.file}"):
            return cg
        looked += 1
    if not looked:
        return Missing("there is no cgroup to look at yet")
    return Missing(f"{looked} cgroups looked at, none has {spec.file}")


def _nearby(cgroups: Cgroups, controller: str) -> Iterator[CgroupPath]:
    """The root's children, their children, and the root where it is not the hierarchy's own."""
    hierarchy = cgroups.hierarchies.of(controller)
    if hierarchy is not None and hierarchy.managed != hierarchy.mount:
        yield ROOT
    below: list[CgroupPath] = []
    for cg in _children(cgroups, ROOT, controller):
        yield cg
        below.extend(_children(cgroups, cg, controller))
    yield from below[:_LOOK_AT]


def _children(cgroups: Cgroups, cg: CgroupPath, controller: str) -> tuple[CgroupPath, ...]:
    found = cgroups.children(cg, controller)
    return () if isinstance(found, Missing) else found[:_LOOK_AT]


def _remedy_for(spec: KnobSpec) -> str:
    if spec.knob is Knob.MEMORY_SWAP_LIMIT:
        return "boot with swapaccount=1"
    if spec.version == 2:
        return f"let the owner of the directory enable the {spec.controller} controller below it"
    return "this kernel has no such file; what needs it stays off"


# -- the rest -----------------------------------------------------------------------------------


def _psi(cgroups: Cgroups, roots: Roots) -> Capability:
    found = node_psi(cgroups.files, roots, PsiResource.CPU)
    if not isinstance(found, Missing):
        return Capability("psi", Proof.PROVEN)
    return Capability("psi", Proof.ABSENT, found.why, "boot a kernel >= 4.20 with psi=1")


def _psi_of_cgroups(cgroups: Cgroups) -> Capability:
    for controller in ("unified", "cpuacct"):
        for cg in _nearby(cgroups, controller):
            path = cgroups.psi_path(cg, PsiResource.CPU)
            if not isinstance(path, Missing):
                return Capability("psi-cgroup", Proof.UNPROVEN, detail=path)
    why = "no cgroup has pressure files"
    return Capability("psi-cgroup", Proof.ABSENT, why, "mount cgroup v2, boot with psi=1")


def _psi_trigger(cgroups: Cgroups, roots: Roots) -> Capability:
    name = "psi-trigger"
    if not _psi(cgroups, roots).usable:
        return Capability(name, Proof.ABSENT, "there is no pressure to trigger on", "boot psi=1")
    privileged = _has_sys_resource(cgroups, roots)
    shortest = "500 ms" if privileged else "2 s"
    return Capability(name, Proof.UNPROVEN, detail=f"shortest window {shortest}")


def _inotify() -> Capability:
    try:
        Watch().close()
    except WatchUnavailable as error:
        return Capability("inotify", Proof.REFUSED, error.problem.what, error.problem.remedy)
    return Capability("inotify", Proof.PROVEN)


def _tmpfs(cgroups: Cgroups, roots: Roots, run_dir: str) -> Capability:
    text = cgroups.files.read(f"{roots.proc}/self/mountinfo")
    mounts = () if isinstance(text, Missing) else parse_mountinfo(text)
    under = [each for each in mounts if (run_dir + "/").startswith(each.point.rstrip("/") + "/")]
    fs_type = max(under, key=lambda each: len(each.point)).fs_type if under else "unknown"
    if fs_type in ("tmpfs", "ramfs"):
        return Capability("tmpfs", Proof.PROVEN, detail=f"{run_dir} on {fs_type}")
    return Capability(
        "tmpfs",
        Proof.ABSENT,
        why=f"{run_dir} lies on {fs_type}: a busy disk would delay the journal",
        remedy="mount a tmpfs on /run; /dev/shm is used until then",
    )


def _sys_resource(cgroups: Cgroups, roots: Roots) -> Capability:
    if _has_sys_resource(cgroups, roots):
        return Capability("cap_sys_resource", Proof.PROVEN)
    return Capability(
        "cap_sys_resource",
        Proof.REFUSED,
        why="CAP_SYS_RESOURCE is dropped: pressure windows below 2 s are refused",
        remedy="grant CAP_SYS_RESOURCE",
    )


def _has_sys_resource(cgroups: Cgroups, roots: Roots) -> bool:
    text = cgroups.files.read(f"{roots.proc}/self/status")
    for line in () if isinstance(text, Missing) else text.splitlines():
        if line.startswith(b"CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_RESOURCE & 1)
    return False


def _quota_for_new_containers(cgroups: Cgroups) -> Capability:
    if cgroups.version_of(Knob.CPU_QUOTA) != 1:
        return Capability(NEW_CONTAINERS, Proof.UNPROVEN)
    return Capability(
        NEW_CONTAINERS,
        Proof.REFUSED,
        why="cgroup v1 refuses a quota above the parent's: while the best-effort tier's quota is"
        " lowered, a new best-effort container with a CPU limit above it cannot start",
        remedy="use cpuSuppressPolicy cpuset, or run best-effort containers without a CPU limit",
    )


# -- proving ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Trial:
    """Texts written one after the other, each read back."""

    knob: Knob
    texts: Callable[[Cgroups, CgroupPath], tuple[str, ...]]


def prove(capabilities: Capabilities, cgroups: Cgroups, scratch: CgroupPath) -> Capabilities:
    """Write every knob in a cgroup ``scratch``, which is made here and removed again.

    ``scratch`` must be a child of a cgroup of our own. A knob that took and showed a value is
    PROVEN, one that the kernel refused REFUSED with its words; one whose file is not there for lack
    of a controller, or that a relative refused, stays as it was. Raises OSError where the scratch
    cgroup can be neither made nor removed.
    """
    made: list[str] = []
    try:
        for hierarchy in cgroups.hierarchies.all():
            path = f"{hierarchy.managed}/{scratch}"
            if cgroups.files.exists(path.rpartition("/")[0]):
                if not cgroups.files.exists(path):  # else a killed process left it
                    cgroups.files.make_dir(path)
                made.append(path)
        _fill_cpuset(cgroups, scratch)
        proven = {trial.knob: _try(capabilities, cgroups, scratch, trial) for trial in _TRIALS}
    finally:
        for path in made:
            cgroups.files.remove_dir(path)
    return replace(capabilities, knobs={**capabilities.knobs, **proven})


def _fill_cpuset(cgroups: Cgroups, scratch: CgroupPath) -> None:
    """v1: a new cpuset is empty, and wider than its parent it cannot be."""
    if cgroups.version_of(Knob.CPUSET_CPUS) == 1:
        for knob in (Knob.CPUSET_CPUS, Knob.CPUSET_MEMS):
            above = cgroups.read_raw(scratch.parent, knob)
            if not isinstance(above, Missing):
                cgroups.write(scratch, knob, above.decode().strip())


def _try(
    capabilities: Capabilities, cgroups: Cgroups, scratch: CgroupPath, trial: _Trial
) -> Capability:
    known, spec = capabilities.knob(trial.knob), cgroups.spec(trial.knob)
    if spec is None or not known.usable:
        return known
    try:
        for text in trial.texts(cgroups, scratch):
            cgroups.write(scratch, trial.knob, text)
            after = cgroups.read_raw(scratch, trial.knob)
            shown = "" if isinstance(after, Missing) else cgroups.canonical(trial.knob, after)
            if shown != cgroups.canonical(trial.knob, text):
                return replace(known, proof=Proof.REFUSED, why=f"wrote {text!r}, read {shown!r}")
    except OSError as error:
        if error.errno == errno.ENOENT or error.errno in spec.relation_errnos:
            return replace(known, why=f"not proven: {error.strerror}")
        return replace(known, proof=Proof.REFUSED, why=f"{spec.file}: {error.strerror}")
    return replace(known, proof=Proof.PROVEN, why="")


def _values(knob: Knob, *values: int | None) -> _Trial:
    return _Trial(knob, lambda cgroups, _: tuple(cgroups.encode(knob, value) for value in values))


def _parents_cpus(cgroups: Cgroups, scratch: CgroupPath) -> tuple[str, ...]:
    cpus = cgroups.read(scratch.parent, Knob.CPUSET_CPUS_EFFECTIVE)
    if not isinstance(cpus, frozenset) or not cpus:
        return ()
    return (cgroups.encode(Knob.CPUSET_CPUS, frozenset({min(cpus)})),)


_TRIALS: tuple[_Trial, ...] = (
    _values(Knob.CPU_SHARES, 2, 1_024),
    _values(Knob.CPU_QUOTA, 50_000),
    _values(Knob.CPU_BURST, 1_000, 0),
    _values(Knob.CPU_IDLE, 1, 0),
    _Trial(Knob.CPUSET_CPUS, _parents_cpus),
    _values(Knob.MEMORY_LIMIT, 64 * _MEBIBYTE, None),
    _values(Knob.MEMORY_SWAP_LIMIT, None),
    _values(Knob.MEMORY_MIN, 0),
    _values(Knob.MEMORY_LOW, 0),
    _values(Knob.MEMORY_HIGH, None),
    _values(Knob.MEMORY_OOM_GROUP, 1, 0),
    _values(Knob.PIDS_MAX, 100, None),
)
