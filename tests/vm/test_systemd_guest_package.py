"""The Debian package: what is in it, and its life on a machine with systemd."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import vmimage
from tests.support.vmguest import Guest
from tests.support.vmservice import AS_BEFORE, TIMER, UNIT, Service, governed_work

pytestmark = [pytest.mark.vm, pytest.mark.long]

REPO = Path(__file__).resolve().parents[2]
NAME = "koord-host"
IN_GUEST = "/root/koord-host.deb"
DPKG_S = 300.0
# Configuration that is there already is not asked about.
DPKG = "DEBIAN_FRONTEND=noninteractive dpkg --force-confold"


@pytest.fixture(scope="module")
def package() -> Path:
    """The package of the working tree, made without a network."""
    version = ".".join(map(str, sys.version_info[:2]))
    if version != vmimage.PYTHON:
        pytest.skip(f"a package fits one Python: {version} here, {vmimage.PYTHON} in the guest")
    wheels = vmimage.python_disk().with_name("wheels")
    made = subprocess.run(
        ["make", "deb", f"WHEELS={wheels}"],
        cwd=REPO,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return Path(made.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def service(systemd_guest: Guest, package: Path) -> Iterator[Service]:
    systemd_guest.put(IN_GUEST, package.read_bytes())
    with governed_work(systemd_guest) as made:
        yield made
        systemd_guest.sh(f"{DPKG} --purge {NAME}", DPKG_S)


def dpkg_deb(*words: str) -> str:
    done = subprocess.run(["dpkg-deb", *words], capture_output=True, text=True, check=True)
    return done.stdout


# -- what is in it --------------------------------------------------------------------------------


def test_the_package_says_what_it_needs(package: Path) -> None:
    fields = dict(
        line.split(": ", 1)
        for line in dpkg_deb("--field", str(package)).splitlines()
        if not line.startswith(" ")
    )
    assert fields["Package"] == NAME
    assert f"python3 (>= {vmimage.PYTHON})" in fields["Depends"]
    assert "python3 (<< 3." in fields["Depends"]
    conffiles = dpkg_deb("--info", str(package), "conffiles").split()
    assert conffiles == ["/etc/koordlet/koordlet.yaml", "/etc/koordlet/nodeslo.yaml"]
    for script in ("postinst", "prerm", "postrm"):
        assert dpkg_deb("--info", str(package), script).startswith("#!/bin/sh\n")


def test_the_package_holds_all_of_root_s_and_nothing_of_its_making(package: Path) -> None:
    rows = [line.split(maxsplit=5) for line in dpkg_deb("--contents", str(package)).splitlines()]
    assert {row[1] for row in rows} == {"root/root"}
    assert not [row for row in rows if row[0][8] == "w"], "anybody may write it"
    names = {row[5].split(" -> ")[0] for row in rows}
    assert {
        "./usr/bin/koordlet",
        "./usr/bin/koordletctl",
        f"./usr/lib/systemd/system/{UNIT}",
        f"./usr/lib/systemd/system/{TIMER}",
        "./usr/lib/systemd/system/koord.slice",
        "./usr/lib/tmpfiles.d/koord-host.conf",
        "./usr/share/doc/koord-host/operations.md",
        "./usr/share/doc/koord-host/examples/alerts.yaml",
        "./etc/koordlet/hostapps.d/",
    } <= names
    assert not [name for name in names if "/pip/" in name or "/setuptools/" in name]


def test_nothing_in_the_package_names_the_place_where_it_was_made(
    package: Path, tmp_path: Path
) -> None:
    dpkg_deb("--extract", str(package), str(tmp_path))
    app = tmp_path / "usr/lib/koord-host"
    texts = [*app.glob("bin/koord*"), app / "pyvenv.cfg", *tmp_path.rglob("*.service")]
    texts += app.glob("lib/python3*/site-packages/koordlet/__pycache__/daemon*.pyc")
    assert len(texts) >= 5
    for path in texts:
        assert str(REPO).encode() not in path.read_bytes(), path
    done = subprocess.run(
        [app / "bin/python3", "-I", "-m", "koordlet.daemon", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--cgroup-root" in done.stdout


# -- its life -------------------------------------------------------------------------------------


def test_an_installation_starts_the_service(service: Service) -> None:
    service.ok(f"{DPKG} --install {IN_GUEST}", DPKG_S)
    assert service.show("SubState") == "running"
    assert service.ok(f"systemctl is-enabled {UNIT}").strip() == "enabled"
    service.await_governed()


def test_H16_an_upgrade_keeps_values_in_force(service: Service) -> None:
    before = service.pid()
    with service.always_governing():
        service.ok(f"{DPKG} --install {IN_GUEST}", DPKG_S)
        assert service.pid() != before
        service.await_governed()
    assert service.show("ActiveState", TIMER) == "inactive"


def test_a_removal_gives_everything_back_and_keeps_what_was_written_down(service: Service) -> None:
    service.ok(f"{DPKG} --remove {NAME}", DPKG_S)
    assert service.values() == AS_BEFORE
    assert service.guest.sh("ls /usr/bin/koordlet /run/koordlet").code != 0
    kept = service.ok("ls /etc/koordlet/nodeslo.yaml /var/lib/koordlet/audit.db")
    assert len(kept.split()) == 2


def test_a_purge_leaves_nothing(service: Service) -> None:
    service.ok(f"{DPKG} --purge {NAME}", DPKG_S)
    left = service.ok("find / -xdev -name '*koord-host*' -o -xdev -name 'koordlet*'").split()
    # dpkg's own log and list of packages, and the tests' own things, are no leftovers.
    known = (IN_GUEST, "/project", "/venv", "/wheels", "/sys", "/proc", "/tmp/pytest-of-root")
    assert [path for path in left if not path.startswith(known)] == []
