"""POST /v1/adopt: lists, and orders to take exactly what a list showed."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus

import pytest

from koordlet import ipc
from koordlet.adoption.places import Level, Place
from koordlet.adoption.strays import Stray
from koordlet.adoption.survey import Leftover
from koordlet.leftovers import Found
from koordlet.model.actions import Outcome, Status
from koordlet.model.adoption import Adopted, AdoptStatus
from koordlet.model.knobs import Knob
from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem
from tests.support import views
from tests.unit.test_api_server import Asked

AGENT = Problem("other-agent", "process 7", "runs")
STRAY = Stray("tc", "eth0", "root qdisc htb 1:", "the kernel's own", "tc qdisc del dev eth0 root")
TIER = Leftover(
    place=Place(views.BE_TIER, Level.TIER, "tier BestEffort"),
    knob=Knob.CPU_QUOTA,
    file="/sys/fs/cgroup/cpu/kubepods/besteffort/cpu.cfs_quota_us",
    found="50000",
    original="-1",
    source="the kubelet gives tiers no quota",
    inode=7,
)
WEB = Leftover(
    place=Place(views.WEB, Level.POD, "pod shop/web"),
    knob=Knob.CPU_QUOTA,
    file="/sys/fs/cgroup/cpu/web/cpu.cfs_quota_us",
    found="240000",
    original=Missing("no kubelet has told"),
    source="",
    inode=8,
)
FOUND = Found((TIER, WEB), (STRAY,), 40)


@pytest.fixture
def asked() -> Asked:
    told = Adopted(views.BE_TIER, Knob.CPU_QUOTA, AdoptStatus.ADOPTED)
    outcome = Outcome(views.BE_TIER, Knob.CPU_QUOTA, "adopted", Status.RESTORED)
    reply = ipc.CommandReply(1, {"adopted": (told,), "outcomes": (outcome,)})
    one = Asked(reply=reply)
    one.leftovers = FOUND
    return one


def test_H14_a_list_proposes_and_orders_nothing(asked: Asked) -> None:
    code, body = asked.post("/v1/adopt", {"dry_run": True})
    assert code is HTTPStatus.OK
    assert body["schema"] == "koordletctl.adopt/v1"
    data = body["data"]
    assert (data["done_by"], data["dry_run"], data["compared"]) == ("nobody", True, 40)
    assert (data["proposed"], data["unknown"]) == (1, 1)
    assert [(each["verdict"], each["original"]) for each in data["files"]] == [
        ("proposed", "-1"),
        ("unknown", {"missing": "no kubelet has told"}),
    ]
    assert data["unmanaged"][0]["remedy"] == "tc qdisc del dev eth0 root"
    assert asked.commands.orders == []


def test_H14_what_a_list_showed_is_what_is_taken_over(asked: Asked) -> None:
    _, body = asked.post("/v1/adopt", {"dry_run": True})
    asked.leftovers = Found((replace(TIER, found="60000"),))  # the node has moved on
    code, done = asked.post("/v1/adopt", {"list": body["data"]["list"]})
    assert code is HTTPStatus.OK
    ((order, uid),) = asked.commands.orders
    assert isinstance(order, ipc.AdoptCommand)
    assert uid == 0
    assert [(each.key, each.found, each.original) for each in order.entries] == [
        (TIER.key, "50000", "-1")
    ]
    tier, web = done["data"]["files"]
    assert (tier["verdict"], tier["outcome"]) == ("adopted", "restored")
    assert (web["verdict"], web["why"]) == ("unknown", "no kubelet has told")
    assert (done["data"]["adopted"], done["data"]["unknown"]) == (1, 1)


def test_H14_an_order_without_a_list_looks_by_itself(asked: Asked) -> None:
    code, _ = asked.post("/v1/adopt", {})
    assert code is HTTPStatus.OK
    assert len(asked.commands.orders) == 1


def test_a_list_that_nobody_knows_is_refused(asked: Asked) -> None:
    code, body = asked.post("/v1/adopt", {"list": "0123"})
    assert code is HTTPStatus.BAD_REQUEST
    assert body["problems"][0]["code"] == "adopt-list-unknown"
    assert asked.commands.orders == []


def test_H14_beside_another_agent_only_force_takes_over(asked: Asked) -> None:
    asked.other_agent = AGENT
    code, body = asked.post("/v1/adopt", {"dry_run": True})
    assert code is HTTPStatus.OK
    assert [(each["code"], each["severity"]) for each in body["problems"]] == [
        ("other-agent", "warning")
    ]
    code, body = asked.post("/v1/adopt", {})
    assert code is HTTPStatus.CONFLICT
    assert body["problems"][0]["code"] == "other-agent"
    assert asked.commands.orders == []
    code, _ = asked.post("/v1/adopt", {"force": True})
    assert code is HTTPStatus.OK
    assert len(asked.commands.orders) == 1


@pytest.mark.parametrize(
    ("scope", "files"),
    [
        ("all", 2),
        ("file:/sys/fs/cgroup/cpu/web/cpu.cfs_quota_us", 1),
        ("pod:11111111-aaaa-bbbb-cccc-000000000001", 1),
        ("file:/elsewhere", 0),
    ],
)
def test_H14_a_scope_keeps_to_itself(asked: Asked, scope: str, files: int) -> None:
    _, body = asked.post("/v1/adopt", {"dry_run": True, "scope": scope})
    assert len(body["data"]["files"]) == files
    assert len(body["data"]["unmanaged"]) == (scope == "all")


def test_no_strategy_owns_what_another_agent_left(asked: Asked) -> None:
    code, body = asked.post("/v1/adopt", {"dry_run": True, "scope": "owner:cpu_suppress"})
    assert code is HTTPStatus.BAD_REQUEST
    assert body["problems"][0]["code"] == "scope-unknown"


def test_a_core_that_does_not_tell_is_not_taken_for_a_success() -> None:
    one = Asked(reply=ipc.CommandReply(0, {}, (Problem("order-refused", "order", "silence"),)))
    one.leftovers = FOUND
    code, body = one.post("/v1/adopt", {})
    assert code is HTTPStatus.CONFLICT
    assert body["data"]["refused"] == 1
    assert body["data"]["adopted"] == 0


def test_only_the_newest_lists_are_kept(asked: Asked) -> None:
    ids = []
    for quota in range(6):
        asked.leftovers = Found((replace(TIER, found=str(quota)),))
        _, body = asked.post("/v1/adopt", {"dry_run": True})
        ids.append(body["data"]["list"])
    assert len(set(ids)) == 6
    code, _ = asked.post("/v1/adopt", {"list": ids[0]})
    assert code is HTTPStatus.BAD_REQUEST
    code, _ = asked.post("/v1/adopt", {"list": ids[-1]})
    assert code is HTTPStatus.OK
