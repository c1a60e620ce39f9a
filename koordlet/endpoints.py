"""Which container runtime and which kubelet the configuration means."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from koordlet.config import Config
from koordlet.pods.kubelet import KubeletEndpoint

AUTO = "auto"
NONE = "none"
RUNTIME_SOCKETS = ("/run/containerd/containerd.sock", "/var/run/crio/crio.sock")


def find_runtime(config: Config) -> str | None:
    """The container runtime's endpoint: the configured one, or the first socket that is there."""
    if config.cri_endpoint == NONE:
        return None
    if config.cri_endpoint != AUTO:
        return config.cri_endpoint
    return next((f"unix://{s}" for s in RUNTIME_SOCKETS if Path(s).exists()), None)


def configured_kubelet(config: Config) -> KubeletEndpoint | None:
    """The kubelet that the configuration names by URL, with its credentials."""
    if config.kubelet in (AUTO, NONE):
        return None
    url = urlsplit(config.kubelet)
    host = url.hostname or "127.0.0.1"
    if url.scheme == "http":
        return KubeletEndpoint(host=host, read_only_port=url.port or 10255)
    return KubeletEndpoint(
        host=host,
        port=url.port or 10250,
        server_name=config.node_name,
        ca_files=() if config.kubelet_ca is None else (str(config.kubelet_ca),),
        token_file="" if config.kubelet_token is None else str(config.kubelet_token),
        client_cert_file=_text(config.kubelet_client_cert),
        client_key_file=_text(config.kubelet_client_key),
    )


def _text(path: Path | None) -> str:
    return "" if path is None else str(path)
