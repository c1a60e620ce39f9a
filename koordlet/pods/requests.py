"""Requests and limits of containers and pods, from the texts in which sources write them.

Native resources come first, then Koordinator's extended ones (batch, then mid), which count
milli-cores and bytes. Zero is "not set", as it is for Kubernetes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from koordlet.model.pods import Resources
from koordlet.protocol import names
from koordlet.protocol.problem import Problem, Severity
from koordlet.protocol.quantity import QuantityError, parse_bytes, parse_milli, parse_quantity

_EXTENDED_CPU = (names.RESOURCE_BATCH_CPU, names.RESOURCE_MID_CPU)
_MEMORY = ("memory", names.RESOURCE_BATCH_MEMORY, names.RESOURCE_MID_MEMORY)
NOTHING = Resources()


@dataclass(frozen=True, slots=True)
class Wants:
    """What one container asks for and what it may use at most."""

    requests: Resources = NOTHING
    limits: Resources = NOTHING


class ResourceReader:
    """Reads resource lists; what it cannot read is "not set" and told in ``problems``.

    ``native_only`` leaves Koordinator's extended resources out, as the kubelet's cgroups do.
    """

    def __init__(self, *, native_only: bool = False) -> None:
        self.problems: list[Problem] = []
        self._cpu_names = () if native_only else _EXTENDED_CPU
        self._memory_names = _MEMORY[:1] if native_only else _MEMORY

    def wants(self, block: Any, where: str) -> Wants:
        """``{"requests": {...}, "limits": {...}}``; anything else is nothing asked for."""
        if not isinstance(block, Mapping):
            return Wants()
        return Wants(
            requests=self.resources(block.get("requests"), f"{where} requests"),
            limits=self.resources(block.get("limits"), f"{where} limits"),
        )

    def resources(self, texts: Any, where: str) -> Resources:
        """A Kubernetes resource list, e.g. ``{"cpu": "500m", "memory": "1Gi"}``."""
        if not isinstance(texts, Mapping):
            return NOTHING
        return Resources(
            cpu_milli=self._cpu(texts, where) or None, memory_bytes=self._memory(texts, where)
        )

    def _cpu(self, texts: Mapping[str, Any], where: str) -> int | None:
        try:
            if texts.get("cpu") is not None and (milli := parse_milli(str(texts["cpu"]))):
                return milli
            for name in self._cpu_names:
                if texts.get(name) is not None:
                    return self._whole_milli(name, str(texts[name]), where)
        except QuantityError as error:
            self._unreadable(where, error)
        return None

    def _memory(self, texts: Mapping[str, Any], where: str) -> int | None:
        try:
            for name in self._memory_names:
                if texts.get(name) is not None and (size := parse_bytes(str(texts[name]))):
                    return size
        except QuantityError as error:
            self._unreadable(where, error)
        return None

    def _whole_milli(self, name: str, text: str, where: str) -> int:
        """An extended CPU resource: its unit already is the milli-core (case CQ-21)."""
        value = parse_quantity(text)
        if value < 0:
            raise QuantityError(f"quantity {text!r} is negative; limit: 0 or more")
        if value.denominator != 1:
            self.problems.append(
                Problem(
                    code="batch-cpu-unit",
                    where=where,
                    what=f"{name}: {text!r} is {float(value):g} milli-cores, rounded up",
                    limit="the unit of this resource is the milli-core already",
                    remedy=f"write {int(value * 1000)} if {text} of a core is meant",
                    severity=Severity.WARNING,
                )
            )
        return math.ceil(value)

    def _unreadable(self, where: str, error: QuantityError) -> None:
        self.problems.append(
            Problem(
                code="quantity",
                where=where,
                what=str(error),
                remedy="correct the pod; until then the value counts as not set",
                severity=Severity.WARNING,
            )
        )

    def extended_spec(self, annotation: str, where: str) -> dict[str, Wants]:
        """The extended-resource-spec annotation: what each container wants, by its name."""
        where = f"{where} annotation {names.ANNOTATION_EXTENDED_RESOURCE_SPEC}"
        try:
            document = json.loads(annotation)
        except (ValueError, RecursionError) as error:
            self.problems.append(
                Problem("annotation", where, f"no JSON: {error}", severity=Severity.WARNING)
            )
            return {}
        containers = document.get("containers") if isinstance(document, dict) else None
        if not isinstance(containers, dict):
            return {}
        return {
            name: self.wants(block, f"{where} container {name}")
            for name, block in containers.items()
        }


@dataclass(frozen=True, slots=True)
class InitWants:
    """What an init container wants; a ``restartable`` one (a sidecar) stays beside the rest."""

    wants: Wants
    restartable: bool


def has_extended(block: Any) -> bool:
    """Whether a container's resources name one of Koordinator's extended ones."""
    if not isinstance(block, Mapping):
        return False
    lists = (block.get("requests"), block.get("limits"))
    return any(
        name in texts
        for texts in lists
        if isinstance(texts, Mapping)
        for name in (*_EXTENDED_CPU, *_MEMORY[1:])
    )


def pod_wants(
    containers: Iterable[Wants], inits: Iterable[InitWants] = (), overhead: Resources = NOTHING
) -> Wants:
    """What a whole pod wants, as the kubelet sizes its cgroup.

    Requests: the larger of the sum over containers and sidecars, and the peak while init
    containers run one after another; plus the overhead. Limits likewise, but a pod is unlimited
    as soon as one of its containers is.
    """
    main, first = tuple(containers), tuple(inits)
    return Wants(
        requests=Resources(
            cpu_milli=_total(
                [wants.requests.cpu_milli for wants in main],
                [(init.wants.requests.cpu_milli, init.restartable) for init in first],
                overhead.cpu_milli,
            ),
            memory_bytes=_total(
                [wants.requests.memory_bytes for wants in main],
                [(init.wants.requests.memory_bytes, init.restartable) for init in first],
                overhead.memory_bytes,
            ),
        ),
        limits=Resources(
            cpu_milli=_limit(
                [wants.limits.cpu_milli for wants in main],
                [(init.wants.limits.cpu_milli, init.restartable) for init in first],
                overhead.cpu_milli,
            ),
            memory_bytes=_limit(
                [wants.limits.memory_bytes for wants in main],
                [(init.wants.limits.memory_bytes, init.restartable) for init in first],
                overhead.memory_bytes,
            ),
        ),
    )


def _total(
    main: list[int | None], inits: list[tuple[int | None, bool]], overhead: int | None
) -> int | None:
    sidecars = peak = 0
    for amount, restartable in inits:
        if restartable:
            sidecars += amount or 0
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + (amount or 0))
    total = max(peak, sidecars + sum(amount or 0 for amount in main))
    return total + (overhead or 0) or None


def _limit(
    main: list[int | None], inits: list[tuple[int | None, bool]], overhead: int | None
) -> int | None:
    if not main or None in main or any(amount is None for amount, _ in inits):
        return None
    return _total(main, inits, overhead)
