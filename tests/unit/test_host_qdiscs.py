"""Root qdiscs out of rtnetlink messages."""

from __future__ import annotations

import struct

from koordlet.host.qdiscs import Qdisc, parse_qdisc, root_qdiscs, split_messages
from koordlet.model.readings import Missing

ROOT = 0xFFFF_FFFF
NAMES = {2: "eth0"}


def message(index: int, handle: int, parent: int, kind: str) -> bytes:
    text = kind.encode() + b"\0"
    other = struct.pack("=HHI", 8, 5, 1)  # an attribute that nobody asks for
    named = struct.pack("=HH", 4 + len(text), 1) + text + b"\0" * (-len(text) % 4)
    return struct.pack("=BxxxiIII", 0, index, handle, parent, 0) + other + named


def test_H14_an_htb_root_is_told_with_its_handle_and_interface() -> None:
    assert parse_qdisc(message(2, 0x1_0000, ROOT, "htb"), NAMES) == Qdisc("eth0", "htb", 1)
    assert parse_qdisc(message(9, 0, ROOT, "noqueue"), NAMES) == Qdisc("interface 9", "noqueue", 0)


def test_children_and_odd_messages_are_no_roots() -> None:
    assert parse_qdisc(message(2, 0x2_0000, 0x1_0002, "fq_codel"), NAMES) is None
    assert parse_qdisc(b"", NAMES) is None
    assert parse_qdisc(message(2, 0, ROOT, "htb")[:20], NAMES) is None
    endless = struct.pack("=BxxxiIII", 0, 2, 0, ROOT, 0) + struct.pack("=HH", 0, 7)
    assert parse_qdisc(endless, NAMES) is None


def test_messages_are_split_at_their_lengths() -> None:
    one = struct.pack("=IHHII", 20, 36, 0, 1, 0) + b"body"
    odd = struct.pack("=IHHII", 18, 3, 0, 1, 0) + b"ab\0\0"
    assert list(split_messages(one + odd)) == [(36, b"body"), (3, b"ab")]
    assert list(split_messages(struct.pack("=IHHII", 4, 36, 0, 1, 0))) == []


def test_this_host_answers() -> None:
    found = root_qdiscs()
    assert isinstance(found, tuple | Missing)
    if isinstance(found, tuple):
        assert "lo" in {qdisc.interface for qdisc in found}
