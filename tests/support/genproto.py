"""Generate ``proto/koordpb`` from ``proto/*.proto``, or check that it is up to date.

``python -m tests.support.genproto [--check]``; exit 1 where --check finds a difference.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
SOURCES = REPO / "proto"
GENERATED = SOURCES / "koordpb"


class GenerationError(RuntimeError):
    """The protobuf compiler refused a source; its own words went to stderr."""


def generate(target: Path) -> tuple[Path, ...]:
    """Write ``*_pb2.py`` and ``*_pb2.pyi`` for every source into ``target``; the written files."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    sources = sorted(SOURCES.glob("*.proto"))
    arguments = [
        "protoc",
        f"--proto_path={SOURCES}",
        f"--python_out={target}",
        f"--pyi_out={target}",
        *map(str, sources),
    ]
    if protoc.main(arguments) != 0:
        raise GenerationError(f"protoc failed for {', '.join(source.name for source in sources)}")
    return tuple(sorted(target.glob("*_pb2.py*")))


def differences() -> tuple[str, ...]:
    """Names of generated files that are missing, stale, or made from no source any more."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = {path.name: path.read_bytes() for path in generate(Path(scratch))}
    present = {path.name: path.read_bytes() for path in GENERATED.glob("*_pb2.py*")}
    return tuple(
        sorted(
            name for name in fresh.keys() | present.keys() if fresh.get(name) != present.get(name)
        )
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.genproto", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare only")
    options = parser.parse_args(arguments)
    if not options.check:
        for path in generate(GENERATED):
            print(path.relative_to(REPO))
        return 0
    stale = differences()
    for name in stale:
        print(
            f"proto/koordpb/{name}: differs from what proto/*.proto gives;"
            " remedy: python -m tests.support.genproto",
            file=sys.stderr,
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
