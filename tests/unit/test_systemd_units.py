"""The units say what the code relies on, systemd understands them, and they are locked up well."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from koordlet import afterstop
from koordlet.config import Config, load_config
from koordlet.host.systemd import UNITS_DIR
from koordlet.protocol.nodeslo import DEFAULT_NODESLO
from koordlet.protocol.nodeslo_schema import load_nodeslo
from koordlet.resexecutor.lock import LOCK_DIR
from koordlet.sdnotify import TICKS_MISSED

SYSTEMD = Path(__file__).resolve().parents[2] / "systemd"
KINDS = (".service", ".slice", ".socket")
UNITS = sorted(path.name for path in SYSTEMD.iterdir() if path.suffix in KINDS)
SERVICES = [name for name in UNITS if name.endswith(".service")]
MOST_EXPOSED = 40  # tenths: `systemd-analyze security` at most 4.0
_UNITS_OF_TIME = {"s": 1, "min": 60}


class _Unit(configparser.RawConfigParser):
    """A unit file; a key that stands more than once would be refused here."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def unit(name: str) -> _Unit:
    parsed = _Unit(delimiters=("=",), comment_prefixes=("#",))
    parsed.read_string((SYSTEMD / name).read_text(encoding="utf-8"))
    return parsed


def seconds(text: str) -> int:
    number, unit_of_time = re.fullmatch(r"(\d+)(s|min)", text).groups()  # type: ignore[union-attr]
    return int(number) * _UNITS_OF_TIME[unit_of_time]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as installed, beside programs that they can find."""
    for path in SYSTEMD.iterdir():
        if path.is_file():
            text = path.read_text(encoding="utf-8").replace("/usr/bin/koord", f"{tmp_path}/koord")
            (tmp_path / path.name).write_text(text, encoding="utf-8")
    for program in ("koordlet", "koordletctl", "koord-runtimeproxy"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    return tmp_path


def analyze(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze; remedy: apt-get install systemd")
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *words],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{directory}:"},
        capture_output=True,
        text=True,
        check=False,
    )


# -- what systemd says ----------------------------------------------------------------------------


def test_systemd_understands_every_unit(installed: Path) -> None:
    paths = [str(installed / name) for name in (*UNITS, "koordlet-rollback.timer")]
    done = analyze(installed, "verify", "--man=no", *paths)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_exposed_no_more_than_it_has_to_be(installed: Path, name: str) -> None:
    offline = ("--offline=true", f"--threshold={MOST_EXPOSED}")
    done = analyze(installed, "security", *offline, str(installed / name))
    assert done.returncode == 0, done.stdout + done.stderr


# -- what the code relies on ----------------------------------------------------------------------


def test_H15_the_directories_are_the_defaults_and_outlive_the_service() -> None:
    for name in (each for each in SERVICES if each.startswith("koordlet")):
        service = unit(name)["Service"]
        made = [Path("/run") / each for each in service["RuntimeDirectory"].split()]
        assert made == [Config().run_dir, LOCK_DIR]
        assert service["RuntimeDirectoryPreserve"] == "yes"
        assert service["RuntimeDirectoryMode"] == "0700"
    assert Path("/var/lib") / unit("koordlet.service")["Service"]["StateDirectory"] == (
        Config().state_dir
    )
    told = (SYSTEMD / "tmpfiles.d/koord-host.conf").read_text(encoding="utf-8")
    paths = [line.split()[1] for line in told.splitlines() if line.startswith("d ")]
    assert paths[:3] == [str(each) for each in (Config().run_dir, LOCK_DIR, Config().state_dir)]


@pytest.mark.parametrize("name", ["koordlet.service", "koordlet-rollback.service"])
def test_H06_drop_ins_of_units_can_be_removed(name: str) -> None:
    told = (SYSTEMD / "tmpfiles.d/koord-host.conf").read_text(encoding="utf-8")
    for path in unit(name)["Service"]["ReadWritePaths"].replace("-/", "/").split():
        assert Path(path).parent == Path(UNITS_DIR)
        assert f"d {path} " in told


def test_H16_a_stop_and_a_restart_are_told_apart_after_the_end() -> None:
    service = unit("koordlet.service")["Service"]
    program, *words = service["ExecStart"].split()
    assert (program, words[0]) == ("/usr/bin/koordlet", "run")
    assert load_config(words[1:], default_file=Path("/nonexistent")).on_sigterm == "leave"
    assert service["ExecStopPost"] == "/usr/bin/koordlet after-stop %n"
    assert service["KillMode"] == "mixed", "the core hears how to end from its supervisor alone"
    assert service["ExecStartPost"].endswith(f"systemctl stop --no-block {afterstop.TIMER}")


def test_H16_the_dead_man_timer_waits_30_s_and_leaves_a_daemon_alone() -> None:
    timer = unit(afterstop.TIMER)["Timer"]
    assert seconds(timer["OnActiveSec"]) == 30
    assert timer["RemainAfterElapse"] == "no", "it can be armed again"
    undo = unit(afterstop.TIMER.replace(".timer", ".service"))["Service"]
    assert undo["ExecStart"] == "/usr/bin/koordletctl rollback --if-no-daemon"


def test_H16_a_daemon_that_is_given_up_on_is_undone_at_once() -> None:
    parsed = unit("koordlet.service")
    assert parsed["Unit"]["OnFailure"] == "koordlet-rollback.service"
    service = parsed["Service"]
    one_try_s = seconds(service["TimeoutStartSec"]) + seconds(service["TimeoutStopSec"])
    tries = int(parsed["Unit"]["StartLimitBurst"])
    assert seconds(parsed["Unit"]["StartLimitIntervalSec"]) > tries * one_try_s


def test_the_watchdog_is_longer_than_a_few_ticks_and_fed_by_a_child() -> None:
    service = unit("koordlet.service")["Service"]
    assert service["Type"] == "notify"
    assert service["NotifyAccess"] == "all"
    assert seconds(service["WatchdogSec"]) >= 10 * TICKS_MISSED * Config().tick_seconds


def test_H29_there_are_descriptors_enough() -> None:
    assert unit("koordlet.service")["Service"]["LimitNOFILE"] == "65536"


def test_H25_there_is_a_cgroup_to_try_settings_in() -> None:
    assert unit("koordlet.service")["Service"]["Delegate"] == "yes"


def test_exit_codes_mean_the_same_to_systemd() -> None:
    service = unit("koordlet.service")["Service"]
    assert service["SuccessExitStatus"] == "4"
    assert service["RestartPreventExitStatus"] == "2"


# -- what is installed beside the units -----------------------------------------------------------


def test_the_installed_configuration_is_accepted_and_changes_no_default(tmp_path: Path) -> None:
    copy = tmp_path / "koordlet.yaml"
    copy.write_text((SYSTEMD / "etc/koordlet.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    copy.chmod(0o600)
    given = load_config(["--config", str(copy), "--node-name", "n"])
    assert given == Config(config=copy, node_name="n")


def test_the_installed_nodeslo_switches_nothing_on() -> None:
    text = (SYSTEMD / "etc/nodeslo.yaml").read_text(encoding="utf-8")
    loaded = load_nodeslo(text, "nodeslo.yaml")
    assert loaded.problems == ()
    assert loaded.slo == DEFAULT_NODESLO
