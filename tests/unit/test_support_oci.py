"""The image that tests run: an OCI layout whose digests fit."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.oci import BusyboxError, write_image


@pytest.mark.skipif(shutil.which("busybox") is None, reason="needs busybox-static")
def test_layout_and_digests(tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    write_image(path, ["a:1", "b:2"])
    with tarfile.open(path) as tar:
        files = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        content = {name: file.read() for name, file in files.items() if file is not None}
    for name, data in content.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"
    index = json.loads(content["index.json"])
    assert [
        each["annotations"]["org.opencontainers.image.ref.name"] for each in index["manifests"]
    ] == ["a:1", "b:2"]

    def blob(descriptor: dict[str, Any]) -> bytes:
        data = content[f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"]
        assert len(data) == descriptor["size"]
        return data

    manifest = json.loads(blob(index["manifests"][0]))
    config = json.loads(blob(manifest["config"]))
    layer = blob(manifest["layers"][0])
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        assert {"bin/busybox", "bin/sh", "pause", "etc/passwd"} <= set(tar.getnames())
        assert tar.getmember("pause").mode == 0o755


def test_no_busybox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BusyboxError, match="busybox-static"):
        write_image(tmp_path / "image.tar")
