"""The Vagrant box: the guests' own system on a disk that boots by itself.

``python -m tests.support.vmbox`` leaves ``koord-host.box``, the key that logs in and the wheels in
``.cache/vm/box``, where vagrant/Vagrantfile looks for them. Nothing is mounted and no loop device
is used: the disk is put together from files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.support import debian, vmimage
from tests.support.vmimage import CACHE, ImageError, command_output

PACKAGES = (*vmimage.HOST_PACKAGES, "dosfstools", "mtools", "qemu-utils", "syslinux")
MIB = 1 << 20
BOOT_AT, BOOT_MIB = MIB, 64
ROOT_AT = BOOT_AT + BOOT_MIB * MIB
MBR = Path("/usr/lib/syslinux/mbr/mbr.bin")  # of syslinux-common
_MBR_CODE = 440  # bytes; the partition table follows
BOX = CACHE / "box"

_WORDS = (
    "root=/dev/vda2 rw console=ttyS0 net.ifnames=0 mitigations=off systemd.wants=ssh.service"
    " systemd.wants=systemd-networkd.service systemd.wants=systemd-resolved.service"
)
_V1_WORDS = "systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1"
SYSLINUX = f"""\
SERIAL 0
DEFAULT v2
LABEL v2
  LINUX vmlinuz
  INITRD initramfs
  APPEND {_WORDS}
LABEL v1
  LINUX vmlinuz
  INITRD initramfs
  APPEND {_WORDS} {_V1_WORDS}
"""
_VAGRANTFILE = """\
Vagrant.configure("2") do |config|
  config.vm.provider :libvirt do |libvirt|
    libvirt.disk_bus = "virtio"
  end
end
"""


def build() -> Path:
    """Make the box and what belongs to it; the path of its file.

    Raises ImageError where a command fails, PackagesError without the packages.
    """
    debian.ensure(*PACKAGES)
    system, python = vmimage.system_image(), vmimage.python_disk()
    BOX.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        scratch = Path(name)
        disk = _disk(system, scratch)
        packed = scratch / "box.img"
        convert = ("qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2")
        command_output(*convert, str(disk), str(packed))
        virtual_gib = -(-disk.stat().st_size // (1 << 30))
        _write_box(scratch, packed, virtual_gib)
        os.replace(scratch / "koord-host.box", BOX / "koord-host.box")
    shutil.copy(system.box_key, BOX / "box_key")
    (BOX / "box_key").chmod(0o600)
    shutil.copytree(python.with_name("wheels"), BOX / "wheels", dirs_exist_ok=True)
    return BOX / "koord-host.box"


def _disk(system: vmimage.Image, scratch: Path) -> Path:
    """MBR, a FAT partition with syslinux, kernel and initramfs, and the root file system."""
    boot, disk = scratch / "boot.img", scratch / "disk.img"
    _make_boot(system, scratch, boot)
    with disk.open("wb") as file:
        file.truncate(ROOT_AT + system.root.stat().st_size)
    table = (
        f"label: dos\nstart={BOOT_AT // MIB}MiB, size={BOOT_MIB}MiB, type=c, bootable\n"
        f"start={ROOT_AT // MIB}MiB, type=83\n"
    )
    subprocess.run(["sfdisk", "--quiet", str(disk)], input=table, text=True, check=True)
    with disk.open("r+b") as file:
        file.write(MBR.read_bytes()[:_MBR_CODE])
    _copy_into(boot, disk, BOOT_AT)
    _copy_into(system.root, disk, ROOT_AT)
    return disk


def _make_boot(system: vmimage.Image, scratch: Path, boot: Path) -> None:
    with boot.open("wb") as file:
        file.truncate(BOOT_MIB * MIB)
    config = scratch / "syslinux.cfg"
    config.write_text(SYSLINUX, encoding="ascii")
    hidden = str(BOOT_AT // 512)  # sectors before it: syslinux asks the BIOS for absolute ones
    command_output("mkfs.vfat", "-F", "16", "-h", hidden, str(boot))
    files = [str(path) for path in (system.kernel, system.initramfs, config)]
    command_output("mcopy", "-i", str(boot), *files, "::")
    command_output("syslinux", "--install", str(boot))


def _copy_into(source: Path, disk: Path, at: int) -> None:
    """Copy an image into the disk at byte ``at``; holes stay holes."""
    where = (f"seek={at // MIB}", "conv=notrunc,sparse", f"bs={MIB}")
    command_output("dd", "status=none", f"if={source}", f"of={disk}", *where)


def _write_box(scratch: Path, packed: Path, virtual_gib: int) -> None:
    metadata = {"provider": "libvirt", "format": "qcow2", "virtual_size": virtual_gib}
    (scratch / "metadata.json").write_text(json.dumps(metadata), encoding="ascii")
    (scratch / "Vagrantfile").write_text(_VAGRANTFILE, encoding="ascii")
    with tarfile.open(scratch / "koord-host.box", "w") as tar:
        for path in (scratch / "metadata.json", scratch / "Vagrantfile", packed):
            tar.add(path, arcname=path.name)


def main() -> int:
    try:
        box = build()
    except (ImageError, debian.PackagesError, OSError) as error:
        print(f"box: {error}", file=sys.stderr)
        return 1
    print(f"{box}: {box.stat().st_size / MIB:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
