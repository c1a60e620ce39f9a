from __future__ import annotations

import errno

import pytest

from koordlet.host import formats
from koordlet.host.knobtable import Relation, specs
from koordlet.model.knobs import Knob, Value
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.units import cores_to_quota_us, shares_to_weight, weight_to_shares
from tests.support.fakehost import fake_host

POD = CgroupPath("pod")


@pytest.mark.parametrize(
    "page_unlimited", [9223372036854771712, 9223372036854759424, 9223372036854710272]
)
def test_V1_04_no_limit_is_recognised_for_every_page_size(page_unlimited: int) -> None:
    assert formats.parse_bytes(f"{page_unlimited}\n".encode()) is None


def test_V1_04_the_largest_real_limit_is_a_limit() -> None:
    assert formats.parse_bytes(b"9223372036854644736\n") == 9223372036854644736


def test_V1_05_unlimited_is_written_as_minus_one_on_v1() -> None:
    cgroups = fake_host("v1").cgroups()
    for knob in (Knob.MEMORY_LIMIT, Knob.MEMORY_SWAP_LIMIT, Knob.CPU_QUOTA):
        assert cgroups.encode(knob, None) == "-1"


def test_V2_01_max_is_unlimited_beside_a_usage() -> None:
    host = fake_host("v2", cgroups={"pod": {"memory.max": "max", "memory.current": "4096"}})
    memory = host.cgroups().memory(POD)
    assert not isinstance(memory, Missing)
    assert host.cgroups().read(POD, Knob.MEMORY_LIMIT) is None
    assert memory.usage_bytes == 4_096


@pytest.mark.parametrize(
    ("text", "quota", "period"),
    [
        (b"max 100000 0\n", None, 100_000),
        (b"max 100000\n", None, 100_000),
        (b"150000 100000\n", 150_000, 100_000),
    ],
)
def test_V2_02_cpu_max_with_two_or_three_fields(
    text: bytes, quota: int | None, period: int
) -> None:
    assert formats.parse_cpu_max_quota(text) == quota
    assert formats.parse_cpu_max_period(text) == period


def test_V2_03_quotas_are_compared_as_quotas() -> None:
    cgroups = fake_host("v2").cgroups()
    assert cgroups.canonical(Knob.CPU_QUOTA, b"200000 100000\n") == "200000"
    assert cgroups.canonical(Knob.CPU_QUOTA, b"100000 100000\n") == cgroups.canonical(
        Knob.CPU_QUOTA, "100000"
    )
    assert cgroups.canonical(Knob.CPU_QUOTA, b"max 100000\n") == cgroups.encode(
        Knob.CPU_QUOTA, None
    )


def test_V2_03_a_vendor_v1_quota_of_any_negative_number_is_unlimited() -> None:
    cgroups = fake_host("v1").cgroups()
    assert formats.parse_v1_quota(b"-2\n") is None
    assert cgroups.canonical(Knob.CPU_QUOTA, b"-2\n") == "-1"


def test_CS_02_an_empty_cpuset_is_the_empty_set() -> None:
    host = fake_host("v2", cpus="0-3", cgroups={"pod": {}})
    assert host.files.read("/sys/fs/cgroup/pod/cpuset.cpus") == b"\n"
    assert host.cgroups().read(POD, Knob.CPUSET_CPUS) == frozenset()
    assert host.cgroups().read(POD, Knob.CPUSET_CPUS_EFFECTIVE) == frozenset(range(4))
    assert formats.parse_cpus(b"") == frozenset()


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_V2_11_both_spellings_of_the_effective_set(layout: str) -> None:
    host = fake_host(layout, cpus="0-3", cgroups={"pod": {}})
    assert host.cgroups().read(POD, Knob.CPUSET_CPUS_EFFECTIVE) == frozenset({0, 1, 2, 3})


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_CQ_11_unlimited_bypasses_all_arithmetic(layout: str) -> None:
    cgroups = fake_host(layout, cgroups={"pod": {}}).cgroups()
    assert cgroups.read(POD, Knob.CPU_QUOTA) is None
    cgroups.write(POD, Knob.CPU_QUOTA, cgroups.encode(Knob.CPU_QUOTA, None))
    assert cgroups.read(POD, Knob.CPU_QUOTA) is None


def test_CQ_09_a_short_period_scales_the_quota() -> None:
    assert cores_to_quota_us(0.5, 10_000) == 5_000


@pytest.mark.parametrize(
    ("shares", "weight"),
    [(1, 1), (2, 1), (10, 1), (102, 4), (512, 20), (1_024, 39), (2_048, 79), (262_144, 10_000)],
)
def test_shares_become_a_weight_by_the_linear_formula(shares: int, weight: int) -> None:
    assert shares_to_weight(shares) == weight
    assert formats.format_weight(shares) == str(weight)


@pytest.mark.parametrize(("weight", "shares"), [(1, 2), (2, 28), (39, 998), (100, 2_597)])
def test_a_weight_becomes_nominal_shares(weight: int, shares: int) -> None:
    assert weight_to_shares(weight) == shares
    assert formats.parse_weight(f"{weight}\n".encode()) == shares


@pytest.mark.parametrize("weight", [1, 39, 59, 100, 10_000])
def test_a_weight_is_compared_by_its_text_whatever_formula_made_it(weight: int) -> None:
    cgroups = fake_host("v2").cgroups()
    assert cgroups.canonical(Knob.CPU_SHARES, f"{weight}\n".encode()) == str(weight)


@pytest.mark.parametrize("text", [b"default 100\n8:0 200\n", b"100\n", b"8:0 5\ndefault 100\n"])
def test_io_weight_has_a_default_among_devices(text: bytes) -> None:
    assert formats.parse_io_weight(text) == 100


@pytest.mark.parametrize(
    ("knob", "text"),
    [
        (Knob.CPU_QUOTA, b""),
        (Knob.CPU_QUOTA, b"some\n"),
        (Knob.CPU_SHARES, b"\n"),
        (Knob.CPUSET_CPUS, b"0-\n"),
        (Knob.CPUSET_CPUS, b"-\n"),
        (Knob.MEMORY_LIMIT, b"(unknown)\n"),
        (Knob.IO_WEIGHT, b"8:0 100\n"),
    ],
)
@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_text_that_no_kernel_prints_is_missing(layout: str, knob: Knob, text: bytes) -> None:
    host = fake_host(layout, cgroups={"pod": {}})
    spec = host.cgroups().spec(knob)
    if spec is not None:
        host.group("pod", spec.file).files[spec.file] = text.decode().strip()
        assert isinstance(host.cgroups().read(POD, knob), Missing)


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        (Knob.CPU_QUOTA, "100"),
        (Knob.CPU_SHARES, None),
        (Knob.CPU_IDLE, frozenset()),
        (Knob.CPUSET_CPUS, 3),
        (Knob.CPUSET_CPUS, None),
        (Knob.MEMORY_LIMIT, "8G"),
    ],
)
@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_a_value_of_another_type_is_refused(layout: str, knob: Knob, value: Value) -> None:
    with pytest.raises(ValueError, match="is not"):
        fake_host(layout).cgroups().encode(knob, value)


def test_io_max_is_kept_as_text() -> None:
    cgroups = fake_host("v2").cgroups()
    assert cgroups.encode(Knob.IO_MAX, "8:0 wbps=1048576") == "8:0 wbps=1048576"
    assert cgroups.encode(Knob.IO_WEIGHT, 20_000) == "default 10000"
    with pytest.raises(ValueError, match="is not text"):
        cgroups.encode(Knob.IO_MAX, 8)


def test_H02_side_effects_are_in_the_table() -> None:
    for version in (1, 2):
        table = specs(version)
        assert table[Knob.CPU_IDLE].side_effects == (Knob.CPU_SHARES,)
        assert table[Knob.CPU_SHARES].masked_by is Knob.CPU_IDLE
        assert Knob.CPU_BURST in table[Knob.CPU_QUOTA].side_effects
        assert Knob.CPU_QUOTA in table[Knob.CPU_BURST].side_effects
    assert specs(1)[Knob.MEMORY_LIMIT].side_effects == (Knob.MEMORY_SWAP_LIMIT,)


def test_H04_refusals_by_a_relative_are_told_from_lack_of_support() -> None:
    v1 = specs(1)
    assert {errno.EINVAL, errno.EBUSY, errno.EACCES} <= v1[Knob.CPUSET_CPUS].relation_errnos
    assert errno.EINVAL in v1[Knob.CPU_QUOTA].relation_errnos
    assert v1[Knob.CPU_QUOTA].relations[0] is Relation.WITHIN_PARENT
    assert errno.EINVAL in specs(2)[Knob.CPU_BURST].relation_errnos
    assert v1[Knob.CPU_SHARES].relations[0] is Relation.IDLE
    assert not v1[Knob.PIDS_MAX].relations
    assert not v1[Knob.PIDS_MAX].relation_errnos


def test_H11_files_that_may_block_are_marked() -> None:
    slow = {knob for knob in Knob if specs(2)[knob].slow}
    assert slow == {
        Knob.MEMORY_LIMIT,
        Knob.MEMORY_SWAP_LIMIT,
        Knob.MEMORY_HIGH,
        Knob.CPUSET_MEMS,
    }
    assert specs(1)[Knob.MEMORY_LIMIT].slow


def test_every_knob_has_a_v2_file_and_each_file_one_writable_knob() -> None:
    assert set(specs(2)) == set(Knob)
    for version in (1, 2):
        files = [spec.file for spec in specs(version).values() if not spec.read_only]
        assert len(files) == len(set(files))
