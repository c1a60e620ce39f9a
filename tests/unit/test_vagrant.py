"""The Vagrant machines: Vagrant takes the file, and the box is what the file asks for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import vmbox

VAGRANT = Path(__file__).resolve().parents[2] / "vagrant"
SCRIPTS = ("cgroup.sh", "provision.sh", "image/customize", "image/guestinit")


def test_vagrant_takes_the_vagrantfile(tmp_path: Path) -> None:
    if shutil.which("vagrant") is None:
        pytest.skip("needs vagrant; remedy: apt-get install vagrant vagrant-libvirt")
    done = subprocess.run(
        ["vagrant", "validate"],
        cwd=VAGRANT,
        env={**os.environ, "VAGRANT_DOTFILE_PATH": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "validated successfully" in done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_shell(name: str) -> None:
    subprocess.run(["sh", "-n", str(VAGRANT / name)], check=True)


def test_the_box_lies_where_the_vagrantfile_looks_for_it() -> None:
    text = (VAGRANT / "Vagrantfile").read_text(encoding="utf-8")
    assert vmbox.BOX.parts[-3:] == (".cache", "vm", "box")
    assert 'File.join(REPO, ".cache", "vm", "box")' in text
    for name in ("koord-host.box", "box_key", "wheels"):
        assert name in text


def test_every_cgroup_of_a_machine_is_a_way_to_boot() -> None:
    wanted = re.findall(r'cgroup: "(\w+)"', (VAGRANT / "Vagrantfile").read_text(encoding="utf-8"))
    assert set(wanted) == set(re.findall(r"^LABEL (\w+)", vmbox.SYSLINUX, re.MULTILINE))
