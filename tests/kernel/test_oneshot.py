"""H25: a look at the node with no daemon decides everything and writes nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.config import Config
from koordlet.model.knobs import Knob
from koordlet.model.pods import Workloads
from koordlet.oneshot import look
from koordlet.report import CoreStatus, SourceState
from koordlet.standing import Standing
from koordlet.state import StateStore, load_standing, save_standing
from tests.support.cgroot import CgroupRoot, cgroup_root

pytestmark = pytest.mark.kernel

NODESLO = """
resourceUsedThresholdWithBE: {enable: true, cpuSuppressPolicy: cfsQuota}
resourceQOSStrategy: {beClass: {cpuQOS: {enable: true, schedIdle: 1}}}
"""
APPS = """
apiVersion: koordlet/v1
kind: HostApplications
applications: [{name: render, qos: BE}]
"""
RENDER = "host-best-effort/render"
_WRITING = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND")
_CHANGING = re.compile(
    r"^\d+ +(mkdir|rmdir|rename|unlink|link|symlink|chmod|fchmod|chown|mknod|truncate|creat|mount)"
)


@pytest.fixture
def root() -> Iterator[CgroupRoot]:
    with cgroup_root() as made:
        made.mk(RENDER, shares=512)
        made.mk("kubepods/besteffort")
        yield made


@pytest.fixture
def config(root: CgroupRoot, tmp_path: Path) -> Config:
    slo, apps = tmp_path / "nodeslo.yaml", tmp_path / "hostapps.d"
    apps.mkdir(mode=0o755)
    slo.write_text(NODESLO)
    (apps / "render.yaml").write_text(APPS)
    return Config(
        run_dir=tmp_path / "run",
        state_dir=tmp_path / "state",
        cgroup_root=root.root,
        node_name="testnode",
        node_slo=slo,
        host_apps_dir=apps,
        cri_endpoint="none",
        kubelet="none",
    )


def _photo(root: CgroupRoot) -> dict[str, str]:
    """Every setting in our cgroups, counters left out."""
    found = {}
    for mount in set(root.mounts.values()):
        for path in (mount / root.root[1:]).rglob("*"):
            if path.is_file() and re.search(
                r"shares|quota|weight|cpu.max|burst|idle|cpus$|mems$", path.name
            ):
                found[str(path)] = path.read_text()
    return found


def test_H25_a_look_has_the_whole_picture_and_changes_nothing(
    root: CgroupRoot, config: Config, tmp_path: Path
) -> None:
    before = _photo(root)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    view = look(config, samples_s=1.0)
    assert _photo(root) == before
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == files
    assert isinstance(view.core, CoreStatus)
    assert view.core.dry_run
    assert view.core.waiting_for == ()
    assert isinstance(view.workloads, Workloads)
    assert view.workloads.pods == ()
    assert [app.name for app in view.workloads.apps] == ["render"]
    assert {(str(w.target), w.knob) for w in view.plan.writes} == {
        (RENDER, Knob.CPU_SHARES),
        (RENDER, Knob.CPU_IDLE),
        (RENDER, Knob.CPU_QUOTA),
    }
    assert view.owned == ()
    states = {source.name: source.state for source in view.sources}
    assert states["nodeslo"] is SourceState.OK
    assert states["cri"] is SourceState.OFF


def test_orders_of_an_earlier_daemon_are_respected_and_kept(config: Config) -> None:
    store = StateStore(config.state_dir / "state.db")
    save_standing(store, Standing().with_release("all"))
    store.close()
    view = look(config, samples_s=1.0)
    assert isinstance(view.core, CoreStatus)
    assert view.core.released == ("all",)
    assert view.plan.writes == ()
    store = StateStore(config.state_dir / "state.db")
    assert load_standing(store).released == ("all",)
    store.close()


_LOOK = """
import sys
from pathlib import Path
from koordlet.config import load_config
from koordlet.oneshot import look
view = look(load_config(sys.argv[1:]), samples_s=1.0)
assert view.plan.writes
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_H25_by_system_calls_no_file_is_opened_for_writing(
    config: Config, tmp_path: Path, root: CgroupRoot
) -> None:
    log = tmp_path / "strace.log"
    options = {
        "--run-dir": config.run_dir,
        "--state-dir": config.state_dir,
        "--cgroup-root": config.cgroup_root,
        "--node-slo": config.node_slo,
        "--host-apps-dir": config.host_apps_dir,
        "--cri-endpoint": "none",
        "--kubelet": "none",
    }
    traced = ("strace", "-f", "-qq", "-e", "trace=%file,openat2", "-e", "signal=none", "-o", log)
    words = [str(word) for option in options.items() for word in option]
    subprocess.run([*traced, sys.executable, "-B", "-c", _LOOK, *words], check=True, timeout=60)
    lines = log.read_text().splitlines()
    assert any(root.root in line for line in lines)
    wrong = [line for line in lines if _WRITING.search(line) or _CHANGING.search(line)]
    assert [line for line in wrong if '"/dev/null"' not in line] == []
