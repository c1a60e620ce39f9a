"""The NodeSLO file: changes, half-written texts, and whom it is taken from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koordlet.protocol.nodeslo import DEFAULT_NODESLO
from koordlet.protocol.nodeslo_schema import LoadedSlo
from koordlet.protocol.problem import Severity
from koordlet.slo.file import Refused, SloFile, Unchanged

ON = "resourceUsedThresholdWithBE: {enable: true, cpuSuppressThresholdPercent: 60}\n"
OTHER = "resourceUsedThresholdWithBE: {enable: true, cpuSuppressThresholdPercent: 61}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "nodeslo.yaml"


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)


def loaded(source: SloFile) -> LoadedSlo:
    answer = source.poll()
    assert isinstance(answer, LoadedSlo)
    return answer


def refused(source: SloFile) -> Refused:
    answer = source.poll()
    assert isinstance(answer, Refused)
    return answer


def test_CFG_05_no_file_is_the_defaults_with_a_hint(path: Path) -> None:
    source = SloFile(path)
    answer = loaded(source)
    assert answer.slo == DEFAULT_NODESLO
    assert [problem.severity for problem in answer.problems] == [Severity.INFO]
    assert source.poll() == Unchanged()


def test_the_first_poll_answers_at_once_and_only_once(path: Path) -> None:
    write(path, ON)
    source = SloFile(path)
    assert loaded(source).slo.threshold.enable
    assert source.poll() == Unchanged()


def test_a_change_is_taken_once_it_is_settled(path: Path) -> None:
    write(path, ON)
    source = SloFile(path)
    loaded(source)
    write(path, "")  # an editor truncates before it writes
    assert source.poll() == Unchanged()
    write(path, OTHER)
    assert source.poll() == Unchanged()
    assert loaded(source).slo.threshold.cpu_suppress_threshold_percent == 61


def test_a_change_that_keeps_size_and_times_is_seen(path: Path) -> None:
    write(path, ON)
    source = SloFile(path)
    loaded(source)
    before = path.stat()
    write(path, OTHER)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert source.poll() == Unchanged()
    assert loaded(source).slo.threshold.cpu_suppress_threshold_percent == 61


def test_a_touch_is_no_change(path: Path) -> None:
    write(path, ON)
    source = SloFile(path)
    loaded(source)
    os.utime(path)
    assert source.poll() == source.poll() == Unchanged()


def test_a_bad_text_is_refused_once_and_a_good_one_comes_back(path: Path) -> None:
    write(path, ON)
    source = SloFile(path)
    loaded(source)
    write(path, "resourceUsedThresholdWithBE: {enable: maybe}")
    assert source.poll() == Unchanged()
    assert refused(source).problems[0].where.startswith(str(path))
    assert source.poll() == Unchanged()
    write(path, ON)
    assert source.poll() == Unchanged()
    assert loaded(source).slo.threshold.enable


def test_a_bad_text_at_first_start_is_refused(path: Path) -> None:
    write(path, "- no mapping")
    assert refused(SloFile(path)).problems


def test_a_file_that_vanishes_switches_nothing_off(path: Path) -> None:
    write(path, ON)
    source = SloFile(path)
    loaded(source)
    path.unlink()
    assert source.poll() == Unchanged()
    assert refused(source).problems[0].code == "slo-file-gone"
    write(path, ON)
    assert source.poll() == Unchanged()
    assert loaded(source).slo.threshold.enable


def test_a_file_that_appears_later_is_loaded(path: Path) -> None:
    source = SloFile(path)
    loaded(source)
    write(path, ON)
    assert source.poll() == Unchanged()
    assert loaded(source).slo.threshold.enable


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_H27_a_file_that_others_may_write_is_refused(path: Path, mode: int) -> None:
    write(path, ON)
    path.chmod(mode)
    (problem,) = refused(SloFile(path)).problems
    assert problem.code == "file-untrusted"
    assert f"chmod go-w {path}" in problem.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_H27_a_file_of_another_user_is_refused(path: Path) -> None:
    write(path, ON)
    os.chown(path, 65_534, -1)
    (problem,) = refused(SloFile(path)).problems
    assert "65534" in problem.what


def test_H27_a_file_that_becomes_writable_is_refused_later_too(path: Path) -> None:
    write(path, ON)
    source = SloFile(path)
    loaded(source)
    path.chmod(0o666)
    source.poll()
    assert refused(source).problems


def test_H27_only_regular_files_are_read(path: Path) -> None:
    os.mkfifo(path, 0o644)
    assert refused(SloFile(path)).problems[0].code == "file-not-regular"
    path.unlink()
    path.mkdir()
    assert refused(SloFile(path)).problems[0].code == "file-not-regular"


def test_a_mounted_config_map_is_a_link_to_a_link(path: Path) -> None:
    data = path.parent / "..data"
    data.mkdir()
    write(data / path.name, ON)
    path.symlink_to(Path("..data") / path.name)
    assert loaded(SloFile(path)).slo.threshold.enable


def test_what_is_no_text_or_too_large_is_refused(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")
    path.chmod(0o644)
    assert refused(SloFile(path)).problems[0].code == "file-no-text"
    write(path, "#" * ((1 << 20) + 1))
    assert refused(SloFile(path)).problems[0].code == "file-too-large"


def test_a_path_through_a_file_is_refused(path: Path) -> None:
    write(path, ON)
    assert refused(SloFile(path / "x")).problems[0].code == "file-unreadable"
