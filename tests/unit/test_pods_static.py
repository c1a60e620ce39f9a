"""Host applications declared in files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordlet.model.pods import Resources
from koordlet.pods.static import HostAppsLoaded, load_dir, parse_apps
from koordlet.protocol.nodeslo import HostCgroupBase, HostCgroupPath
from koordlet.protocol.problem import RefusedError, Severity
from koordlet.protocol.qos import PriorityClass, Qos

ME = os.geteuid()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "hostapps.d"
    path.mkdir(mode=0o755)
    return path


def put(directory: Path, *apps: Any, name: str = "a.yaml", **top: Any) -> Path:
    document = {
        "apiVersion": "koordlet/v1",
        "kind": "HostApplications",
        "applications": list(apps),
        **top,
    }
    return put_text(directory, yaml.safe_dump(document), name)


def put_text(directory: Path, text: str | bytes, name: str = "a.yaml") -> Path:
    path = directory / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(0o644)
    return path


def load(directory: Path, last: HostAppsLoaded | None = None) -> HostAppsLoaded:
    return load_dir(directory, last, owner_uid=ME)


def refusal(directory: Path, app: Any, **top: Any) -> str:
    path = put(directory, app, **top)
    with pytest.raises(RefusedError) as caught:
        parse_apps(path.read_text(), str(path))
    assert all(problem.where.startswith(str(path)) for problem in caught.value.problems)
    return str(caught.value)


def test_whole_entry(directory: Path) -> None:
    path = put(
        directory,
        {
            "name": "encode",
            "qos": "BE",
            "priority": 5500,
            "cgroupPath": {"base": "CgroupRoot", "parentDir": "batch", "relativePath": "encode"},
            "requests": {"cpu": "500m", "memory": "0.1Gi"},
            "limits": {"cpu": 2},
            "workload": "media",
        },
    )
    loaded = load(directory)
    assert loaded.problems == ()
    (app,) = loaded.records
    assert (app.name, app.qos) == ("encode", Qos.BE)
    assert (app.priority, app.priority_class) == (5500, PriorityClass.BATCH)
    assert app.cgroup_path == HostCgroupPath(HostCgroupBase.CGROUP_ROOT, "batch", "encode")
    assert app.requests == Resources(500, 107_374_183)
    assert app.limits == Resources(2000)
    assert app.workload == "media"
    assert app.declared_in == str(path)


def test_smallest_entry_and_a_unit(directory: Path) -> None:
    put(
        directory,
        {"name": "a"},
        {"name": "b", "systemdUnit": "b.service", "priorityClass": "koord-prod"},
    )
    first, second = load(directory).records
    assert first.qos is None
    assert first.cgroup_path is None
    assert second.systemd_unit == "b.service"
    assert second.priority_class is PriorityClass.PROD


def test_no_directory_declares_nothing(tmp_path: Path) -> None:
    assert load(tmp_path / "absent") == HostAppsLoaded()


def test_files_come_together(directory: Path) -> None:
    put(directory, {"name": "b"}, name="2.yaml")
    put(directory, {"name": "a"}, name="1.yaml")
    assert [record.name for record in load(directory).records] == ["a", "b"]


@pytest.mark.parametrize(
    ("app", "words"),
    [
        ({"name": "a", "cgroupPth": {}}, "write cgroupPath"),
        ({"name": "a", "cgroupPath": {"relativPath": "x"}}, "write relativePath"),
        ({"name": "a", "zzzz": 1}, "remove it"),
        ({}, "missing"),
        ({"name": "../x"}, "letters"),
        ({"name": "a", "qos": "be"}, "'BE'"),
        ({"name": "a", "priority": "5500"}, "integer"),
        ({"name": "a", "priority": 2**31}, "2147483648"),
        ({"name": "a", "priority": 5500, "priorityClass": "koord-batch"}, "not both"),
        ({"name": "a", "priorityClass": "prod"}, "koord-prod"),
        ({"name": "a", "systemdUnit": "x", "qos": "LS"}, ".service"),
        ({"name": "a", "systemdUnit": "x.slice", "cgroupPath": {"parentDir": "x"}}, "not both"),
        ({"name": "a", "requests": {"cpu": "lots"}}, "lots"),
        ({"name": "a", "requests": {"cpu": -1}}, "negative"),
        ({"name": "a", "requests": {"cpu": True}}, "requests.cpu"),
        ({"name": "a", "requests": {"gpu": 1}}, "no such key"),
        ({"name": "a", "cgroupPath": {}}, "name a directory"),
        ({"name": "a", "cgroupPath": {"base": "Root", "parentDir": "x"}}, "'CgroupRoot'"),
        ("a", "dictionary"),
    ],
)
def test_what_is_refused_is_explained(directory: Path, app: Any, words: str) -> None:
    assert words in refusal(directory, app)


@pytest.mark.parametrize("text", ["/abs", "..", "a/../b", "a//b", ".", "a\0b", "a\nb"])
@pytest.mark.parametrize("key", ["parentDir", "relativePath"])
def test_H27_paths_stay_below_their_base(directory: Path, key: str, text: str) -> None:
    assert "must be relative" in refusal(directory, {"name": "a", "cgroupPath": {key: text}})


@pytest.mark.parametrize(
    "top", [{"apiVersion": "v1"}, {"kind": "NodeSLO"}, {"applications": "x"}, {"extra": 1}]
)
def test_other_documents_are_refused(directory: Path, top: dict[str, Any]) -> None:
    refusal(directory, {"name": "a"}, **top)


@pytest.mark.parametrize("text", ["", "- a", "a: 1\na: 2", "{", b"\xff\xfe", "a: &x [*x]"])
def test_unreadable_texts(directory: Path, text: str | bytes) -> None:
    put_text(directory, text)
    loaded = load(directory)
    assert loaded.records == ()
    assert loaded.problems


def test_every_fault_is_named_at_once(directory: Path) -> None:
    put(directory, {"name": "a", "qos": "x"}, {"nam": "b"})
    where = {problem.where.partition(": ")[2] for problem in load(directory).problems}
    assert where == {"applications[0].qos", "applications[1].nam", "applications[1].name"}


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_H27_file_that_others_may_write_is_not_read(directory: Path, mode: int) -> None:
    path = put(directory, {"name": "a"})
    path.chmod(mode)
    loaded = load(directory)
    assert loaded.records == ()
    (problem,) = loaded.problems
    assert problem.code == "hostapps-owner"
    assert "chmod go-w" in problem.remedy


def test_H27_file_of_somebody_else_is_not_read(directory: Path) -> None:
    put(directory, {"name": "a"})
    loaded = load_dir(directory, owner_uid=ME + 1)
    assert loaded.records == ()
    assert loaded.problems[0].code == "hostapps-owner"


def test_H27_directory_that_others_may_write_is_not_read(directory: Path) -> None:
    put(directory, {"name": "a"})
    before = load(directory)
    directory.chmod(0o777)
    loaded = load(directory, before)
    assert loaded.records == before.records
    assert loaded.problems[0].where == str(directory)
    assert load(directory).records == ()


def test_H27_link_is_judged_by_what_it_points_to(directory: Path, tmp_path: Path) -> None:
    target = put(tmp_path, {"name": "a"}, name="elsewhere")
    (directory / "a.yaml").symlink_to(target)
    assert len(load(directory).records) == 1
    target.chmod(0o666)
    assert load(directory).records == ()


def test_fifo_does_not_block(directory: Path) -> None:
    os.mkfifo(directory / "a.yaml")
    (problem,) = load(directory).problems
    assert "no regular file" in problem.what


def test_bad_file_keeps_its_last_good_content(directory: Path) -> None:
    put(directory, {"name": "a"}, name="1.yaml")
    put(directory, {"name": "b"}, name="2.yaml")
    before = load(directory)
    put_text(directory, "oops", "1.yaml")
    put(directory, {"name": "c"}, name="2.yaml")
    after = load(directory, before)
    assert [record.name for record in after.records] == ["a", "c"]
    assert {problem.code for problem in after.problems} == {
        "document-no-mapping",
        "hostapps-kept",
    }
    again = load(directory, after)
    assert again.records == after.records
    put(directory, {"name": "d"}, name="1.yaml")
    assert [record.name for record in load(directory, again).records] == ["d", "c"]


def test_bad_file_that_never_was_good_declares_nothing(directory: Path) -> None:
    put_text(directory, "oops")
    loaded = load(directory)
    assert loaded.records == ()
    assert [problem.code for problem in loaded.problems] == ["document-no-mapping"]


def test_text_that_did_not_change_is_not_judged_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(directory, {"name": "a"}, name="1.yaml")
    put_text(directory, "oops", "2.yaml")
    before = load(directory)
    monkeypatch.setattr("koordlet.pods.static.parse_document", None)
    assert load(directory, before) == before


def test_file_whose_owner_is_put_right_is_read_again(directory: Path) -> None:
    path = put(directory, {"name": "a"})
    path.chmod(0o666)
    refused = load(directory)
    path.chmod(0o644)
    assert [record.name for record in load(directory, refused).records] == ["a"]


def test_removed_file_declares_nothing_more(directory: Path) -> None:
    path = put(directory, {"name": "a"})
    before = load(directory)
    path.unlink()
    assert load(directory, before).records == ()


def test_name_declared_twice_names_both_files(directory: Path) -> None:
    put(directory, {"name": "a", "qos": "BE"}, name="1.yaml")
    put(directory, {"name": "a", "qos": "LS"}, name="2.yaml")
    loaded = load(directory)
    assert [record.qos for record in loaded.records] == [Qos.BE]
    (problem,) = loaded.problems
    assert problem.code == "hostapp-twice"
    assert "1.yaml" in problem.what
    assert "2.yaml" in problem.where


def test_files_of_another_name_are_told(directory: Path) -> None:
    put(directory, {"name": "a"}, name="a.yml")
    put(directory, {"name": "b"}, name=".b.yml")
    put(directory, {"name": "c"}, name="README")
    (problem,) = load(directory).problems
    assert (problem.code, problem.severity) == ("hostapps-ignored", Severity.WARNING)
    assert "a.yaml" in problem.remedy


def test_H27_a_directory_of_a_files_name_is_told_and_hides_no_other(directory: Path) -> None:
    put(directory, {"name": "a", "qos": "BE"})
    (directory / "b.yaml").mkdir()
    loaded = load(directory)
    assert [record.name for record in loaded.records] == ["a"]
    assert [problem.what for problem in loaded.problems] == ["is no regular file"]
