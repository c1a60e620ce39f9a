"""``koord-runtimeproxy``: what it prints, and how it exits."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.hookserver import HookServer, write_server
from tests.support.promlint import lint
from tests.support.proxyd import Proxy
from tests.support.rawruntime import SERVICE, RawClient, RawRuntime, pod_config
from tests.support.waiting import until


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runtimeproxy", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def asked(proxy: Proxy, name: str) -> dict[str, Any]:
    done = run(name, "-o", "json", "--run-dir", str(proxy.run_dir))
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["schema"] == f"koord-runtimeproxy.{name}/v1"
    return told


def test_status_hooks_and_calls(
    runtime: RawRuntime, proxy: Proxy, client: RawClient, short_path: Path
) -> None:
    runtime.unary[SERVICE + "Version"] = lambda request, context: b""
    client.call(SERVICE + "Version")
    with HookServer(short_path / "h.sock") as hooks:
        write_server(proxy.hooks_dir, "h", hooks.socket, "Fail")
        assert asked(proxy, "status")["data"]["hook_servers"] == 1
        (server,) = asked(proxy, "hooks")["data"]["servers"]
        assert (server["name"], server["policy"]) == ("h", "Fail")
    (method,) = asked(proxy, "calls")["data"]["methods"]
    assert (method["method"], method["count"]) == (SERVICE + "Version", 1)
    assert method["p50_ms"] > 0
    for name in ("status", "hooks", "calls"):
        assert run(name, "--run-dir", str(proxy.run_dir)).stdout


def test_without_a_daemon_the_exit_code_says_so(tmp_path: Path) -> None:
    done = run("status", "--run-dir", str(tmp_path))
    assert done.returncode == 3
    assert "remedy" in done.stderr


def test_bad_options_are_told() -> None:
    done = run("run", "--hook-dir", "/x")
    assert done.returncode == 2
    assert "--hooks-dir" in done.stderr
    assert run("check", "--hook-deadline-ms=0").returncode == 2
    assert "--runtime-endpoint" in run("run", "--help").stdout


def test_check_tells_what_would_not_work(
    runtime: RawRuntime, proxy: Proxy, short_path: Path
) -> None:
    runtime.unary[SERVICE + "Version"] = lambda request, context: b"\x12\x01r\x1a\x011"
    write_server(proxy.hooks_dir, "gone", short_path / "gone.sock")
    proc = short_path / "proc"
    proc.mkdir()
    words = ("check", "-o", "json", *proxy.words, f"--proc-root={proc}")
    done = run(*words)
    told = json.loads(done.stdout)
    assert done.returncode == 4, done.stderr
    assert told["data"]["runtime"] == told["data"]["proxy"] == "r 1"
    assert [problem["code"] for problem in told["problems"]] == ["hook-server-away"]
    (proxy.hooks_dir / "gone.json").unlink()
    done = run(*words)
    assert done.returncode == 0, done.stdout
    assert any(
        str(proxy.socket) in step for step in json.loads(done.stdout)["data"]["to_the_proxy"]
    )
    assert "to the proxy" in run("check", *proxy.words, f"--proc-root={proc}").stdout


def test_metrics_are_well_formed_and_health_tells_the_truth(
    runtime: RawRuntime, proxy: Proxy, client: RawClient
) -> None:
    with pytest.raises(grpc.RpcError):
        client.call("/strange.Service/\x7f")
    text = page(proxy, "metrics")
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert list(lint(name, family.type, family.documentation)) == []
    assert 'koord_runtimeproxy_calls_total{code="UNIMPLEMENTED"' in text
    assert page(proxy, "healthz") == page(proxy, "readyz") == "ok\n"


def page(proxy: Proxy, name: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{proxy.metrics_port}/{name}") as answer:
        return str(answer.read().decode())


def test_methods_that_clients_make_up_do_not_fill_the_memory(
    runtime: RawRuntime, proxy: Proxy, client: RawClient
) -> None:
    for number in range(200):
        with pytest.raises(grpc.RpcError):
            client.call(f"/made.Up/M{number}")
    assert len(proxy.get("calls")["methods"]) <= 130


def test_rights_of_the_socket_are_the_runtimes(runtime: RawRuntime, proxy: Proxy) -> None:
    until(lambda: proxy.get("status")["reconciled_ago_s"] is not None, 5.0)
    assert proxy.socket.stat().st_mode == runtime.socket.stat().st_mode


def test_the_hook_server_of_the_docs_works(
    runtime: RawRuntime, proxy: Proxy, client: RawClient, short_path: Path
) -> None:
    from koordpb import cri_v1_pb2 as pb

    docs = Path(__file__).parents[2] / "docs/runtimeproxy.md"
    (program,) = re.findall(r"```python\n(.*?)```", docs.read_text(), re.S)
    script, socket = short_path / "hookserver.py", short_path / "h.sock"
    script.write_text(program)
    path = SERVICE + "CreateContainer"
    runtime.unary[path] = lambda request, context: b""
    serving = subprocess.Popen([sys.executable, str(script), str(socket)])
    try:
        until(socket.exists, 10.0)
        write_server(proxy.hooks_dir, "docs", socket, "Fail", ("PreCreateContainer",))
        config = pod_config(labels={"koordinator.sh/qosClass": "BE"})
        request = pb.CreateContainerRequest(sandbox_config=config)
        client.call(path, request.SerializeToString())
    finally:
        serving.kill()
        serving.wait()
    got = pb.CreateContainerRequest.FromString(runtime.calls(path)[0].request)
    assert got.config.linux.resources.cpu_shares == 2


def test_every_policy_and_stage_is_in_the_docs() -> None:
    from runtimeproxy.hooks.stages import Policy, Stage

    text = (Path(__file__).parents[2] / "docs/runtimeproxy.md").read_text()
    for word in (*Policy, *Stage):
        assert word.value in text
