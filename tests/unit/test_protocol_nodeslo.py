"""NodeSLO documents, as Koordinator renders them and as people write them."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import yaml

from koordlet.protocol.nodeslo import (
    DEFAULT_NODESLO,
    CpuSuppressPolicy,
    HostCgroupBase,
    NodeSlo,
)
from koordlet.protocol.nodeslo_qos import ClassQos, CpuQos, ResctrlQos
from koordlet.protocol.nodeslo_schema import MAX_PROBLEMS, load_nodeslo, to_document
from koordlet.protocol.problem import Problem, RefusedError, Severity
from koordlet.protocol.qos import PriorityClass, Qos

FILE = "nodeslo.yaml"


def refused(text: str) -> tuple[Problem, ...]:
    with pytest.raises(RefusedError) as caught:
        load_nodeslo(text, FILE)
    assert all(problem.where.startswith(FILE) for problem in caught.value.problems)
    return caught.value.problems


def places(problems: tuple[Problem, ...]) -> list[str]:
    return [problem.where.removeprefix(f"{FILE}: ") for problem in problems]


# --- defaults and merging


@pytest.mark.parametrize("text", ["", "---\n", "# nothing yet\n", "{}", "spec: {}", "spec:\n"])
def test_an_empty_document_is_all_defaults(text: str) -> None:
    loaded = load_nodeslo(text, FILE)
    assert loaded.slo == DEFAULT_NODESLO
    assert loaded.problems == ()


def test_everything_is_off_by_default() -> None:
    slo = DEFAULT_NODESLO
    assert not slo.threshold.enable
    assert slo.threshold.cpu_suppress_threshold_percent == 65
    assert slo.threshold.cpu_suppress_policy is CpuSuppressPolicy.CPUSET
    assert slo.qos.be == ClassQos()
    assert not slo.extensions.lsr_exclusive


def test_given_fields_lie_over_the_defaults() -> None:
    text = "resourceUsedThresholdWithBE: {enable: true, cpuSuppressPolicy: cfsQuota}"
    threshold = load_nodeslo(text, FILE).slo.threshold
    assert threshold.enable
    assert threshold.cpu_suppress_policy is CpuSuppressPolicy.CFS_QUOTA
    assert threshold.memory_evict_threshold_percent == 70


def test_an_enabled_block_starts_from_its_classs_defaults() -> None:
    text = "resourceQOSStrategy: {beClass: {cpuQOS: {enable: true, schedIdle: 1}}}"
    be = load_nodeslo(text, FILE).slo.qos.be
    assert be.cpu_qos == CpuQos(enable=True, group_identity=-1, sched_idle=1)


@pytest.mark.parametrize("name", ["lsrClass", "lsClass", "beClass", "systemClass"])
def test_a_disabled_block_is_the_none_block(name: str) -> None:
    text = f"""
    resourceQOSStrategy:
      {name}:
        cpuQOS: {{enable: false, groupIdentity: 2, schedIdle: 1}}
        resctrlQOS: {{mbaPercent: 10}}
    """
    qos = load_nodeslo(text, FILE).slo.qos
    for settings in (qos.lsr, qos.ls, qos.be, qos.system):
        assert settings.cpu_qos == CpuQos()
        assert settings.resctrl_qos == ResctrlQos()


def test_CFG_04_reading_one_node_does_not_change_the_next() -> None:
    one = load_nodeslo("resourceUsedThresholdWithBE: {cpuSuppressThresholdPercent: 30}", FILE)
    assert one.slo.threshold.cpu_suppress_threshold_percent == 30
    assert load_nodeslo("", FILE).slo.threshold.cpu_suppress_threshold_percent == 65
    assert DEFAULT_NODESLO.threshold.cpu_suppress_threshold_percent == 65


def test_null_is_not_set_as_in_koordinator() -> None:
    text = "resourceUsedThresholdWithBE: {cpuSuppressMinPercent: null, enable: null}"
    assert load_nodeslo(text, FILE).slo == DEFAULT_NODESLO


# --- forms


def test_a_whole_object_as_kubectl_prints_it() -> None:
    document = {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": "node-1", "resourceVersion": "7"},
        "spec": {"resourceUsedThresholdWithBE": {"enable": True}},
        "status": {},
    }
    for text in (json.dumps(document), json.dumps(document, indent="\t"), yaml.dump(document)):
        loaded = load_nodeslo(text, FILE)
        assert loaded.slo.threshold.enable
        assert loaded.problems == ()


def test_another_kind_is_refused() -> None:
    assert places(refused("kind: NodeMetric\nspec: {}")) == ["kind"]


def test_another_version_is_a_warning() -> None:
    loaded = load_nodeslo("apiVersion: slo.koordinator.sh/v1\nkind: NodeSLO\nspec: {}", FILE)
    assert [problem.severity for problem in loaded.problems] == [Severity.WARNING]


def test_a_field_beside_spec_is_told() -> None:
    loaded = load_nodeslo("kind: NodeSLO\nresourceUsedThresholdWithBE: {enable: true}", FILE)
    assert not loaded.slo.threshold.enable
    assert "inside spec" in loaded.problems[0].limit


def test_every_field_that_koordinator_has_is_known() -> None:
    io = dict.fromkeys(
        [
            "readIOPS", "writeIOPS", "readBPS", "writeBPS", "ioWeightPercent", "readLatency",
            "writeLatency", "readLatencyPercent", "writeLatencyPercent", "modelReadBPS",
            "modelWriteBPS", "modelReadSeqIOPS", "modelWriteSeqIOPS", "modelReadRandIOPS",
            "modelWriteRandIOPS",
        ],
        10,
    )  # fmt: skip
    io_config = {**io, "enableUserModel": True}
    settings = {
        "cpuQOS": {"enable": True, "groupIdentity": 1, "schedIdle": 1, "coreExpeller": True},
        "memoryQOS": {
            "enable": True, "minLimitPercent": 1, "lowLimitPercent": 2, "throttlingPercent": 3,
            "wmarkRatio": 4, "wmarkScalePermill": 5, "wmarkMinAdj": 6, "pageCacheEnable": True,
            "pageCacheLimitPercent": 7, "pageCacheLimitSize": 8, "pageCacheReclaimSync": True,
            "priorityEnable": 1, "priority": 9, "oomKillGroup": 1,
        },
        "blkioQOS": {
            "enable": True,
            "blocks": [{"name": "vg", "type": "volumegroup", "ioCfg": io_config}],
        },
        "resctrlQOS": {
            "enable": True, "catRangeStartPercent": 1, "catRangeEndPercent": 30, "mbaPercent": 50,
        },
        "networkQOS": {
            "enable": True, "ingressRequest": 1, "ingressLimit": "50M", "egressRequest": 2,
            "egressLimit": "1G",
        },
    }  # fmt: skip
    document: dict[str, Any] = {
        "resourceUsedThresholdWithBE": {
            "enable": True, "cpuSuppressThresholdPercent": 60, "cpuSuppressMinPercent": 10,
            "cpuSuppressPolicy": "cfsQuota", "memoryEvictThresholdPercent": 80,
            "memoryEvictLowerPercent": 75, "cpuEvictBEUsageThresholdPercent": 90,
            "cpuEvictBESatisfactionLowerPercent": 40, "cpuEvictBESatisfactionUpperPercent": 50,
            "cpuEvictTimeWindowSeconds": 60, "cpuEvictPolicy": "evictByAllocatable",
            "cpuEvictThresholdPercent": 90, "cpuEvictLowerPercent": 85,
            "evictEnabledPriorityThreshold": 5999, "cpuAllocatableEvictThresholdPercent": 110,
            "cpuAllocatableEvictLowerPercent": 100, "memoryAllocatableEvictThresholdPercent": 110,
            "memoryAllocatableEvictLowerPercent": 100, "allocatableEvictPriorityThreshold": 5999,
        },
        "resourceQOSStrategy": {
            "policies": {"cpuPolicy": "coreSched", "netQOSPolicy": "terway-qos"},
            **dict.fromkeys(
                ["lsrClass", "lsClass", "beClass", "systemClass", "cgroupRoot"], settings
            ),
        },
        "cpuBurstStrategy": {
            "policy": "auto", "cpuBurstPercent": 500, "cfsQuotaBurstPercent": 200,
            "cfsQuotaBurstPeriodSeconds": 60, "sharePoolThresholdPercent": 40,
        },
        "systemStrategy": {
            "minFreeKbytesFactor": 100, "watermarkScaleFactor": 150, "memcgReapBackGround": 1,
            "schedGroupIdentityEnabled": 1, "schedIdleSaverWmark": 5, "pageCacheLimitEnabled": 1,
            "schedFeatures": {"ID_ABSOLUTE_EXPEL": True}, "totalNetworkBandwidth": "10G",
        },
        "hostApplications": [
            {
                "name": "nginx", "priority": "koord-prod", "qos": "LS", "strategy": {},
                "cgroupPath": {
                    "base": "CgroupRoot", "parentDir": "host/", "relativePath": "nginx/",
                },
            }
        ],
        "extensions": {"koordlet": {"lsrExclusive": True}},
    }  # fmt: skip
    loaded = load_nodeslo(json.dumps(document), FILE)
    assert loaded.problems == ()
    assert loaded.slo.extensions.lsr_exclusive
    application = loaded.slo.host_applications[0]
    assert (application.qos, application.priority_class) == (Qos.LS, PriorityClass.PROD)
    assert application.cgroup_path is not None
    assert application.cgroup_path.base is HostCgroupBase.CGROUP_ROOT
    written = to_document(loaded.slo)
    del document["hostApplications"][0]["strategy"]
    assert written == document


# --- strictness


def test_an_unknown_field_is_a_warning_with_the_nearest_name() -> None:
    loaded = load_nodeslo("resourceUsedThresholdWithBE: {cpuSuppressThresholdPct: 50}", FILE)
    assert loaded.slo == DEFAULT_NODESLO
    (problem,) = loaded.problems
    assert problem.severity is Severity.WARNING
    assert problem.where == f"{FILE}: spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPct"
    assert "cpuSuppressThresholdPercent" in problem.remedy


def test_wrong_case_finds_its_name() -> None:
    loaded = load_nodeslo("ResourceUsedThresholdWithBe: {enable: true}", FILE)
    assert "resourceUsedThresholdWithBE" in loaded.problems[0].remedy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("enable", "1"),
        ("enable", "'true'"),
        ("cpuSuppressThresholdPercent", "101"),
        ("cpuSuppressThresholdPercent", "-1"),
        ("cpuSuppressThresholdPercent", "'65'"),
        ("cpuSuppressThresholdPercent", "65.0"),
        ("cpuSuppressThresholdPercent", ".nan"),
        ("cpuSuppressThresholdPercent", ".inf"),
        ("cpuSuppressThresholdPercent", "[65]"),
        ("cpuSuppressThresholdPercent", "2020-01-01"),
        ("cpuSuppressMinPercent", "true"),
        ("cpuSuppressPolicy", "CPUSet"),
        ("cpuEvictTimeWindowSeconds", "0"),
        ("allocatableEvictPriorityThreshold", "8000"),
        ("cpuAllocatableEvictLowerPercent", "1" + "0" * 400),
    ],
)
def test_a_wrong_value_refuses_the_document(field: str, value: str) -> None:
    (problem,) = refused(f"resourceUsedThresholdWithBE: {{{field}: {value}}}")
    assert problem.where == f"{FILE}: spec.resourceUsedThresholdWithBE.{field}"
    assert problem.limit
    assert problem.remedy


def test_all_faults_are_told_at_once_with_their_limits() -> None:
    text = """
    resourceUsedThresholdWithBE: {enable: 1, cpuSuppressThresholdPercent: 120}
    resourceQOSStrategy: {lsClass: {networkQOS: {ingressLimit: 150}}}
    hostApplications: [{qos: LSX}]
    unknown: 3
    """
    problems = refused(text)
    by_place = dict(zip(places(problems), problems, strict=True))
    assert set(by_place) == {
        "spec.unknown",
        "spec.resourceUsedThresholdWithBE.enable",
        "spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent",
        "spec.resourceQOSStrategy.lsClass.networkQOS.ingressLimit",
        "spec.hostApplications[0].name",
        "spec.hostApplications[0].qos",
    }
    percent = by_place["spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent"]
    assert percent.limit == "a whole number from 0 to 100"
    assert "65" in percent.remedy


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("memoryEvictThresholdPercent: 70, memoryEvictLowerPercent: 70", "memoryEvictLower"),
        ("memoryEvictLowerPercent: 80", "memoryEvictLower"),
        ("cpuEvictThresholdPercent: 50, cpuEvictLowerPercent: 60", "cpuEvictLower"),
        (
            "cpuEvictBESatisfactionLowerPercent: 60, cpuEvictBESatisfactionUpperPercent: 50",
            "cpuEvictBESatisfactionLower",
        ),
        (
            "cpuAllocatableEvictThresholdPercent: 100, cpuAllocatableEvictLowerPercent: 110",
            "cpuAllocatableEvictLower",
        ),
        (
            "memoryAllocatableEvictThresholdPercent: 9, memoryAllocatableEvictLowerPercent: 9",
            "memoryAllocatableEvictLower",
        ),
    ],
)
def test_contradictory_pairs_refuse_the_document(given: str, named: str) -> None:
    (problem,) = refused(f"resourceUsedThresholdWithBE: {{{given}}}")
    assert problem.code == "slo-contradiction"
    assert named in problem.where
    assert problem.remedy


def test_a_cache_range_must_not_be_empty() -> None:
    text = "resourceQOSStrategy: {beClass: {resctrlQOS: {enable: true, catRangeStartPercent: 40}}}"
    (problem,) = refused(text)
    assert problem.where.endswith("beClass.resctrlQOS.catRangeStartPercent")
    assert "30" in problem.what


def test_a_be_floor_above_its_ceiling_is_a_warning() -> None:
    text = "resourceUsedThresholdWithBE: {cpuSuppressMinPercent: 70}"
    loaded = load_nodeslo(text, FILE)
    assert loaded.slo.threshold.cpu_suppress_min_percent == 70
    assert [problem.severity for problem in loaded.problems] == [Severity.WARNING]


@pytest.mark.parametrize(
    "text",
    [
        "resourceQOSStrategy: {beClass: {networkQOS: {egressLimit: 50 Mbit}}}",
        "systemStrategy: {totalNetworkBandwidth: '-1'}",
    ],
)
def test_bandwidths_are_quantities(text: str) -> None:
    (problem,) = refused(text)
    assert "quantity" in problem.what


@pytest.mark.parametrize(
    ("application", "place"),
    [
        ("{name: a/b}", "name"),
        ("{name: ..}", "name"),
        ("{name: ''}", "name"),
        ("{name: a, cgroupPath: {relativePath: ../../x}}", "cgroupPath.relativePath"),
        ("{name: a, cgroupPath: {parentDir: x/../..}}", "cgroupPath.parentDir"),
    ],
)
def test_H27_a_host_application_cannot_point_out_of_its_base(application: str, place: str) -> None:
    assert places(refused(f"hostApplications: [{application}]")) == [
        f"spec.hostApplications[0].{place}"
    ]


def test_host_application_names_are_unique() -> None:
    assert places(refused("hostApplications: [{name: a}, {name: a}]")) == [
        "spec.hostApplications[1].name"
    ]


def test_our_own_extensions_are_strict_and_others_are_left_alone() -> None:
    other = load_nodeslo("extensions: {acme: {anything: [1]}}", FILE)
    assert other.problems == ()
    assert other.slo == DEFAULT_NODESLO
    (problem,) = refused("extensions: {koordlet: {lsrExclusiv: true}}")
    assert "lsrExclusive" in problem.remedy


# --- texts


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("- 1", "list"),
        ("just words", "text"),
        ("42", "number"),
        ("spec: 4", "4 is not accepted"),
        ("spec: [", "expected"),
        ("a: 1\n---\nb: 2\n", "single document"),
        ("a: 2020-99-99", "month"),
        ("[" * 50_000, "nested"),
        ('{"a":' * 50_000, "nested"),
        ("a: &x 1\nb: *x", "anchors"),
        ("a: !!python/object/apply:os.system ['true']", "python"),
        ("a: \x00", "special characters"),
        ("? [a]\n: 1", "unhashable"),
    ],
)
def test_what_is_no_document_is_refused(text: str, what: str) -> None:
    (problem,) = refused(text)
    assert what in problem.what


@pytest.mark.parametrize(
    "text",
    [
        "resourceUsedThresholdWithBE: {enable: true}\nresourceUsedThresholdWithBE: {}\n",
        "resourceUsedThresholdWithBE:\n  enable: true\n  enable: false\n",
        '{"spec": {"resourceUsedThresholdWithBE": {"enable": true, "enable": false}}}',
    ],
)
def test_duplicate_keys_are_refused(text: str) -> None:
    (problem,) = refused(text)
    assert problem.code == "document-duplicate-key"
    assert "twice" in problem.what


def test_huge_texts_are_refused() -> None:
    (problem,) = refused("# " + "x" * (1 << 20))
    assert problem.limit == "1 MiB"


def test_a_text_full_of_unknown_fields_is_given_up() -> None:
    problems = refused("".join(f"field{at}: 1\n" for at in range(10_000)))
    assert len(problems) == MAX_PROBLEMS


def test_an_slo_crosses_a_process_boundary() -> None:
    slo: NodeSlo = pickle.loads(pickle.dumps(DEFAULT_NODESLO))
    assert slo == DEFAULT_NODESLO


@pytest.mark.parametrize(
    "text",
    [
        "a: !!bool x",
        "a: !!int ''",
        "a: !!timestamp x",
        "!!map [a]",
        "resourceUsedThresholdWithBE: {enable: {2020-01-01: 1}}",
        "{" * 100_000,
    ],
)
def test_CFG_05_yaml_that_its_own_reader_trips_over_is_refused_with_words(text: str) -> None:
    with pytest.raises(RefusedError) as refused:
        load_nodeslo(text, "slo.yaml")
    assert refused.value.problems[0].code == "document-unreadable"
