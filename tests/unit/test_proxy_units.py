"""The proxy's units say what its code relies on; what is installed beside them is accepted."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

from pydantic.alias_generators import to_camel

from runtimeproxy.config import Config, load_config

SYSTEMD = Path(__file__).resolve().parents[2] / "systemd"


def unit(name: str) -> configparser.RawConfigParser:
    parsed = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#",))
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string((SYSTEMD / name).read_text(encoding="utf-8"))
    return parsed


def test_H19_the_socket_outlives_the_service() -> None:
    socket = unit("koord-runtimeproxy.socket")["Socket"]
    assert Path(socket["ListenStream"]) == Config().listen_path
    service = unit("koord-runtimeproxy.service")["Service"]
    assert Path("/run", service["RuntimeDirectory"]) == Config().run_dir
    assert service["RuntimeDirectoryPreserve"] == "yes"
    assert Path("/var/lib", service["StateDirectory"]) == Config().state_dir


def test_H19_long_calls_outlive_the_service() -> None:
    service = unit("koord-runtimeproxy.service")["Service"]
    assert service["KillMode"] == "process"
    assert service["Type"] == "notify"
    assert int(service["TimeoutStopSec"].removesuffix("s")) > Config().handover_seconds


def test_restarts_are_tied_to_nobody() -> None:
    for name in ("koord-runtimeproxy.service", "koord-runtimeproxy.socket"):
        keys = set(unit(name)["Unit"])
        assert not keys & {"Requires", "BindsTo", "PartOf", "Requisite", "Upholds"}
    order = unit("koord-runtimeproxy.service")["Unit"]
    assert "containerd.service" in order["After"] and order["Before"] == "kubelet.service"


def test_a_refused_configuration_is_not_tried_again() -> None:
    service = unit("koord-runtimeproxy.service")["Service"]
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("always", "2")
    program, *words = service["ExecStart"].split()
    assert (program, words) == ("/usr/bin/koord-runtimeproxy", ["run"])


def test_the_installed_configuration_shows_every_default(tmp_path: Path) -> None:
    text = (SYSTEMD / "etc/runtimeproxy.yaml").read_text(encoding="utf-8")
    copy = tmp_path / "config.yaml"
    copy.write_text(text)
    assert load_config(["--config", str(copy)]) == Config()
    shown = [line[1:] for line in text.splitlines() if re.match(r"#[a-zA-Z]+: ", line)]
    directories = {"run_dir", "state_dir", "proc_root"}  # the unit's business
    keys = [line.partition(":")[0] for line in shown]
    assert sorted(keys) == sorted(map(to_camel, Config.model_fields.keys() - directories))
    copy.write_text("\n".join(shown))
    given = load_config(["--config", str(copy)])
    assert given.listen_path == Config().listen_path
    assert given.model_copy(update={"socket": None}) == Config()
