"""Queueing disciplines of this host's interfaces, by one rtnetlink dump (rtnetlink(7), tc(8))."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from koordlet.model.readings import Missing

_RTM_NEWQDISC, _RTM_GETQDISC = 36, 38
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_TCA_KIND = 1
_ROOT = 0xFFFF_FFFF
_HEADER = struct.Struct("=IHHII")
_TCMSG = struct.Struct("=BxxxiIII")
_ATTRIBUTE = struct.Struct("=HH")
_RECEIVE_BYTES = 1 << 16
_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Qdisc:
    """A root qdisc: ``handle`` is the major number, e.g. 1 for ``1:``."""

    interface: str
    kind: str
    handle: int


def root_qdiscs() -> tuple[Qdisc, ...] | Missing:
    """The root qdisc of every interface of this network namespace."""
    try:
        names = dict(socket.if_nameindex())
        replies = _dump()
    except OSError as error:
        return Missing(f"rtnetlink: {error.strerror}", error.errno or 0)
    found = [parse_qdisc(body, names) for body in replies]
    return tuple(qdisc for qdisc in found if qdisc is not None)


def _dump() -> list[bytes]:
    """The bodies of all RTM_NEWQDISC messages."""
    body = _TCMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    flags = _NLM_F_REQUEST | _NLM_F_DUMP
    request = _HEADER.pack(_HEADER.size + len(body), _RTM_GETQDISC, flags, 1, 0) + body
    bodies: list[bytes] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.settimeout(_TIMEOUT_S)
        link.bind((0, 0))
        link.sendto(request, (0, 0))
        while True:
            for kind, part in split_messages(link.recv(_RECEIVE_BYTES)):
                if kind == _NLMSG_DONE:
                    return bodies
                if kind == _NLMSG_ERROR:
                    raise OSError(-struct.unpack_from("=i", part)[0], "the dump was refused")
                if kind == _RTM_NEWQDISC:
                    bodies.append(part)


def split_messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of each netlink message in one datagram."""
    while len(data) >= _HEADER.size:
        length, kind, _flags, _sequence, _pid = _HEADER.unpack_from(data)
        if length < _HEADER.size:
            return
        yield kind, data[_HEADER.size : length]
        data = data[_aligned(length) :]


def parse_qdisc(body: bytes, names: dict[int, str]) -> Qdisc | None:
    """One qdisc; None where it is no root, or not to be read."""
    if len(body) < _TCMSG.size:
        return None
    _family, index, handle, parent, _info = _TCMSG.unpack_from(body)
    if parent != _ROOT:
        return None
    rest = body[_TCMSG.size :]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if length < _ATTRIBUTE.size:
            return None
        if kind == _TCA_KIND:
            text = rest[_ATTRIBUTE.size : length].rstrip(b"\0").decode(errors="replace")
            return Qdisc(names.get(index, f"interface {index}"), text, handle >> 16)
        rest = rest[_aligned(length) :]
    return None


def _aligned(length: int) -> int:
    return (length + 3) & ~3
