"""Generated code is what the sources give."""

from __future__ import annotations

from pathlib import Path

import pytest
from koordpb import cri_v1_pb2 as pb

from tests.support import genproto


def test_generated_code_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert genproto.main(["--check"]) == 0
    assert capsys.readouterr().err == ""


def test_stale_code_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cri_v1_pb2.py").write_text("# old\n")
    (tmp_path / "gone_pb2.py").write_text("# made from no source\n")
    monkeypatch.setattr(genproto, "GENERATED", tmp_path)
    assert genproto.main(["--check"]) == 1
    told = capsys.readouterr().err
    for name in ("cri_v1_pb2.py:", "cri_v1_pb2.pyi:", "gone_pb2.py:"):
        assert name in told
    assert "remedy: python -m tests.support.genproto" in told


def test_unknown_fields_survive() -> None:
    """A newer kubelet's field, number 99, in a message that we read and write."""
    raw = pb.LinuxContainerResources(cpu_quota=5).SerializeToString() + b"\x9a\x06\x03new"
    message = pb.LinuxContainerResources.FromString(raw)
    assert message.cpu_quota == 5
    assert message.SerializeToString() == raw


def test_environment_values_may_be_any_bytes() -> None:
    raw = pb.KeyValue(key="k", value=b"\xff\x00").SerializeToString()
    assert pb.KeyValue.FromString(raw).value == b"\xff\x00"
