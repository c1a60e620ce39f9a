"""H14 on the real kernel: a node taken over from another agent, and a start on a full one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.clock import SystemClock
from koordlet.config import Config
from koordlet.host.machine import Machine, open_machine
from koordlet.host.mounts import Roots
from koordlet.leftovers import Witnesses, find_leftovers
from koordlet.model.actions import Status
from koordlet.model.adoption import AdoptStatus, RuntimeSpec
from koordlet.model.pods import ContainerRecord, ContainerState, PodRecord, Workloads
from koordlet.pods.layout import find_layout
from koordlet.pods.locate import LocateCache, locate_pods
from koordlet.resexecutor.executor import Executor
from koordlet.resexecutor.journal import Journal
from tests.support.cgroot import CgroupRoot, cgroup_root
from tests.support.fakenode import TIERS, FakeNode
from tests.support.koordletd import Koordlet
from tests.support.waiting import until

pytestmark = pytest.mark.kernel

TIER = TIERS["BE"]
SOON_S = 60.0
PODS = 200
PORTION = 25
SLO = "resourceQOSStrategy: {beClass: {cpuQOS: {enable: true, schedIdle: 1}}}\n"
FILES = ("cpu.shares", "cpu.weight", "cpu.cfs_quota_us", "cpu.max", "cpu.idle", "cpuset.cpus")
FILES += ("cpu.cfs_burst_us", "cpu.max.burst")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    with FakeNode(tmp_path) as made:
        made.root.set_shares(TIER, 2)  # as a kubelet does
        yield made


def add_batch(node: FakeNode, name: str) -> str:
    """A BestEffort pod as a kubelet makes it; its cgroup."""
    pod = node.add_pod(name, "BE", 1)
    node.root.set_shares(pod.cgroup, 2)
    return pod.cgroup


def daemon(node: FakeNode, directory: Path, slo: str = "", **options: Any) -> Koordlet:
    directory.mkdir()
    path = directory / "nodeslo.yaml"
    path.write_text(slo)
    path.chmod(0o644)
    return Koordlet(
        directory, node.root.root, cri_endpoint=node.cri.endpoint, node_slo=path, **options
    )


def photo(root: CgroupRoot) -> dict[str, str]:
    """Every setting in our cgroups."""
    return {
        str(path): path.read_text()
        for mount in set(root.mounts.values())
        for path in (mount / root.root[1:]).rglob("*")
        if path.name in FILES
    }


def suppress(root: CgroupRoot, pod: str, container: str) -> None:
    """What Koordinator's agent leaves of batch work."""
    for path in (container, pod):
        root.set_shares(path, 512)
        root.set_quota_us(path, 40_000)
        root.write(path, "cpuset.cpus", "0", "cpuset")
    root.set_quota_us(TIER, 60_000)
    root.write(TIER, "cpuset.cpus", "0", "cpuset")


def said(koordlet: Koordlet, code: int, *words: str) -> dict[str, Any]:
    done = koordlet.ctl("-o", "json", *words)
    assert done.returncode == code, (done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_H14_proposals_for_this_kernels_files_are_adopted_and_given_back(tmp_path: Path) -> None:
    with cgroup_root() as root:
        root.mk("kubepods/burstable")
        root.mk(TIER, shares=2)
        pod = root.mk(f"{TIER}/podbatch", shares=2)
        container = root.mk(f"{pod}/{'c' * 64}", shares=2)
        before = photo(root)
        suppress(root, pod, container)
        root.set_burst_us(pod, 10_000)
        root.write(TIER, "cpu.idle", "1")  # as core scheduling has it
        machine = open_machine(Roots(cgroup=root.root), keeps_fds=False)
        clock = SystemClock()
        opened = Journal.open(
            tmp_path / "run" / "journal.db",
            boot_id=machine.boot_id,
            managed_root=machine.managed_root,
        )
        executor = Executor(machine.cgroups, opened.journal, clock)
        found = find_leftovers(
            Config(cgroup_root=root.root),
            machine.cgroups,
            workloads_of(machine),
            (),
            Witnesses(None, lambda container_id: RuntimeSpec(shares=2)),
        )
        found_in = {(str(each.place.path), each.knob.value): each for each in found.leftovers}
        assert found_in.keys() == {
            (TIER, "cpu.shares"),
            (TIER, "cpu.idle"),
            (pod, "cpu.burst"),
            *((path, "cpu.quota") for path in (TIER, pod, container)),
            *((path, "cpuset.cpus") for path in (TIER, pod, container)),
            *((path, "cpu.shares") for path in (pod, container)),
        }
        assert all(isinstance(each.original, str) for each in found.leftovers)
        entries = [each.adoption() for each in found.leftovers]
        left = photo(root)
        told = executor.adopt([each for each in entries if each], clock.now_s())
        assert {each.status for each in told} == {AdoptStatus.ADOPTED}
        assert photo(root) == left
        outcomes = executor.restore_all("a test", clock.now_s())
        assert {outcome.status for outcome in outcomes} == {Status.RESTORED}
        executor.close()
        assert photo(root) == before


def workloads_of(machine: Machine) -> Workloads:
    """The one pod, found where it lies."""
    container = ContainerRecord("c" * 64, "main", 0, ContainerState.RUNNING)
    record = PodRecord("batch", "batch", "default", "batch", containers=(container,))
    layout = find_layout(machine.cgroups)
    pods = locate_pods(machine.cgroups, layout, (record,), LocateCache())
    return Workloads(pods, 0.0, (), layout)


def test_H14_what_an_agent_left_is_listed_taken_over_and_given_back(
    node: FakeNode, tmp_path: Path
) -> None:
    pod = add_batch(node, "batch")
    (container,) = node.pods[0].containers.values()
    before = photo(node.root)
    suppress(node.root, pod, container)
    koordlet = daemon(node, tmp_path / "koordlet")
    config = tmp_path / "koordlet.yaml"
    config.write_text(f"criEndpoint: {node.cri.endpoint}\nkubelet: none\n")
    here = ("--config", str(config), "--cgroup-root", node.root.root)
    alone = said(koordlet, 4, "adopt", "--dry-run", *here)["data"]
    with koordlet:
        until(lambda: not koordlet.status()["waiting_for"], SOON_S)
        left = photo(node.root)
        data = said(koordlet, 4, "adopt", "--dry-run")["data"]
        assert photo(node.root) == left
        assert data["files"] == alone["files"]  # the same without a daemon
        assert {entry["verdict"] for entry in data["files"]} == {"proposed"}
        assert {(entry["cgroup"], entry["knob"]) for entry in data["files"]} == {
            (path, knob)
            for path in (TIER, pod, container)
            for knob in ("cpu.shares", "cpu.quota", "cpuset.cpus")
        } - {(TIER, "cpu.shares")}
        done = said(koordlet, 0, "adopt", "--yes")["data"]
        assert (done["adopted"], done["refused"]) == (8, 0)
        until(lambda: koordlet.status()["owned_files"] == 0, SOON_S)
        assert photo(node.root) == before
        said(koordlet, 0, "adopt", "--dry-run")
        kinds = {event["kind"] for event in said(koordlet, 0, "audit")["data"]["events"]}
        assert {"order", "adopted", "restore"} <= kinds


def test_H14_a_governed_tier_is_rolled_back_to_what_the_kubelet_made(
    node: FakeNode, tmp_path: Path
) -> None:
    """The agent left the tier heavy; a crash after the takeover leaves only the journal."""
    add_batch(node, "batch")
    before = photo(node.root)
    node.root.set_shares(TIER, 900)
    with daemon(node, tmp_path / "koordlet", SLO) as koordlet:
        until(lambda: node.root.weight(TIER) == node.root.weight_of(2), SOON_S)
        # koordlet took the leftover for the original
        data = said(koordlet, 4, "adopt", "--dry-run")["data"]
        assert [(entry["cgroup"], entry["held"]) for entry in data["files"]] == [(TIER, True)]
        assert said(koordlet, 0, "adopt", "--yes")["data"]["adopted"] == 1
        file = data["files"][0]["file"]
        (subject,) = said(koordlet, 0, "explain", file)["data"]["subjects"]
        assert subject["settings"][0]["original_source"] == "the kubelet's least weight"
        koordlet.kill()
        done = koordlet.ctl("rollback")
        assert done.returncode == 0, done.stderr
    assert photo(node.root) == before


def test_H14_an_agent_that_comes_while_koordlet_runs_stays_the_only_writer(
    node: FakeNode, tmp_path: Path
) -> None:
    """Its pod is in the runtime's list; its process would stop every other koordlet here, too."""
    pod = add_batch(node, "batch")
    with daemon(node, tmp_path / "koordlet", SLO) as koordlet:
        until(lambda: node.root.read(pod, "cpu.idle") == "1", SOON_S)
        agent = node.cri.add_pod("koordlet-x", labels={"koord-app": "koordlet"})

        def codes() -> set[str]:
            return {each["code"] for each in koordlet.client.get("status")["problems"]}

        until(lambda: "other-agent" in codes(), SOON_S)
        node.root.write(pod, "cpu.idle", "0")  # the agent's wish
        other = add_batch(node, "another")
        node.root.set_quota_us(TIER, 60_000)
        refused = koordlet.ctl("adopt", "--yes")
        assert (refused.returncode, "koordlet-x" in refused.stderr) == (1, True)
        seen = len(koordlet.ticks())
        until(lambda: len(koordlet.ticks()) > seen + 2, SOON_S)
        assert node.root.read(pod, "cpu.idle") == node.root.read(other, "cpu.idle") == "0"
        node.cri.remove_pod(agent)
        until(lambda: node.root.read(other, "cpu.idle") == "1", SOON_S)
        assert "other-agent" not in codes()


def test_H14_a_crash_in_the_middle_of_a_start_on_200_pods_is_restored(
    node: FakeNode, tmp_path: Path
) -> None:
    for number in range(PODS):
        add_batch(node, f"batch-{number}")
    before = photo(node.root)
    options = {"start_writes_per_tick": PORTION}
    with daemon(node, tmp_path / "koordlet", SLO, **options) as koordlet:
        until(lambda: 0 < koordlet.status()["deferred_writes"] <= PODS - 2 * PORTION, SOON_S)
        koordlet.kill()
        moved = len([key for key, text in photo(node.root).items() if before[key] != text])
        assert 0 < moved < 2 * PODS  # an idle pod shows another weight, too
        done = koordlet.ctl("rollback")
        assert done.returncode == 0, done.stderr
    assert photo(node.root) == before


def test_H14_a_start_on_200_pods_writes_in_portions_and_ends(
    node: FakeNode, tmp_path: Path
) -> None:
    pods = [add_batch(node, f"batch-{number}") for number in range(PODS)]
    before = photo(node.root)
    options = {"start_writes_per_tick": PORTION}
    with daemon(node, tmp_path / "koordlet", SLO, **options) as koordlet:
        until(lambda: node.root.read(pods[-1], "cpu.idle") == "1", SOON_S)
        until(lambda: koordlet.status()["deferred_writes"] == 0, SOON_S)
        assert {node.root.read(pod, "cpu.idle") for pod in pods} == {"1"}
        ticks = koordlet.ticks()
        assert ticks[0]["writes"] == 0
        assert max(tick["writes"] for tick in ticks) == PORTION
        assert sum(tick["writes"] for tick in ticks) == PODS
        assert koordlet.stop() == 0
    assert photo(node.root) == before
