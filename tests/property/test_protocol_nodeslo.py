"""A NodeSLO survives being written and read; any document is read or refused."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.protocol.nodeslo import NodeSlo
from koordlet.protocol.nodeslo_qos import ClassQos, ResctrlQos
from koordlet.protocol.nodeslo_schema import load_nodeslo, to_document
from koordlet.protocol.problem import RefusedError

NAMES = st.text(alphabet="abz09-", min_size=1, max_size=8)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, within its bounds."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return st.integers(args[1].low, args[1].high)
    if origin in (UnionType, Union):
        return st.one_of([values(arg) for arg in args])
    if origin is tuple:
        if args[-1] is Ellipsis:
            return st.lists(values(args[0]), max_size=2).map(tuple)
        return st.tuples(*map(values, args))
    if hint is str:
        return st.sampled_from(["50M", "0", "1G"])
    if hint is NoneType:
        return st.none()
    if hint is bool:
        return st.booleans()
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    assert is_dataclass(hint)
    return objects(hint)


def objects(cls: type) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls, include_extras=True)
    given = {field.name: values(hints[field.name]) for field in fields(cls)}
    if cls is ClassQos:
        return st.builds(cls, **given).map(without_disabled)
    return st.builds(cls, **given)


def without_disabled(block: ClassQos) -> ClassQos:
    kept = {field.name: getattr(block, field.name) for field in fields(block)}
    kept = {name: held if held.enable else type(held)() for name, held in kept.items()}
    if kept["resctrl_qos"].cat_range_start_percent >= kept["resctrl_qos"].cat_range_end_percent:
        kept["resctrl_qos"] = ResctrlQos()
    return ClassQos(**kept)


def coherent(slo: NodeSlo) -> NodeSlo:
    """The same without contradictions."""
    lowers = [
        "memory_evict_lower_percent",
        "cpu_evict_lower_percent",
        "cpu_evict_be_satisfaction_lower_percent",
        "cpu_allocatable_evict_lower_percent",
        "memory_allocatable_evict_lower_percent",
    ]
    features = tuple(sorted(dict(slo.system.sched_features).items()))
    return replace(
        slo,
        threshold=replace(slo.threshold, **dict.fromkeys(lowers)),
        system=replace(slo.system, sched_features=features),
        host_applications=tuple(
            replace(application, name=f"app{at}")
            for at, application in enumerate(slo.host_applications)
        ),
    )


@settings(max_examples=40)
@given(objects(NodeSlo).map(coherent))
def test_an_slo_survives_its_document(slo: NodeSlo) -> None:
    document = to_document(slo)
    for text in (json.dumps(document), yaml.safe_dump(document)):
        loaded = load_nodeslo(text, "x")
        assert loaded.slo == slo
        assert {problem.code for problem in loaded.problems} <= {"slo-contradiction"}


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates()
KEYS = st.sampled_from(
    ["spec", "kind", "extensions", "koordlet", "resourceUsedThresholdWithBE", "enable",
     "resourceQOSStrategy", "beClass", "cpuQOS", "systemStrategy", "schedFeatures",
     "hostApplications", "name", "blkioQOS", "blocks", "cgroupPath", "x"]
) | st.integers()  # fmt: skip
TREES = st.recursive(
    SCALARS, lambda below: st.lists(below, max_size=2) | st.dictionaries(KEYS, below, max_size=4)
)


@settings(max_examples=100)
@given(st.dictionaries(KEYS, TREES, max_size=4))
def test_any_document_is_read_or_refused(document: dict[Any, Any]) -> None:
    try:
        loaded = load_nodeslo(yaml.safe_dump(document), "x")
    except RefusedError as refusal:
        assert refusal.problems
        return
    assert load_nodeslo(json.dumps(to_document(loaded.slo)), "x").slo == loaded.slo


@settings(max_examples=200)
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        load_nodeslo(text, "x")
    except RefusedError as refusal:
        assert refusal.problems
