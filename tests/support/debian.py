"""Debian packages that tests, demos and benchmarks need: the missing ones, in one call.

Services that come with a package are kept from starting, and nothing goes to stdout.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

LOCK_WAIT_S = 300
_POLICY = "#!/bin/sh\nexit 101\n"


class PackagesError(RuntimeError):
    """Packages are missing and could not be installed; says why and what to do."""


@dataclass(frozen=True)
class System:
    """Where the package manager keeps things, and whether we may change them."""

    policy: Path = Path("/usr/sbin/policy-rc.d")
    indexes: Path = Path("/var/lib/apt/lists")
    lock: Path = Path("/var/lib/dpkg")
    path: str | None = None  # where dpkg-query and apt-get are looked for; None is PATH
    is_root: bool = os.geteuid() == 0


def ensure(*packages: str, system: System | None = None) -> tuple[str, ...]:
    """Install what is missing of ``packages``; the names of those that were.

    Raises PackagesError without root, on a system that is not Debian's, and where apt fails.
    """
    system = system or System()
    for tool in ("dpkg-query", "apt-get"):
        if shutil.which(tool, path=system.path) is None:
            raise PackagesError(
                f"no {tool}: packages {', '.join(packages)} cannot be installed here;"
                " remedy: use Debian 12, Ubuntu 24.04 or newer"
            )
    if not missing(packages, system):
        return ()
    if not system.is_root:
        raise PackagesError(
            f"packages {', '.join(missing(packages, system))} are missing and only root can"
            f" install them; remedy: apt-get install {' '.join(missing(packages, system))}"
        )
    with _alone(system):
        wanted = missing(packages, system)  # somebody else may have been at it
        if wanted:
            with _no_services(system):
                _install(wanted, system)
    return wanted


def missing(packages: Sequence[str], system: System | None = None) -> tuple[str, ...]:
    """Those of ``packages`` that are not installed, in the given order."""
    system = system or System()
    query = subprocess.run(
        [_tool("dpkg-query", system), "-W", "-f", "${Package} ${db:Status-Status}\n", *packages],
        capture_output=True,
        text=True,
        check=False,  # it fails as soon as one package is unknown
    )
    installed = {
        name
        for name, _, status in (line.partition(" ") for line in query.stdout.splitlines())
        if status == "installed"
    }
    return tuple(package for package in packages if package not in installed)


def _tool(name: str, system: System) -> str:
    return shutil.which(name, path=system.path) or name


def _install(packages: tuple[str, ...], system: System) -> None:
    """One call; the index is refreshed once where there is none or the call fails on it."""
    refreshed = False
    if not any(system.indexes.glob("*_Packages*")):
        _apt(["update"], system)
        refreshed = True
    install = ["install", "--yes", "--no-install-recommends", *packages]
    if _apt(install, system) == 0:
        return
    if not refreshed:
        _apt(["update"], system)
        if _apt(install, system) == 0:
            return
    raise PackagesError(
        f"apt-get could not install {', '.join(packages)}: see its output above;"
        " remedy: check the network and the package sources, then try again"
    )


def _apt(arguments: list[str], system: System) -> int:
    command = [
        _tool("apt-get", system),
        "--quiet",
        "--option",
        f"DPkg::Lock::Timeout={LOCK_WAIT_S}",
        *arguments,
    ]
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1"}
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **quiet},
        check=False,
    )
    if done.returncode != 0:
        sys.stderr.write(done.stdout.decode(errors="replace"))
    return done.returncode


@contextlib.contextmanager
def _alone(system: System) -> Iterator[None]:
    """One caller at a time, so that nobody takes away the policy file of another."""
    fd = os.open(system.lock, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _no_services(system: System) -> Iterator[None]:
    """A policy-rc.d that forbids starting services, unless the machine has its own."""
    try:
        fd = os.open(system.policy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
    except FileExistsError:
        yield
        return
    try:
        with os.fdopen(fd, "w") as file:
            file.write(_POLICY)
        yield
    finally:
        system.policy.unlink(missing_ok=True)
