"""A Prometheus that scrapes once a second, as small as can be."""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
from functools import cached_property
from types import TracebackType

CONTAINER_CPU = "koordlet_container_used_cpu_cores"
TIMEOUT_S = 5.0
_CONTAINER_LINE = re.compile(rf"^{CONTAINER_CPU}\{{([^}}]*)\}} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Page:
    """One scraped text."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _cores(self) -> dict[tuple[str, str], float]:
        found = {}
        for labels, value in _CONTAINER_LINE.findall(self.text):
            named = dict(_LABEL.findall(labels))
            found[named["uid"], named["container"]] = float(value)
        return found

    def container_cores(self, pod_uid: str, container: str) -> float | None:
        """Cores that a container uses, or None where the page does not say."""
        return self._cores.get((pod_uid, container))


class Scraper:
    """Scrapes every second while the context lasts, and counts what fails."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._scrape, name="scraper", daemon=True)
        self.failures = 0

    def fetch(self) -> Page:
        """Scrape now; raises OSError where that fails."""
        with urllib.request.urlopen(self._url, timeout=TIMEOUT_S) as answer:
            return Page(answer.read().decode())

    def __enter__(self) -> Scraper:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _scrape(self) -> None:
        while not self._stop.wait(1.0):
            try:
                self.fetch()
            except (OSError, urllib.error.URLError):
                self.failures += 1
