"""The proxy's configuration: a file, options, and what is said about mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.protocol.problem import RefusedError
from runtimeproxy.config import Config, load_config

ABSENT = Path("/nonexistent/config.yaml")


def written(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    path.chmod(0o600)
    return ["--config", str(path)]


def test_defaults_are_those_of_the_names_that_everybody_knows() -> None:
    config = load_config([], ABSENT)
    assert config == Config()
    assert str(config.listen_path) == "/run/koord-runtimeproxy/runtimeproxy.sock"
    assert str(config.store_path) == "/var/lib/koord-runtimeproxy/store.db"
    assert str(config.hooks_dir) == "/etc/runtime/hookserver.d"
    assert (config.metrics_address, config.hook_deadline_ms) == (("127.0.0.1", 9318), 500)
    assert config.max_message_bytes == 16 << 20


def test_options_win_over_the_file(tmp_path: Path) -> None:
    words = written(tmp_path, "hookDeadlineMs: 100\nlogLevel: debug\nskipNamespaces: [a, b]\n")
    config = load_config([*words, "--hook-deadline-ms=200", "--metrics-address", "none"])
    assert (config.hook_deadline_ms, config.log_level) == (200, "debug")
    assert config.metrics_address is None
    assert config.skip_namespaces == {"a", "b"}


def test_endpoints_may_be_written_both_ways() -> None:
    for text in ("unix:///run/crio/crio.sock", "/run/crio/crio.sock"):
        config = load_config([f"--runtime-endpoint={text}"], ABSENT)
        assert config.runtime_endpoint == Path("/run/crio/crio.sock")


@pytest.mark.parametrize(
    ("text", "said"),
    (
        ("hookDeadline: 5", "did you mean hookDeadlineMs"),
        ("hookDeadlineMs: soon", "hookDeadlineMs"),
        ("runtimeEndpoint: tcp://x", "absolute path"),
        ("socket: /" + "x" * 120, "at most 100 bytes"),
        ("maxMessageBytes: 1", "maxMessageBytes"),
        ("metricsAddress: everywhere", "host:port"),
        ("runDir: relative", "absolute path"),
        ("- a list", "mapping"),
        ("a: [", "config.yaml"),
    ),
)
def test_a_mistake_is_told_with_its_remedy(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        load_config(written(tmp_path, text))


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(RefusedError) as caught:
        load_config([*written(tmp_path, "x: 1\nhookDeadlineMs: 0"), "--log-level=loud"])
    assert len(caught.value.problems) == 3


def test_unknown_options_are_refused() -> None:
    with pytest.raises(RefusedError, match="--hooks-dir"):
        load_config(["--hook-dir=/x"], ABSENT)


def test_H27_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    words = written(tmp_path, "logLevel: debug")
    Path(words[1]).chmod(0o622)
    with pytest.raises(RefusedError, match="chmod go-w"):
        load_config(words)


def test_a_named_file_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no such file"):
        load_config(["--config", str(tmp_path / "absent.yaml")])
