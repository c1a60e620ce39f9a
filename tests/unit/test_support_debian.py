"""Debian packages for tests, with a package manager that only writes down what it was told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.debian import PackagesError, System, ensure, missing

DPKG_QUERY = """#!/bin/sh
shift 3
for name in "$@"; do grep -qx "$name" {state}/installed && echo "$name installed"; done
exit 0
"""
APT_GET = """#!/bin/sh
echo "$*" >> {state}/calls
test -e {state}/policy && cat {state}/policy >> {state}/policies
case "$*" in
*update*) touch {state}/lists/x_Packages; exit 0;;
esac
if test -e {state}/broken && ! grep -q update {state}/calls; then echo "E: 404" ; exit 100; fi
if test -e {state}/offline; then echo "E: no network"; exit 100; fi
for word in "$@"; do echo "$word"; done >> {state}/installed
"""


@pytest.fixture
def system(tmp_path: Path) -> System:
    """A system with no packages and an index."""
    tools = tmp_path / "bin"
    for directory in (tools, tmp_path / "lists"):
        directory.mkdir()
    for name, text in (("dpkg-query", DPKG_QUERY), ("apt-get", APT_GET)):
        (tools / name).write_text(text.replace("{state}", str(tmp_path)))
        (tools / name).chmod(0o755)
    (tmp_path / "installed").write_text("runc\n")
    (tmp_path / "lists" / "main_Packages").touch()
    return System(
        policy=tmp_path / "policy",
        indexes=tmp_path / "lists",
        lock=tmp_path,
        path=str(tools),
        is_root=True,
    )


def calls(system: System) -> list[str]:
    path = system.lock / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_nothing_is_missing(system: System) -> None:
    assert ensure("runc", system=system) == ()
    assert calls(system) == []


def test_one_call_for_all_that_is_missing(system: System) -> None:
    assert missing(("a", "runc", "b"), system) == ("a", "b")
    assert ensure("a", "runc", "b", system=system) == ("a", "b")
    (call,) = calls(system)
    assert call.endswith("install --yes --no-install-recommends a b")
    assert ensure("a", "b", system=system) == ()


def test_services_are_kept_from_starting_and_the_file_is_taken_away(system: System) -> None:
    ensure("a", system=system)
    assert (system.lock / "policies").read_text() == "#!/bin/sh\nexit 101\n"
    assert not system.policy.exists()


def test_policy_of_the_machine_itself_stays(system: System) -> None:
    system.policy.write_text("theirs\n")
    ensure("a", system=system)
    assert system.policy.read_text() == "theirs\n"
    assert (system.lock / "policies").read_text() == "theirs\n"


def test_index_is_fetched_where_there_is_none(system: System) -> None:
    (system.indexes / "main_Packages").unlink()
    ensure("a", system=system)
    assert [call.split()[-1] for call in calls(system)] == ["update", "a"]


def test_stale_index_is_refreshed_once(system: System) -> None:
    (system.lock / "broken").touch()
    ensure("a", system=system)
    assert [call.split()[-1] for call in calls(system)] == ["a", "update", "a"]


def test_failure_is_explained_and_leaves_no_policy(
    system: System, capfd: pytest.CaptureFixture[str]
) -> None:
    (system.lock / "offline").touch()
    with pytest.raises(PackagesError, match="could not install a"):
        ensure("a", system=system)
    assert len(calls(system)) == 3
    assert not system.policy.exists()
    output = capfd.readouterr()
    assert output.out == ""
    assert "no network" in output.err


def test_without_root_the_remedy_is_named(system: System) -> None:
    with pytest.raises(PackagesError, match="apt-get install a b"):
        ensure("a", "b", "runc", system=replace(system, is_root=False))
    assert calls(system) == []


def test_without_root_nothing_is_needed_where_all_is_there(system: System) -> None:
    assert ensure("runc", system=replace(system, is_root=False)) == ()


def test_other_systems_than_debian(system: System, tmp_path: Path) -> None:
    with pytest.raises(PackagesError, match="no dpkg-query"):
        ensure("a", system=replace(system, path=str(tmp_path / "nowhere")))
