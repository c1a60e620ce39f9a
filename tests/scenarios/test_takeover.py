"""H14: a node that Koordinator's agent managed, or a koordlet whose journal is lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from koordlet import ipc
from koordlet.adoption.kubelet import WeightFormula
from koordlet.api.views.hints import hints
from koordlet.host.qdiscs import Qdisc
from koordlet.leftovers import Found, find_on_tiers
from koordlet.model.adoption import ADOPTED, Adopted, AdoptStatus
from koordlet.model.knobs import Channel, Knob, Value
from koordlet.model.pods import ContainerRecord, PodRecord
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.problem import Problem, Severity
from koordlet.protocol.qos import Qos
from koordlet.report import CoreStatus
from koordlet.resexecutor import rollback as rollback_module
from koordlet.resexecutor.rollback import (
    RollbackHost,
    RollbackOptions,
    SpecRestore,
    rollback,
)
from koordlet.standing import Standing
from tests.scenarios.conftest import MakePipeline
from tests.support.execrig import BOOT
from tests.support.managednode import FACTS, GIB, STATIC, ManagedNode
from tests.support.pipeline import LAYOUTS, STATE_FILE, TIER, Photo, Pipeline, changed
from tests.support.snapshots import slo

QUOTA = slo(CpuSuppressPolicy.CFS_QUOTA, priority=True)
AGENT = Problem("other-agent", "process 7", "Koordinator's koordlet runs as process 7")


def adopt(pipe: Pipeline, found: Found, scope: str = "all") -> dict[str, int]:
    """As the daemon does with an operator's order; how many of each status."""
    entries = [each.adoption() for each in found.leftovers]
    order = ipc.AdoptCommand(scope, tuple(each for each in entries if each is not None))
    return counted(pipe.tick.adopt(order))


def counted(adopted: Iterable[Adopted]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for each in adopted:
        counts[each.status.value] = counts.get(each.status.value, 0) + 1
    return counts


def settled(pipe: Pipeline, seconds: int = 6) -> None:
    """Let time pass; the runtime answers what it is asked, and writes the files."""
    for _ in range(seconds):
        pipe.run()
        for request in pipe.tick.take_spec_requests():
            cgroup = next(
                pod.cgroup.child(request.container_id)
                for pod in pipe.told.pods.values()
                if request.container_id in {each.id for each in pod.record.containers}
            )
            is_v2 = "cpu" not in pipe.host.hierarchies.v1
            file = "cpu.max" if is_v2 else "cpu.cfs_quota_us"
            none = "max" if is_v2 else "-1"
            text = none if request.value is None else str(request.value)
            pipe.host.foreign_write(cgroup, file, f"{text} 100000" if is_v2 else text)
            pipe.answer(request)


def left(node: ManagedNode, photo: Photo) -> set[tuple[str, str]]:
    """Settings that are not as before any agent."""
    return changed(photo, node.pipe.photo())


# -- what is proposed -----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_H14_a_node_that_nobody_managed_has_no_leftovers(
    pipeline: MakePipeline, layout: str
) -> None:
    pipe = pipeline(layout)
    node = ManagedNode(pipe)
    pipe.run(2)
    found = node.found()
    assert found.leftovers == ()
    assert found.strays == ()
    assert found.problems == ()
    assert found.compared > 30


@pytest.mark.parametrize("layout", LAYOUTS)
def test_H14_every_leftover_of_a_managed_node_gets_its_pristine_value(
    pipeline: MakePipeline, layout: str
) -> None:
    pipe = pipeline(layout)
    node = ManagedNode(pipe)
    node.manage()
    pipe.run(2)
    unlimited = "max" if node.is_v2 else "-1"
    inherited = "" if node.is_v2 else "0-7"
    batch, web, db = node.batch, node.web, node.db
    wanted: dict[tuple[str, Knob], str] = {(TIER, Knob.CPU_QUOTA): unlimited}
    for path in (batch.cgroup, batch.container()):
        wanted[path, Knob.CPU_SHARES] = "1" if node.is_v2 else "2"
        wanted[path, Knob.CPU_QUOTA] = unlimited
        wanted[path, Knob.MEMORY_LIMIT] = unlimited
    for path in (TIER, batch.cgroup, batch.container(), db.container()):
        wanted[path, Knob.CPUSET_CPUS] = inherited
    for path in (web.cgroup, web.container()):
        wanted[path, Knob.CPU_QUOTA] = "200000"
        wanted[path, Knob.CPU_BURST] = "0"
        if node.is_v2:
            wanted[path, Knob.MEMORY_MIN] = "0"
    for path in (db.cgroup, db.container()):
        wanted[path, Knob.CPU_QUOTA] = "200000"
    assert node.originals() == wanted
    by_key = {leftover.key: leftover for leftover in node.found().leftovers}
    assert by_key[db.container(), Knob.CPU_QUOTA].channel is Channel.SPEC
    assert "6-7" in by_key[db.container(), Knob.CPUSET_CPUS].note
    assert by_key[web.cgroup, Knob.CPU_QUOTA].source == "the kubelet's formula"


def test_H14_group_identity_is_found_and_told_but_not_managed(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1")
    node = ManagedNode(pipe)
    node.manage()
    node.qdiscs = (Qdisc("lo", "noqueue", 0), Qdisc("eth0", "htb", 1))
    files = node.host.files
    files.put("/sys/fs/resctrl/BE/schemata", "L3:0=f\nMB:0=50\n")
    files.put("/sys/fs/resctrl/info/L3/cbm_mask", "7ff\n")
    files.put("/etc/runtime/hookserver.d/koordlet.json", "{}")
    files.put("/proc/sys/kernel/sched_group_identity_enabled", "1\n")
    pipe.run(2)
    strays = {(stray.area, stray.where): stray for stray in node.found().strays}
    assert {area for area, _ in strays} == {
        "cpu.bvt_warp_ns",
        "group identity",
        "resctrl group",
        "tc",
        "runtime hook server",
    }
    assert strays["cpu.bvt_warp_ns", f"/sys/fs/cgroup/cpu/{TIER}/cpu.bvt_warp_ns"].found == "-1"
    assert strays["resctrl group", "/sys/fs/resctrl/BE"].found == "L3:0=f; MB:0=50"
    assert all(stray.remedy for stray in strays.values())


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_H14_what_is_not_known_is_never_guessed(pipeline: MakePipeline, layout: str) -> None:
    pipe = pipeline(layout)
    node = ManagedNode(pipe)
    node.manage()
    node.facts, node.specs = None, {}
    for name, pod in list(pipe.told.pods.items()):
        containers = tuple(_untold(each) for each in pod.record.containers)
        pipe.told.pods[name] = type(pod)(_untold(pod.record, containers=containers), pod.cgroup)
    pipe.tell_pods()
    pipe.run(2)
    originals = node.originals()
    for key in (
        (node.web.cgroup, Knob.CPU_QUOTA),
        (node.web.container(), Knob.CPU_QUOTA),
        (node.db.container(), Knob.CPUSET_CPUS),
    ):
        original = originals[key]
        assert isinstance(original, Missing), key
        assert original.why
    # What needs nobody's word is proposed all the same.
    assert originals[TIER, Knob.CPU_QUOTA] in ("-1", "max")
    assert originals[node.batch.cgroup, Knob.CPU_QUOTA] in ("-1", "max")
    assert {problem.code for problem in node.found().problems} == {"adopt-incomplete"}
    before = pipe.photo()
    adopt(pipe, node.found())
    settled(pipe)
    after = pipe.photo()
    web = [key for key in changed(before, after) if "podweb" in key[0]]
    assert {file for _, file in web} <= {"cpu.cfs_burst_us", "cpu.max.burst", "memory.min"}


Record = TypeVar("Record", PodRecord, ContainerRecord)


def _untold(record: Record, **changes: Any) -> Record:
    return replace(record, native=None, **changes)


def test_H14_without_a_pod_list_nothing_is_compared_and_that_is_said(
    pipeline: MakePipeline,
) -> None:
    pipe = pipeline("v2")
    node = ManagedNode(pipe)
    node.manage()
    pipe.lose_pods()
    pipe.run(2)
    found = node.found()
    assert (found.leftovers, found.compared) == ((), 0)
    (problem,) = found.problems
    assert problem.code == "adopt-blind"
    assert problem.severity is Severity.ERROR


def test_H14_the_weight_formula_of_the_node_is_found_out(pipeline: MakePipeline) -> None:
    pipe = pipeline("v2")
    node = ManagedNode(pipe, WeightFormula.QUADRATIC)
    node.set("cpu.weight", node.web.container(), "7")  # an agent's
    pipe.run(2)
    assert node.originals() == {(node.web.container(), Knob.CPU_SHARES): "100"}
    node.set("cpu.weight", node.web.cgroup, "7")
    node.set("cpu.weight", node.db.cgroup, "7")
    pipe.run(1)
    original = node.originals()[node.web.cgroup, Knob.CPU_SHARES]
    assert isinstance(original, Missing)
    assert "39" in original.why
    assert "100" in original.why


def test_H09_under_the_static_policy_CPUs_come_from_the_kubelets_state(
    pipeline: MakePipeline,
) -> None:
    pipe = pipeline("v1")
    node = ManagedNode(pipe)
    node.facts = STATIC
    name = node.db.record.containers[0].name
    state = (
        '{"policyName":"static","defaultCpuSet":"0-5",'
        f'"entries":{{"db":{{"{name}":"6-7"}}}},"checksum":1}}'
    )
    node.host.files.put(STATE_FILE, state)
    node.set("cpuset.cpus", node.db.container(), "6-7")
    node.set("cpuset.cpus", node.web.container(), "0-5")
    node.set("cpuset.cpus", node.batch.container(), "0-2")  # shrunken
    pipe.run(2)
    assert node.originals() == {(node.batch.container(), Knob.CPUSET_CPUS): "0-5"}


def test_H08_a_contradiction_of_runtime_and_kubelet_is_told_not_resolved(
    pipeline: MakePipeline,
) -> None:
    pipe = pipeline("v1")
    node = ManagedNode(pipe)
    container = node.web.record.containers[0].id
    spec = node.specs[container]
    assert not isinstance(spec, Missing)
    node.specs[container] = replace(spec, quota_us=150_000)
    node.set_quota(node.web.container(), 240_000)
    pipe.run(2)
    original = node.originals()[node.web.container(), Knob.CPU_QUOTA]
    assert isinstance(original, Missing)
    assert "150000" in original.why
    assert "200000" in original.why


def test_H02_an_idle_pod_is_adopted_together_with_its_weight(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1")
    node = ManagedNode(pipe)
    pod = node.batch.cgroup
    node.host.foreign_write(pod, "cpu.idle", "1")
    pipe.run(2)
    leftovers = node.found().leftovers
    assert [(each.knob, each.original, each.side_effect) for each in leftovers] == [
        (Knob.CPU_SHARES, "2", True),
        (Knob.CPU_IDLE, "0", False),
    ]
    adopt(pipe, node.found())
    settled(pipe, 3)
    assert node.host.text(pod, "cpu.idle") == "0"
    assert node.host.text(pod, "cpu.shares") == "2"
    assert pipe.owned() == set()


def test_H05_a_nested_copy_of_a_narrow_cpuset_is_found_on_v1(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1")
    node = ManagedNode(pipe)
    node.manage()
    nested = node.host.make(f"{node.batch.container()}/nested", {"tasks": 1})
    assert node.host.text(nested, "cpuset.cpus") == "0-2"
    pipe.run(2)
    assert node.originals()[nested, Knob.CPUSET_CPUS] == "0-7"
    adopt(pipe, node.found())
    settled(pipe)
    assert node.host.text(nested, "cpuset.cpus") == "0-7"


def test_H14_a_host_applications_limits_are_its_owners(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1")
    app = pipe.add_app("render")
    node = ManagedNode(pipe)
    node.set_quota(app, 50_000)
    node.set("cpu.idle", app, "1")
    node.set("cpuset.cpus", app, "0-1")
    pipe.run(2)
    originals = node.originals()
    assert isinstance(originals[app, Knob.CPU_QUOTA], Missing)
    assert isinstance(originals[app, Knob.CPUSET_CPUS], Missing)
    idle = originals[app, Knob.CPU_IDLE]
    assert isinstance(idle, Missing)  # the weight that comes back with it is its owner's, too
    assert "weight" in idle.why


# -- what comes of it -----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_H14_with_everything_off_adopting_gives_the_whole_node_back(
    pipeline: MakePipeline, layout: str
) -> None:
    pipe = pipeline(layout)
    node = ManagedNode(pipe)
    node.manage()
    pipe.run(3)
    assert pipe.writes == []
    counts = adopt(pipe, node.found())
    assert pipe.writes == []  # all is journaled before the first write
    assert set(counts) == {"adopted"}
    assert len(pipe.owned()) == counts["adopted"]
    settled(pipe)
    assert left(node, node.photo) == set()
    assert pipe.owned() == set()
    assert node.found().leftovers == ()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_H14_a_governed_tier_goes_back_to_the_pristine_value_not_to_the_leftover(
    pipeline: MakePipeline, layout: str
) -> None:
    pipe = pipeline(layout, slo=QUOTA)
    node = ManagedNode(pipe)
    node.manage()
    pipe.load = {node.web.container(): 2.0, node.batch.container(): 0.5}
    pipe.run(2)
    adopt(pipe, node.found())
    settled(pipe)
    owned = pipe.parts.executor.owned()[TIER, Knob.CPU_QUOTA]
    assert owned.owner == "cpu_suppress"
    assert owned.original == ("max" if node.is_v2 else "-1")
    assert "kubelet" in owned.source
    assert pipe.quota_us(TIER) is not None
    pipe.stop()
    assert left(node, node.photo) == set()


def test_H14_a_value_that_was_journaled_with_a_leftover_as_its_original_is_corrected(
    pipeline: MakePipeline,
) -> None:
    pipe = pipeline("v1", slo=QUOTA)
    node = ManagedNode(pipe)
    node.manage()
    pipe.load = {node.web.container(): 4.5, node.batch.container(): 0.5}
    settled(pipe)
    assert pipe.parts.executor.owned()[TIER, Knob.CPU_QUOTA].original == "120000"
    quota_us = pipe.quota_us(TIER)
    found = {each.key: each for each in node.found().leftovers}
    assert found[TIER, Knob.CPU_QUOTA].held
    adopt(pipe, node.found())
    assert pipe.parts.executor.owned()[TIER, Knob.CPU_QUOTA].original == "-1"
    assert pipe.quota_us(TIER) == quota_us  # only the original is another one
    settled(pipe)
    pipe.stop()
    assert left(node, node.photo) == set()


def test_H14_adopting_twice_changes_nothing_the_second_time(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1", slo=QUOTA)
    node = ManagedNode(pipe)
    node.manage()
    pipe.run(2)
    found = node.found()
    adopt(pipe, found)
    assert set(adopt(pipe, found)) == {"already"}
    settled(pipe)
    assert node.found().leftovers == ()


def test_H14_only_what_was_listed_is_adopted(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1")
    node = ManagedNode(pipe)
    node.manage()
    pipe.run(2)
    found = node.found()
    node.set_quota(TIER, 90_000)  # the agent is still at work
    pipe.remove_pod("web")
    entries = tuple(each for leftover in found.leftovers if (each := leftover.adoption()))
    told = {each.key: each for each in pipe.tick.adopt(ipc.AdoptCommand("all", entries))}
    assert told[TIER, Knob.CPU_QUOTA].status is AdoptStatus.CHANGED
    assert told[node.web.cgroup, Knob.CPU_QUOTA].status is AdoptStatus.GONE
    assert (TIER, Knob.CPU_QUOTA) not in pipe.parts.executor.owned()


def test_H14_a_restart_still_knows_what_was_adopted(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1", slo=QUOTA, hushed=True)
    node = ManagedNode(pipe)
    node.manage()
    pipe.run(1)
    before = pipe.photo()
    adopt(pipe, node.found())
    pipe.run(2)
    assert changed(before, pipe.photo()) == set()  # nobody can decide yet: adopted values wait
    pipe._assemble()
    row = pipe.parts.executor.owned()[TIER, Knob.CPU_QUOTA]
    assert (row.owner, row.original) == (ADOPTED, "-1")
    assert row.source
    pipe.tell_all()
    settled(pipe)
    pipe.stop()
    assert left(node, node.photo) == set()


def test_H14_a_rollback_without_a_daemon_restores_adopted_originals(
    pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = pipeline("v1", slo=QUOTA, hushed=True)
    node = ManagedNode(pipe)
    node.manage()
    pipe.run(1)
    adopt(pipe, node.found())
    for journal in pipe._journals:
        journal.close()
    monkeypatch.setattr(rollback_module, "journal_path", lambda run_dir: run_dir / "journal.db")
    host = RollbackHost(node.host.cgroups(), BOOT, "/", (1, 1))
    options = RollbackOptions(lock_dir=pipe.config.run_dir / "locks")
    report = rollback(
        pipe.config.run_dir, host, pipe.clock, options=options, spec_restore=runtime_of(node)
    )
    assert report.is_as_before, report
    assert left(node, node.photo) == set()


def runtime_of(node: ManagedNode) -> SpecRestore:
    """A runtime that keeps and writes what it is asked for."""

    def restore(container_id: str, knob: Knob, value: Value) -> str:
        assert (container_id, knob) == (node.db.record.containers[0].id, Knob.CPU_QUOTA)
        assert isinstance(value, int)
        node.set_quota(node.db.container(), value)
        return ""

    return restore


def test_H14_more_than_a_portion_of_adopted_files_is_given_back_in_portions(
    pipeline: MakePipeline,
) -> None:
    pipe = pipeline("v2", start_writes_per_tick=7)
    node = ManagedNode(pipe)
    node.manage()
    pipe.run(2)
    adopt(pipe, node.found())
    written = []
    deferred = []
    for _ in range(6):
        count = len(pipe.writes)
        settled(pipe, 1)
        written.append(len(pipe.writes) - count)
        core = pipe.view().core
        assert isinstance(core, CoreStatus)
        deferred.append(core.deferred_writes)
    assert max(written) == 7
    assert deferred[0] > 0
    assert deferred[-1] == 0
    assert left(node, node.photo) == set()


# -- another agent at work ------------------------------------------------------------------------


def test_H14_while_another_agent_is_at_work_nothing_is_written(pipeline: MakePipeline) -> None:
    pipe = pipeline("v2", slo=QUOTA)
    batch, web = pipe.add_pod("batch", Qos.BE), pipe.add_pod("web", Qos.LS)
    pipe.load = {web.cgroup: 3.0, batch.container(): 2.0}
    pipe.run(4)
    in_force = pipe.quota_us(TIER)
    assert in_force is not None
    assert pipe.tick.hear_of_agent(AGENT)
    assert not pipe.tick.hear_of_agent(AGENT)
    count = len(pipe.writes)
    pipe.load[web.cgroup] = 7.0
    pipe.run(60)  # a hold that lasts turns into safe values; this one does not
    assert len(pipe.writes) == count
    assert pipe.quota_us(TIER) == in_force
    assert pipe.problems()["other-agent"] == AGENT
    status = {strategy.name: strategy for strategy in pipe.status().strategies}
    assert status["cpu_suppress"].hold_why == AGENT.what
    assert status["cpu_suppress"].would != ()
    pipe.tick.hear_of_agent(None)
    pipe.run(3)
    assert pipe.quota_us(TIER) != in_force
    assert "other-agent" not in pipe.problems()


def test_H14_beside_another_agent_an_operator_can_still_give_everything_back(
    pipeline: MakePipeline,
) -> None:
    pipe = pipeline("v2", slo=QUOTA)
    pipe.add_pod("batch", Qos.BE)
    before = pipe.photo()
    pipe.load = {TIER: 1.0}
    pipe.run(3)
    pipe.tick.hear_of_agent(AGENT)
    pipe.order(Standing().with_release("all"))
    pipe.run(2)
    assert pipe.owned() == set()
    assert changed(before, pipe.photo()) == set()


def test_H14_limits_of_the_fake_are_those_of_the_facts() -> None:
    """The node is a plain one: no static policy, quotas enforced, no MemoryQoS."""
    assert FACTS.cfs_quota
    assert not FACTS.memory_qos
    assert GIB == 2**30


# -- told without being asked ---------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_H14_leftovers_of_the_tiers_are_a_hint(pipeline: MakePipeline, layout: str) -> None:
    pipe = pipeline(layout)
    node = ManagedNode(pipe)
    pipe.run(2)
    assert on_tiers(node) == ()
    node.manage()
    files = on_tiers(node)
    assert {file.rsplit("/", 2)[1] for file in files} == {"besteffort"}
    assert len(files) == 2  # quota and cpuset
    pipe.front.leftovers(files)
    (hint,) = [each for each in hints(pipe.view()) if each.code == "leftovers"]
    assert hint.remedy == "koordletctl adopt --dry-run"
    adopt(pipe, node.found())
    settled(pipe)
    assert on_tiers(node) == ()


def on_tiers(node: ManagedNode) -> tuple[str, ...]:
    view = node.pipe.view()
    return find_on_tiers(node.pipe.config, node.host.cgroups(), view.workloads, view.owned)


def test_H14_what_we_govern_ourselves_is_no_leftover(pipeline: MakePipeline) -> None:
    pipe = pipeline("v2", slo=QUOTA)
    node = ManagedNode(pipe)
    pipe.load = {node.web.container(): 4.0, node.batch.container(): 1.0}
    pipe.run(4)
    assert pipe.quota_us(TIER) is not None
    assert on_tiers(node) == ()
    assert node.found().leftovers == ()
