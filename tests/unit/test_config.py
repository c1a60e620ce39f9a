"""koordlet's configuration: file, command line, and every fault told at once."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from koordlet.config import Config, load_config, salvage_config
from koordlet.protocol.problem import Problem, RefusedError, Severity


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "koordlet.yaml"


def from_file(path: Path, text: str, *options: str) -> Config:
    path.write_text(text)
    path.chmod(0o644)
    return load_config(["--config", str(path), *options])


def refused(path: Path, text: str, *options: str) -> tuple[Problem, ...]:
    with pytest.raises(RefusedError) as caught:
        from_file(path, text, *options)
    return caught.value.problems


def test_defaults(path: Path) -> None:
    config = from_file(path, "")
    assert config.run_dir == Path("/run/koordlet")
    assert config.cgroup_root == "/"
    assert config.metrics_address == ("127.0.0.1", 9316)
    assert config.node_name == os.uname().nodename
    assert config.reserved_cpus == frozenset()
    assert config.tick_seconds == 1.0
    assert not config.dry_run
    assert config.extensions == ()


EVERY_KEY = """
runDir: /r
stateDir: /s
cgroupRoot: /koordtest-1/
sysfsRoot: /x/sys
procRoot: /x/proc
nodeName: n1
nodeSlo: /slo.yaml
hostAppsDir: /apps
criEndpoint: unix:///run/containerd/containerd.sock
kubelet: https://127.0.0.1:10250
kubeletCa: /ca
kubeletToken: /token
kubeletClientCert: /cert
kubeletClientKey: /key
kubeletCgroupRoot: /kube
kubeletStateFile: /state
metricsAddress: "[::1]:9000"
containerMetrics: false
dryRun: true
otherAgent: ignore
startWritesPerTick: 50
reservedCPUs: 0-1,4
systemReserved: {cpu: 1500m, memory: 1Gi}
tickSeconds: 2
hotSampleSeconds: 0.5
holdMaxSeconds: 10
auditRetentionDays: 3
historyRetentionDays: 30
historyMaxMiB: 128
ownCgroup: /koord.slice/koordlet.service
onSigterm: leave
logLevel: debug
logFormat: json
extensions: [a, b]
"""

EVERY_OPTION = """
--run-dir /r --state-dir=/s --cgroup-root /koordtest-1 --sysfs-root /x/sys --proc-root /x/proc
--node-name n1 --node-slo /slo.yaml --host-apps-dir /apps
--cri-endpoint unix:///run/containerd/containerd.sock --kubelet https://127.0.0.1:10250
--kubelet-ca /ca --kubelet-token /token --kubelet-client-cert /cert --kubelet-client-key /key
--kubelet-cgroup-root /kube --kubelet-state-file /state --metrics-address [::1]:9000
--container-metrics=false --dry-run --other-agent ignore --start-writes-per-tick 50
--reserved-cpus 0-1,4 --system-reserved-cpu 1500m
--system-reserved-memory 1Gi --tick-seconds 2 --hot-sample-seconds 0.5 --hold-max-seconds 10
--audit-retention-days 3 --history-retention-days 30 --history-max-mib 128
--own-cgroup /koord.slice/koordlet.service --on-sigterm leave
--log-level debug --log-format json --extensions a,b
"""


def test_every_key_in_the_file_and_on_the_command_line(path: Path) -> None:
    config = from_file(path, EVERY_KEY)
    assert config.cgroup_root == "/koordtest-1"
    assert config.metrics_address == ("::1", 9000)
    assert config.reserved_cpus == {0, 1, 4}
    assert config.system_reserved_cpu_milli == 1500
    assert config.system_reserved_memory_bytes == 1 << 30
    assert config.extensions == ("a", "b")
    assert config.own_cgroup == "koord.slice/koordlet.service"
    assert config == from_file(path, "", *EVERY_OPTION.split())
    same = [name for name in Config.__slots__ if getattr(config, name) == getattr(Config(), name)]
    assert same == [], "each key differs from its default in this test"


def test_the_file_at_the_default_path_is_read(path: Path) -> None:
    path.write_text("dryRun: true")
    path.chmod(0o644)
    config = load_config([], default_file=path)
    assert config.dry_run
    assert config.config == path


def test_the_command_line_wins(path: Path) -> None:
    config = from_file(path, "dryRun: true\ntickSeconds: 2", "--dry-run=false")
    assert not config.dry_run
    assert config.tick_seconds == 2.0


def test_null_is_not_set(path: Path) -> None:
    assert from_file(path, "nodeName: null\nsystemReserved:\n").node_name == os.uname().nodename


def test_a_single_reserved_cpu_is_a_number_in_yaml(path: Path) -> None:
    assert from_file(path, "reservedCPUs: 3").reserved_cpus == {3}


def test_CFG_08_a_reservation_by_quantity_counts_with_an_empty_cpu_list(path: Path) -> None:
    config = from_file(path, 'systemReserved: {cpu: "4"}\nreservedCPUs: ""')
    assert config.system_reserved_cpu_milli == 4000
    assert config.reserved_cpus == frozenset()


def test_CFG_10_a_fraction_of_a_byte_rounds_up(path: Path) -> None:
    config = from_file(path, "systemReserved: {memory: 0.1Gi}")
    assert config.system_reserved_memory_bytes == 107_374_183


def test_none_switches_a_source_off(path: Path) -> None:
    config = from_file(path, "metricsAddress: none\nkubelet: none\ncriEndpoint: none")
    assert config.metrics_address is None
    assert (config.kubelet, config.cri_endpoint) == ("none", "none")


def test_a_missing_file_is_an_error_only_where_it_was_named(path: Path) -> None:
    assert load_config([], default_file=path).run_dir == Path("/run/koordlet")
    with pytest.raises(RefusedError, match="no such file"):
        load_config(["--config", str(path)])


def test_unknown_keys_are_refused_with_the_nearest_one(path: Path) -> None:
    text = "runDirr: /r\nsystemReserved: {cpus: 1}\n"
    problems = refused(path, text, "--run-dirr", "/r", "--run", "/x")
    text = "\n".join(map(str, problems))
    assert "did you mean runDir?" in text
    assert "did you mean systemReserved.cpu?" in text
    assert "did you mean --run-dir?" in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("runDir", "relative/dir"),
        ("runDir", "/a/../b"),
        ("runDir", "[]"),
        ("config", "/x"),
        ("cgroupRoot", "x"),
        ("cgroupRoot", "/a/../.."),
        ("kubeletCgroupRoot", "../x"),
        ("criEndpoint", "/run/containerd.sock"),
        ("criEndpoint", "unix://relative"),
        ("criEndpoint", "tcp://1.2.3.4:5"),
        ("kubelet", "http://10.0.0.1:10255"),
        ("kubelet", "https://"),
        ("kubelet", "https://[::1"),
        ("metricsAddress", "9316"),
        ("metricsAddress", "localhost"),
        ("metricsAddress", "localhost:port"),
        ("metricsAddress", "localhost:99999"),
        ("metricsAddress", "http://localhost:1"),
        ("containerMetrics", "1"),
        ("containerMetrics", "'yes'"),
        ("dryRun", "maybe"),
        ("reservedCPUs", "3-0"),
        ("reservedCPUs", "[0, 1]"),
        ("reservedCPUs", "true"),
        ("systemReserved", "1"),
        ("systemReserved", "{cpu: -1}"),
        ("systemReserved", "{memory: lots}"),
        ("tickSeconds", "true"),
        ("tickSeconds", "0"),
        ("tickSeconds", ".nan"),
        ("tickSeconds", "'1'"),
        ("auditRetentionDays", "1.5"),
        ("logLevel", "loud"),
        ("extensions", "[1]"),
    ],
)
def test_wrong_values_are_refused_with_place_and_remedy(path: Path, key: str, value: str) -> None:
    (problem,) = refused(path, f"{key}: {value}")
    assert problem.where.startswith(f"{path}: {key}")
    assert problem.remedy


@pytest.mark.parametrize(
    "options",
    [
        ["--tick-seconds", "soon"],
        ["--tick-seconds", "nan"],
        ["--dry-run=perhaps"],
        ["--reserved-cpus", "max"],
        ["--run-dir", "here"],
        ["--log-level", "loud"],
    ],
)
def test_wrong_options_are_refused_by_name(path: Path, options: list[str]) -> None:
    (problem,) = refused(path, "", *options)
    assert problem.where == f"command line: {options[0].partition('=')[0]}"


@pytest.mark.parametrize("options", [["--run-dir"], ["stray"], ["--run-di", "/x"]])
def test_wrong_usage_is_refused(path: Path, options: list[str]) -> None:
    assert refused(path, "", *options)


def test_all_faults_are_told_at_once(path: Path) -> None:
    text = "runDir: x\nnope: 1\nkubeletClientCert: /c\n"
    problems = refused(path, text, "--tick-seconds", "x", "--stray")
    assert len(problems) == 4


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("kubeletClientCert: /c", "kubeletClientKey"),
        ("hotSampleSeconds: 2", "tickSeconds"),
    ],
)
def test_contradictions_are_refused(path: Path, text: str, named: str) -> None:
    (problem,) = refused(path, text)
    assert problem.code == "config-contradiction"
    assert named in problem.where


def test_H27_a_file_that_others_may_write_is_refused(path: Path) -> None:
    path.write_text("dryRun: true")
    path.chmod(0o666)
    with pytest.raises(RefusedError, match="chmod go-w"):
        load_config(["--config", str(path)])


@pytest.mark.parametrize("text", ["- a", "dryRun: true\ndryRun: false", "a: ["])
def test_what_is_no_mapping_is_refused(path: Path, text: str) -> None:
    assert refused(path, text)


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        load_config(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for option in ("--config", "--run-dir", "--dry-run", "--system-reserved-cpu"):
        assert option in text


def test_a_config_crosses_a_process_boundary(path: Path) -> None:
    config = from_file(path, "dryRun: true")
    assert pickle.loads(pickle.dumps(config)) == config


# -- for an undo ----------------------------------------------------------------------------------


def test_H16_an_undo_does_without_a_file_that_is_refused(path: Path) -> None:
    path.write_text("runDir: [")
    path.chmod(0o644)
    config, faults = salvage_config(["--state-dir", "/s"], default_file=path)
    assert (config.run_dir, config.state_dir) == (Path("/run/koordlet"), Path("/s"))
    assert [fault.severity for fault in faults] == [Severity.WARNING]


def test_an_undo_refuses_wrong_options_and_reads_a_good_file(path: Path) -> None:
    path.write_text("runDir: /r")
    path.chmod(0o644)
    assert salvage_config([], default_file=path)[0].run_dir == Path("/r")
    with pytest.raises(RefusedError):
        salvage_config(["--run-dir", "r"], default_file=path)
