"""koordlet's own configuration: a YAML file, and the same keys on the command line.

The key ``runDir`` of the file is ``--run-dir`` on the command line, which wins. Unknown keys are
refused with the nearest known one.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_type_hints
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import ErrorDetails

from koordlet.host.mounts import Roots
from koordlet.protocol.cpuset import parse_cpuset
from koordlet.protocol.document import MAX_DOCUMENT_BYTES, nearest, parse_document
from koordlet.protocol.problem import Problem, RefusedError, Severity
from koordlet.protocol.quantity import parse_bytes, parse_milli
from koordlet.trustedfile import read_trusted

DEFAULT_CONFIG_FILE = Path("/etc/koordlet/koordlet.yaml")


def _absolute(path: Path) -> Path:
    if not path.is_absolute() or ".." in path.parts:
        raise ValueError("must be an absolute path without '..'")
    return path


def _inside_hierarchy(text: str) -> str:
    _absolute(Path(text))
    return "/" + text.strip("/")


def _optional_root(text: str) -> str:
    return _inside_hierarchy(text) if text else ""


def _own_cgroup(text: str) -> str:
    """A path below the managed root, or empty: nothing is proven by writing then."""
    if text and any(part in ("", ".", "..") for part in text.strip("/").split("/")):
        raise ValueError("must be a plain path below cgroupRoot, e.g. /koord.slice/koordlet")
    return text.strip("/")


def _number_text(value: object) -> str:
    """YAML reads ``reservedCPUs: 3`` and ``cpu: 1`` as numbers."""
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return str(value)
    raise ValueError("must be a text or a number")


def _split(value: object) -> object:
    """A list in the file, parted by commas on the command line."""
    if isinstance(value, str):
        return tuple(part for part in value.split(",") if part)
    return tuple(value) if isinstance(value, list) else value


def _address(value: object) -> tuple[str, int] | None:
    """``host:port``, ``[v6 host]:port`` or ``none``."""
    if value == "none":
        return None
    try:
        parts = urlsplit(f"//{value}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.netloc != value or "@" in parts.netloc:
        raise ValueError('must be host:port or "none"')
    return (host, port)


def _cri_endpoint(text: str) -> str:
    if text not in ("auto", "none"):
        if not text.startswith("unix://"):
            raise ValueError('must be "auto", "none" or unix:///path')
        _absolute(Path(text.removeprefix("unix://")))
    return text


def _kubelet(text: str) -> str:
    if text in ("auto", "none"):
        return text
    try:
        url = urlsplit(text)
        host, _ = url.hostname, url.port
    except ValueError:
        host = None
    # Plain HTTP proves nobody's identity, so it is for the read-only port of this host alone.
    plain = host in ("127.0.0.1", "::1", "localhost") and url.scheme == "http"
    if not host or not (url.scheme == "https" or plain):
        raise ValueError('must be "auto", "none", https://host:port or http://127.0.0.1:port')
    return text


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Root = Annotated[str, AfterValidator(_inside_hierarchy)]
CpuSet = Annotated[frozenset[int], PlainValidator(lambda value: parse_cpuset(_number_text(value)))]
Milli = Annotated[int, PlainValidator(lambda value: parse_milli(_number_text(value)))]
Bytes = Annotated[int, PlainValidator(lambda value: parse_bytes(_number_text(value)))]
Address = Annotated[tuple[str, int] | None, PlainValidator(_address)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]


@dataclass(frozen=True, slots=True)
class Config:
    """What one koordlet runs with. The texts are the help of the options."""

    config: Annotated[AbsolutePath, "this file"] = DEFAULT_CONFIG_FILE
    run_dir: Annotated[AbsolutePath, "sockets and journal"] = Path("/run/koordlet")
    state_dir: Annotated[AbsolutePath, "what outlives a boot"] = Path("/var/lib/koordlet")
    cgroup_root: Annotated[Root, "path inside every hierarchy that is taken for its root"] = "/"
    sysfs_root: Annotated[Root, "where the host's sysfs is mounted"] = "/sys"
    proc_root: Annotated[Root, "where the host's procfs is mounted"] = "/proc"
    node_name: Annotated[str, "name of this node; the host's name by default"] = ""
    node_slo: Annotated[AbsolutePath, "the NodeSLO file"] = Path("/etc/koordlet/nodeslo.yaml")
    host_apps_dir: Annotated[AbsolutePath, "directory of host application files"] = Path(
        "/etc/koordlet/hostapps.d"
    )
    cri_endpoint: Annotated[
        str, AfterValidator(_cri_endpoint), "container runtime: auto, none or unix:///path"
    ] = "auto"
    kubelet: Annotated[str, AfterValidator(_kubelet), "kubelet: auto, none or its URL"] = "auto"
    kubelet_ca: Annotated[AbsolutePath | None, "certificates that the kubelet is believed by"] = (
        None
    )
    kubelet_token: Annotated[AbsolutePath | None, "file with our token for the kubelet"] = None
    kubelet_client_cert: Annotated[AbsolutePath | None, "our certificate for the kubelet"] = None
    kubelet_client_key: Annotated[AbsolutePath | None, "the key of that certificate"] = None
    kubelet_cgroup_root: Annotated[
        str, AfterValidator(_optional_root), "the kubelet's cgroupRoot; found by itself if empty"
    ] = ""
    kubelet_state_file: Annotated[AbsolutePath, "the kubelet's CPU manager state"] = Path(
        "/var/lib/kubelet/cpu_manager_state"
    )
    metrics_address: Annotated[Address, "host:port of the metrics pages, or none"] = (
        "127.0.0.1",
        9316,
    )
    container_metrics: Annotated[bool, "export series of single containers"] = True
    dry_run: Annotated[bool, "decide and explain, never write"] = False
    other_agent: Annotated[
        Literal["refuse", "ignore"],
        "where another agent manages this node: refuse to write, or ignore it",
    ] = "refuse"
    start_writes_per_tick: Annotated[
        int, Field(ge=1, le=10_000), "most writes of one tick until the first plan is in force"
    ] = 100
    reserved_cpus: Annotated[CpuSet, "CPUs kept from BE work, e.g. 0-1"] = frozenset()
    system_reserved_cpu_milli: Annotated[Milli, "CPU kept for the system, e.g. 500m"] = 0
    system_reserved_memory_bytes: Annotated[Bytes, "memory kept for the system, e.g. 1Gi"] = 0
    tick_seconds: Annotated[float, Field(ge=0.2, le=60), "time between two decisions"] = 1.0
    hot_sample_seconds: Annotated[float, Field(ge=0.05, le=5), "time between two CPU samples"] = 0.2
    hold_max_seconds: Annotated[
        float, Field(ge=1, le=3600), "how long values stay on missing data before the safe ones"
    ] = 30.0
    own_cgroup: Annotated[
        str,
        AfterValidator(_own_cgroup),
        "our own cgroup below cgroupRoot, to prove settings in; the one that systemd delegated to"
        " us if empty",
    ] = ""
    on_sigterm: Annotated[
        Literal["restore", "leave"],
        "what SIGTERM does to values in force; leave: whoever sent it restores them",
    ] = "restore"
    audit_retention_days: Annotated[int, Field(ge=1, le=3650), "age of the oldest audit row"] = 7
    history_retention_days: Annotated[int, Field(ge=1, le=3650), "age of the oldest roll-up"] = 7
    history_max_mib: Annotated[int, Field(ge=1, le=65536), "size of history.db in MiB"] = 64
    log_level: Annotated[Literal["debug", "info", "warning", "error"], "least level logged"] = (
        "info"
    )
    log_format: Annotated[Literal["console", "json"], "form of a log line"] = "console"
    extensions: Annotated[Names, "entry points of installed packages to load"] = ()

    @property
    def roots(self) -> Roots:
        """Where the host is seen from here."""
        return Roots(self.cgroup_root, self.sysfs_root, self.proc_root)


_SPECIAL_KEYS = {
    "history_max_mib": "historyMaxMiB",
    "reserved_cpus": "reservedCPUs",
    "system_reserved_cpu_milli": "systemReserved.cpu",
    "system_reserved_memory_bytes": "systemReserved.memory",
}
_SPECIAL_OPTIONS = {
    "system_reserved_cpu_milli": "--system-reserved-cpu",
    "system_reserved_memory_bytes": "--system-reserved-memory",
}
_GROUP = "systemReserved"


def load_config(argv: Sequence[str], default_file: Path = DEFAULT_CONFIG_FILE) -> Config:
    """The configuration of ``argv`` (options only) over that of its file over the defaults.

    A missing file is an empty one, unless ``--config`` names it. Raises RefusedError with all
    problems found; ``--help`` prints the options and exits.
    """
    config, problems, faults = _loaded(argv, default_file)
    if problems or faults:
        raise RefusedError((*problems, *faults))
    return config


def salvage_config(
    argv: Sequence[str], default_file: Path = DEFAULT_CONFIG_FILE
) -> tuple[Config, tuple[Problem, ...]]:
    """As ``load_config``, for an undo, which must not wait until somebody mends a file: one that
    is refused is left out, and its faults come beside. Raises RefusedError for wrong options.
    """
    config, problems, faults = _loaded(argv, default_file)
    if problems:
        raise RefusedError(tuple(problems))
    return config, tuple(replace(fault, severity=Severity.WARNING) for fault in faults)


def _loaded(argv: Sequence[str], default_file: Path) -> tuple[Config, list[Problem], list[Problem]]:
    """The configuration, the problems of the options, and those of the file."""
    options, problems = _parse_options(argv)
    from_options, faults = _validated_options(options)
    problems += faults
    named = "config" in options
    path = from_options.config if named else default_file
    from_file, faults = _read_file(path, named=named)
    given = {name: getattr(from_options, name) for name in options}
    config = replace(from_file, **{"config": path, **given})
    faults += _contradictions(config)
    config = config if config.node_name else replace(config, node_name=os.uname().nodename)
    return config, problems, faults


@cache
def _adapter() -> TypeAdapter[Config]:
    return TypeAdapter(Config)


def key_of(name: str) -> str:
    """The key in the file of a field of Config."""
    first, *others = name.split("_")
    return _SPECIAL_KEYS.get(name) or first + "".join(word.capitalize() for word in others)


def _option(name: str) -> str:
    return _SPECIAL_OPTIONS.get(name) or "--" + name.replace("_", "-")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        what, _, rest = message.partition(": ")
        problem = Problem("config-usage", "command line", f"{what}: {rest}", remedy="see --help")
        raise RefusedError((problem,))


def _parser() -> _Parser:
    parser = _Parser(prog="koordlet run", allow_abbrev=False)
    hints = get_type_hints(Config, include_extras=True)
    for field in fields(Config):
        text = next(note for note in hints[field.name].__metadata__ if isinstance(note, str))
        switch = isinstance(field.default, bool)
        parser.add_argument(
            _option(field.name),
            dest=field.name,
            default=argparse.SUPPRESS,
            metavar="VALUE",
            help=f"{text} ({key_of(field.name)})",
            nargs="?" if switch else None,
            const="true" if switch else None,
        )
    return parser


def _parse_options(argv: Sequence[str]) -> tuple[dict[str, str], list[Problem]]:
    known, unknown = _parser().parse_known_args(argv)
    options = [_option(field.name) for field in fields(Config)]
    problems = [_unknown("command line", word.partition("=")[0], options) for word in unknown]
    return vars(known), problems


def _unknown(where: str, name: str, known: Sequence[str]) -> Problem:
    guess = nearest(name, known)
    remedy = f"did you mean {guess}?" if guess else "remove it"
    return Problem("config-unknown-key", f"{where}: {name[:80]}", "unknown", remedy=remedy)


def _validated_options(options: Mapping[str, str]) -> tuple[Config, list[Problem]]:
    """Every option that is fine, and the problems of the others."""
    try:
        return _adapter().validate_strings(dict(options)), []
    except ValidationError as fault:
        errors = fault.errors(include_url=False, include_context=False)
    problems = [_problem(error, "command line", _option(str(error["loc"][0]))) for error in errors]
    bad = {str(error["loc"][0]) for error in errors}
    good = {name: text for name, text in options.items() if name not in bad}
    return _adapter().validate_strings(good), problems


def _read_file(path: Path, *, named: bool) -> tuple[Config, list[Problem]]:
    try:
        given, problems = _fields_of(
            parse_document(read_trusted(path, MAX_DOCUMENT_BYTES), str(path)), path
        )
    except FileNotFoundError:
        absent = Problem(
            "config-file-absent",
            str(path),
            "no such file",
            remedy="write it, or leave --config out",
        )
        return Config(), [absent] if named else []
    except RefusedError as refusal:
        return Config(), list(refusal.problems)
    try:
        return _adapter().validate_json(json.dumps(given, default=str), strict=True), problems
    except ValidationError as fault:
        errors = fault.errors(include_url=False, include_context=False)
    return Config(), problems + [
        _problem(error, str(path), key_of(str(error["loc"][0]))) for error in errors
    ]


def _fields_of(document: Mapping[Any, Any], path: Path) -> tuple[dict[str, Any], list[Problem]]:
    """The document with our field names; null is "not set"."""
    names = {key_of(field.name): field.name for field in fields(Config) if field.name != "config"}
    flat = {key: value for key, value in document.items() if key != _GROUP}
    group = document.get(_GROUP)
    if isinstance(group, Mapping):
        flat.update({f"{_GROUP}.{key}": value for key, value in group.items()})
    elif group is not None:
        flat[_GROUP] = group
    problems = [_unknown(str(path), str(key), list(names)) for key in flat if key not in names]
    given = {names[key]: value for key, value in flat.items() if key in names and value is not None}
    return given, problems


def _problem(error: ErrorDetails, where: str, name: str) -> Problem:
    limit = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    value = json.dumps(error["input"], default=str)[:80]
    return Problem(
        "config-invalid-value",
        f"{where}: {name}",
        f"{value} is not accepted",
        limit,
        "correct it, or leave it out",
    )


def _contradictions(config: Config) -> list[Problem]:
    problems: list[Problem] = []
    if (config.kubelet_client_cert is None) != (config.kubelet_client_key is None):
        problems.append(
            Problem(
                "config-contradiction",
                "kubeletClientCert, kubeletClientKey",
                "only one of the two is set",
                "both or none",
                "add the other one",
            )
        )
    if config.hot_sample_seconds > config.tick_seconds:
        problems.append(
            Problem(
                "config-contradiction",
                "hotSampleSeconds, tickSeconds",
                f"samples every {config.hot_sample_seconds} s, ticks every {config.tick_seconds} s",
                "at least one sample for each tick",
                "lower hotSampleSeconds",
            )
        )
    return problems
