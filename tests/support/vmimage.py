"""The guests' disk images: Debian from its packages, Python packages, the project's own tree.

``python -m tests.support.vmimage`` builds what is missing. Everything lies in ``.cache/vm``, named
by a hash of what it is made of. Building needs root, and packages come from Debian and PyPI as
apt and pip are set up on this machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
CACHE = REPO / ".cache" / "vm"
RECIPE = REPO / "vagrant" / "image"
AGENT = REPO / "tests" / "support" / "vmagent.py"
HOST_PACKAGES = (
    "busybox-static",
    "cpio",
    "debian-archive-keyring",
    "e2fsprogs",
    "kmod",
    "mmdebstrap",
    "qemu-system-x86",
)
SUITE = "bookworm"
PYTHON = "3.11"  # of that suite
ROOT_SIZE = "4G"  # sparse
_MODULES = ("virtio_pci", "virtio_blk")  # what the kernel needs before its disk; ext4 is built in
_NOT_WANTED = ("doc", "info", "locale", "man")
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


class ImageError(RuntimeError):
    """An image could not be built; holds the command, and the end of its output."""


@dataclass(frozen=True)
class Image:
    """A system to boot: the files of one directory."""

    directory: Path

    @property
    def kernel(self) -> Path:
        return self.directory / "vmlinuz"

    @property
    def initramfs(self) -> Path:
        return self.directory / "initramfs"

    @property
    def root(self) -> Path:
        """An ext4 file system, raw."""
        return self.directory / "root.img"

    @property
    def box_key(self) -> Path:
        """The private key that logs in as ``vagrant``."""
        return self.directory / "box_key"


def system_image() -> Image:
    """The guests' system, built first where the recipe has changed.

    Raises ImageError, and PermissionError without root.
    """
    files = sorted(path for path in (*RECIPE.iterdir(), AGENT) if path.is_file())
    made_of = [*(path.read_bytes() for path in files), repr((SUITE, ROOT_SIZE, _MODULES)).encode()]
    return Image(_cached("system", made_of, _build_system))


def python_disk() -> Path:
    """An ext4 file system with ``wheels/`` (all of constraints.txt) and ``venv/`` made of them."""
    system = system_image()
    recipe = (PYTHON, _PLATFORMS, sorted(_scripts().items()))
    made_of = [(REPO / "constraints.txt").read_bytes(), repr(recipe).encode()]
    return _cached("python", made_of, lambda made: _build_python(system, made)) / "python.img"


def project_disk(system: Image, directory: Path) -> Path:
    """An ext4 file system with the working tree as it is now: what git tracks and would track."""
    image = directory / "project.img"
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        for name in _worktree_files():
            target = Path(scratch) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPO / name, target, follow_symlinks=False)
        _compile(system, Path(scratch) / "koordlet", Path(scratch) / "proto/koordpb")
        _make_file_system(Path(scratch), image, "512M")
    return image


def _worktree_files() -> list[str]:
    safe = ("-c", f"safe.directory={REPO}")  # root tests a clone that is a user's
    listing = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = command_output("git", *safe, "-C", str(REPO), *listing).split("\0")
    return [name for name in names if name and os.path.lexists(REPO / name)]


# -- the cache ----------------------------------------------------------------------------------


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """One process at a time does ``name`` in this clone; others wait for their turn."""
    CACHE.mkdir(parents=True, exist_ok=True)
    fd = os.open(CACHE / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _cached(kind: str, made_of: Iterable[bytes], build: Callable[[Path], None]) -> Path:
    """The directory of ``kind`` for this recipe; built whole or not at all, older ones removed."""
    digest = hashlib.sha256(b"\0".join(made_of)).hexdigest()[:16]
    wanted = CACHE / f"{kind}-{digest}"
    with alone("build"):
        if not wanted.exists():
            scratch = Path(tempfile.mkdtemp(prefix=f"building-{kind}-", dir=CACHE))
            try:
                build(scratch)
                for old in CACHE.glob(f"{kind}-*"):
                    shutil.rmtree(old)
                scratch.rename(wanted)
            finally:
                _remove(scratch)
    return wanted


def _remove(scratch: Path) -> None:
    """Remove a half-built directory, but never through a mount that somebody left in it."""
    if f" {scratch}/" in Path("/proc/self/mountinfo").read_text(encoding="utf-8"):
        raise ImageError(f"something is still mounted below {scratch}; remedy: umount it")
    shutil.rmtree(scratch, ignore_errors=True)


# -- the system ---------------------------------------------------------------------------------


def _build_system(made: Path) -> None:
    if os.geteuid() != 0:
        raise PermissionError("only root can build a guest's system; remedy: sudo make test-vm")
    image, root = Image(made), made / "root"
    command_output(
        *("mmdebstrap", "--quiet", "--mode=root", "--variant=apt"),
        '--aptopt=Acquire::Languages "none"',
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _NOT_WANTED),
        f"--include={','.join(_packages())}",
        f"--customize-hook={RECIPE / 'customize'}",
        *(SUITE, str(root)),
    )
    (kernel,) = root.glob("boot/vmlinuz-*")
    shutil.copy(kernel, image.kernel)
    shutil.move(root / "boot" / "box_key", image.box_key)
    _make_initramfs(root, kernel.name.removeprefix("vmlinuz-"), image.initramfs)
    shutil.copytree(root / f"usr/lib/python{PYTHON}", made / f"python/lib/python{PYTHON}")
    (made / "python/bin").mkdir()
    shutil.copy(root / f"usr/bin/python{PYTHON}", made / "python/bin/python")
    _make_file_system(root, image.root, ROOT_SIZE)
    _remove(root)


def _packages() -> list[str]:
    lines = (RECIPE / "packages").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _make_initramfs(root: Path, version: str, target: Path) -> None:
    """busybox, the modules that the root disk needs in their order, and what loads them."""
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        for directory in ("bin", "dev", "modules", "newroot", "proc"):
            (tree / directory).mkdir()
        shutil.copy(root / "bin/busybox", tree / "bin/busybox")
        shutil.copy(RECIPE / "initramfs", tree / "init")
        modules = _modules_for(root, version)
        for module in modules:
            shutil.copy(module, tree / "modules")
        (tree / "modules/order").write_text("".join(f"{module.name}\n" for module in modules))
        packed = _run_in(tree, "sh", "-c", "find . | cpio --quiet --create --format=newc")
        target.write_bytes(packed)


def _modules_for(root: Path, version: str) -> list[Path]:
    """The files of the modules that the root disk needs, each after those that it needs itself."""
    found: dict[Path, None] = {}
    for module in _MODULES:
        listed = command_output(
            "modprobe", "-d", str(root), "-S", version, "--show-depends", module
        )
        for line in listed.splitlines():
            if line.startswith("insmod "):
                found[Path(line.split()[1])] = None
    return list(found)


def _make_file_system(tree: Path, image: Path, size: str) -> None:
    kind = ("-t", "ext4", "-O", "^has_journal", "-m", "0")
    command_output("mke2fs", "-q", *kind, "-d", str(tree), str(image), size)


# -- Python packages ----------------------------------------------------------------------------


def _scripts() -> dict[str, str]:
    """Console script to ``module:function``."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    scripts: dict[str, str] = project["scripts"]
    return scripts


def _build_python(system: Image, made: Path) -> None:
    """Wheels as pip downloads them for the guest, and a virtual environment made of their files.

    The environment is what ``python -m venv`` and ``pip install`` would make in the guest, where
    it would take minutes; the project itself is a path in it.
    """
    tree = made / "tree"
    wheels, venv = tree / "wheels", tree / "venv"
    site = venv / f"lib/python{PYTHON}/site-packages"
    target = (
        *("--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"),
        *("--implementation", "cp", "--python-version", PYTHON),
        *(word for platform in _PLATFORMS for word in ("--platform", platform)),
        *("--requirement", str(REPO / "constraints.txt")),
    )
    pip = (sys.executable, "-m", "pip")
    command_output(*pip, "download", *target, "--dest", str(wheels))
    offline = ("--no-index", "--find-links", str(wheels), "--no-compile")
    command_output(*pip, "install", *target, *offline, "--target", str(site))
    (site / "project.pth").write_text("/project\n/project/proto\n")
    _make_venv(venv)
    _compile(system, site)
    _make_file_system(tree, made / "python.img", "1G")
    wheels.rename(made / "wheels")
    shutil.rmtree(tree)


def _compile(system: Image, *directories: Path) -> None:
    """To the guest's byte code, by its own Python: an emulated CPU takes long for it."""
    python = system.directory / "python"
    compile_all = ("-m", "compileall", "-q", "-j", "2", *map(str, directories))
    command_output(
        str(python / "bin/python"), *compile_all, more_environment={"PYTHONHOME": str(python)}
    )


def _make_venv(venv: Path) -> None:
    (venv / "bin").mkdir()
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (venv / "bin/python").symlink_to(f"/usr/bin/python{PYTHON}")
    (venv / "bin/python3").symlink_to("python")
    for name, target in _scripts().items():
        module, _, function = target.partition(":")
        script = venv / "bin" / name
        script.write_text(
            f"#!/venv/bin/python\nimport sys\nfrom {module} import {function}\n"
            f"sys.exit({function}())\n"
        )
        script.chmod(0o755)


# -- commands -----------------------------------------------------------------------------------


def command_output(*command: str, more_environment: dict[str, str] | None = None) -> str:
    """What a command prints; ImageError where it fails."""
    return _output(command, Path.cwd(), more_environment or {}).decode(errors="replace")


def _run_in(directory: Path, *command: str) -> bytes:
    return _output(command, directory, {})


def _output(command: tuple[str, ...], directory: Path, environment: dict[str, str]) -> bytes:
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace")[-2000:]
        raise ImageError(f"{' '.join(command)} ended with {done.returncode}:\n{said}")
    return done.stdout


def main() -> int:
    for name, build in (("system", system_image), ("python packages", python_disk)):
        started_s = time.monotonic()
        try:
            build()
        except (ImageError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        print(f"{name}: {time.monotonic() - started_s:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
