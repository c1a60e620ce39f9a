"""Declared host applications: merged by name, and found in the cgroup tree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordlet.model.paths import CgroupPath
from koordlet.model.pods import AppBackend, HostApp, KubeLayout, Resources
from koordlet.model.readings import Missing
from koordlet.pods.applocate import locate_apps
from koordlet.pods.hostapp import (
    HostAppRecord,
    declared_cgroup,
    find_overlaps,
    is_app_name,
    is_unit_name,
    merge_apps,
)
from koordlet.pods.layout import find_layout
from koordlet.protocol.nodeslo import HostApplicationSpec, HostCgroupBase, HostCgroupPath
from koordlet.protocol.problem import Problem
from koordlet.protocol.qos import PriorityClass, Qos
from tests.support.fakehost import FakeHost, fake_host

BATCH = HostAppRecord(
    name="encode",
    qos=Qos.BE,
    priority=5500,
    priority_class=PriorityClass.BATCH,
    requests=Resources(cpu_milli=500),
    workload="media",
    declared_in="/etc/koordlet/hostapps.d/a.yaml",
)
NO_KUBE = Missing("no kubepods")


def located(
    host: FakeHost, *records: HostAppRecord
) -> tuple[dict[str, HostApp], tuple[Problem, ...]]:
    layout = find_layout(host.cgroups())
    apps, problems = locate_apps(host.cgroups(), layout, records)
    return {app.name: app for app in apps}, problems


def at(*parts: str, base: HostCgroupBase = HostCgroupBase.CGROUP_ROOT) -> HostCgroupPath:
    return HostCgroupPath(base, *parts)


# -- one list by name ---------------------------------------------------------------------------


def test_nodeslo_wins_for_qos_and_priority_the_file_for_the_rest() -> None:
    spec = HostApplicationSpec(
        "encode", Qos.LS, PriorityClass.PROD, HostCgroupPath(relative_path="elsewhere")
    )
    (app,), problems = merge_apps([BATCH], [spec])
    assert (app.qos, app.priority_class, app.priority) == (Qos.LS, PriorityClass.PROD, None)
    assert app.cgroup_path is None
    assert app.requests == BATCH.requests
    assert app.declared_in == BATCH.declared_in
    assert problems == ()
    assert merge_apps([app], [spec]) == ((app,), ())


def test_nodeslo_that_says_nothing_changes_nothing() -> None:
    (app,), _ = merge_apps([BATCH], [HostApplicationSpec("encode")])
    assert app == BATCH
    same_band = HostApplicationSpec("encode", priority_class=PriorityClass.BATCH)
    assert merge_apps([BATCH], [same_band])[0] == (BATCH,)


def test_application_of_the_nodeslo_alone() -> None:
    (app,), _ = merge_apps([], [HostApplicationSpec("web", Qos.LS)])
    assert app.declared_in == "nodeslo"


def test_application_without_a_class_is_left_out_and_told() -> None:
    apps, (problem,) = merge_apps([replace(BATCH, qos=None)])
    assert apps == ()
    assert problem.code == "hostapp-qos"
    assert BATCH.declared_in in problem.where


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\0b", "-x", "x" * 128, "a b"])
def test_H27_name_that_is_no_directory_is_left_out_and_told(name: str) -> None:
    assert not is_app_name(name)
    apps, (problem,) = merge_apps([], [HostApplicationSpec(name, Qos.BE)])
    assert apps == ()
    assert problem.code == "hostapp-name"


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("nginx.service", True),
        ("foo@1.service", True),
        (r"a\x2db.scope", True),
        ("batch.slice", True),
        ("nginx", False),
        ("x.mount", False),
        ("../x.service", False),
        ("", False),
    ],
)
def test_unit_names(text: str, good: bool) -> None:
    assert is_unit_name(text) is good


# -- where it lies ------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", list(Qos))
def test_default_directories(qos: Qos) -> None:
    parent = "host-best-effort" if qos is Qos.BE else "host-latency-sensitive"
    assert declared_cgroup(replace(BATCH, qos=qos), NO_KUBE) == f"{parent}/encode"


def layout() -> KubeLayout:
    tree: dict[str, Any] = {"kubepods": {"burstable": {}, "besteffort": {}}}
    found = find_layout(fake_host("v1", cgroups=tree).cgroups())
    assert isinstance(found, KubeLayout)
    return found


@pytest.mark.parametrize(
    ("base", "path"),
    [
        (HostCgroupBase.CGROUP_ROOT, "a/b/c"),
        (HostCgroupBase.KUBEPODS, "kubepods/a/b/c"),
        (HostCgroupBase.KUBEPODS_BURSTABLE, "kubepods/burstable/a/b/c"),
        (HostCgroupBase.KUBEPODS_BESTEFFORT, "kubepods/besteffort/a/b/c"),
    ],
)
def test_bases(base: HostCgroupBase, path: str) -> None:
    app = replace(BATCH, cgroup_path=at("/a/", "b/c/", base=base))
    assert declared_cgroup(app, layout()) == path
    if base is not HostCgroupBase.CGROUP_ROOT:
        assert isinstance(declared_cgroup(app, NO_KUBE), Missing)


@pytest.mark.parametrize(
    "path",
    [
        at(),
        at("/", "/"),
        at("..", "x"),
        at("a", "../../b"),
        at("a\0b"),
        at("kubepods"),
        at("kubepods", "besteffort"),
        at(base=HostCgroupBase.KUBEPODS),
        at(base=HostCgroupBase.KUBEPODS_BESTEFFORT),
    ],
)
def test_H27_places_that_hold_other_work_are_refused(path: HostCgroupPath) -> None:
    assert isinstance(declared_cgroup(replace(BATCH, cgroup_path=path), layout()), Missing)


def test_found_application() -> None:
    host = fake_host("v1", cgroups={"host-best-effort": {"encode": {}}})
    apps, problems = located(host, BATCH)
    assert problems == ()
    app = apps["encode"]
    assert app.cgroup == "host-best-effort/encode"
    assert app.backend is AppBackend.FILE
    assert (app.qos, app.priority, app.priority_class) == (Qos.BE, 5500, PriorityClass.BATCH)
    assert (app.workload, app.declared_in) == ("media", BATCH.declared_in)


def test_priority_class_from_the_qos_where_none_is_told() -> None:
    apps, _ = located(fake_host("v1"), HostAppRecord("a", Qos.BE), HostAppRecord("b", Qos.LS))
    assert apps["a"].priority_class is PriorityClass.BATCH
    assert apps["b"].priority_class is PriorityClass.PROD


def test_directory_that_is_not_there() -> None:
    apps, problems = located(fake_host("v1"), BATCH)
    assert isinstance(apps["encode"].cgroup, Missing)
    assert "host-best-effort/encode does not exist" in apps["encode"].cgroup.why
    assert problems == ()


@pytest.mark.parametrize(
    "path",
    [
        "nginx.service",
        "system.slice/nginx.service",
        "user.slice/user-1000.slice/user@1000.service.slice/app.slice/nginx.service",
    ],
)
@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_H06_systemd_unit_is_found_by_its_name(path: str, kind: str) -> None:
    host = fake_host(kind)
    host.make(path)
    host.make("kubepods/burstable/pod1/nginx.service")
    app = HostAppRecord("web", Qos.LS, systemd_unit="nginx.service")
    apps, problems = located(host, app)
    assert apps["web"].cgroup == path
    assert apps["web"].backend is AppBackend.SYSTEMD_UNIT
    assert apps["web"].systemd_unit == "nginx.service"
    assert problems == ()


def test_H06_unit_that_is_not_there_or_too_deep() -> None:
    host = fake_host("v1")
    host.make("a.slice/b.slice/c.slice/d.slice/e.slice/nginx.service")
    host.make("plain/nginx.service")
    apps, _ = located(host, HostAppRecord("web", Qos.LS, systemd_unit="nginx.service"))
    assert apps["web"].cgroup == Missing("no cgroup of nginx.service")


def test_H06_unit_that_v1_has_in_one_hierarchy_only() -> None:
    host = fake_host("v1")
    memory = next(each for each in host.files.hierarchies if "memory" in each.mount)
    memory.root.make_child("system.slice").make_child("db.service")
    apps, _ = located(host, HostAppRecord("db", Qos.LS, systemd_unit="db.service"))
    assert apps["db"].cgroup == "system.slice/db.service"


def test_H06_directory_of_a_unit_is_never_written_by_file() -> None:
    host = fake_host("v1", systemd=True)
    host.make("system.slice/db.service/delegated")
    whole = HostAppRecord("whole", Qos.LS, cgroup_path=at("system.slice", "db.service"))
    apps, _ = located(host, whole)
    assert apps["whole"].backend is AppBackend.SYSTEMD_UNIT
    assert apps["whole"].systemd_unit == "db.service"
    assert apps["whole"].unwritable == ""


def test_H06_below_a_unit_only_what_it_delegates_is_written() -> None:
    host = fake_host("v2", systemd=True)
    host.make("system.slice/db.service/part")
    below = HostAppRecord("below", Qos.LS, cgroup_path=at("system.slice/db.service", "part"))
    apps, _ = located(host, below)
    assert (apps["below"].backend, apps["below"].systemd_unit) == (AppBackend.FILE, "")
    assert "lies in db.service, and systemd has not delegated" in apps["below"].unwritable
    directory = "/sys/fs/cgroup/system.slice/db.service"
    host.files.attributes[directory, "user.delegate"] = b"1"
    apps, _ = located(host, below)
    assert (apps["below"].backend, apps["below"].unwritable) == (AppBackend.FILE, "")


def test_H06_without_systemd_a_unit_is_only_observed_and_its_directory_is_one_as_any() -> None:
    host = fake_host("v2")
    host.make("system.slice/db.service")
    unit = HostAppRecord("unit", Qos.BE, systemd_unit="db.service")
    apps, _ = located(host, unit)
    assert apps["unit"].unwritable == "PID 1 is not systemd (init)"
    path = HostAppRecord("path", Qos.BE, cgroup_path=at("system.slice", "db.service"))
    apps, _ = located(host, path)
    assert (apps["path"].backend, apps["path"].unwritable) == (AppBackend.FILE, "")


def test_H06_a_unit_that_is_called_as_a_cgroup_file_is_found() -> None:
    host = fake_host("v2", systemd=True)
    host.make("system.slice/_memory.service")
    apps, _ = located(host, HostAppRecord("a", Qos.BE, systemd_unit="memory.service"))
    assert apps["a"].cgroup == "system.slice/_memory.service"


# -- overlaps -----------------------------------------------------------------------------------


@pytest.mark.parametrize("second", ["batch", "batch/nested"])
def test_cgroup_claimed_twice_or_nested_names_both_and_manages_neither(second: str) -> None:
    host = fake_host("v1")
    host.make("batch/nested")
    one = HostAppRecord("one", Qos.BE, cgroup_path=at("batch"), declared_in="a.yaml")
    two = HostAppRecord("two", Qos.BE, cgroup_path=at(second), declared_in="b.yaml")
    three = HostAppRecord("three", Qos.BE, cgroup_path=at("batches"))
    host.make("batches")
    apps, (problem,) = located(host, one, two, three)
    for text in ("one", "two", "a.yaml", "b.yaml"):
        assert text in f"{problem.where} {problem.what}"
    assert isinstance(apps["one"].cgroup, Missing)
    assert isinstance(apps["two"].cgroup, Missing)
    assert apps["three"].cgroup == "batches"


def test_neighbours_do_not_overlap() -> None:
    claims = {"a": CgroupPath("x/a"), "b": CgroupPath("x/ab"), "c": CgroupPath("y")}
    assert find_overlaps(claims, {}) == ()
