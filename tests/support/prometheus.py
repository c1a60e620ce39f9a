"""A real Prometheus (Debian's) that scrapes one koordlet every second, and its promtool."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.koordletd import free_port

PACKAGE = "prometheus"
READY_S = 30.0
STOP_S = 20.0
_CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: {rules}
scrape_configs:
  - job_name: koordlet
    static_configs: [{{targets: ["127.0.0.1:{target}"]}}]
"""


class Prometheus:
    """One server with its data below ``directory``, while the context lasts."""

    def __init__(self, directory: Path, target_port: int, *rules: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._url = f"http://127.0.0.1:{free_port()}"
        self._log = directory / "prometheus.log"
        self._process: subprocess.Popen[bytes] | None = None
        listed = json.dumps([str(rule) for rule in rules])
        config = _CONFIG.format(target=target_port, rules=listed)
        (directory / "prometheus.yml").write_text(config, encoding="utf-8")

    def __enter__(self) -> Prometheus:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "prometheus"),
                    f"--config.file={self._directory / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._directory / 'data'}",
                    f"--web.listen-address={self._url.removeprefix('http://')}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The present samples of an instant query: ``{"metric": labels, "value": [time, text]}``.

        A series that its last scrape no longer had is not among them.
        """
        data = self._get(f"query?{urllib.parse.urlencode({'query': expression})}")
        found: list[dict[str, Any]] = data["result"]
        return found

    def values(self, expression: str) -> list[float]:
        """Only the numbers of a query."""
        return [float(sample["value"][1]) for sample in self.query(expression)]

    def alerts(self) -> dict[str, str]:
        """The loaded alerting rules by name, each with its health (``ok`` where it evaluates)."""
        groups = self._get("rules?type=alert")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def _get(self, what: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._url}/api/v1/{what}", timeout=10.0) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
        return data

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self._url}/-/ready"):
                return
            time.sleep(0.05)
        self._process.kill()
        self._process.wait()
        raise RuntimeError(f"prometheus does not come up:\n{self._log.read_text(errors='replace')}")


def promtool(*words: str, text: str = "") -> str:
    """Run promtool with ``text`` on stdin; all that it has to say, ``""`` where it is content."""
    done = subprocess.run(
        ["promtool", *words], input=text, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    return said if done.returncode else ""
