"""The configuration read again: what can change does, the rest is told, a bad file is left."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from koordlet.config import Config, load_config
from koordlet.protocol.problem import Severity
from koordlet.reload import LIVE, Reloaded, reload_config


class File:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.options = ["--config", str(path), "--node-name", "n"]

    def put(self, text: str) -> None:
        self.path.write_text(text)
        self.path.chmod(0o644)

    def load(self) -> Config:
        return load_config(self.options)

    def reload(self, current: Config) -> Reloaded:
        return reload_config(current, self.options)


@pytest.fixture
def file(tmp_path: Path) -> File:
    made = File(tmp_path / "koordlet.yaml")
    made.put("tickSeconds: 2\nreservedCPUs: 0-1")
    return made


def test_the_live_fields_are_fields() -> None:
    assert {field.name for field in fields(Config)} >= LIVE


def test_what_can_change_changes(file: File) -> None:
    before = file.load()
    file.put('tickSeconds: 3\nreservedCPUs: "0"\nlogLevel: debug\nsystemReserved: {cpu: 200m}')
    reloaded = file.reload(before)
    config = reloaded.config
    assert (config.tick_seconds, config.reserved_cpus, config.log_level) == (3.0, {0}, "debug")
    assert config.system_reserved_cpu_milli == 200
    assert reloaded.problems == ()
    assert set(reloaded.changed) == {
        "tickSeconds",
        "reservedCPUs",
        "logLevel",
        "systemReserved.cpu",
    }


def test_a_key_that_is_left_out_goes_back_to_its_default(file: File) -> None:
    before = file.load()
    file.put("tickSeconds: 2")
    assert file.reload(before).config.reserved_cpus == frozenset()


def test_the_rest_stays_and_names_the_key_and_the_remedy(file: File) -> None:
    before = file.load()
    file.put("tickSeconds: 3\nreservedCPUs: 0-1\ncgroupRoot: /other\nmetricsAddress: none")
    reloaded = file.reload(before)
    assert reloaded.config.tick_seconds == 3.0
    assert reloaded.config.cgroup_root == "/"
    assert reloaded.config.metrics_address == before.metrics_address
    wheres = [problem.where for problem in reloaded.problems]
    assert wheres == [f"{file.path}: cgroupRoot", f"{file.path}: metricsAddress"]
    assert all("restart" in problem.remedy for problem in reloaded.problems)
    assert all(problem.severity is Severity.WARNING for problem in reloaded.problems)
    assert "changed tickSeconds; not taken: " in str(reloaded)


@pytest.mark.parametrize("text", ["tickSeconds: soon", "a: [", "nope: 1", "hotSampleSeconds: 5"])
def test_a_file_that_is_refused_changes_nothing(file: File, text: str) -> None:
    before = file.load()
    file.put(f"reservedCPUs: '0'\n{text}")
    reloaded = file.reload(before)
    assert reloaded.config is before
    assert reloaded.changed == ()
    assert reloaded.problems


def test_options_of_the_command_line_still_win(file: File) -> None:
    file.options += ["--tick-seconds", "5"]
    before = file.load()
    file.put("tickSeconds: 1")
    reloaded = file.reload(before)
    assert reloaded.config.tick_seconds == 5.0
    assert str(Reloaded(before)) == "nothing changed"


def test_the_same_file_changes_nothing(file: File) -> None:
    before = file.load()
    assert file.reload(before) == Reloaded(before)
