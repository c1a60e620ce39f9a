"""The proxy's configuration: a YAML file, and the same keys on the command line.

The key ``runDir`` of the file is ``--run-dir`` on the command line, which wins. Unknown keys are
refused with the nearest known one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
)
from pydantic.alias_generators import to_camel

from koordlet.protocol.document import nearest, parse_document
from koordlet.protocol.problem import Problem, RefusedError
from runtimeproxy.trusted import UntrustedError, read_trusted

DEFAULT_CONFIG_FILE = Path("/etc/koord-runtimeproxy/config.yaml")
_MAX_SOCKET_PATH = 100  # the kernel's limit is 107; a temporary name has to fit, too


def _absolute(path: Path) -> Path:
    if not path.is_absolute() or ".." in path.parts:
        raise ValueError("must be an absolute path without '..'")
    return path


def _socket(value: object) -> Path:
    """A path, with or without ``unix://`` in front of it, as people write endpoints."""
    path = _absolute(Path(str(value).removeprefix("unix://")))
    if len(str(path).encode()) > _MAX_SOCKET_PATH:
        raise ValueError(f"must be a path of at most {_MAX_SOCKET_PATH} bytes")
    return path


def _optional_socket(value: object) -> Path | None:
    return None if value in ("", None) else _socket(value)


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


def _split(value: object) -> object:
    """A list in the file, parted by commas on the command line."""
    if isinstance(value, str):
        return frozenset(part for part in value.split(",") if part)
    return frozenset(value) if isinstance(value, list) else value


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Socket = Annotated[Path, PlainValidator(_socket)]
OptionalSocket = Annotated[Path | None, PlainValidator(_optional_socket)]
Address = Annotated[tuple[str, int] | None, PlainValidator(_address)]
Names = Annotated[frozenset[str], BeforeValidator(_split)]


class Config(BaseModel):
    """What one proxy runs with. The descriptions are the help of the options."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )

    run_dir: AbsolutePath = Field(Path("/run/koord-runtimeproxy"), description="our sockets")
    state_dir: AbsolutePath = Field(
        Path("/var/lib/koord-runtimeproxy"), description="the checkpoint of pods and containers"
    )
    proc_root: AbsolutePath = Field(Path("/proc"), description="where the host's procfs is mounted")
    socket: OptionalSocket = Field(
        None, description="what kubelet connects to; runtimeproxy.sock in runDir by default"
    )
    runtime_endpoint: Socket = Field(
        Path("/run/containerd/containerd.sock"), description="the container runtime's socket"
    )
    image_endpoint: OptionalSocket = Field(
        None, description="the image service's socket where it is not the runtime's"
    )
    docker_socket: OptionalSocket = Field(
        None, description="where to serve Docker's API, for kubelets that use it; off if empty"
    )
    docker_endpoint: Socket = Field(Path("/run/docker.sock"), description="dockerd's socket")
    hooks_dir: AbsolutePath = Field(
        Path("/etc/runtime/hookserver.d"), description="directory of hook server files"
    )
    hook_deadline_ms: int = Field(
        500, ge=1, le=60_000, description="how long each hook server has for an answer"
    )
    skip_label: str = Field(
        "runtimeproxy.koordinator.sh/skip-hookserver",
        min_length=1,
        description="label or annotation of pods that no hook server is asked about",
    )
    skip_value: str = Field("true", description="the value of that label")
    skip_namespaces: Names = Field(
        frozenset(), description="namespaces where that label counts; everywhere if empty"
    )
    max_message_bytes: int = Field(
        16 << 20, ge=1 << 16, le=1 << 30, description="size of the largest message either way"
    )
    metrics_address: Address = Field(
        ("127.0.0.1", 9318), description="host:port of metrics and health, or none"
    )
    reconcile_seconds: float = Field(
        60.0, ge=1, le=3600, description="time between two looks at what the runtime has"
    )
    handover_seconds: float = Field(
        1.0, ge=0, le=60, description="how long a stop waits before calls go on in the background"
    )
    drain_seconds: float = Field(
        3600.0, ge=0, le=86_400, description="how long calls may go on in the background"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level logged"
    )
    log_format: Literal["console", "json"] = Field("console", description="form of a log line")

    @property
    def listen_path(self) -> Path:
        return self.socket or self.run_dir / "runtimeproxy.sock"

    @property
    def api_path(self) -> Path:
        return self.run_dir / "api.sock"

    @property
    def store_path(self) -> Path:
        return self.state_dir / "store.db"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        problem = Problem("config-usage", "command line", message, remedy="see --help")
        raise RefusedError((problem,))


def load_config(argv: Sequence[str], default_file: Path = DEFAULT_CONFIG_FILE) -> Config:
    """The configuration of ``argv`` over that of its file over the defaults.

    A missing file is an empty one, unless ``--config`` names it. Raises RefusedError.
    """
    parser = _parser(default_file)
    known, unknown = parser.parse_known_args(argv)
    options = vars(known)
    if unknown:
        names = [_option(name) for name in Config.model_fields]
        raise RefusedError(
            tuple(_unknown("command line", word.partition("=")[0], names) for word in unknown)
        )
    named = options.pop("config", None)
    document = _read(Path(named) if named else default_file, named=named is not None)
    return _validated(document, options, named or str(default_file))


def _parser(default_file: Path) -> _Parser:
    parser = _Parser(prog="koord-runtimeproxy run", allow_abbrev=False)
    parser.add_argument(
        "--config",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help=f"the file with these keys ({default_file})",
    )
    for name, field in Config.model_fields.items():
        parser.add_argument(
            _option(name),
            dest=name,
            default=argparse.SUPPRESS,
            metavar="VALUE",
            help=f"{field.description} ({to_camel(name)})",
        )
    return parser


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _unknown(where: str, name: str, known: Sequence[str]) -> Problem:
    guess = nearest(name, known)
    remedy = f"did you mean {guess}?" if guess else "remove it"
    return Problem("config-unknown-key", f"{where}: {name[:80]}", "unknown", remedy=remedy)


def _read(path: Path, *, named: bool) -> dict[str, Any]:
    try:
        text = read_trusted(path).decode()
    except FileNotFoundError:
        if not named:
            return {}
        what, remedy = "no such file", "write it, or leave --config out"
    except (OSError, UntrustedError, UnicodeDecodeError) as error:
        what, remedy = str(error), ""
    else:
        document = parse_document(text, str(path))
        return {str(key): value for key, value in document.items() if value is not None}
    raise RefusedError((Problem("config-file", str(path), what, remedy=remedy),))


def _validated(document: dict[str, Any], options: dict[str, str], file: str) -> Config:
    keys = {to_camel(name): name for name in Config.model_fields}
    strange = [_unknown(file, key, list(keys)) for key in document if key not in keys]
    given = {keys[key]: value for key, value in document.items() if key in keys}
    try:
        config = Config.model_validate({**given, **options})
    except ValidationError as fault:
        errors = fault.errors(include_url=False, include_context=False)
        strange += [
            Problem(
                "config-invalid-value",
                _where(str(error["loc"][0]), options, file),
                f"{str(error['input'])[:80]!r} is not accepted",
                error["msg"].removeprefix("Value error, "),
                "correct it, or leave it out",
            )
            for error in errors
        ]
    if strange:
        raise RefusedError(tuple(strange))
    return config


def _where(name: str, options: dict[str, str], file: str) -> str:
    names = {to_camel(key): key for key in Config.model_fields}
    name = names.get(name, name)
    return f"command line: {_option(name)}" if name in options else f"{file}: {to_camel(name)}"
