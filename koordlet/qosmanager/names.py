"""Names of the strategies, as owners in the journal and in commands."""

from __future__ import annotations

BE_PRIORITY = "be_priority"
CPU_SUPPRESS = "cpu_suppress"
