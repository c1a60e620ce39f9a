"""The dependency direction of docs/architecture.md, held by the contracts in pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


def test_imports_keep_the_dependency_direction() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [linter, "--no-cache", "--config", "pyproject.toml"],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_hazard_that_code_or_tests_name_is_told_in_the_docs() -> None:
    told = set(re.findall(r"^\| H(\d+) \|", (REPO / "docs/hazards.md").read_text(), re.MULTILINE))
    for folder in ("koordlet", "runtimeproxy", "tests"):
        for source in (REPO / folder).rglob("*.py"):
            named = re.findall(r"(?<![A-Za-z0-9])H(\d{1,2})(?![0-9])", source.read_text())
            assert {str(int(number)) for number in named} <= told, source


def test_every_package_of_the_source_tree_is_installed() -> None:
    config = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = config["tool"]["setuptools"]["packages"]["find"]["include"]
    assert patterns == ["koordlet*", "koordpb*", "runtimeproxy*"]
    without = [
        str(source.parent.relative_to(REPO))
        for folder in ("koordlet", "runtimeproxy")
        for source in (REPO / folder).rglob("*.py")
        if not (source.parent / "__init__.py").exists()
    ]
    assert not without, f"no __init__.py, so left out of the wheel: {sorted(set(without))}"


def test_constraints_pin_versions_and_name_no_index() -> None:
    lines = (REPO / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert all(pin.count("==") == 1 and "/" not in pin and pin[0] != "-" for pin in pins), pins


def test_every_requirement_is_pinned() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["test"]
    pinned = {
        _plain(line.partition("==")[0])
        for line in (REPO / "constraints.txt").read_text(encoding="utf-8").splitlines()
    }
    assert {_plain(re.split("[<>=]", each)[0]) for each in wanted} <= pinned


def _plain(name: str) -> str:
    """A distribution's name in its one normal form."""
    return re.sub(r"[-_.]+", "-", name).lower()
