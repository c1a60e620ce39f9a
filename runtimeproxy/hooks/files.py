"""``hookserver.d``: one JSON file for each hook server, looked at anew whenever it matters."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from koordlet.protocol.document import nearest
from koordlet.protocol.problem import Problem, RefusedError, Severity
from runtimeproxy.hooks.stages import TOLERATED, Policy, Stage
from runtimeproxy.trusted import UntrustedError, fault_of, read_trusted

_KEYS = ("remote-endpoint", "failure-policy", "runtime-hooks")
_MAX_PATH_BYTES = 107


@dataclass(frozen=True, slots=True)
class HookServer:
    """One file's content. ``name`` is the file's, without its ending, and orders the servers."""

    name: str
    socket: Path
    policy: Policy
    stages: frozenset[Stage]


class HookDirectory:
    """The servers of a directory. A file that is half written keeps what it said before."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[str, tuple[int, ...]] = {}
        self._servers: dict[str, HookServer] = {}
        self._problems: dict[str, tuple[Problem, ...]] = {}

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the files, as of the last look."""
        return tuple(problem for name in sorted(self._problems) for problem in self._problems[name])

    def servers(self) -> tuple[HookServer, ...]:
        """By name of file. Costs a stat for each file; reads what changed."""
        found = self._list()
        for name in self._servers.keys() - found.keys():
            del self._servers[name]
        for name in self._problems.keys() - found.keys() - {""}:
            del self._problems[name]
        for name, signature in found.items():
            if self._seen.get(name) != signature:
                self._load(name)
        self._seen = found
        return tuple(self._servers[name] for name in sorted(self._servers))

    def _list(self) -> dict[str, tuple[int, ...]]:
        """Every file that counts, with what changes when its content or its rights do."""
        self._problems.pop("", None)
        try:
            fault = fault_of(self._directory.stat())
            if fault:
                raise UntrustedError(fault)
            with os.scandir(self._directory) as entries:
                names = [entry.name for entry in entries if entry.name.endswith("json")]
        except FileNotFoundError:
            return {}
        except (OSError, UntrustedError) as error:
            problem = Problem("hook-directory", str(self._directory), str(error))
            self._problems[""] = (problem,)
            return self._seen  # what was believed stays in force; nothing new is
        return {name: found for name in names if (found := _signature(self._directory / name))}

    def _load(self, name: str) -> None:
        path = self._directory / name
        try:
            server, notes = parse_server(name, read_trusted(path), str(path))
        except FileNotFoundError:
            return
        except (OSError, UntrustedError) as error:
            self._servers.pop(name, None)
            self._problems[name] = (Problem("hook-file-refused", str(path), str(error)),)
        except RefusedError as refusal:
            self._problems[name] = refusal.problems
        else:
            self._servers[name] = server
            self._problems[name] = notes


def _signature(path: Path) -> tuple[int, ...]:
    """Empty where the file is gone. An edit that keeps the time of writing changes ctime."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def parse_server(name: str, text: bytes, where: str) -> tuple[HookServer, tuple[Problem, ...]]:
    """The server of a file and what is odd about it. Raises RefusedError."""
    document = _object(text, where)
    notes = [
        Problem(
            "hook-file-unknown-key",
            f"{where}: {str(key)[:80]}",
            "unknown",
            remedy=f"did you mean {guess}?" if (guess := nearest(str(key), _KEYS)) else "remove it",
            severity=Severity.WARNING,
        )
        for key in document
        if key not in _KEYS
    ]
    policy, more = _policy(document.get("failure-policy", ""), where)
    stages, unknown = _stages(document.get("runtime-hooks"), where)
    server = HookServer(
        name.removesuffix("json").rstrip("."),
        _socket(document.get("remote-endpoint"), where),
        policy,
        stages,
    )
    return server, (*notes, *more, *unknown)


def _refused(where: str, what: str, limit: str) -> RefusedError:
    remedy = "correct the file; what it said before stays in force"
    return RefusedError((Problem("hook-file-invalid", where, what, limit, remedy),))


def _object(text: bytes, where: str) -> Mapping[str, object]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(where, f"no JSON: {error}", "one JSON object") from None
    if not isinstance(document, dict):
        raise _refused(where, f"a JSON {type(document).__name__}", "one JSON object")
    return document


def _socket(value: object, where: str) -> Path:
    text = value.removeprefix("unix://") if isinstance(value, str) else ""
    path = Path(text)
    if not path.is_absolute() or "\0" in text or len(text.encode()) > _MAX_PATH_BYTES:
        raise _refused(
            f"{where}: remote-endpoint",
            f"{str(value)[:120]!r} is no path of a socket",
            f"an absolute path of at most {_MAX_PATH_BYTES} bytes",
        )
    return path


def _policy(value: object, where: str) -> tuple[Policy, tuple[Problem, ...]]:
    """Koordinator takes any other text for Ignore."""
    for policy in Policy:
        if value == policy.value:
            return policy, ()
    if value == "":
        return Policy.IGNORE, ()
    note = Problem(
        "hook-file-policy",
        f"{where}: failure-policy",
        f"{str(value)[:80]!r} is taken for Ignore",
        "Fail or Ignore",
        "write one of the two",
        Severity.WARNING,
    )
    return Policy.IGNORE, (note,)


def _stages(value: object, where: str) -> tuple[frozenset[Stage], tuple[Problem, ...]]:
    if not isinstance(value, list):
        raise _refused(f"{where}: runtime-hooks", f"{str(value)[:80]!r} is no list", "a list")
    known = {stage.value: stage for stage in Stage}
    names = [str(name)[:80] for name in value]
    notes = tuple(
        Problem(
            "hook-file-unknown-stage",
            f"{where}: runtime-hooks",
            f"{name!r} is not known",
            ", ".join(known),
            "remove it",
            Severity.WARNING,
        )
        for name in names
        if name not in known and name not in TOLERATED
    )
    return frozenset(known[name] for name in names if name in known), notes
