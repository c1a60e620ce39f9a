"""Regenerate everything that is made from the sources, or check that it is up to date.

``python -m tests.support.gendocs [--check]``: docs/metrics.md, docs/cli.md, docs/schema and
proto/koordpb. Exit 1 where --check finds a difference.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support import gendocs_cli, gendocs_metrics, genproto, genschema

REPO = Path(__file__).resolve().parents[2]
PAGES: Mapping[str, Callable[[], str]] = {
    "docs/cli.md": gendocs_cli.render,
    "docs/metrics.md": gendocs_metrics.render,
}
GENERATORS = (genproto.main, genschema.main)


def stale_pages() -> tuple[str, ...]:
    """Pages that are missing or differ from what their renderer gives."""
    return tuple(
        name
        for name, render in PAGES.items()
        if not (REPO / name).exists() or (REPO / name).read_text(encoding="utf-8") != render()
    )


def write_pages() -> None:
    """Write every page, and say which."""
    for name, render in PAGES.items():
        (REPO / name).parent.mkdir(parents=True, exist_ok=True)
        (REPO / name).write_text(render(), encoding="utf-8")
        print(name)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.gendocs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare only")
    options = parser.parse_args(arguments)
    failures = sum(generate(["--check"] if options.check else []) for generate in GENERATORS)
    if not options.check:
        write_pages()
        return failures
    for name in stale_pages():
        failures += 1
        print(f"{name}: differs from what the sources give; remedy: make docs", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
