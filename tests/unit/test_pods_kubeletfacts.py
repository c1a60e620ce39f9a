"""A kubelet found by its process."""

from __future__ import annotations

import json

import pytest

from koordlet.host.mounts import Roots
from koordlet.model.pods import CgroupDriver, Resources
from koordlet.model.readings import Missing
from koordlet.model.topology import CpuManagerPolicy
from koordlet.pods.kubelet import endpoint_of
from koordlet.pods.kubeletfacts import KubeletFacts, endpoint_host, find_kubelet
from tests.support.fakehost import FakeFiles

CONFIG = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 0.0.0.0
cgroupDriver: systemd
cgroupRoot: /kubelet
cpuManagerPolicy: static
reservedSystemCPUs: 0-1
kubeReserved: {cpu: 100m, memory: 1Gi}
systemReserved: {cpu: "1"}
readOnlyPort: 0
"""


def host(*processes: str, config: str = "", at: str = "/var/lib/kubelet/config.yaml") -> FakeFiles:
    """Processes by command line, words parted by blanks; pids count from 100."""
    files = FakeFiles(())
    files.put("/proc/meminfo", "")
    files.put("/proc/2/cmdline", "")  # a kernel thread
    for pid, line in enumerate(processes, start=100):
        files.put(f"/proc/{pid}/cmdline", line.replace(" ", "\0") + "\0")
    if config:
        files.put(at, config)
    return files


def find(files: FakeFiles) -> KubeletFacts:
    facts = find_kubelet(files, Roots())
    assert isinstance(facts, KubeletFacts)
    return facts


def test_H13_kubelet_and_its_configuration_are_found() -> None:
    line = "/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml --hostname-override n1"
    facts = find(host("/sbin/init", line, config=CONFIG))
    assert facts.pid == 101
    assert facts.cgroup_root == "/kubelet"
    assert facts.cgroup_driver is CgroupDriver.SYSTEMD
    assert facts.cpu_manager is CpuManagerPolicy.STATIC
    assert facts.reserved_cpus == {0, 1}
    assert facts.kube_reserved == Resources(100, 1 << 30)
    assert facts.system_reserved == Resources(1000)
    assert facts.reserved == Resources(2000, 1 << 30)
    assert facts.hostname_override == "n1"
    assert facts.problems == ()


def test_H14_what_a_takeover_must_know_of_its_cgroups() -> None:
    plain = find(host("kubelet --config=/var/lib/kubelet/config.yaml", config=CONFIG))
    assert (plain.cfs_quota, plain.memory_qos) == (True, False)
    config = CONFIG + "cpuCFSQuota: false\nfeatureGates: {MemoryQoS: true}\n"
    told = find(host("kubelet --config=/var/lib/kubelet/config.yaml", config=config))
    assert (told.cfs_quota, told.memory_qos) == (False, True)
    flags = "--cpu-cfs-quota=true --feature-gates=NodeSwap=true,MemoryQoS=false"
    line = f"kubelet --config=/var/lib/kubelet/config.yaml {flags}"
    flagged = find(host(line, config=config))
    assert (flagged.cfs_quota, flagged.memory_qos) == (True, False)


def test_defaults_without_configuration() -> None:
    facts = find(host("kubelet"))
    assert facts.cgroup_root == "/"
    assert facts.cgroup_driver is None  # only the runtime knows
    assert facts.cpu_manager is CpuManagerPolicy.NONE
    assert facts.port == 10250
    assert facts.reserved == Resources()


def test_flags_win() -> None:
    line = (
        "kubelet --config /var/lib/kubelet/config.yaml --cgroup-driver=cgroupfs --cgroup-root /"
        " -cpu-manager-policy=none --reserved-cpus= --port=1234"
        " --kube-reserved=cpu=250m,memory=2Gi --system-reserved="
    )
    facts = find(host(line, config=CONFIG))
    assert facts.cgroup_driver is CgroupDriver.CGROUPFS
    assert facts.cgroup_root == "/"
    assert facts.cpu_manager is CpuManagerPolicy.NONE
    assert facts.port == 1234
    assert facts.reserved == Resources(250, 2 << 30)


def test_configuration_in_json() -> None:
    config = json.dumps({"cgroupDriver": "cgroupfs", "port": 1})
    facts = find(host("kubelet --config=/c", config=config, at="/c"))
    assert (facts.cgroup_driver, facts.port) == (CgroupDriver.CGROUPFS, 1)


def test_kubelet_in_a_container_of_its_own_is_read_through_its_root() -> None:
    files = host("kubelet --config=/c", config="cgroupRoot: /outer", at="/c")
    files.put("/proc/100/root/c", "cgroupRoot: /inner")
    assert find(files).cgroup_root == "/inner"


def test_hyperkube() -> None:
    assert find(host("/hyperkube kubelet --cgroup-root=/x")).cgroup_root == "/x"


@pytest.mark.parametrize("line", ["grep kubelet", "/usr/bin/kubelet-helper", "python kubelet"])
def test_other_processes_are_no_kubelet(line: str) -> None:
    assert isinstance(find_kubelet(host(line), Roots()), Missing)


def test_POD_05_several_kubelets_are_not_guessed_between() -> None:
    found = find_kubelet(host("kubelet", "kubelet --cgroup-root=/b"), Roots())
    assert isinstance(found, Missing)
    assert "100, 101" in found.why


def test_other_proc_root() -> None:
    files = FakeFiles(())
    files.put("/host/proc/7/cmdline", "kubelet\0")
    facts = find_kubelet(files, Roots(proc="/host/proc"))
    assert isinstance(facts, KubeletFacts)
    assert facts.pid == 7


@pytest.mark.parametrize("config", ["", "- a list", "{", "text"])
def test_unreadable_configuration_is_told(config: str) -> None:
    facts = find(host("kubelet --config=/c", config=config, at="/c"))
    (problem,) = facts.problems
    assert problem.where == "/c"
    assert facts.cgroup_root == "/"


def test_odd_values_are_told_or_unknown() -> None:
    config = "reservedSystemCPUs: 3-1\ncpuManagerPolicy: magic\nport: many\nkubeReserved: {cpu: x}"
    facts = find(host("kubelet --config=/c", config=config, at="/c"))
    assert facts.reserved_cpus == frozenset()
    assert facts.cpu_manager is CpuManagerPolicy.UNKNOWN
    assert facts.port == 10250
    assert {problem.where for problem in facts.problems} == {"reservedSystemCPUs", "kubeReserved"}


def test_drop_in_directory_is_told() -> None:
    (problem,) = find(host("kubelet --config-dir=/d")).problems
    assert problem.where == "/d"


def test_certificates_that_exist_are_named() -> None:
    files = host("kubelet --root-dir=/k")
    files.put("/k/pki/kubelet.crt", "x")
    files.put("/k/pki/kubelet-client-current.pem", "x")
    facts = find(files)
    assert facts.serving_certs == ("/k/pki/kubelet.crt",)
    assert facts.client_cert == "/k/pki/kubelet-client-current.pem"
    endpoint = endpoint_of(facts, "node-7")
    assert endpoint.server_name == "node-7"
    assert endpoint.ca_files == ("/k/pki/kubelet.crt",)
    assert endpoint.client_cert_file == "/k/pki/kubelet-client-current.pem"
    assert endpoint.read_only_port is None


@pytest.mark.parametrize(
    ("listens", "asked"),
    [
        ("", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("10.0.0.7", "10.0.0.7"),
        ("::1", "::1"),
        ("odd", "127.0.0.1"),
    ],
)
def test_address_to_ask(listens: str, asked: str) -> None:
    assert endpoint_host(listens) == asked
