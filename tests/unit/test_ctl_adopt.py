"""koordletctl adopt: what it lists, asks and orders, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from koordlet import ipc
from koordlet.api.adopting import Adoptions
from koordlet.config import Config
from koordlet.leftovers import Found
from koordlet.model.adoption import Adopted, AdoptStatus
from koordlet.protocol.problem import Problem
from koordlet.report import CoreStatus, NodeView
from tests.support import views
from tests.support.ctl import PaperDaemon, ctl, paper_daemon
from tests.unit.test_api_adopt import AGENT, STRAY, TIER, WEB
from tests.unit.test_api_views import validator


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaperDaemon]:
    with paper_daemon(tmp_path_factory.mktemp("run")) as one:
        yield one


@pytest.fixture
def daemon(served: PaperDaemon) -> PaperDaemon:
    served.reset()
    served.leftovers = Found((TIER, WEB), (STRAY,), 40)
    told = Adopted(*TIER.key, AdoptStatus.ADOPTED)
    served.reply = ipc.CommandReply(1, {"adopted": (told,)})
    return served


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody is there to answer."""
    monkeypatch.setattr("koordlet.ctl.adopting._somebody_is_there", lambda: True)


def test_H14_a_dry_run_lists_everything_and_orders_nothing(daemon: PaperDaemon) -> None:
    said = daemon.ctl("adopt", "--dry-run")
    assert said.code == 4
    assert daemon.orders == []
    for text in (TIER.file, "50000", "-1", TIER.source, "no kubelet has told", "tc qdisc del"):
        assert text in said.out
    assert "40 files compared: 1 proposed, 1 unknown, 1 not managed here" in said.out


def test_H14_the_json_follows_its_schema(daemon: PaperDaemon) -> None:
    said = daemon.ctl("adopt", "--dry-run", "-o", "json")
    validator("adopt")(said.body)
    done = daemon.ctl("adopt", "--yes", "-o", "json")
    validator("adopt")(done.body)
    assert done.body["data"]["adopted"] == 1


def test_H14_without_yes_and_without_a_terminal_it_only_lists(daemon: PaperDaemon) -> None:
    said = daemon.ctl("adopt")
    assert said.code == 4
    assert daemon.orders == []
    assert "koordletctl adopt --yes" in said.err


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("answer", "orders"), [("y\n", 1), ("n\n", 0), ("\n", 0)])
def test_H14_on_a_terminal_it_asks(daemon: PaperDaemon, answer: str, orders: int) -> None:
    said = ctl("adopt", "--run-dir", str(daemon.run_dir), stdin=answer)
    assert "Make these 1 values the originals?" in said.out
    assert len(daemon.orders) == orders
    assert said.code == 4  # one is unknown, one is not ours


def test_H14_yes_takes_over_what_was_listed(daemon: PaperDaemon) -> None:
    said = daemon.ctl("adopt", "--yes")
    assert said.code == 4
    (order,) = daemon.orders
    assert isinstance(order, ipc.AdoptCommand)
    assert [each.key for each in order.entries] == [TIER.key]
    assert "1 adopted, 1 unknown" in said.out


def test_H14_a_node_without_leftovers_ends_with_0(daemon: PaperDaemon) -> None:
    daemon.leftovers = Found(compared=40)
    for words in ((), ("--dry-run",), ("--yes",)):
        said = daemon.ctl("adopt", *words)
        assert (said.code, said.out.strip()) == (
            0,
            "40 files compared: nothing was left behind",
        )
    assert daemon.orders == []


@pytest.mark.parametrize("words", [("--dry-run",), ("--yes",), ()])
def test_H14_a_look_that_saw_nothing_is_no_clean_node(
    daemon: PaperDaemon, words: tuple[str, ...]
) -> None:
    daemon.leftovers = Found(problems=(Problem("adopt-blind", "pods", "not known"),))
    said = daemon.ctl("adopt", *words)
    assert said.code == 1
    assert "nothing was left behind" not in said.out
    assert "not known" in said.err
    assert daemon.orders == []


def test_H14_all_taken_over_ends_with_0(daemon: PaperDaemon) -> None:
    daemon.leftovers = Found((TIER,), (), 40)
    assert daemon.ctl("adopt", "--yes").code == 0


@pytest.mark.parametrize(
    ("status", "code"),
    [(AdoptStatus.CHANGED, 4), (AdoptStatus.GONE, 4), (AdoptStatus.REFUSED, 1)],
)
def test_H14_what_was_not_taken_over_shows_in_the_exit_code(
    daemon: PaperDaemon, status: AdoptStatus, code: int
) -> None:
    daemon.leftovers = Found((TIER,), (), 40)
    daemon.reply = ipc.CommandReply(1, {"adopted": (Adopted(*TIER.key, status, "because"),)})
    said = daemon.ctl("adopt", "--yes")
    assert said.code == code
    assert "because" in said.out


def test_H14_beside_another_agent_it_refuses_unless_forced(daemon: PaperDaemon) -> None:
    daemon.other_agent = AGENT
    listed = daemon.ctl("adopt", "--dry-run")
    assert listed.code == 4
    assert "other-agent" in listed.err or AGENT.where in listed.err
    refused = daemon.ctl("adopt", "--yes")
    assert refused.code == 1
    assert daemon.orders == []
    assert daemon.ctl("adopt", "--yes", "--force").code == 4
    assert len(daemon.orders) == 1


def test_contradictory_options_end_with_2(daemon: PaperDaemon) -> None:
    assert daemon.ctl("adopt", "--yes", "--dry-run").code == 2
    assert daemon.ctl("adopt", "nobody/knows").code == 2


def test_H14_a_scope_is_passed_on(daemon: PaperDaemon) -> None:
    said = daemon.ctl("adopt", "--dry-run", f"file:{TIER.file}", "-o", "json")
    assert said.body["data"]["scope"] == f"file:{TIER.file}"
    assert len(said.body["data"]["files"]) == 1


def test_H14_without_a_daemon_the_same_list_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def survey(config: Config) -> tuple[NodeView, Adoptions]:
        found = Found((TIER, WEB), (STRAY,), 40)
        return views.node_view(), Adoptions(lambda view: found, lambda: None)

    monkeypatch.setattr("koordlet.oneshot.survey", survey)
    said = ctl("adopt", "--dry-run", "--run-dir", str(tmp_path), "-o", "json")
    assert said.code == 4
    validator("adopt")(said.body)
    assert [each["verdict"] for each in said.body["data"]["files"]] == ["proposed", "unknown"]
    assert [each["code"] for each in said.body["problems"]] == ["daemon-not-running"]
    assert ctl("adopt", "--run-dir", str(tmp_path)).code == 4


def test_H14_without_a_daemon_nothing_can_be_taken_over(tmp_path: Path) -> None:
    said = ctl("adopt", "--yes", "--run-dir", str(tmp_path))
    assert said.code == 3
    assert "only it takes over" in said.err


def test_H14_explain_names_who_knew_an_original(daemon: PaperDaemon) -> None:
    owned = tuple(
        replace(each, source="the kubelet gives tiers no quota")
        if each.key == views.TIER_QUOTA
        else each
        for each in daemon.view.owned
    )
    daemon.view = replace(daemon.view, owned=owned)
    file = views.file_path(views.TIER_QUOTA)
    said = daemon.ctl("explain", file)
    assert "(adopted: the kubelet gives tiers no quota)" in said.out
    told = daemon.ctl("explain", file, "-o", "json").body["data"]["subjects"][0]["settings"][0]
    assert told["original_source"] == "the kubelet gives tiers no quota"


def test_H14_a_start_in_portions_shows_what_still_waits(daemon: PaperDaemon) -> None:
    core = daemon.view.core
    assert isinstance(core, CoreStatus)
    daemon.view = replace(daemon.view, core=replace(core, deferred_writes=401))
    for command in ("status", "plan"):
        said = daemon.ctl(command)
        assert "401 files wait for their turn" in said.out
        assert daemon.ctl(command, "-o", "json").body["data"]["deferred_writes"] == 401


def test_nobody_is_asked_where_input_is_no_terminal() -> None:
    from koordlet.ctl.adopting import _somebody_is_there

    assert _somebody_is_there() == sys.stdin.isatty()
