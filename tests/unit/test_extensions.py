"""Strategies of installed packages: found, named or off, and never able to stop the daemon."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from koordlet import extensions
from koordlet.model.capabilities import Proof
from koordlet.qosmanager.be_priority import BePriority


class Quiet(BePriority):
    """A strategy of another package."""

    def __init__(self) -> None:
        super().__init__(name="quiet")


def broken() -> object:
    raise RuntimeError("no licence")


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    here = __name__
    entries = tuple(
        EntryPoint(name, f"{here}:{what}", extensions.GROUP)
        for name, what in (("quiet", "Quiet"), ("broken", "broken"), ("gone", "nothing"))
    )
    monkeypatch.setattr(extensions, "installed", lambda: entries)


def test_nothing_is_loaded_that_the_configuration_does_not_name() -> None:
    assert extensions.load_strategies(()) == extensions.Loaded()
    proofs = {each.name: each.proof for each in extensions.as_capabilities(("quiet",))}
    assert proofs["extension quiet"] is Proof.UNPROVEN
    assert proofs["extension broken"] is Proof.ABSENT


def test_a_named_strategy_is_loaded_and_faults_of_others_are_told() -> None:
    loaded = extensions.load_strategies(("broken", "quiet", "gone", "absent"))
    assert [strategy.name for strategy in loaded.strategies] == ["quiet"]
    told = " ".join(str(problem) for problem in loaded.problems)
    assert "no licence" in told
    assert "offered: quiet, broken, gone" in told
    assert len(loaded.problems) == 3


def test_a_name_is_taken_once() -> None:
    loaded = extensions.load_strategies(("quiet", "quiet"))
    assert len(loaded.strategies) == 1
    assert "already a strategy" in loaded.problems[0].what
