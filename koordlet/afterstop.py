"""What systemd runs once the service has ended, ``koordlet after-stop UNIT`` (ExecStopPost).

After a stop everything is given back. Where a daemon is to come again values stay in force, since
lifting every limit at once is what hurts latency-sensitive work most, and a dead-man timer gives
them back if none comes (hazard H16).
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Mapping, Sequence
from enum import Enum

import structlog

from koordlet import logs
from koordlet.config import Config, salvage_config
from koordlet.model.actions import Status
from koordlet.protocol.problem import RefusedError, Severity

TIMER = "koordlet-rollback.timer"
COMES_BACK = frozenset({"start", "restart", "try-restart", "reload-or-start"})
"""Types of systemd's jobs after which the unit runs."""
SYSTEMCTL_S = 10.0


class Then(Enum):
    """What is done about values in force."""

    RESTORE = "restore"
    WAIT = "wait"


def decide(service_result: str, job_types: Collection[str] | None) -> Then:
    """``service_result`` is systemd's $SERVICE_RESULT, ``job_types`` the types of the jobs queued
    for the unit, None where they are not known.
    """
    was_stopped = service_result == "success"
    if was_stopped and job_types is not None and COMES_BACK.isdisjoint(job_types):
        return Then.RESTORE
    return Then.WAIT


def after_stop(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """``words`` are the unit's name and options of koordlet. Exit: 0 done, 1 not restored."""
    unit, options = (words[0], words[1:]) if words else ("koordlet.service", [])
    try:
        config, faults = salvage_config(options)
    except RefusedError as refused:
        config, faults = Config(), refused.problems
    logs.configure(config.log_level, config.log_format)
    log = structlog.get_logger("after-stop")
    for fault in faults:
        log.warning("configuration left out", why=str(fault))
    result = environment.get("SERVICE_RESULT", "")
    if decide(result, queued_jobs(unit)) is Then.WAIT and _arm():
        log.warning("values stay in force for the next daemon", result=result, timer=TIMER)
        return 0
    return _restore(config)


def queued_jobs(unit: str) -> frozenset[str] | None:
    """Types of the jobs that systemd has for ``unit``; None where it does not answer."""
    text = _systemctl("list-jobs", "--no-legend", "--plain", unit)
    if text is None:
        return None
    rows = [line.split() for line in text.splitlines()]
    return frozenset(row[2] for row in rows if len(row) >= 3 and row[1] == unit)


def _arm() -> bool:
    return _systemctl("start", "--no-block", TIMER) is not None


def _systemctl(*words: str) -> str | None:
    try:
        done = subprocess.run(
            ["systemctl", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=SYSTEMCTL_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        structlog.get_logger("after-stop").warning("systemctl failed", why=str(error))
        return None
    return done.stdout


def _restore(config: Config) -> int:
    """Give everything back from the journal; what could not be is tried again by the timer."""
    from koordlet.journalundo import undo  # loads what speaks to the container runtime
    from koordlet.resexecutor.rollback import RollbackOptions

    report = undo(config, RollbackOptions()).report
    log = structlog.get_logger("after-stop")
    log.info("restored", files=len(report.restored), foreign=len(report.foreign), note=report.note)
    for outcome in report.foreign:
        log.warning("left, its value is neither ours nor the original", file=str(outcome.key))
    fine = (Status.RESTORED, Status.GONE, Status.FOREIGN)
    failed = [outcome for outcome in report.outcomes if outcome.status not in fine]
    for what in (*report.problems, *failed):
        log.error("not restored", why=str(what))
    if not failed and all(each.severity is not Severity.ERROR for each in report.problems):
        return 0
    _arm()
    return 1
