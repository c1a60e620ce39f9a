"""A container image made of Debian's static busybox: no registry, no network.

The image starts ``/pause``, which waits until it is told to end, so it serves as sandbox image
too.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

IMAGE = "docker.io/library/koordtest:1"
PAUSE_IMAGE = "registry.k8s.io/koordtest-pause:1"

_DIRECTORIES = ("bin", "dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "usr/bin", "var")
_PAUSE = "#!/bin/sh\ntrap 'exit 0' TERM INT\nwhile :; do sleep 3600 & wait $!; done\n"
_PASSWD = "root:x:0:0:root:/root:/bin/sh\n"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class BusyboxError(RuntimeError):
    """There is no static busybox to make an image of."""


def write_image(path: Path, names: Iterable[str] = (IMAGE, PAUSE_IMAGE)) -> None:
    """Write an OCI layout as a tar, the same image under each name."""
    layer = _layer()
    config = _json(
        {
            "architecture": _architecture(),
            "os": "linux",
            "config": {"Env": ["PATH=/bin:/usr/bin"], "Entrypoint": ["/pause"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _media("manifest.v1+json"),
            "config": _descriptor("config.v1+json", config),
            "layers": [_descriptor("layer.v1.tar", layer)],
        }
    )
    index = _json(
        {
            "schemaVersion": 2,
            "manifests": [
                {
                    **_descriptor("manifest.v1+json", manifest),
                    "platform": {"architecture": _architecture(), "os": "linux"},
                    "annotations": {
                        "io.containerd.image.name": name,
                        "org.opencontainers.image.ref.name": name,
                    },
                }
                for name in names
            ],
        }
    )
    with tarfile.open(path, "w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", index)
        for blob in (layer, config, manifest):
            _add(tar, f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}", blob)


def _layer() -> bytes:
    busybox = shutil.which("busybox")
    if busybox is None:
        raise BusyboxError("no busybox; remedy: apt-get install busybox-static")
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in _DIRECTORIES:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        _add(tar, "bin/busybox", Path(busybox).read_bytes(), mode=0o755)
        for applet in listed.stdout.split():
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        _add(tar, "etc/passwd", _PASSWD.encode())
        _add(tar, "pause", _PAUSE.encode(), mode=0o755)
    return content.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def _architecture() -> str:
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def _media(kind: str) -> str:
    return f"application/vnd.oci.image.{kind}"


def _descriptor(kind: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": _media(kind), "digest": _digest(data), "size": len(data)}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()
