from __future__ import annotations

import errno
from pathlib import Path

import pytest

from koordlet.host import psitrigger
from koordlet.host.mounts import Roots
from koordlet.host.psi import Psi, PsiLine, PsiResource, node_psi, parse_psi
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from tests.support.cgroot import cgroup_root
from tests.support.fakehost import FakeFiles, fake_host
from tests.support.kernelhost import KernelHost

POD = CgroupPath("pod")
SOME = "some avg10=1.50 avg60=0.50 avg300=0.10 total=12345"
FULL = "full avg10=0.00 avg60=0.00 avg300=0.00 total=7"


def test_both_lines() -> None:
    found = parse_psi(f"{SOME}\n{FULL}\n".encode())
    assert found.some == PsiLine(1.5, 0.5, 0.1, 12_345)
    assert found.full == PsiLine(0.0, 0.0, 0.0, 7)


def test_PP_01_a_kernel_without_psi() -> None:
    found = node_psi(FakeFiles(()), Roots(), PsiResource.CPU)
    assert isinstance(found, Missing)
    assert found.errno == errno.ENOENT


def test_PP_02_open_works_but_read_is_not_supported() -> None:
    host = fake_host("v2", cgroups={"pod": {}})
    host.files.fail("/proc/pressure/cpu", errno.EOPNOTSUPP)
    host.files.fail("/sys/fs/cgroup/pod/cpu.pressure", errno.EOPNOTSUPP)
    for found in (
        node_psi(host.files, host.roots, PsiResource.CPU),
        host.cgroups().psi(POD, PsiResource.CPU),
    ):
        assert isinstance(found, Missing)
        assert found.errno == errno.EOPNOTSUPP


def test_PP_04_irq_has_only_full_and_old_cpu_only_some() -> None:
    assert parse_psi(FULL.encode()) == Psi(None, PsiLine(0.0, 0.0, 0.0, 7))
    assert parse_psi(SOME.encode()).full is None
    files = FakeFiles(())
    files.put("/proc/pressure/cpu", f"{SOME}\n")
    assert isinstance(node_psi(files, Roots(), PsiResource.CPU), Psi)
    assert isinstance(node_psi(files, Roots(), PsiResource.IRQ), Missing)


def test_PP_05_psi_switched_off_for_one_cgroup() -> None:
    host = fake_host("v2", cgroups={"pod": {}, "other": {}})
    host.delete_file("pod", "cpu.pressure")
    assert isinstance(host.cgroups().psi(POD, PsiResource.CPU), Missing)
    assert isinstance(host.cgroups().psi(CgroupPath("other"), PsiResource.CPU), Psi)


def test_PP_06_node_contention_shows_in_some_while_full_stays_zero() -> None:
    files = FakeFiles(())
    files.put("/proc/pressure/cpu", f"{SOME}\n{FULL}\n".replace("total=7", "total=0"))
    found = node_psi(files, Roots(), PsiResource.CPU)
    assert isinstance(found, Psi)
    assert found.some is not None
    assert found.full is not None
    assert (found.some.total_us, found.full.total_us) == (12_345, 0)


def test_PP_08_vendor_kernels_keep_it_in_the_cpuacct_tree() -> None:
    host = fake_host("v1", cgroups={"pod": {}})
    host.set_text("pod", "cpu.pressure", SOME)  # lands in the cpu tree, where nobody looks
    assert isinstance(host.cgroups().psi(POD, PsiResource.CPU), Missing)
    host.group("pod", "cpuacct.usage").files["cpu.pressure"] = SOME
    assert host.cgroups().psi(POD, PsiResource.CPU) == parse_psi(SOME.encode())
    assert (
        host.cgroups().psi_path(POD, PsiResource.CPU) == "/sys/fs/cgroup/cpuacct/pod/cpu.pressure"
    )


def test_PP_08_the_v2_tree_comes_first_on_a_hybrid_host() -> None:
    host = fake_host("hybrid", cgroups={"pod": {"tasks": 1}})
    host.group("pod", "cpuacct.usage").files["cpu.pressure"] = SOME
    assert (
        host.cgroups().psi_path(POD, PsiResource.CPU) == "/sys/fs/cgroup/unified/pod/cpu.pressure"
    )
    found = host.cgroups().psi(POD, PsiResource.CPU)
    assert isinstance(found, Psi)
    assert found.some == PsiLine(0.0, 0.0, 0.0, 0)


def test_no_pressure_file_names_the_places_tried() -> None:
    found = fake_host("v1", cgroups={"pod": {}}).cgroups().psi_path(POD, PsiResource.IO)
    assert found == Missing(
        "no io pressure file (/sys/fs/cgroup/cpuacct/pod/io.pressure)", errno.ENOENT
    )


@pytest.mark.parametrize("text", [b"", b"\n", b"some avg10=0.00\n", b"other line\n", b"some x\n"])
def test_other_text_is_missing(text: bytes) -> None:
    files = FakeFiles(())
    files.put("/proc/pressure/io", text)
    assert isinstance(node_psi(files, Roots(), PsiResource.IO), Missing)


# -- triggers -----------------------------------------------------------------------------------


def test_a_refused_trigger_says_every_window_tried(tmp_path: Path) -> None:
    found = psitrigger.open_best(f"{tmp_path}/cpu.pressure")
    assert isinstance(found, Missing)
    assert found.errno == errno.ENOENT
    for window in ("0.5 s", "1 s", "2 s"):
        assert window in found.why


def test_the_shortest_window_that_is_taken_wins(tmp_path: Path) -> None:
    file = tmp_path / "cpu.pressure"
    file.write_text("")
    found = psitrigger.open_best(str(file), stall_percent=30)
    assert not isinstance(found, Missing)
    assert (found.window_us, found.stall_us) == (500_000, 150_000)
    found.close()
    assert file.read_bytes() == b"some 150000 500000\0"


@pytest.mark.kernel
def test_a_trigger_on_the_real_kernel() -> None:
    with cgroup_root() as ground:
        host = KernelHost(ground)
        path = host.cgroups().psi_path(host.make("a"), PsiResource.CPU)
        if isinstance(path, Missing):
            pytest.skip(path.why)
        found = psitrigger.open_best(path)
        assert not isinstance(found, Missing), found
        assert found.window_us in psitrigger.WINDOWS_US
        found.close()
        host.close()


@pytest.mark.parametrize(
    "odd", [b"avg10=nan avg60=0 avg300=0 total=1", b"avg10=-1 avg60=0 avg300=0 total=1", b"x", b""]
)
def test_PP_04_a_line_that_cannot_be_read_takes_no_other_with_it(odd: bytes) -> None:
    good = b"full avg10=1.00 avg60=2.00 avg300=3.00 total=4\n"
    assert parse_psi(b"some " + odd + b"\n" + good) == Psi(None, PsiLine(1.0, 2.0, 3.0, 4))
    with pytest.raises(ValueError, match="no pressure line"):
        parse_psi(b"some " + odd + b"\n")


def test_MEM_09_nuls_after_pressure_lines_are_ignored() -> None:
    text = b"some avg10=1.00 avg60=2.00 avg300=3.00 total=4" + b"\0" * 30
    assert parse_psi(text) == Psi(PsiLine(1.0, 2.0, 3.0, 4), None)
