"""Messages between core and front, and the framed channel that carries them.

The core listens on ``core.sock`` in the 0700 run directory and accepts only its own uid; the
front connects and reconnects, so either restarts without the other. Frames are a length of four
bytes and a pickle: both ends are this program under the same uid.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koordlet.config import Config
from koordlet.model.actions import Mode
from koordlet.model.adoption import Adoption
from koordlet.model.knobs import Knob, Value
from koordlet.model.pods import CgroupDriver, PodRecord
from koordlet.model.readings import Missing
from koordlet.model.sharing import share_record
from koordlet.model.topology import CpuManagerPolicy
from koordlet.pods.hostapp import HostAppRecord
from koordlet.protocol.nodeslo import NodeSlo
from koordlet.protocol.problem import Problem
from koordlet.standing import Standing

FRAME_LIMIT_BYTES = 64 << 20
BACKLOG_LIMIT_BYTES = 8 << 20
_LENGTH = struct.Struct("!I")
_PEER = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class PodsUpdate:
    """Front to core: the merged pod list, or why there is none yet; ``age_s`` of the answer."""

    records: tuple[PodRecord, ...] | Missing
    age_s: float


@dataclass(frozen=True, slots=True)
class PodsChange:
    """Front to core: what is new, changed or gone (by cgroup uid) since the list sent last; on a
    node full of pods one container's start is told in a hundredth of the list. Harmless when it
    comes twice.
    """

    changed: tuple[PodRecord, ...]
    gone: frozenset[str]
    age_s: float

    def applied_to(self, records: tuple[PodRecord, ...]) -> tuple[PodRecord, ...]:
        """The list after this change, sorted by namespace, name and uid."""
        by_uid = {record.uid: record for record in records if record.uid not in self.gone}
        for record in self.changed:
            by_uid[record.uid] = share_record(record, by_uid.get(record.uid))
        ordered = sorted(by_uid.values(), key=lambda r: (r.namespace, r.name, r.uid))
        return tuple(ordered)


@dataclass(frozen=True, slots=True)
class PodsStillTrue:
    """Front to core: the sources answered again, and the list is the one sent last."""

    age_s: float


@dataclass(frozen=True, slots=True)
class AppsUpdate:
    """Front to core: declared host applications, files and NodeSLO merged by name."""

    records: tuple[HostAppRecord, ...]


@dataclass(frozen=True, slots=True)
class SloUpdate:
    """Front to core: the NodeSLO in force and its version."""

    slo: NodeSlo
    version: int


@dataclass(frozen=True, slots=True)
class KubeletUpdate:
    """Front to core: what the kubelet's configuration says about CPUs and cgroups."""

    cgroup_root: str
    cgroup_driver: CgroupDriver | None
    cpu_manager: CpuManagerPolicy
    reserved_cpus: frozenset[int]
    reserved_milli: int


@dataclass(frozen=True, slots=True)
class ConfigUpdate:
    """Front to core: the configuration in force after a reload, and at each connection."""

    config: Config


@dataclass(frozen=True, slots=True)
class SpecRequest:
    """Core to front: change one value in the runtime's spec (CRI UpdateContainerResources)."""

    container_id: str
    knob: Knob
    value: Value


@dataclass(frozen=True, slots=True)
class SpecAnswer:
    """Front to core: what the runtime said to a SpecRequest; ``error`` is "" on success."""

    container_id: str
    knob: Knob
    value: Value
    error: str


@dataclass(frozen=True, slots=True)
class Relist:
    """Core to front: the cgroup tree changed, ask the sources again now."""

    why: str


@dataclass(frozen=True, slots=True)
class ModeCommand:
    """Set the mode of one strategy, or of all where ``strategy`` is ""; ``for_s`` limits it."""

    strategy: str
    mode: Mode
    for_s: float | None


@dataclass(frozen=True, slots=True)
class ReleaseCommand:
    """Restore, then only observe: "all", "owner:NAME", "pod:UID" or "file:PATH"."""

    scope: str


@dataclass(frozen=True, slots=True)
class ResumeCommand:
    """Take a release back; "" takes back all of them."""

    scope: str


@dataclass(frozen=True, slots=True)
class AdoptCommand:
    """Make known originals the originals of what another agent left: all that was listed for
    ``scope``.
    """

    scope: str
    entries: tuple[Adoption, ...]


Order = ModeCommand | ReleaseCommand | ResumeCommand | AdoptCommand
"""What an operator may order."""


@dataclass(frozen=True, slots=True)
class OtherAgentUpdate:
    """Front to core, at each connection and when it changes: another agent that manages this node
    now, or None.
    """

    problem: Problem | None


@dataclass(frozen=True, slots=True)
class StandingUpdate:
    """Front to core, at each connection: the persisted orders."""

    standing: Standing


@dataclass(frozen=True, slots=True)
class Command:
    """Front to core: an order of an operator, the uid that gave it, and the orders that it
    results in (already persisted).
    """

    id: int
    order: Order
    uid: int
    standing: Standing


@dataclass(frozen=True, slots=True)
class CommandReply:
    """Core to front: what came of a Command."""

    id: int
    result: dict[str, Any] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


class ChannelClosedError(ConnectionError):
    """The other end is gone."""


class Channel:
    """One framed connection, never blocking: what does not fit waits in a bounded backlog."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._inbox = bytearray()
        self._backlog = bytearray()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def wants_write(self) -> bool:
        """True while a backlog waits for the socket."""
        return bool(self._backlog)

    def send(self, message: object, *, droppable: bool = False) -> bool:
        """Queue and try to write; False if a droppable message met a full backlog.

        Raises ChannelClosedError when the other end is gone, or when a message that may not be
        dropped meets a full backlog (the peer is stuck; a reconnect resynchronises).
        """
        if len(self._backlog) > BACKLOG_LIMIT_BYTES:
            if droppable:
                return False
            raise ChannelClosedError(f"peer does not read: {len(self._backlog)} bytes wait")
        body = _packed(message)
        self._backlog += _LENGTH.pack(len(body)) + body
        self.flush()
        return True

    def flush(self) -> None:
        """Write what the socket takes now."""
        while self._backlog:
            try:
                sent = self._sock.send(self._backlog)
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            del self._backlog[:sent]

    def receive(self) -> list[Any]:
        """All whole messages that have arrived; raises ChannelClosedError at the end."""
        closed = self._fill()
        messages: list[Any] = []
        while len(self._inbox) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._inbox)
            if length > FRAME_LIMIT_BYTES:
                raise ChannelClosedError(f"frame of {length} bytes, limit {FRAME_LIMIT_BYTES}")
            if len(self._inbox) < _LENGTH.size + length:
                break
            body = bytes(self._inbox[_LENGTH.size : _LENGTH.size + length])
            del self._inbox[: _LENGTH.size + length]
            messages.append(pickle.loads(body))
        if closed and not messages:
            raise ChannelClosedError("closed by the other end")
        return messages

    def _fill(self) -> bool:
        while True:
            try:
                data = self._sock.recv(1 << 16)
            except BlockingIOError:
                return False
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            if not data:
                return True
            self._inbox += data

    def close(self) -> None:
        self._sock.close()


def _packed(message: object) -> bytes:
    """``message`` pickled; one with pods in it without a memo, which would keep all that pickling
    makes on the way until its end: on a node full of pods that is more than the message. What has
    no pods in it comes each second, and is pickled faster with one. All messages are trees.
    """
    if not _holds_pods(message):
        return pickle.dumps(message, protocol=5)
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=5)
    pickler.fast = True
    pickler.dump(message)
    return buffer.getvalue()


def _holds_pods(message: object) -> bool:
    told_by_core = getattr(message, "workloads", None) is not None
    return told_by_core or isinstance(message, PodsUpdate | PodsChange)


def listen(path: Path) -> socket.socket:
    """The core's listener: bound to a temporary name, then renamed (hazard H19), mode 0600."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    sock.bind(str(temporary))
    temporary.chmod(0o600)
    sock.listen(4)
    sock.setblocking(False)
    temporary.rename(path)
    return sock


def accept(listener: socket.socket) -> Channel | None:
    """Accept a front of our own uid; anybody else is closed at once."""
    try:
        sock, _ = listener.accept()
    except BlockingIOError:
        return None
    if peer_uid(sock) != os.geteuid():
        sock.close()
        return None
    return Channel(sock)


def peer_uid(sock: socket.socket) -> int:
    """Who the kernel says is at the other end of a unix socket."""
    peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(peer)
    return int(uid)


def connect(path: Path) -> Channel:
    """The front's end; raises OSError while the core does not listen."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        raise
    return Channel(sock)
