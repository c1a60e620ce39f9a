"""Where the kubelet's tiers lie."""

from __future__ import annotations

from typing import Any

import pytest

from koordlet.model.pods import CgroupDriver, KubeLayout
from koordlet.model.readings import Missing
from koordlet.pods.layout import find_layout
from tests.support.fakehost import fake_host


def found(layout: KubeLayout | Missing) -> KubeLayout:
    assert isinstance(layout, KubeLayout)
    return layout


@pytest.mark.parametrize("kind", ["v1", "v1-together", "hybrid", "v2"])
def test_cgroupfs(kind: str) -> None:
    host = fake_host(kind, cgroups={"kubepods": {"burstable": {}, "besteffort": {}}})
    layout = found(find_layout(host.cgroups()))
    assert layout.driver is CgroupDriver.CGROUPFS
    assert (layout.kubepods, layout.burstable, layout.besteffort) == (
        "kubepods",
        "kubepods/burstable",
        "kubepods/besteffort",
    )


def test_POD_06_guaranteed_tier_is_kubepods_itself() -> None:
    host = fake_host("v2", cgroups={"kubepods.slice": {}})
    layout = found(find_layout(host.cgroups()))
    assert layout.driver is CgroupDriver.SYSTEMD
    assert layout.kubepods == "kubepods.slice"
    assert layout.burstable == "kubepods.slice/kubepods-burstable.slice"
    assert layout.besteffort == "kubepods.slice/kubepods-besteffort.slice"


def test_POD_04_cgroup_root_of_the_kubelet_with_systemd() -> None:
    host = fake_host("v1", cgroups={"kubelet.slice": {"kubelet-kubepods.slice": {}}})
    layout = found(find_layout(host.cgroups(), "/kubelet"))
    assert layout.besteffort == (
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice"
    )


def test_POD_04_cgroup_root_of_the_kubelet_with_cgroupfs() -> None:
    host = fake_host("v1", cgroups={"kubelet": {"kubepods": {}}})
    assert (
        found(find_layout(host.cgroups(), "/kubelet")).besteffort == "kubelet/kubepods/besteffort"
    )


def test_POD_04_nested_root_with_a_dash_in_its_name() -> None:
    tree: dict[str, Any] = {"a.slice": {"a-b_c.slice": {"a-b_c-kubepods.slice": {}}}}
    layout = found(find_layout(fake_host("v2", cgroups=tree).cgroups(), "/a/b-c"))
    assert layout.burstable.name == "a-b_c-kubepods-burstable.slice"


@pytest.mark.parametrize("kind", ["v1", "hybrid", "v2"])
def test_POD_05_no_kubepods_is_unknown(kind: str) -> None:
    layout = find_layout(fake_host(kind, cgroups={"system.slice": {}}).cgroups())
    assert isinstance(layout, Missing)
    assert "kubepods or kubepods.slice" in layout.why


def test_POD_05_both_spellings_are_not_guessed_between() -> None:
    host = fake_host("v2", cgroups={"kubepods": {}, "kubepods.slice": {}})
    layout = find_layout(host.cgroups())
    assert isinstance(layout, Missing)
    assert "kubepods and kubepods.slice" in layout.why
    for driver in CgroupDriver:
        assert found(find_layout(host.cgroups(), driver=driver)).driver is driver


def test_POD_05_driver_that_the_kubelet_names_must_be_there() -> None:
    host = fake_host("v2", cgroups={"kubepods": {}})
    assert isinstance(find_layout(host.cgroups(), driver=CgroupDriver.SYSTEMD), Missing)


def test_POD_07_nested_kubepods_does_not_count() -> None:
    nested: dict[str, Any] = {"kubepods": {"besteffort": {}}}
    tree = {"kubepods": {"burstable": {"podu": {"f" * 64: nested}}}}
    assert found(find_layout(fake_host("v1", cgroups=tree).cgroups())).kubepods == "kubepods"
    only_nested = fake_host("v1", cgroups={"system.slice": {"docker": nested}})
    assert isinstance(find_layout(only_nested.cgroups()), Missing)


def test_odd_cgroup_root_of_the_kubelet() -> None:
    host = fake_host("v1", cgroups={"kubepods": {}})
    assert isinstance(find_layout(host.cgroups(), "/a/../.."), Missing)


def test_managed_root_is_where_the_search_starts() -> None:
    host = fake_host("v1", root="/koordtest-1", cgroups={"kubepods": {}})
    assert found(find_layout(host.cgroups())).kubepods == "kubepods"
