"""The example files are ones that koordlet itself accepts, without a warning."""

from __future__ import annotations

import os
import re
from pathlib import Path

import yaml

from koordlet.config import load_config
from koordlet.pods.static import load_dir
from koordlet.protocol.nodeslo import CpuSuppressPolicy
from koordlet.protocol.nodeslo_schema import load_nodeslo
from koordlet.protocol.qos import Qos

REPO = Path(__file__).resolve().parents[2]
EXAMPLES = REPO / "systemd" / "examples"


def test_the_example_configuration_is_accepted(tmp_path: Path) -> None:
    copy = tmp_path / "koordlet.yaml"
    copy.write_text((EXAMPLES / "koordlet.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    copy.chmod(0o600)
    config = load_config(["--config", str(copy)])
    assert config.dry_run
    assert config.reserved_cpus == {0}
    assert config.system_reserved_cpu_milli == 200


def test_the_example_nodeslo_switches_both_strategies_on_and_warns_of_nothing() -> None:
    text = (EXAMPLES / "colocation.yaml").read_text(encoding="utf-8")
    loaded = load_nodeslo(text, "colocation.yaml")
    assert loaded.problems == ()
    assert loaded.slo.threshold.enable
    assert loaded.slo.threshold.cpu_suppress_policy is CpuSuppressPolicy.CFS_QUOTA
    assert loaded.slo.qos.be.cpu_qos.enable
    assert loaded.slo.qos.be.cpu_qos.sched_idle == 1


def test_the_example_host_applications_are_accepted(tmp_path: Path) -> None:
    copy = tmp_path / "hostapps.yaml"
    copy.write_text((EXAMPLES / "hostapps.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    copy.chmod(0o600)
    loaded = load_dir(tmp_path, owner_uid=os.geteuid())
    assert loaded.problems == ()
    assert {app.name: app.qos for app in loaded.records} == {
        "crunch": Qos.BE,
        "shop": Qos.LS,
        "encode": Qos.BE,
        "sshd": Qos.SYSTEM,
    }


def test_every_alert_is_about_metrics_that_there_are_and_is_told_in_the_docs() -> None:
    groups = yaml.safe_load((EXAMPLES / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    metrics = (REPO / "docs/metrics.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| `(koordlet_\w+)`", metrics, re.MULTILINE))
    for rule in rules:
        asked = set(re.findall(r"koordlet_\w+", rule["expr"]))
        assert asked <= known, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
    told = re.findall(r"^\| `(Koordlet\w+)` \|", (REPO / "docs/operations.md").read_text(), re.M)
    assert told == [rule["alert"] for rule in rules]
