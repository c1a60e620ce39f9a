"""systemd's names: which unit a cgroup is, and how systemd spells it."""

from __future__ import annotations

import pytest

from koordlet.host.unitnames import (
    Place,
    directory_of_unit,
    object_path,
    place_of,
    unit_of_directory,
)


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/system.slice/batch.service", "batch.service"),
        ("/batch.slice", "batch.slice"),
        ("/batch.slice/batch-low.slice/run-u7.scope", "run-u7.scope"),
        ("/init.scope", "init.scope"),
        ("/system.slice/dev-disk-by\\x2dlabel-x.mount", "dev-disk-by\\x2dlabel-x.mount"),
        ("/system.slice/system-getty.slice/getty@tty1.service", "getty@tty1.service"),
        ("/system.slice/_cpu.service", "cpu.service"),
    ],
)
def test_H06_the_cgroup_of_a_unit_says_which_it_is(path: str, unit: str) -> None:
    assert place_of(path) == Place(unit, path.strip("/"), is_own=True)


@pytest.mark.parametrize(
    ("path", "unit", "own"),
    [
        ("/system.slice/batch.service/part", "batch.service", "system.slice/batch.service"),
        ("/system.slice/by-hand", "system.slice", "system.slice"),
        ("/user.slice/user-0.slice/user@0.service/app.slice/x.service", "user@0.service", ""),
    ],
)
def test_H06_what_lies_below_a_unit_is_held_by_it(path: str, unit: str, own: str) -> None:
    place = place_of(path)
    assert place is not None
    assert (place.unit, place.is_own) == (unit, False)
    assert place.own == (own or "user.slice/user-0.slice/user@0.service")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/host-best-effort/crunch",
        "/host-best-effort/crunch.service",
        "/koordtest-1/system.slice/batch.service",
        "/kubepods/besteffort/pod1",
        "/kubepods.slice",
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice",
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/"
        "cri-containerd-0123.scope",
        "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice",
        "/test.slice:cri-containerd:0123",
    ],
)
def test_H06_nobodys_cgroups_and_the_kubelets_are_written_by_file(path: str) -> None:
    assert place_of(path) is None


@pytest.mark.parametrize(
    ("unit", "directory"),
    [
        ("batch.service", "batch.service"),
        ("memory.service", "_memory.service"),
        ("cpuset.slice", "_cpuset.slice"),
        ("_hidden.service", "__hidden.service"),
        ("cgroup.service", "_cgroup.service"),
        ("cpus.service", "cpus.service"),
    ],
)
def test_a_unit_that_is_called_as_a_cgroup_file_gets_an_underscore(
    unit: str, directory: str
) -> None:
    assert directory_of_unit(unit) == directory
    assert unit_of_directory(directory) == unit


@pytest.mark.parametrize(
    "name", ["", ".service", "batch", "batch.timer", "a b.service", "_batch.service", "ä.service"]
)
def test_names_that_no_unit_has(name: str) -> None:
    assert unit_of_directory(name) == ""


@pytest.mark.parametrize(
    ("unit", "escaped"),
    [
        ("batch.service", "batch_2eservice"),
        ("user-1000.slice", "user_2d1000_2eslice"),
        ("7z.service", "_37z_2eservice"),
        ("a\\x2db@c.service", "a_5cx2db_40c_2eservice"),
        ("-.slice", "_2d_2eslice"),
    ],
)
def test_the_d_bus_object_of_a_unit(unit: str, escaped: str) -> None:
    assert object_path(unit) == f"/org/freedesktop/systemd1/unit/{escaped}"
