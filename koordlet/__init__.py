"""koordlet: the node daemon that keeps latency-sensitive work fast beside batch work."""

__version__ = "0.1.0"
