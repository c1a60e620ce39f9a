"""Logs: one line an event, for people or as JSON."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog


def configure(level: str, log_format: str, stream: TextIO | None = None) -> None:
    """Send every log line to ``stream`` (stderr); ``log_format`` is ``console`` or ``json``."""
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"])
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(stream or sys.stderr),
        cache_logger_on_first_use=False,
    )
