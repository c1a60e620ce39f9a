"""When workloads are looked up again, and which settings are read how often."""

from __future__ import annotations

from koordlet import ipc
from koordlet.host.watch import Change
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.observer import QUIET_S, RESCAN_S, Observer
from koordlet.pods.hostapp import HostAppRecord
from koordlet.protocol.nodeslo import DEFAULT_NODESLO
from koordlet.protocol.qos import Qos
from koordlet.treewatch import TreeWatch
from tests.support.fakehost import fake_host
from tests.unit.test_treewatch import FakeWatch

ROOT_APP = CgroupPath("host-best-effort/render")
INNER = ROOT_APP.child("worker")
APPS = ipc.AppsUpdate((HostAppRecord("render", qos=Qos.BE),))


class Rig:
    def __init__(self) -> None:
        self.host = fake_host("v2", cgroups={ROOT_APP: {"worker": {}}})
        self.watch = FakeWatch(self.host)
        cgroups = self.host.cgroups()
        self.observer = Observer(cgroups, TreeWatch(cgroups, self.watch))  # type: ignore[arg-type]
        self.now_s = 100.0
        self.observer.hear(APPS, self.now_s)
        self.look()
        self.look()  # what appeared while the directories were being watched

    def look(self, *, after_s: float = 1.0) -> int:
        """Seconds pass, a tick looks; gives the number of reads and listings that it took."""
        self.now_s += after_s
        before = self.host.files.reads
        seen = self.observer.seen
        self.observer.refresh(self.now_s)
        return self.host.files.reads - before + (self.observer.seen is not seen)


def test_nothing_is_looked_up_while_nobody_spoke_and_nothing_changed() -> None:
    rig = Rig()
    for _ in range(5):
        assert rig.look() == 0
    assert rig.look(after_s=RESCAN_S) > 0


def test_a_word_of_a_source_has_everything_looked_up_an_echo_does_not() -> None:
    rig = Rig()
    assert rig.observer.hear(ipc.SloUpdate(DEFAULT_NODESLO, 2), rig.now_s)
    assert rig.look() > 0
    assert not rig.observer.hear(ipc.PodsStillTrue(0.0), rig.now_s)
    assert rig.look() == 0


def test_what_is_made_while_a_directory_is_being_watched_is_found_a_tick_later() -> None:
    rig = Rig()
    late = INNER.child("late")
    new = INNER.child("new")
    rig.host.make(new)
    rig.watch.tell(Change.CREATED, f"/sys/fs/cgroup/{new}")
    assert rig.observer.tree_changed()
    rig.look()  # finds and watches ``new``; no event will tell what is in it already
    rig.host.make(new.child("late"))
    rig.look()
    assert new.child("late") in rig.observer.seen.be_tree
    assert late not in rig.observer.seen.be_tree
    rig.look()
    assert rig.look() == 0


def test_pods_without_a_list_are_missing_with_the_reason_and_applications_are_there() -> None:
    rig = Rig()
    assert isinstance(rig.observer.seen.workloads.pods, Missing)
    rig.observer.hear(ipc.PodsUpdate(Missing("containerd is down"), 0.0), rig.now_s)
    rig.look()
    pods = rig.observer.seen.workloads.pods
    assert isinstance(pods, Missing)
    assert pods.why == "containerd is down"
    assert [app.cgroup for app in rig.observer.seen.workloads.apps] == [ROOT_APP]


def test_H29_roots_and_held_settings_are_read_each_time_quiet_ones_every_five_seconds() -> None:
    rig = Rig()
    targets = [(ROOT_APP, Knob.CPU_QUOTA), (INNER, Knob.CPU_QUOTA)]

    def quotas(after_s: float) -> list[object]:
        rig.now_s += after_s
        values = rig.observer.values(targets, {}, rig.now_s)
        return [values[target] for target in targets]

    assert quotas(0) == [None, None]
    for path in (ROOT_APP, INNER):
        rig.host.foreign_write(path, "cpu.max", "50000")
    assert quotas(0) == [50_000, None]
    seen = [quotas(1) for _ in range(QUIET_S)]
    assert seen[-1] == [50_000, 50_000]
    rig.host.foreign_write(INNER, "cpu.max", "60000")
    rig.observer.values_are_doubtful()
    assert quotas(0.1) == [50_000, 60_000]


def test_OPS_03_a_nested_cgroup_that_nobody_named_is_forgotten_when_it_leaves() -> None:
    rig = Rig()
    inner = rig.host.make(f"{INNER}/short-lived")
    rig.look(after_s=RESCAN_S)
    rig.observer.values([(inner, Knob.CPU_QUOTA)], {}, rig.now_s)
    rig.host.remove(inner)
    rig.look(after_s=RESCAN_S)
    assert any(prefix.endswith("/short-lived") for prefix in rig.host.files.dropped)


def test_H29_quiet_settings_are_read_a_part_at_a_time() -> None:
    """No tick reads all of them; within the time all have been read; a gap reads all at once."""
    rig = Rig()
    targets = [(rig.host.make(f"{INNER}/c{n}"), Knob.CPU_QUOTA) for n in range(50)]
    rig.observer.values(targets, {}, rig.now_s)
    reads = []
    for after_s in (1, 1, 1, 1, 1, 0.2, 60):
        rig.now_s += after_s
        before = rig.host.files.reads
        rig.observer.values(targets, {}, rig.now_s)
        reads.append(rig.host.files.reads - before)
    assert sum(reads[:5]) == 50 and max(reads[:5]) < 40
    assert reads[5:] == [0, 50]


def test_H07_an_application_whose_cgroup_left_is_found_where_it_comes_back() -> None:
    """Its parents stay followed, or nobody would see it before the next whole look."""
    rig = Rig()
    rig.host.remove(ROOT_APP)
    rig.watch.tell(Change.REMOVED, f"/sys/fs/cgroup/{ROOT_APP}")
    assert rig.observer.tree_changed()
    rig.look()
    assert not rig.observer.seen.be_roots
    rig.look()
    assert f"/sys/fs/cgroup/{ROOT_APP.parent}" in rig.watch.watched
    rig.host.make(ROOT_APP)
    rig.watch.tell(Change.CREATED, f"/sys/fs/cgroup/{ROOT_APP}")
    assert rig.observer.tree_changed()
    rig.look()
    assert rig.observer.seen.be_roots
