"""What a NodeSLO may not say although each value by itself is fine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from koordlet.protocol.nodeslo import HostApplicationSpec, NodeSlo
from koordlet.protocol.nodeslo_qos import ClassQos, NetworkRate
from koordlet.protocol.problem import Problem, Severity
from koordlet.protocol.quantity import QuantityError, parse_bytes

_THRESHOLD = "spec.resourceUsedThresholdWithBE"


def contradictions(slo: NodeSlo, where: str) -> list[Problem]:
    """All pairs that contradict each other and texts that cannot be read, in document order."""
    found = chain(_thresholds(slo), _classes(slo), _system(slo), _applications(slo))
    return [replace(problem, where=f"{where}: {problem.where}") for problem in found]


def _thresholds(slo: NodeSlo) -> Iterator[Problem]:
    own = slo.threshold
    yield from _ascending(
        _THRESHOLD,
        ("memoryEvictLowerPercent", own.memory_evict_lower_percent),
        ("memoryEvictThresholdPercent", own.memory_evict_threshold_percent),
    )
    yield from _ascending(
        _THRESHOLD,
        ("cpuEvictBESatisfactionLowerPercent", own.cpu_evict_be_satisfaction_lower_percent),
        ("cpuEvictBESatisfactionUpperPercent", own.cpu_evict_be_satisfaction_upper_percent),
    )
    yield from _ascending(
        _THRESHOLD,
        ("cpuEvictLowerPercent", own.cpu_evict_lower_percent),
        ("cpuEvictThresholdPercent", own.cpu_evict_threshold_percent),
    )
    yield from _ascending(
        _THRESHOLD,
        ("cpuAllocatableEvictLowerPercent", own.cpu_allocatable_evict_lower_percent),
        ("cpuAllocatableEvictThresholdPercent", own.cpu_allocatable_evict_threshold_percent),
    )
    yield from _ascending(
        _THRESHOLD,
        ("memoryAllocatableEvictLowerPercent", own.memory_allocatable_evict_lower_percent),
        ("memoryAllocatableEvictThresholdPercent", own.memory_allocatable_evict_threshold_percent),
    )
    floor, ceiling = own.cpu_suppress_min_percent, own.cpu_suppress_threshold_percent
    if floor is not None and floor > ceiling:
        yield Problem(
            "slo-contradiction",
            f"{_THRESHOLD}.cpuSuppressMinPercent",
            f"BE always keeps {floor} % of the node, although BE may only fill it to {ceiling} %",
            f"at most cpuSuppressThresholdPercent ({ceiling})",
            "lower cpuSuppressMinPercent",
            Severity.WARNING,
        )


def _ascending(
    path: str, lower: tuple[str, int | None], upper: tuple[str, int | None]
) -> Iterator[Problem]:
    (low_name, low), (high_name, high) = lower, upper
    if low is not None and high is not None and low >= high:
        yield Problem(
            "slo-contradiction",
            f"{path}.{low_name}",
            f"{low_name} is {low}, {high_name} is {high}",
            f"{low_name} below {high_name}",
            f"lower {low_name} or raise {high_name}",
        )


def _classes(slo: NodeSlo) -> Iterator[Problem]:
    named: tuple[tuple[str, ClassQos], ...] = (
        ("lsrClass", slo.qos.lsr),
        ("lsClass", slo.qos.ls),
        ("beClass", slo.qos.be),
        ("systemClass", slo.qos.system),
        ("cgroupRoot", slo.qos.cgroup_root),
    )
    for name, settings in named:
        path = f"spec.resourceQOSStrategy.{name}"
        ways = settings.resctrl_qos
        yield from _ascending(
            f"{path}.resctrlQOS",
            ("catRangeStartPercent", ways.cat_range_start_percent),
            ("catRangeEndPercent", ways.cat_range_end_percent),
        )
        net = settings.network_qos
        yield from _rate(f"{path}.networkQOS.ingressRequest", net.ingress_request)
        yield from _rate(f"{path}.networkQOS.ingressLimit", net.ingress_limit)
        yield from _rate(f"{path}.networkQOS.egressRequest", net.egress_request)
        yield from _rate(f"{path}.networkQOS.egressLimit", net.egress_limit)


def _rate(path: str, rate: NetworkRate) -> Iterator[Problem]:
    if isinstance(rate, int):
        return
    try:
        parse_bytes(rate)
    except QuantityError as fault:
        yield Problem(
            "slo-invalid-value",
            path,
            str(fault),
            "0 or more bit/s, or a percent without quotes",
            "write e.g. 50M or 30",
        )


def _system(slo: NodeSlo) -> Iterator[Problem]:
    yield from _rate(
        "spec.systemStrategy.totalNetworkBandwidth", slo.system.total_network_bandwidth
    )


def _applications(slo: NodeSlo) -> Iterator[Problem]:
    seen: set[str] = set()
    for at, application in enumerate(slo.host_applications):
        path = f"spec.hostApplications[{at}]"
        if application.name in seen:
            yield Problem(
                "slo-contradiction",
                f"{path}.name",
                f"two applications are named {application.name!r}",
                "each name once",
                "rename or remove one",
            )
        seen.add(application.name)
        yield from _directories(path, application)


def _directories(path: str, application: HostApplicationSpec) -> Iterator[Problem]:
    if application.name in ("", ".", "..") or "/" in application.name:
        yield Problem(
            "slo-invalid-value",
            f"{path}.name",
            f"{application.name!r} cannot be a directory's name",
            "not empty, no /, not . or ..",
            "rename it",
        )
    cgroup = application.cgroup_path
    if cgroup is None:
        return
    for name, text in (("parentDir", cgroup.parent_dir), ("relativePath", cgroup.relative_path)):
        if {".", ".."}.intersection(text.split("/")):
            yield Problem(
                "slo-invalid-value",
                f"{path}.cgroupPath.{name}",
                f"{text!r} leaves its base",
                "no . and .. between the slashes",
                "write the directories from the base down",
            )
