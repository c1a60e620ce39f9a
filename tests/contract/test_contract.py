"""Rules of the kernel that decisions rely on. Where the fake disagrees, the fake is wrong."""

from __future__ import annotations

import errno

import pytest

from koordlet.host.cgroup import Cgroups
from koordlet.host.delegated import make_room
from koordlet.host.detect import probe, prove
from koordlet.host.psi import Psi, PsiResource
from koordlet.host.tree import WriteRefusedError
from koordlet.model.capabilities import Proof
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from tests.contract.conftest import Host

MIB = 1 << 20


def refused_with(cgroups: Cgroups, cg: CgroupPath, knob: Knob, text: str) -> int:
    with pytest.raises(OSError) as caught:
        cgroups.write(cg, knob, text)
    assert caught.value.errno is not None
    return caught.value.errno


def raw(cgroups: Cgroups, cg: CgroupPath, knob: Knob) -> str:
    text = cgroups.read_raw(cg, knob)
    assert not isinstance(text, Missing), text
    return text.decode().strip()


WRITABLE = [
    Knob.CPU_SHARES,
    Knob.CPU_QUOTA,
    Knob.CPU_BURST,
    Knob.CPU_IDLE,
    Knob.CPUSET_CPUS,
    Knob.CPUSET_MEMS,
    Knob.MEMORY_LIMIT,
    Knob.MEMORY_SWAP_LIMIT,
    Knob.PIDS_MAX,
]


@pytest.mark.parametrize("knob", WRITABLE, ids=lambda knob: knob.value)
def test_what_was_read_can_be_written_back(host: Host, knob: Knob) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    before = raw(cgroups, cg, knob)
    cgroups.write(cg, knob, before)
    assert raw(cgroups, cg, knob) == before
    cgroups.write(cg, knob, cgroups.canonical(knob, before))
    assert raw(cgroups, cg, knob) == before


@pytest.mark.parametrize("knob", WRITABLE, ids=lambda knob: knob.value)
def test_a_new_cgroup_holds_the_default_of_the_table(host: Host, knob: Knob) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    spec = cgroups.spec(knob)
    assert spec is not None
    if spec.default_text is not None:
        assert cgroups.canonical(knob, raw(cgroups, cg, knob)) == spec.default_text


# -- weight -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("written", "held"), [("1", "2"), ("2", "2"), ("300000", "262144")])
def test_v1_shares_are_clamped(v1_host: Host, written: str, held: str) -> None:
    cgroups, cg = v1_host.cgroups(), v1_host.make("a")
    cgroups.write(cg, Knob.CPU_SHARES, written)
    assert raw(cgroups, cg, Knob.CPU_SHARES) == held


def test_H02_idle_hides_shares_and_leaves_the_reset_text(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    cgroups.write(cg, Knob.CPU_SHARES, cgroups.encode(Knob.CPU_SHARES, 2))
    cgroups.write(cg, Knob.CPU_IDLE, "1")
    spec = cgroups.spec(Knob.CPU_SHARES)
    assert spec is not None
    assert raw(cgroups, cg, Knob.CPU_SHARES) == spec.masked_text
    assert cgroups.read(cg, Knob.CPU_SHARES) == Missing("masked by cpu.idle")
    assert refused_with(cgroups, cg, Knob.CPU_SHARES, "2") == errno.EINVAL
    cgroups.write(cg, Knob.CPU_IDLE, "1")
    cgroups.write(cg, Knob.CPU_IDLE, "0")
    assert raw(cgroups, cg, Knob.CPU_SHARES) == spec.reset_text


def test_idle_zero_over_zero_keeps_the_shares(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    cgroups.write(cg, Knob.CPU_SHARES, cgroups.encode(Knob.CPU_SHARES, 2))
    cgroups.write(cg, Knob.CPU_IDLE, "0")
    assert raw(cgroups, cg, Knob.CPU_SHARES) == cgroups.encode(Knob.CPU_SHARES, 2)


def test_idle_takes_only_0_and_1(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    assert refused_with(cgroups, cg, Knob.CPU_IDLE, "2") == errno.EINVAL
    assert refused_with(cgroups, cg, Knob.CPU_IDLE, "x") == errno.EINVAL


# -- quota and burst ----------------------------------------------------------------------------


def test_quota_floor_and_unlimited(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    assert refused_with(cgroups, cg, Knob.CPU_QUOTA, "999") == errno.EINVAL
    assert refused_with(cgroups, cg, Knob.CPU_QUOTA, "lots") == errno.EINVAL
    cgroups.write(cg, Knob.CPU_QUOTA, "1000")
    assert cgroups.read(cg, Knob.CPU_QUOTA) == 1_000
    cgroups.write(cg, Knob.CPU_QUOTA, cgroups.encode(Knob.CPU_QUOTA, None))
    assert cgroups.read(cg, Knob.CPU_QUOTA) is None


def test_v2_minus_one_is_refused(v2_host: Host) -> None:
    cgroups, cg = v2_host.cgroups(), v2_host.make("a")
    assert refused_with(cgroups, cg, Knob.CPU_QUOTA, "-1") == errno.EINVAL


def test_quota_leaves_the_period_alone(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    if cgroups.version_of(Knob.CPU_QUOTA) == 1:
        host.foreign_write(cg, "cpu.cfs_period_us", "20000")
    else:
        host.foreign_write(cg, "cpu.max", "max 20000")
    cgroups.write(cg, Knob.CPU_QUOTA, "30000")
    assert cgroups.read(cg, Knob.CPU_QUOTA) == 30_000
    assert cgroups.read(cg, Knob.CPU_PERIOD) == 20_000


def test_H04_v1_quota_above_an_ancestor_is_refused_either_way(v1_host: Host) -> None:
    cgroups = v1_host.cgroups()
    tier, child = v1_host.make("a"), v1_host.make("a/b/c")
    cgroups.write(child, Knob.CPU_QUOTA, "200000")
    assert refused_with(cgroups, tier, Knob.CPU_QUOTA, "100000") == errno.EINVAL
    assert cgroups.read(tier, Knob.CPU_QUOTA) is None
    cgroups.write(child, Knob.CPU_QUOTA, "-1")
    cgroups.write(tier, Knob.CPU_QUOTA, "100000")
    assert refused_with(cgroups, child, Knob.CPU_QUOTA, "100001") == errno.EINVAL
    cgroups.write(child, Knob.CPU_QUOTA, "100000")


def test_CQ_08_v1_compares_quota_to_period_not_quotas(v1_host: Host) -> None:
    cgroups = v1_host.cgroups()
    tier, child = v1_host.make("a"), v1_host.make("a/b")
    cgroups.write(tier, Knob.CPU_QUOTA, "100000")
    v1_host.foreign_write(child, "cpu.cfs_period_us", "20000")
    assert refused_with(cgroups, child, Knob.CPU_QUOTA, "20001") == errno.EINVAL
    cgroups.write(child, Knob.CPU_QUOTA, "20000")


def test_v2_child_quota_may_exceed_the_parent(v2_host: Host) -> None:
    cgroups = v2_host.cgroups()
    tier, child = v2_host.make("a"), v2_host.make("a/b")
    cgroups.write(child, Knob.CPU_QUOTA, "200000")
    cgroups.write(tier, Knob.CPU_QUOTA, "100000")
    assert cgroups.read(child, Knob.CPU_QUOTA) == 200_000


def test_burst_is_bounded_by_the_quota_and_bounds_it(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    cgroups.write(cg, Knob.CPU_QUOTA, "50000")
    assert refused_with(cgroups, cg, Knob.CPU_BURST, "50001") == errno.EINVAL
    cgroups.write(cg, Knob.CPU_BURST, "50000")
    assert refused_with(cgroups, cg, Knob.CPU_QUOTA, "49999") == errno.EINVAL
    cgroups.write(cg, Knob.CPU_BURST, "0")
    cgroups.write(cg, Knob.CPU_QUOTA, "49999")


def test_burst_survives_an_unlimited_quota_and_then_bounds_the_next(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    cgroups.write(cg, Knob.CPU_QUOTA, "50000")
    cgroups.write(cg, Knob.CPU_BURST, "20000")
    cgroups.write(cg, Knob.CPU_QUOTA, cgroups.encode(Knob.CPU_QUOTA, None))
    assert cgroups.read(cg, Knob.CPU_BURST) == 20_000
    assert refused_with(cgroups, cg, Knob.CPU_QUOTA, "10000") == errno.EINVAL


# -- cpuset -------------------------------------------------------------------------------------


def test_cpuset_is_read_back_as_ranges(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    cgroups.write(cg, Knob.CPUSET_CPUS, "1,0")
    assert raw(cgroups, cg, Knob.CPUSET_CPUS) == "0-1"
    assert cgroups.canonical(Knob.CPUSET_CPUS, "1,0") == "0-1"
    assert cgroups.read(cg, Knob.CPUSET_CPUS_EFFECTIVE) == frozenset({0, 1})


def test_cpuset_refuses_what_is_no_cpu(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    assert refused_with(cgroups, cg, Knob.CPUSET_CPUS, "x") == errno.EINVAL
    assert refused_with(cgroups, cg, Knob.CPUSET_CPUS, "1-0") == errno.EINVAL
    assert refused_with(cgroups, cg, Knob.CPUSET_CPUS, "60000") == errno.ERANGE


def test_v1_cpuset_child_stays_within_its_parent(v1_host: Host) -> None:
    cgroups = v1_host.cgroups()
    tier, child = v1_host.make("a"), v1_host.make("a/b")
    assert refused_with(cgroups, tier, Knob.CPUSET_CPUS, "0") == errno.EBUSY
    cgroups.write(child, Knob.CPUSET_CPUS, "0")
    cgroups.write(tier, Knob.CPUSET_CPUS, "0")
    assert refused_with(cgroups, child, Knob.CPUSET_CPUS, "0-1") == errno.EACCES
    cgroups.write(tier, Knob.CPUSET_CPUS, "0-1")
    cgroups.write(child, Knob.CPUSET_CPUS, "0-1")


def test_H18_v1_one_wide_grandchild_keeps_the_tier_wide(v1_host: Host) -> None:
    cgroups = v1_host.cgroups()
    tier, middle = v1_host.make("a"), v1_host.make("a/b")
    v1_host.make("a/b/nested")
    assert refused_with(cgroups, middle, Knob.CPUSET_CPUS, "0") == errno.EBUSY
    assert refused_with(cgroups, tier, Knob.CPUSET_CPUS, "0") == errno.EBUSY


def test_CS_01_v1_empty_cpuset_with_tasks_is_refused(v1_host: Host) -> None:
    cgroups, cg = v1_host.cgroups(), v1_host.make("a")
    v1_host.set_tasks("a", 1)
    assert refused_with(cgroups, cg, Knob.CPUSET_CPUS, "") == errno.ENOSPC
    with pytest.raises(ValueError, match="tasks need a CPU"):
        cgroups.encode(Knob.CPUSET_CPUS, frozenset())


def test_v1_empty_cpuset_without_tasks_is_taken(v1_host: Host) -> None:
    cgroups, cg = v1_host.cgroups(), v1_host.make("a")
    cgroups.write(cg, Knob.CPUSET_CPUS, "")
    assert cgroups.read(cg, Knob.CPUSET_CPUS) == frozenset()


def test_H05_v1_a_bare_new_cpuset_is_empty_until_somebody_fills_it(v1_host: Host) -> None:
    cgroups, cg = v1_host.cgroups(), v1_host.make("a")
    directory = cgroups.dir_of(cg, "cpuset")
    cgroups.files.make_dir(f"{directory}/bare")
    bare = cg.child("bare")
    assert cgroups.read(bare, Knob.CPUSET_CPUS) == frozenset()
    assert cgroups.read(bare, Knob.CPUSET_MEMS) == frozenset()
    cgroups.write(bare, Knob.CPUSET_CPUS, raw(cgroups, cg, Knob.CPUSET_CPUS))
    assert cgroups.read(bare, Knob.CPUSET_CPUS) == cgroups.read(cg, Knob.CPUSET_CPUS)


def test_v2_cpuset_is_cut_by_the_parent_and_restored_by_a_newline(v2_host: Host) -> None:
    cgroups = v2_host.cgroups()
    tier, child = v2_host.make("a"), v2_host.make("a/b")
    cgroups.write(child, Knob.CPUSET_CPUS, "0-1")
    cgroups.write(tier, Knob.CPUSET_CPUS, "1")
    assert cgroups.read(child, Knob.CPUSET_CPUS) == frozenset({0, 1})
    assert cgroups.read(child, Knob.CPUSET_CPUS_EFFECTIVE) == frozenset({1})
    cgroups.write(tier, Knob.CPUSET_CPUS, "")
    assert cgroups.read(tier, Knob.CPUSET_CPUS) == frozenset()
    assert cgroups.read(tier, Knob.CPUSET_CPUS_EFFECTIVE) == frozenset({0, 1})


@pytest.mark.parametrize("where", ["a", "a/b"])
def test_CS_02_v2_a_cpuset_is_not_emptied_while_tasks_are_in_or_below_it(
    v2_host: Host, where: str
) -> None:
    cgroups, cg = v2_host.cgroups(), v2_host.make("a")
    v2_host.make("a/b" if where == "a/b" else "other")
    v2_host.set_tasks(where, 1)
    cgroups.write(cg, Knob.CPUSET_CPUS, "")
    cgroups.write(cg, Knob.CPUSET_CPUS, "0")
    assert refused_with(cgroups, cg, Knob.CPUSET_CPUS, "") == errno.ENOSPC
    cgroups.write(cg, Knob.CPUSET_CPUS, "0-1")
    assert cgroups.read(cg, Knob.CPUSET_CPUS_EFFECTIVE) == frozenset({0, 1})


# -- memory and pids ----------------------------------------------------------------------------


def test_memory_rounds_down_to_pages(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    cgroups.write(cg, Knob.MEMORY_LIMIT, str(64 * MIB + 1))
    assert cgroups.read(cg, Knob.MEMORY_LIMIT) == 64 * MIB
    assert cgroups.canonical(Knob.MEMORY_LIMIT, str(64 * MIB + 1)) == str(64 * MIB)


def test_memory_unlimited_is_none(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    cgroups.write(cg, Knob.MEMORY_LIMIT, str(64 * MIB))
    cgroups.write(cg, Knob.MEMORY_LIMIT, cgroups.encode(Knob.MEMORY_LIMIT, None))
    assert cgroups.read(cg, Knob.MEMORY_LIMIT) is None
    assert refused_with(cgroups, cg, Knob.MEMORY_LIMIT, "lots") == errno.EINVAL


def test_v1_memsw_is_never_below_the_limit(v1_host: Host) -> None:
    cgroups, cg = v1_host.cgroups(), v1_host.make("a")
    cgroups.write(cg, Knob.MEMORY_LIMIT, str(64 * MIB))
    assert refused_with(cgroups, cg, Knob.MEMORY_SWAP_LIMIT, str(32 * MIB)) == errno.EINVAL
    cgroups.write(cg, Knob.MEMORY_SWAP_LIMIT, str(64 * MIB))
    assert refused_with(cgroups, cg, Knob.MEMORY_LIMIT, str(128 * MIB)) == errno.EINVAL


def test_V1_07_v1_limit_below_usage_is_busy_and_kills_nobody(v1_host: Host) -> None:
    cgroups, cg = v1_host.cgroups(), v1_host.make("a")
    v1_host.set_memory("a", 24 * MIB)
    assert refused_with(cgroups, cg, Knob.MEMORY_LIMIT, str(8 * MIB)) == errno.EBUSY
    memory = cgroups.memory(cg)
    assert not isinstance(memory, Missing)
    assert memory.usage_bytes >= 24 * MIB
    assert cgroups.read(cg, Knob.MEMORY_LIMIT) is None


def test_pids_max(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    cgroups.write(cg, Knob.PIDS_MAX, "100")
    assert cgroups.read(cg, Knob.PIDS_MAX) == 100
    assert refused_with(cgroups, cg, Knob.PIDS_MAX, "-1") == errno.EINVAL
    cgroups.write(cg, Knob.PIDS_MAX, "max")
    assert cgroups.read(cg, Knob.PIDS_MAX) is None


# -- cgroups that come and go -------------------------------------------------------------------


def test_a_removed_cgroup_is_missing_for_every_knob(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    assert cgroups.cpu_usage_ns(cg) == 0
    host.remove("a")
    for knob in WRITABLE:
        value = cgroups.read(cg, knob)
        assert isinstance(value, Missing)
        assert value.errno == errno.ENOENT
        assert refused_with(cgroups, cg, knob, "1000") == errno.ENOENT
    assert isinstance(cgroups.cpu_usage_ns(cg), Missing)
    assert isinstance(cgroups.children(cg), Missing)
    assert isinstance(cgroups.identity(cg, Knob.CPU_SHARES), Missing)


def test_a_recreated_cgroup_is_another_one(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    cgroups.write(cg, Knob.CPU_SHARES, cgroups.encode(Knob.CPU_SHARES, 2))
    first = cgroups.identity(cg, Knob.CPU_SHARES)
    assert first == cgroups.identity(cg, Knob.CPU_QUOTA)
    host.remove("a")
    host.make("a")
    assert cgroups.identity(cg, Knob.CPU_SHARES) not in (first, Missing)
    spec = cgroups.spec(Knob.CPU_SHARES)
    assert spec is not None
    assert raw(cgroups, cg, Knob.CPU_SHARES) == spec.default_text


def test_children_are_directories_only_with_whatever_names(host: Host) -> None:
    cgroups = host.cgroups()
    odd = "test.slice:cri-containerd:" + "0" * 64
    for name in ("b", odd, "a"):
        host.make(name)
    assert cgroups.children(CgroupPath("")) == tuple(CgroupPath(name) for name in ("a", "b", odd))
    assert cgroups.children(CgroupPath("a")) == ()


def test_a_cgroup_with_children_or_tasks_cannot_be_removed(host: Host) -> None:
    cgroups = host.cgroups()
    host.make("a/b")
    host.set_tasks("a/b", 1)
    for cg in ("a", "a/b"):
        directory = cgroups.dir_of(CgroupPath(cg), "cpu")
        assert isinstance(directory, str)
        with pytest.raises(OSError) as caught:
            cgroups.files.remove_dir(directory)
        assert caught.value.errno == errno.EBUSY


def test_H27_nothing_outside_the_managed_root_can_be_written(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    own = cgroups.path_of(cg, Knob.CPU_SHARES)
    mount = cgroups.mount_of(Knob.CPU_SHARES)
    assert isinstance(own, str)
    assert isinstance(mount, str)
    file = own.rpartition("/")[2]
    for path in (
        f"{mount}/{file}",
        f"{mount}/somebody/{file}",
        f"{own.removesuffix(f'/a/{file}')}/{file}",
        f"{own.removesuffix(f'/{file}')}/../../{file}",
        f"{own.removesuffix(f'/a/{file}')}-not/{file}",
        "/proc/self/oom_score_adj",
        "/etc/hostname",
    ):
        with pytest.raises(WriteRefusedError):
            cgroups.files.write(path, "2")
        with pytest.raises(WriteRefusedError):
            cgroups.files.make_dir(path.rpartition("/")[0])
    with pytest.raises(WriteRefusedError, match="only ever read"):
        cgroups.write(cg, Knob.CPUSET_CPUS_EFFECTIVE, "0")


# -- counters -----------------------------------------------------------------------------------


def test_counters_of_a_new_cgroup(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    cpu = cgroups.cpu_stat(cg)
    assert not isinstance(cpu, Missing)
    assert (cpu.usage_ns, cpu.nr_periods, cpu.nr_throttled, cpu.throttled_ns) == (0, 0, 0, 0)
    memory = cgroups.memory(cg)
    assert not isinstance(memory, Missing)
    assert (memory.usage_bytes, memory.working_set_bytes, memory.anon_bytes) == (0, 0, 0)
    assert memory.consistent
    io = cgroups.io(cg)
    assert not isinstance(io, Missing)
    assert io.total.read_bytes == 0
    assert cgroups.pids(cg) == 0


def test_pids_and_usage_count_tasks(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    host.set_tasks("a", 1)
    memory = cgroups.memory(cg)
    assert not isinstance(memory, Missing)
    assert cgroups.pids(cg) == 1


def test_pressure_is_missing_where_nobody_measured(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    found = cgroups.psi(cg, PsiResource.CPU)
    if not cgroups.hierarchies.v1:
        assert isinstance(found, Psi)
        return
    assert isinstance(found, Missing)
    if cgroups.hierarchies.unified is not None:
        assert "no process of this cgroup" in found.why
        host.set_tasks("a", 1)
        assert isinstance(cgroups.psi(cg, PsiResource.CPU), Psi)
        assert (
            cgroups.psi_path(cg, PsiResource.CPU) == f"{cgroups.dir_of(cg, 'unified')}/cpu.pressure"
        )


def test_a_counter_file_cannot_be_written(host: Host) -> None:
    cgroups, cg = host.cgroups(), host.make("a")
    directory = cgroups.dir_of(cg, "cpu")
    with pytest.raises(OSError) as caught:
        cgroups.files.write(f"{directory}/cpu.stat", "0")
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError) as caught:
        cgroups.files.write(f"{directory}/cpu.nothing", "0")
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(ValueError, match="never reaches the kernel"):
        cgroups.files.write(f"{directory}/cpu.idle", "")


def test_H25_proving_leaves_no_cgroup_behind(host: Host) -> None:
    cgroups, own = host.cgroups(), host.make("koordlet")
    make_room(cgroups, own)
    rooms = cgroups.children(own, "cpu")
    unproven = probe(cgroups, host.roots, run_dir="/run/koordlet")
    before = unproven.knob(Knob.CPU_QUOTA)
    assert before.proof is Proof.UNPROVEN
    proven = prove(unproven, cgroups, own.child("scratch"))
    for knob in WRITABLE:
        if knob is not Knob.CPUSET_MEMS:
            assert proven.knob(knob).proof is Proof.PROVEN, proven.knob(knob)
    assert cgroups.children(own, "cpu") == rooms
    assert cgroups.children(own, "memory") in ((), rooms)
