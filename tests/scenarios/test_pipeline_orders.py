"""Operators, restarts and new configuration: who holds what, and what is given back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordlet import ipc
from koordlet.filesources import FileSources
from koordlet.model.actions import Mode
from koordlet.model.topology import CpuManagerPolicy
from koordlet.observer import Word
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.qos import Qos
from koordlet.report import SloStatus
from tests.scenarios.conftest import MakePipeline
from tests.support.pipeline import LAYOUTS, TIER, FakePod, Photo, Pipeline, changed
from tests.support.snapshots import slo

BOTH = {
    policy: slo(policy, priority=True, idle=1)
    for policy in (CpuSuppressPolicy.CFS_QUOTA, CpuSuppressPolicy.CPUSET)
}
QUOTA, CPUSET = BOTH.values()
QUOTA_FILES = {"cpu.cfs_quota_us", "cpu.max"}


def _governed(pipe: Pipeline, cores: float = 2.2) -> tuple[FakePod, Photo]:
    """A marked BE pod beside a busy LS pod, and the settings from before all of it."""
    web, batch = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
    before = pipe.photo()
    pipe.load = {web.cgroup: cores}
    pipe.run_until_settled()
    assert pipe.owned()
    return batch, before


def _files(before: Photo, pipe: Pipeline) -> set[str]:
    """Names of the files that differ from ``before``."""
    return {name for _, name in changed(before, pipe.photo())}


# -- takeover -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", list(BOTH))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_H16_after_a_SIGKILL_values_stay_in_force_without_a_gap_and_a_stop_restores_all(
    pipeline: MakePipeline, layout: str, policy: CpuSuppressPolicy
) -> None:
    pipe = pipeline(layout, slo=BOTH[policy])
    _, before = _governed(pipe)
    in_force, owned, count = pipe.photo(), pipe.owned(), len(pipe.writes)
    pipe.restart()
    pipe.run_tick()
    pipe.run(4)
    assert pipe.photo() == in_force
    assert len(pipe.writes) == count  # nothing restored, nothing written again
    assert pipe.owned() == owned
    assert f"{len(owned)} values" in pipe.status().takeover
    pipe.stop()
    assert pipe.photo() == before


def test_H16_what_happened_while_nobody_ran_is_noticed(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1", slo=QUOTA)
    batch, before = _governed(pipe)
    pipe.host.foreign_write(TIER, "cpu.cfs_quota_us", "-1")  # reset by the kubelet
    pipe.host.foreign_write(batch.cgroup, "cpu.idle", "0")  # and by somebody else
    pipe.restart()
    pipe.run(3)
    assert pipe.quota_us(TIER) == 300_000
    assert pipe.host.text(batch.cgroup, "cpu.idle") == "1"
    pipe.stop()
    assert pipe.photo() == before


def test_H16_a_second_crash_changes_nothing(pipeline: MakePipeline) -> None:
    pipe = pipeline("v2", slo=QUOTA)
    _, before = _governed(pipe)
    for _ in range(4):
        pipe.restart()
        pipe.run_tick()
    pipe.run(3)
    assert pipe.quota_us(TIER) == 300_000
    pipe.stop()
    assert pipe.photo() == before


# -- modes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.OBSERVE])
@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_H17_off_and_observe_restore_everything_and_enforce_takes_it_up_again(
    pipeline: MakePipeline, layout: str, mode: Mode
) -> None:
    pipe = pipeline(layout, slo=QUOTA)
    _, before = _governed(pipe)
    in_force = pipe.photo()
    pipe.set_mode(mode)
    pipe.run_tick()
    assert pipe.photo() == before
    assert pipe.owned() == set()
    pipe.run(2)
    for strategy in pipe.status().strategies:
        assert strategy.mode is mode
        assert bool(strategy.would) is (mode is Mode.OBSERVE)
    pipe.set_mode(Mode.ENFORCE)
    pipe.run(3)
    assert pipe.photo() == in_force


def test_H17_one_strategy_observes_beside_one_that_enforces(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1", slo=QUOTA)
    _, before = _governed(pipe)
    pipe.set_mode(Mode.OBSERVE, "cpu_suppress")
    pipe.run(2)
    assert _files(before, pipe) == {"cpu.idle"}
    by_name = {strategy.name: strategy for strategy in pipe.status().strategies}
    assert by_name["cpu_suppress"].would[0].value == 300_000
    assert by_name["cpu_suppress"].owned == 0
    assert by_name["be_priority"].owned > 0
    pipe.stop()
    assert pipe.photo() == before


# -- releases -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", list(BOTH))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_release_of_all_restores_all_and_resume_takes_it_up_again(
    pipeline: MakePipeline, layout: str, policy: CpuSuppressPolicy
) -> None:
    pipe = pipeline(layout, slo=BOTH[policy])
    _, before = _governed(pipe)
    in_force = pipe.photo()
    pipe.release("all")
    pipe.run_tick()
    assert pipe.photo() == before
    pipe.run(3)
    assert pipe.photo() == before
    assert pipe.status().released == ("all",)
    pipe.resume()
    pipe.run(3)
    assert pipe.photo() == in_force
    assert pipe.status().released == ()


def test_release_of_an_owner_restores_its_files_alone(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1", slo=CPUSET)
    _, before = _governed(pipe)
    assert _files(before, pipe) == {"cpuset.cpus", "cpu.idle"}
    pipe.release("owner:be_priority")
    pipe.run(2)
    assert _files(before, pipe) == {"cpuset.cpus"}
    assert pipe.status().released == ("owner:be_priority",)
    pipe.resume("owner:be_priority")
    pipe.run(2)
    assert _files(before, pipe) == {"cpuset.cpus", "cpu.idle"}


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_release_of_a_pod_restores_what_lies_in_it_and_nothing_else(
    pipeline: MakePipeline, layout: str
) -> None:
    pipe = pipeline(layout, slo=QUOTA)
    batch, before = _governed(pipe)
    other = pipe.add_pod("other", Qos.BE)
    pipe.run(2)
    pipe.release("pod:batch")
    pipe.run(2)
    assert pipe.host.text(batch.cgroup, "cpu.idle") == "0"
    assert pipe.host.text(other.cgroup, "cpu.idle") == "1"
    assert pipe.quota_us(TIER) == 300_000
    assert pipe.status().released == ("pod:batch",)
    assert all(not path.startswith(batch.cgroup) for path, _ in pipe.owned())
    pipe.resume("pod:batch")
    pipe.run(2)
    assert pipe.host.text(batch.cgroup, "cpu.idle") == "1"
    pipe.stop()
    assert changed(before, pipe.photo()) == set()


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_release_of_a_file_restores_that_file(pipeline: MakePipeline, layout: str) -> None:
    pipe = pipeline(layout, slo=QUOTA)
    _, before = _governed(pipe)
    (path, _) = next(key for key in changed(before, pipe.photo()) if key[1] in QUOTA_FILES)
    name = "cpu.max" if layout == "v2" else "cpu.cfs_quota_us"
    pipe.release(f"file:{path}/{name}")
    pipe.run(3)
    assert _files(before, pipe) == {"cpu.idle"}
    assert pipe.status().released == (f"file:{path}/{name}",)
    pipe.resume()
    pipe.run(3)
    assert pipe.quota_us(TIER) == 300_000


def test_a_release_holds_in_the_next_core_from_its_first_tick(pipeline: MakePipeline) -> None:
    pipe = pipeline("v2", slo=QUOTA)
    _, before = _governed(pipe)
    pipe.release("all")
    standing = pipe.tick.standing
    pipe.restart()
    pipe.order(standing)
    pipe.run(3)
    assert pipe.photo() == before


# -- the kubelet's static policy ------------------------------------------------------------------


def _state(exclusive: dict[str, dict[str, str]], pool: str) -> str:
    return json.dumps(
        {"policyName": "static", "defaultCpuSet": pool, "entries": exclusive, "checksum": 1}
    )


def test_CS_04_under_the_static_policy_only_containers_are_narrowed(
    pipeline: MakePipeline,
) -> None:
    pipe = pipeline("v1", slo=slo(CpuSuppressPolicy.CPUSET))
    pipe.tell_kubelet(CpuManagerPolicy.STATIC, _state({}, "0-7"))
    batch, before = _governed(pipe)
    assert len(pipe.cpus(batch.container())) == 3
    assert len(pipe.cpus(TIER)) == 8
    assert len(pipe.cpus(batch.cgroup)) == 8
    pipe.stop()
    assert pipe.photo() == before


def test_H09_a_container_gets_back_what_the_kubelet_says_now(pipeline: MakePipeline) -> None:
    pipe = pipeline("v1", slo=slo(CpuSuppressPolicy.CPUSET))
    pipe.tell_kubelet(CpuManagerPolicy.STATIC, _state({}, "0-7"))
    batch, _ = _governed(pipe)
    pipe.tell_kubelet(CpuManagerPolicy.STATIC, _state({"web": {"c0": "6-7"}}, "0-5"))
    pipe.run(2)
    assert pipe.cpus(batch.container()).isdisjoint({6, 7})
    pipe.stop()
    assert pipe.cpus(batch.container()) == frozenset(range(6))


# -- NodeSLO --------------------------------------------------------------------------------------

NODESLO = """
resourceUsedThresholdWithBE:
  enable: true
  cpuSuppressThresholdPercent: {percent}
  cpuSuppressPolicy: cfsQuota
"""


class SloFeed:
    """The NodeSLO file and the front's thread that reads it, without the thread."""

    def __init__(self, pipe: Pipeline) -> None:
        self._pipe = pipe
        self._path: Path = pipe.config.node_slo
        self._sources = FileSources(
            pipe.config,
            pipe.host.files,
            pipe.host.roots,
            pipe.clock,
            pipe.front,
            self._post,
            lambda _facts: None,
        )

    def _post(self, message: object) -> None:
        assert isinstance(message, Word)
        self._pipe.hear(message)

    def write(self, text: str) -> SloStatus:
        """Put ``text`` into the file and let it be noticed."""
        self._path.write_text(text)
        self._path.chmod(0o600)
        return self.poll()

    def poll(self) -> SloStatus:
        self._sources.poll()
        self._sources.poll()
        self._pipe.run(2)
        found = self._pipe.view().slo
        assert isinstance(found, SloStatus)
        return found


def test_the_NodeSLO_is_read_again_and_a_refused_one_keeps_the_last_good_in_force(
    pipeline: MakePipeline,
) -> None:
    pipe = pipeline("v2")
    feed = SloFeed(pipe)
    web, _ = pipe.add_pod("web", Qos.LS), pipe.add_pod("batch", Qos.BE)
    pipe.load = {web.cgroup: 2.0}
    assert feed.poll().slo.threshold.enable is False
    assert pipe.quota_us(TIER) is None
    assert feed.write(NODESLO.format(percent=65)).version == 2
    assert pipe.quota_us(TIER) == 320_000
    assert feed.write(NODESLO.format(percent=50)).version == 3
    assert pipe.quota_us(TIER) == 200_000
    refused = feed.write(NODESLO.format(percent='"lots"'))
    assert refused.refused
    assert refused.version == 3
    assert refused.slo.threshold.cpu_suppress_threshold_percent == 50
    assert pipe.quota_us(TIER) == 200_000
    pipe.config.node_slo.unlink()
    gone = feed.poll()
    assert gone.refused
    assert pipe.quota_us(TIER) == 200_000
    assert feed.write("{}").refused == ()
    assert pipe.quota_us(TIER) is None
    assert pipe.owned() == set()


def test_applications_of_the_NodeSLO_are_governed(pipeline: MakePipeline) -> None:
    pipe = pipeline("v2")
    feed = SloFeed(pipe)
    pipe.host.make("host-best-effort/render", {"tasks": 1})
    feed.write(NODESLO.format(percent=50) + "hostApplications:\n  - name: render\n    qos: BE\n")
    pipe.run(2)
    assert pipe.quota_us("host-best-effort/render") == 400_000
    assert [app.name for app in pipe.view().workloads.apps] == ["render"]
    feed.write("{}")
    assert pipe.quota_us("host-best-effort/render") is None


def test_a_pods_age_is_told(pipeline: MakePipeline) -> None:
    pipe = pipeline("v2")
    pipe.add_pod("batch", Qos.BE, told=False)
    pipe.tell_pods(age_s=7.0)
    pipe.run_tick()
    assert pipe.view().workloads.pods_age_s == 7.0
    pipe.hear(ipc.PodsStillTrue(0.5))
    assert pipe.observer.inputs.pods is not None
    assert pipe.observer.inputs.pods.age_s == 0.5


@pytest.mark.parametrize("how", ["stop", "release all"])
def test_release_of_a_pod_below_a_narrowed_v1_tier_says_what_stands_in_the_way(
    pipeline: MakePipeline, how: str
) -> None:
    """The kernel keeps a v1 cpuset within its parent's: it is given back with the tier's."""
    pipe = pipeline("v1", slo=slo(CpuSuppressPolicy.CPUSET))
    batch, before = _governed(pipe)
    pipe.release("pod:batch")
    pipe.run(5)
    assert pipe.cpus(batch.container()) == pipe.cpus(TIER)
    assert any(str(TIER) in problem.what for problem in pipe.problems().values())
    pipe.resume()
    pipe.run(2)
    assert not pipe.not_as_wanted()
    pipe.release("pod:batch")
    pipe.run(20)  # asked less and less often meanwhile
    if how == "stop":
        pipe.stop()
    else:
        pipe.release("all")
        pipe.run(2)
    assert pipe.photo() == before
    assert pipe.owned() == set()
