"""A kubelet on this host: found by its process, read from its flags and its configuration."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from koordlet.host.mounts import Roots
from koordlet.host.tree import Files
from koordlet.model.pods import CgroupDriver, Resources
from koordlet.model.readings import Missing
from koordlet.model.topology import CpuManagerPolicy
from koordlet.pods.requests import NOTHING, ResourceReader
from koordlet.protocol.cpuset import CpuSetError, parse_cpuset
from koordlet.protocol.document import CONSTRUCTOR_ERRORS
from koordlet.protocol.problem import Problem, Severity

_DEFAULT_PORT = 10250
_DEFAULT_ROOT_DIR = "/var/lib/kubelet"


@dataclass(frozen=True, slots=True)
class KubeletFacts:
    """What a running kubelet was told. ``cgroup_driver`` is None where only the runtime knows it.

    ``serving_certs`` and ``client_cert`` are files that exist, to believe it and to be believed.
    """

    pid: int
    config_file: str
    cgroup_root: str = "/"
    cgroup_driver: CgroupDriver | None = None
    cpu_manager: CpuManagerPolicy = CpuManagerPolicy.NONE
    cfs_quota: bool = True
    memory_qos: bool = False
    reserved_cpus: frozenset[int] = frozenset()
    kube_reserved: Resources = NOTHING
    system_reserved: Resources = NOTHING
    address: str = ""
    port: int = _DEFAULT_PORT
    read_only_port: int = 0
    hostname_override: str = ""
    root_dir: str = _DEFAULT_ROOT_DIR
    serving_certs: tuple[str, ...] = ()
    client_cert: str = ""
    problems: tuple[Problem, ...] = ()

    @property
    def reserved(self) -> Resources:
        """What the kubelet keeps back from pods; reservedSystemCPUs replaces both CPU amounts."""
        cpu_milli: int | None = len(self.reserved_cpus) * 1000
        if not self.reserved_cpus:
            cpu_milli = _sum(self.kube_reserved.cpu_milli, self.system_reserved.cpu_milli)
        memory = _sum(self.kube_reserved.memory_bytes, self.system_reserved.memory_bytes)
        return Resources(cpu_milli, memory)


def _sum(first: int | None, second: int | None) -> int | None:
    return (first or 0) + (second or 0) or None


def find_kubelet(files: Files, roots: Roots) -> KubeletFacts | Missing:
    """The kubelet among the host's processes; Missing where there is none, or more than one.

    Flags win over the configuration file, as they do for the kubelet itself.
    """
    pids = files.list(roots.proc)
    if isinstance(pids, Missing):
        return pids
    found = [
        (int(pid), flags)
        for pid in pids
        if pid.isdigit() and (flags := _kubelet_flags(files, f"{roots.proc}/{pid}")) is not None
    ]
    if not found:
        return Missing("no kubelet among the processes of this host")
    if len(found) > 1:
        listed = ", ".join(str(pid) for pid, _ in found)
        return Missing(f"several kubelets on this host (pids {listed}): none is guessed")
    pid, flags = found[0]
    return _Reader(files, f"{roots.proc}/{pid}/root", flags).facts(pid)


def endpoint_host(address: str) -> str:
    """The address to connect to for one that the kubelet listens on."""
    try:
        listened = ipaddress.ip_address(address)
    except ValueError:
        return "127.0.0.1"
    if listened.is_unspecified:
        return "127.0.0.1"
    return str(listened)


def _kubelet_flags(files: Files, process: str) -> dict[str, str] | None:
    """The flags of a process if it is a kubelet; kernel threads have no command line."""
    raw = files.read(f"{process}/cmdline")
    files.drop(f"{process}/cmdline")  # read once; a kept fd per process would be a waste
    if isinstance(raw, Missing) or not raw:
        return None
    words = [word.decode(errors="replace") for word in raw.split(b"\0")]
    if words[0].rpartition("/")[2] == "hyperkube":
        words = words[1:]
    if not words or words[0].rpartition("/")[2] != "kubelet":
        return None
    return _parse_flags(words[1:])


def _parse_flags(words: list[str]) -> dict[str, str]:
    """``--name=value``, ``--name value`` and ``--name`` alone; one dash does as well."""
    flags: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            flags[name] = value if equals else "true"
            name = "" if equals else name
        elif name:
            flags[name], name = word, ""
    return flags


class _Reader:
    """Puts flags over configuration. ``root`` is the kubelet's own view of the file system."""

    def __init__(self, files: Files, root: str, flags: Mapping[str, str]) -> None:
        self._files = files
        self._root = root
        self._flags = flags
        self._config: Mapping[str, Any] = {}
        self._problems: list[Problem] = []
        self._config_file = ""

    def facts(self, pid: int) -> KubeletFacts:
        self._load()
        root_dir = self._text("root-dir", "") or _DEFAULT_ROOT_DIR
        pki = self._flags.get("cert-dir") or f"{root_dir}/pki"
        serving = (self._text("tls-cert-file", "tlsCertFile"), f"{pki}/kubelet-server-current.pem")
        reader = ResourceReader()
        facts = KubeletFacts(
            pid=pid,
            config_file=self._config_file,
            cgroup_root=self._text("cgroup-root", "cgroupRoot") or "/",
            cgroup_driver=self._driver(),
            cpu_manager=self._policy(),
            cfs_quota=self._text("cpu-cfs-quota", "cpuCFSQuota").lower() != "false",
            memory_qos=self._has_gate("MemoryQoS"),
            reserved_cpus=self._cpus(),
            kube_reserved=self._amounts(reader, "kube-reserved", "kubeReserved"),
            system_reserved=self._amounts(reader, "system-reserved", "systemReserved"),
            address=self._text("address", "address"),
            port=self._number("port", "port", _DEFAULT_PORT),
            read_only_port=self._number("read-only-port", "readOnlyPort", 0),
            hostname_override=self._text("hostname-override", ""),
            root_dir=root_dir,
            serving_certs=self._existing(*serving, f"{pki}/kubelet.crt")[:1],
            client_cert=next(iter(self._existing(f"{pki}/kubelet-client-current.pem")), ""),
            problems=(*self._problems, *reader.problems),
        )
        return facts

    def _load(self) -> None:
        path = self._config_file = self._flags.get("config", "")
        if "config-dir" in self._flags:
            self._warn(self._flags["config-dir"], "drop-in configuration is not read")
        if not path:
            return
        raw = self._read(path)
        if isinstance(raw, Missing):
            self._warn(path, f"cannot be read: {raw.why}")
            return
        document = _parse(raw)
        if isinstance(document, dict):
            self._config = document
        else:
            self._warn(path, "is neither YAML nor JSON of a KubeletConfiguration")

    def _read(self, path: str) -> bytes | Missing:
        """The kubelet may live in a container of its own, so its root is tried first."""
        raw = self._files.read(self._root + path)
        return self._files.read(path) if isinstance(raw, Missing) else raw

    def _existing(self, *paths: str) -> tuple[str, ...]:
        found: list[str] = []
        for path in paths:
            if not path:
                continue
            for spelled in (self._root + path, path):
                if self._files.exists(spelled):
                    found.append(spelled)
                    break
        return tuple(found)

    def _warn(self, where: str, what: str) -> None:
        self._problems.append(
            Problem(
                code="kubelet-config",
                where=where,
                what=what,
                remedy="set what it says in koordlet's configuration",
                severity=Severity.WARNING,
            )
        )

    def _text(self, flag: str, key: str) -> str:
        value = self._flags.get(flag, self._config.get(key))
        return "" if value is None else str(value)

    def _number(self, flag: str, key: str, default: int) -> int:
        text = self._text(flag, key)
        return int(text) if text.isdecimal() else default

    def _driver(self) -> CgroupDriver | None:
        text = self._text("cgroup-driver", "cgroupDriver")
        return {driver.value: driver for driver in CgroupDriver}.get(text)

    def _policy(self) -> CpuManagerPolicy:
        text = self._text("cpu-manager-policy", "cpuManagerPolicy") or "none"
        known = {policy.value: policy for policy in CpuManagerPolicy}
        return known.get(text, CpuManagerPolicy.UNKNOWN)

    def _has_gate(self, name: str) -> bool:
        """Whether a feature gate, off by default, is switched on."""
        pairs = self._flags.get("feature-gates", "").split(",")
        flags = {name: text for name, _, text in (pair.partition("=") for pair in pairs)}
        gates = self._config.get("featureGates")
        configured = gates.get(name) if isinstance(gates, Mapping) else None
        return str(flags.get(name, configured)).lower() == "true"

    def _cpus(self) -> frozenset[int]:
        text = self._text("reserved-cpus", "reservedSystemCPUs")
        try:
            return parse_cpuset(text)
        except CpuSetError as error:
            self._warn("reservedSystemCPUs", str(error))
            return frozenset()

    def _amounts(self, reader: ResourceReader, flag: str, key: str) -> Resources:
        """``--kube-reserved cpu=100m,memory=1Gi`` or a mapping in the configuration."""
        if flag in self._flags:
            pairs = (pair.partition("=") for pair in self._flags[flag].split(",") if pair)
            return reader.resources({name: text for name, _, text in pairs}, f"--{flag}")
        return reader.resources(self._config.get(key), key)


def _parse(raw: bytes) -> Any:
    """JSON, or YAML where it is not; None where it is neither."""
    import yaml  # here: only a host with a kubelet pays for it

    text = raw.decode(errors="replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, *CONSTRUCTOR_ERRORS):
        return None
