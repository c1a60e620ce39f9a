"""Which runtime socket this host's kubelet uses, where that is written, how to change it."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from koordlet.protocol.problem import Problem, Severity

DEFAULT_ENDPOINT = "unix:///run/containerd/containerd.sock"
KUBEADM_FLAGS = Path("/var/lib/kubelet/kubeadm-flags.env")
INSTANCE_CONFIG = Path("/var/lib/kubelet/instance-config.yaml")
DEFAULT_CONFIG = Path("/var/lib/kubelet/config.yaml")
_ENDPOINT, _IMAGE_ENDPOINT = "container-runtime-endpoint", "image-service-endpoint"
_DOCKER = "docker-endpoint"


@dataclass(frozen=True, slots=True)
class Setting:
    """One place that names an endpoint, as text."""

    where: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Kubelet:
    """``settings``: all places found, the one that counts first."""

    running: bool
    settings: tuple[Setting, ...]

    @property
    def endpoint(self) -> str:
        """The one in force."""
        found = [one.value for one in self.settings if one.key == _ENDPOINT]
        return found[0] if found else DEFAULT_ENDPOINT


def find_kubelet(proc_root: Path, host_root: Path = Path("/")) -> Kubelet:
    """Reads the process's command line and the files that it and kubeadm keep."""
    arguments = _command_line(proc_root)
    flags = parse_flags(arguments or ())
    settings = [
        Setting("the kubelet's command line", key, flags[key])
        for key in (_ENDPOINT, _IMAGE_ENDPOINT, _DOCKER)
        if key in flags
    ]
    config = Path(flags.get("config", str(DEFAULT_CONFIG)))
    for path in (INSTANCE_CONFIG, config):
        settings += _of_config(host_root / path.relative_to("/"), path)
    settings += _of_kubeadm(host_root / KUBEADM_FLAGS.relative_to("/"))
    return Kubelet(arguments is not None, tuple(settings))


def parse_flags(arguments: Sequence[str]) -> dict[str, str]:
    """``--a=b`` and ``--a b``; the last of a name counts, as for the kubelet."""
    flags: dict[str, str] = {}
    for index, word in enumerate(arguments):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        if not equals and index + 1 < len(arguments) and arguments[index + 1][:1] != "-":
            value = arguments[index + 1]
        flags[name] = value
    return flags


def _command_line(proc_root: Path) -> tuple[str, ...] | None:
    for entry in proc_root.glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().rstrip(b"\0").split(b"\0")
            if words[0].rpartition(b"/")[2] == b"kubelet":
                return tuple(word.decode(errors="replace") for word in words[1:])
    return None


def _of_config(path: Path, shown: Path) -> Iterator[Setting]:
    with contextlib.suppress(OSError, UnicodeDecodeError, yaml.YAMLError):
        document: Any = yaml.safe_load(path.read_text())
        if isinstance(document, Mapping):
            names = {_ENDPOINT: "containerRuntimeEndpoint", _IMAGE_ENDPOINT: "imageServiceEndpoint"}
            for key, name in names.items():
                if isinstance(document.get(name), str) and document[name]:
                    yield Setting(f"{shown}: {name}", key, document[name])


def _of_kubeadm(path: Path) -> Iterator[Setting]:
    with contextlib.suppress(OSError, UnicodeDecodeError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "KUBELET_KUBEADM_ARGS":
                flags = parse_flags(shlex.split(value.strip().strip('"')))
                for key in (_ENDPOINT, _IMAGE_ENDPOINT):
                    if key in flags:
                        yield Setting(str(KUBEADM_FLAGS), key, flags[key])


def problems(kubelet: Kubelet, proxy: Path, runtime: Path) -> list[Problem]:
    """What is wrong with how kubelet is pointed at the proxy; empty where it is at the runtime."""
    found = []
    for setting in kubelet.settings:
        value = setting.value
        path = value.removeprefix("unix://")
        if setting.key == _DOCKER and path == str(proxy):
            found.append(
                Problem(
                    "kubelet-wrong-flag",
                    setting.where,
                    f"--docker-endpoint={value}: there is CRI, not Docker's API",
                    "--container-runtime-endpoint",
                    "use --container-runtime=remote --container-runtime-endpoint",
                )
            )
        elif path in (str(proxy), str(runtime)) and not value.startswith("unix://"):
            found.append(
                Problem(
                    "kubelet-endpoint-no-url",
                    setting.where,
                    f"{value} has no unix:// in front",
                    "unix:///path",
                    f"write unix://{path}",
                    Severity.WARNING,
                )
            )
    values = {one.value for one in kubelet.settings if one.key == _ENDPOINT}
    if f"unix://{proxy}" in values and len(values) > 1:
        places = ", ".join(f"{one.where} ({one.value})" for one in kubelet.settings)
        found.append(
            Problem(
                "kubelet-places-differ",
                places,
                "not every place names the same endpoint",
                "the same in all",
                "change every one, or the next kubeadm upgrade takes it back",
            )
        )
    return found


def steps(endpoint: str, *, kubeadm: bool) -> list[str]:
    """How to point kubelets of each version at ``endpoint``."""
    told = [
        f"kubelet 1.27 and newer: set containerRuntimeEndpoint: {endpoint} in its configuration"
        f" file, or --container-runtime-endpoint={endpoint} where that flag is set already",
        f"kubelet 1.24 to 1.26: --container-runtime-endpoint={endpoint}",
        "kubelet 1.23 and older: --container-runtime=remote"
        f" --container-runtime-endpoint={endpoint}",
        "an image endpoint that is set must be changed to the same, or be left out",
        "then: systemctl restart kubelet",
    ]
    if kubeadm:
        told[:0] = [
            f"kubeadm: in {KUBEADM_FLAGS} (from 1.34 on in {INSTANCE_CONFIG}) set the endpoint to"
            f" {endpoint}",
            "kubeadm: kubectl annotate node NODE --overwrite"
            f" kubeadm.alpha.kubernetes.io/cri-socket={endpoint}",
            f"kubeadm: nodeRegistration.criSocket: {endpoint} in configurations used later",
        ]
    return told
