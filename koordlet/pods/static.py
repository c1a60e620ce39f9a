"""Host applications declared in files: ``/etc/koordlet/hostapps.d/*.yaml``.

    apiVersion: koordlet/v1
    kind: HostApplications
    applications:
      - name: nightly-encode
        qos: BE
        cgroupPath: {relativePath: batch/encode}

Whoever may write these files decides what is protected and what is slowed down, so they belong
to root and nobody else may write them (hazard H27).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from koordlet.model.pods import Resources
from koordlet.pods.hostapp import HostAppRecord, is_app_name, is_unit_name
from koordlet.protocol.document import MAX_DOCUMENT_BYTES, nearest, parse_document
from koordlet.protocol.nodeslo import HostCgroupBase, HostCgroupPath
from koordlet.protocol.problem import Problem, RefusedError, Severity
from koordlet.protocol.qos import PriorityClass, Qos, priority_class_of
from koordlet.protocol.quantity import parse_bytes, parse_milli

OWNER_UID = 0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class FileContent:
    """One file: the text last judged, what is wrong with it, and the last good applications."""

    text: str | None
    records: tuple[HostAppRecord, ...]
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class HostAppsLoaded:
    """What is in force, and what was wrong; ``by_file`` is what the next load starts from."""

    records: tuple[HostAppRecord, ...] = ()
    problems: tuple[Problem, ...] = ()
    by_file: Mapping[str, FileContent] = field(default_factory=dict)


def load_dir(
    directory: Path, last: HostAppsLoaded | None = None, *, owner_uid: int = OWNER_UID
) -> HostAppsLoaded:
    """All applications declared in ``directory``; a directory that is not there declares none.

    A file that is refused keeps what it said in ``last``; one that is gone declares nothing more.
    A text that did not change since ``last`` is not judged again, so this may be called often.
    """
    last = last or HostAppsLoaded()
    try:
        _check_owner(directory.stat(), directory, owner_uid)
        paths = sorted(directory.iterdir())
    except FileNotFoundError:
        return HostAppsLoaded()
    except OSError as error:
        refused = _refused("hostapps-unreadable", directory, f"cannot be listed: {error.strerror}")
        return HostAppsLoaded(last.records, refused.problems, last.by_file)
    except RefusedError as refusal:
        return HostAppsLoaded(last.records, refusal.problems, last.by_file)
    by_file: dict[str, FileContent] = {}
    for path in paths:
        if path.suffix != ".yaml":
            continue
        content = _load(path, last.by_file.get(str(path)), owner_uid)
        if content is not None:
            by_file[str(path)] = content
    records, doubles = _unique(by_file)
    told = (problem for content in by_file.values() for problem in content.problems)
    return HostAppsLoaded(records, (*_ignored(paths), *told, *doubles), by_file)


def _load(path: Path, last: FileContent | None, owner_uid: int) -> FileContent | None:
    """What ``path`` says now; None where it left meanwhile."""
    text = None
    try:
        text = _read(path, owner_uid)
        if last is not None and text == last.text:
            return last
        return FileContent(text, parse_apps(text, str(path)))
    except FileNotFoundError:
        return None
    except RefusedError as refused:
        kept = last.records if last is not None else ()
        hint = (_kept(path),) if kept else ()
        return FileContent(text, kept, (*refused.problems, *hint))


def parse_apps(text: str, where: str) -> tuple[HostAppRecord, ...]:
    """The applications that the text of one file declares; ``where`` names the file.

    Raises RefusedError with everything that is wrong in it.
    """
    document = parse_document(text, where)
    try:
        parsed = _File.model_validate(document)
    except ValidationError as error:
        raise RefusedError(tuple(_problem_of(each, where) for each in error.errors())) from None
    return tuple(each.record(where) for each in parsed.applications)


def _read(path: Path, owner_uid: int) -> str:
    """The text of a file, checked on the very file that is read."""
    try:
        # Not blocking: a fifo of this name must not stop us.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refused("hostapps-unreadable", path, error.strerror or str(error)) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):  # fdopen itself would refuse a directory
            raise _refused("hostapps-unreadable", path, "is no regular file")
        _check_owner(status, path, owner_uid)
        with os.fdopen(fd, "rb", closefd=False) as file:
            content = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise _refused("hostapps-unreadable", path, error.strerror or str(error)) from None
    finally:
        os.close(fd)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _refused("hostapps-unreadable", path, f"is no UTF-8: {error.reason}") from None


def _check_owner(status: os.stat_result, path: Path, owner_uid: int) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid == owner_uid and not mode & _OTHERS_WRITE:
        return
    raise RefusedError(
        (
            Problem(
                code="hostapps-owner",
                where=str(path),
                what=f"not read: it belongs to uid {status.st_uid} and has mode {mode:04o}",
                limit=f"owned by uid {owner_uid}, not writable by group or others",
                remedy=f"chown {owner_uid} {path}; chmod go-w {path}",
            ),
        )
    )


def _refused(code: str, path: Path, what: str) -> RefusedError:
    return RefusedError((Problem(code, str(path), what, remedy="correct or remove the file"),))


def _kept(path: Path) -> Problem:
    return Problem(
        code="hostapps-kept",
        where=str(path),
        what="what this file said before stays in force",
        severity=Severity.INFO,
    )


def _ignored(paths: list[Path]) -> list[Problem]:
    """Files that somebody probably meant to be read."""
    return [
        Problem(
            code="hostapps-ignored",
            where=str(path),
            what="not read",
            limit="only *.yaml is read",
            remedy=f"rename it to {path.stem}.yaml",
            severity=Severity.WARNING,
        )
        for path in paths
        if path.suffix in (".yml", ".json") and not path.name.startswith(".")
    ]


def _unique(
    by_file: Mapping[str, FileContent],
) -> tuple[tuple[HostAppRecord, ...], tuple[Problem, ...]]:
    """One record for each name; a name declared twice is in force as the first file has it."""
    first: dict[str, HostAppRecord] = {}
    problems: list[Problem] = []
    for content in by_file.values():
        for record in content.records:
            known = first.setdefault(record.name, record)
            if known is not record:
                problems.append(_double(known, record))
    return tuple(first.values()), tuple(problems)


def _double(first: HostAppRecord, second: HostAppRecord) -> Problem:
    return Problem(
        code="hostapp-twice",
        where=second.declared_in,
        what=f"{second.name} is declared in {first.declared_in} already; that one is in force",
        limit="each name once",
        remedy="rename or remove one of the two",
    )


# -- the schema, in the words of the file -------------------------------------------------------


class _Strict(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", frozen=True, hide_input_in_errors=True
    )


def _quantity_text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a quantity, e.g. 500m, 2 or 1Gi")
    return str(value)


Amount = Annotated[str, BeforeValidator(_quantity_text)]


class _Amounts(_Strict):
    cpu: Amount | None = None
    memory: Amount | None = None

    @model_validator(mode="after")
    def _readable(self) -> Self:
        self.resources()
        return self

    def resources(self) -> Resources:
        """Milli-cores and bytes; raises QuantityError, a ValueError."""
        return Resources(
            cpu_milli=None if self.cpu is None else parse_milli(self.cpu),
            memory_bytes=None if self.memory is None else parse_bytes(self.memory),
        )


class _CgroupPath(_Strict):
    base: HostCgroupBase = HostCgroupBase.CGROUP_ROOT
    parent_dir: str = ""
    relative_path: str = ""

    @model_validator(mode="after")
    def _stays_below(self) -> Self:
        for text in (self.parent_dir, self.relative_path):
            parts = text.rstrip("/").split("/")
            if text and (any(part in ("", ".", "..") for part in parts) or not text.isprintable()):
                raise ValueError(
                    f"{text!r} must be relative, without '.', '..' and control characters"
                )
        if not self.parent_dir and not self.relative_path:
            raise ValueError("parentDir or relativePath must name a directory")
        return self


class _Application(_Strict):
    name: str
    qos: Qos | None = None
    priority_class: PriorityClass | None = None
    priority: int | None = Field(default=None, ge=-(2**31), lt=2**31, strict=True)
    cgroup_path: _CgroupPath | None = None
    systemd_unit: str = ""
    requests: _Amounts = _Amounts()
    limits: _Amounts = _Amounts()
    workload: str = Field(default="", max_length=253)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not is_app_name(self.name):
            raise ValueError(
                f"name {self.name[:80]!r} must be letters, digits, '.', '_' and '-', at most 127"
            )
        if self.priority is not None and self.priority_class is not None:
            raise ValueError("give priority or priorityClass, not both")
        if self.systemd_unit and self.cgroup_path is not None:
            raise ValueError("give systemdUnit or cgroupPath, not both")
        if self.systemd_unit and not is_unit_name(self.systemd_unit):
            raise ValueError(
                f"systemdUnit {self.systemd_unit[:80]!r} must end in .service, .scope or .slice"
            )
        return self

    def record(self, declared_in: str) -> HostAppRecord:
        band = self.priority_class or PriorityClass.NONE
        if self.priority is not None:
            band = priority_class_of(self.priority)
        path = self.cgroup_path
        return HostAppRecord(
            name=self.name,
            qos=self.qos,
            priority=self.priority,
            priority_class=band,
            cgroup_path=(
                None
                if path is None
                else HostCgroupPath(path.base, path.parent_dir, path.relative_path)
            ),
            systemd_unit=self.systemd_unit,
            requests=self.requests.resources(),
            limits=self.limits.resources(),
            workload=self.workload,
            declared_in=declared_in,
        )


class _File(_Strict):
    api_version: Literal["koordlet/v1"]
    kind: Literal["HostApplications"]
    applications: tuple[_Application, ...]


_BLOCKS: tuple[type[_Strict], ...] = (_File, _Application, _CgroupPath, _Amounts)


def _problem_of(error: ErrorDetails, file: str) -> Problem:
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error["loc"])
    where = f"{file}: {place.lstrip('.')}" if place else file
    if error["type"] == "extra_forbidden":
        return _unknown_key(str(error["loc"][-1]), where)
    what = error["msg"].removeprefix("Value error, ")
    if error["type"] == "missing":
        what = "it is missing"
    return Problem("hostapps-invalid", where, what, remedy="correct the file")


def _unknown_key(key: str, where: str) -> Problem:
    known = [field.alias or name for block in _BLOCKS for name, field in block.model_fields.items()]
    meant = nearest(key, known)
    return Problem(
        code="hostapps-unknown-key",
        where=where,
        what="no such key",
        limit=f"known keys: {', '.join(known)}",
        remedy=f"write {meant}" if meant else "remove it",
    )
