"""Which cgroups are the kubelet's tiers."""

from __future__ import annotations

from koordlet.host.cgroup import Cgroups
from koordlet.model.paths import ROOT, CgroupPath, CgroupPathError
from koordlet.model.pods import CgroupDriver, KubeLayout
from koordlet.model.readings import Missing

_REMEDY = "nothing is managed in kubepods until exactly one is there"


def find_layout(
    cgroups: Cgroups, cgroup_root: str = "/", driver: CgroupDriver | None = None
) -> KubeLayout | Missing:
    """The tiers below the managed root, by the spelling that is there.

    ``cgroup_root`` and ``driver`` are the kubelet's own, where it was found (case POD-04). Both
    spellings or none is Missing: it is never guessed (case POD-05). A ``kubepods`` deeper in the
    tree belongs to a nested runtime and does not count (case POD-07).
    """
    try:
        root = CgroupPath.parse(cgroup_root)
    except CgroupPathError as error:
        return Missing(f"the kubelet's cgroupRoot is not usable: {error}")
    candidates = (_cgroupfs(root), _systemd(root))
    wanted = [each for each in candidates if driver in (None, each.driver)]
    there = [each for each in wanted if _exists(cgroups, each.kubepods)]
    if len(there) == 1:
        return there[0]
    names = " and ".join(each.kubepods for each in (there or wanted))
    if there:
        return Missing(f"{names} both exist and the kubelet's cgroup driver is unknown; {_REMEDY}")
    return Missing(f"no cgroup {names.replace(' and ', ' or ')}; {_REMEDY}")


def _cgroupfs(root: CgroupPath) -> KubeLayout:
    kubepods = root.child("kubepods")
    return KubeLayout(
        driver=CgroupDriver.CGROUPFS,
        kubepods=kubepods,
        burstable=kubepods.child("burstable"),
        besteffort=kubepods.child("besteffort"),
    )


def _systemd(root: CgroupPath) -> KubeLayout:
    """Slices nest by their names: ``/a/b`` is ``a.slice/a-b.slice``, a ``-`` in a name is ``_``."""
    directory, stem = ROOT, ""
    for part in (*(root.split("/") if root else ()), "kubepods"):
        directory, stem = _slice(directory, stem, part.replace("-", "_"))
    burstable, _ = _slice(directory, stem, "burstable")
    besteffort, _ = _slice(directory, stem, "besteffort")
    return KubeLayout(CgroupDriver.SYSTEMD, directory, burstable, besteffort)


def _slice(parent: CgroupPath, stem: str, part: str) -> tuple[CgroupPath, str]:
    stem = f"{stem}-{part}" if stem else part
    return parent.child(f"{stem}.slice"), stem


def _exists(cgroups: Cgroups, path: CgroupPath) -> bool:
    return not isinstance(cgroups.children(path), Missing)
