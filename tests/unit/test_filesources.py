"""Files that the front polls: NodeSLO, host applications, and the kubelet's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from koordlet import ipc
from koordlet.config import Config
from koordlet.filesources import KUBELET_EVERY_S, FileSources
from koordlet.frontstate import FrontState
from koordlet.model.topology import CpuManagerPolicy
from koordlet.pods.kubeletfacts import KubeletFacts
from koordlet.protocol.nodeslo import DEFAULT_NODESLO
from koordlet.report import SloStatus, SourceState, SourceStatus
from tests.support.execrig import HandClock
from tests.support.fakehost import fake_host
from tests.support.waiting import until

KUBELET_YAML = "/var/lib/kubelet/config.yaml"
APP = """
apiVersion: koordlet/v1
kind: HostApplications
applications: [{{name: {name}, qos: {qos}}}]
"""


class Rig:
    def __init__(self, directory: Path, **config: Any) -> None:
        self.directory = directory
        self.clock = HandClock()
        self.host = fake_host("v2")
        self.sent: list[Any] = []
        self.kubelets: list[KubeletFacts] = []
        self.runtime_looked_for = 0
        self.config = Config(
            node_slo=directory / "nodeslo.yaml",
            host_apps_dir=directory / "hostapps.d",
            **config,
        )
        self.state = FrontState(self.config, self.host.cgroups(), self.clock)
        self.sources = FileSources(
            self.config,
            self.host.files,
            self.host.roots,
            self.clock,
            self.state,
            self.sent.append,
            self.kubelets.append,
            self._look_for_runtime,
        )

    def _look_for_runtime(self) -> None:
        self.runtime_looked_for += 1

    def poll(self, times: int = 2) -> list[Any]:
        """Messages of so many polls; a changed file is believed when it was seen twice."""
        self.sent.clear()
        for _ in range(times):
            self.clock.at_s += 1
            self.sources.poll()
        return list(self.sent)

    def put(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(mode=0o755, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)

    def run_kubelet(self, config: str = "", pid: int = 77) -> None:
        self.host.files.put(f"/proc/{pid}/cmdline", f"kubelet\0--config={KUBELET_YAML}\0")
        self.host.files.put(KUBELET_YAML, config or "{}")
        self.clock.at_s += KUBELET_EVERY_S

    def source(self, name: str) -> SourceStatus:
        return next(source for source in self.state.view().sources if source.name == name)

    def slo(self) -> SloStatus:
        found = self.state.view().slo
        assert isinstance(found, SloStatus)
        return found


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


# -- NodeSLO --------------------------------------------------------------------------------------


def test_CFG_05_without_a_file_the_defaults_are_told_at_once(rig: Rig) -> None:
    sent = rig.poll(1)
    assert ipc.SloUpdate(DEFAULT_NODESLO, 1) in sent
    assert rig.source("nodeslo").state is SourceState.OK
    assert rig.poll() == []


def test_a_file_that_is_refused_at_the_first_start_leaves_everything_off(rig: Rig) -> None:
    rig.put("nodeslo.yaml", "resourceUsedThresholdWithBE: {enable: maybe}")
    sent = rig.poll(1)
    assert ipc.SloUpdate(DEFAULT_NODESLO, 0) in sent
    assert rig.slo().where == "built-in defaults"
    assert rig.slo().refused
    assert rig.source("nodeslo").state is SourceState.STALE
    rig.put("nodeslo.yaml", "resourceUsedThresholdWithBE: {enable: true}")
    (update,) = rig.poll()
    assert update.version == 1
    assert update.slo.threshold.enable
    assert not rig.slo().refused


def test_warnings_come_along_and_the_file_is_in_force(rig: Rig) -> None:
    rig.put("nodeslo.yaml", "resourceUsedThresholdWithBE: {enable: true, cpuSupressPolicy: x}")
    rig.poll()
    assert rig.slo().slo.threshold.enable
    assert rig.source("nodeslo").problems == rig.slo().problems != ()


# -- host applications ----------------------------------------------------------------------------


def test_applications_are_told_when_they_change(rig: Rig) -> None:
    assert ipc.AppsUpdate(()) in rig.poll()
    rig.put("hostapps.d/a.yaml", APP.format(name="render", qos="BE"))
    (update,) = rig.poll()
    assert [record.name for record in update.records] == ["render"]
    assert rig.poll() == []
    rig.put("hostapps.d/b.yaml", APP.format(name="nginx", qos="LS"))
    (update,) = rig.poll()
    assert [record.name for record in update.records] == ["nginx", "render"]


def test_a_broken_file_keeps_its_last_good_content_and_is_told(rig: Rig) -> None:
    rig.put("hostapps.d/a.yaml", APP.format(name="render", qos="BE"))
    rig.poll()
    rig.put("hostapps.d/a.yaml", "applications: [")
    assert rig.poll() == []
    assert rig.source("hostapps").state is SourceState.STALE
    assert rig.source("hostapps").problems
    rig.put("hostapps.d/a.yaml", APP.format(name="render", qos="BE"))
    rig.poll()
    assert rig.source("hostapps").state is SourceState.OK


def test_what_is_there_instead_of_the_directory_is_no_reason_to_fail(rig: Rig) -> None:
    (rig.directory / "hostapps.d").write_text("I am a file")
    assert ipc.AppsUpdate(()) in rig.poll()
    assert rig.source("hostapps").problems


# -- the kubelet ----------------------------------------------------------------------------------


def test_H13_a_kubelet_is_found_once_and_told(rig: Rig) -> None:
    rig.poll()
    assert rig.source("kubelet").state is SourceState.OFF
    rig.run_kubelet("cpuManagerPolicy: static\nreservedSystemCPUs: 0-1\n")
    (update,) = rig.poll()
    assert update.cpu_manager is CpuManagerPolicy.STATIC
    assert update.reserved_cpus == {0, 1}
    assert len(rig.kubelets) == 1
    assert rig.poll(40) == []
    assert len(rig.kubelets) == 1


def test_H09_another_configuration_is_noticed_after_a_restart_and_the_same_is_not(
    rig: Rig,
) -> None:
    rig.run_kubelet("cpuManagerPolicy: none\n")
    rig.poll()
    rig.host.files.remove("/proc/77")
    rig.run_kubelet("cpuManagerPolicy: none\n", pid=78)
    assert rig.poll() == []
    assert len(rig.kubelets) == 1
    rig.host.files.remove("/proc/78")
    rig.run_kubelet("cpuManagerPolicy: static\nport: 10350\n", pid=79)
    (update,) = rig.poll()
    assert update.cpu_manager is CpuManagerPolicy.STATIC
    assert [facts.port for facts in rig.kubelets] == [10250, 10350]


def test_what_is_wrong_with_its_configuration_is_told(rig: Rig) -> None:
    rig.run_kubelet("reservedSystemCPUs: everything\n")
    rig.poll()
    assert rig.source("kubelet-config").problems


def test_our_own_cgroup_root_wins_over_the_kubelets(tmp_path: Path) -> None:
    rig = Rig(tmp_path, kubelet_cgroup_root="/mine")
    rig.run_kubelet("cgroupRoot: /theirs\n")
    assert [word.cgroup_root for word in rig.poll() if isinstance(word, ipc.KubeletUpdate)] == [
        "/mine"
    ]


@pytest.mark.parametrize(
    ("managed", "kubelets", "seen"),
    [
        ("/", "/", "/"),
        ("/", "/kube", "/kube"),
        ("/node", "/node", "/"),
        ("/node", "/node/kube", "/kube"),
        ("/node", "/nodes", "/nodes"),
        ("/node", "/", "/"),
    ],
)
def test_POD_04_the_kubelets_cgroup_root_is_counted_from_ours(
    tmp_path: Path, managed: str, kubelets: str, seen: str
) -> None:
    rig = Rig(tmp_path, cgroup_root=managed)
    rig.run_kubelet(f"cgroupRoot: {kubelets}\n")
    assert [word.cgroup_root for word in rig.poll() if isinstance(word, ipc.KubeletUpdate)] == [
        seen
    ]


def test_with_kubelet_none_nobody_looks(tmp_path: Path) -> None:
    rig = Rig(tmp_path, kubelet="none")
    rig.run_kubelet()
    rig.poll()
    assert rig.kubelets == []


# -- everything -----------------------------------------------------------------------------------


def test_a_core_that_connects_is_told_the_newest_word_of_each(rig: Rig) -> None:
    assert rig.sources.messages() == []
    rig.put("hostapps.d/a.yaml", APP.format(name="render", qos="BE"))
    rig.run_kubelet()
    rig.poll()
    kubelet, slo, apps = rig.sources.messages()
    assert isinstance(kubelet, ipc.KubeletUpdate)
    assert slo == ipc.SloUpdate(DEFAULT_NODESLO, 1)
    assert [record.name for record in apps.records] == ["render"]


def test_the_runtime_is_looked_for_in_each_poll(rig: Rig) -> None:
    rig.poll(3)
    assert rig.runtime_looked_for == 3


def test_OPS_01_a_fault_in_one_look_at_the_files_is_not_the_last_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that died would leave the last good content in force for ever, silently."""
    monkeypatch.setattr("koordlet.filesources.POLL_S", 0.001)
    rig = Rig(tmp_path)
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 2:
            raise IsADirectoryError("nobody thought of it")

    monkeypatch.setattr(rig.sources, "poll", look)
    rig.sources.start()
    until(lambda: len(looks) > 3, 5.0)
    rig.sources.stop()
