"""The pages: read back with prometheus_client's own parser, linted, kept up to date."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from koordlet.metrics.catalog import LABELS, Kind, Page, families
from koordlet.metrics.export import MetricsPage, escape
from koordlet.metrics.readings import (
    FIELDS,
    EntityKey,
    Group,
    Level,
    Readings,
    ReadingsTable,
    Scope,
)
from koordlet.protocol.qos import PriorityClass, Qos
from tests.support.metricsrig import MetricsRig, host_app, pod
from tests.support.promlint import lint

Labels = dict[str, str]
CONTAINER = EntityKey(
    Level.CONTAINER,
    namespace="shop",
    pod="web-1",
    uid="u1",
    container="main",
    container_id="c" * 64,
    qos=Qos.LS,
    priority_class=PriorityClass.PROD,
)


@functools.cache
def samples(page: bytes) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def value(page: bytes, name: str, **labels: str) -> float:
    (found,) = [
        sample.value
        for sample in samples(page).get(name, [])
        if all(sample.labels.get(key) == wanted for key, wanted in labels.items())
    ]
    return found


def table_of(*rows: tuple[EntityKey, Group, dict[str, float]]) -> ReadingsTable:
    table = ReadingsTable()
    keys = {key: index for index, key in enumerate(dict.fromkeys(key for key, _, _ in rows))}
    changed = tuple(
        (keys[key], int(group), tuple(values.get(name) for name in FIELDS[group]))
        for key, group, values in rows
    )
    table.apply(Readings(1, Scope.DELTA, tuple((n, key) for key, n in keys.items()), changed))
    return table


def full_rig() -> MetricsRig:
    rig = MetricsRig("v2")
    rig.add(pod("web", ("app", "sidecar")), pod("batch", ("worker",), qos=Qos.BE))
    rig.apps = (host_app("redis"),)
    rig.make("redis")
    rig.run(15, app=0.5, worker=1.0)
    return rig


def test_every_reading_is_on_the_page_with_its_value() -> None:
    rig = full_rig()
    page = MetricsPage(rig.table, Page.OURS).render()
    for family in families():
        if Page.OURS not in family.pages:
            continue
        for key, values in rig.table.at(family.level):
            for series in family.series:
                labels = dict(series.labels)
                for name, attribute in LABELS[Page.OURS, family.level]:
                    part = getattr(key, attribute)
                    labels[name] = part if isinstance(part, str) else part.value
                if series.field in values:
                    assert value(page, family.name, **labels) == values[series.field]
                else:
                    assert family.name not in samples(page) or not [
                        each for each in samples(page)[family.name] if each.labels == labels
                    ]


@pytest.mark.parametrize("page", list(Page))
def test_no_series_comes_twice_and_families_are_whole(page: Page) -> None:
    text = MetricsPage(full_rig().table, page, node="n1").render().decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    names = [line.rpartition(" ")[0] for line in lines]
    assert names
    assert len(names) == len(set(names))
    heads = [line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    order = [name.partition("{")[0] for name in names]
    assert list(dict.fromkeys(order)) == heads


def test_our_page_passes_promtools_rules() -> None:
    faults = [
        fault
        for family in families()
        if Page.OURS in family.pages
        for fault in lint(
            family.name,
            family.kind.value,
            family.help,
            tuple(name for series in family.series for name, _ in series.labels),
        )
    ]
    assert faults == []


def test_the_rules_find_what_promtool_finds() -> None:
    for name, kind in (
        ("koordlet_resource_update_duration_milliseconds", "histogram"),
        ("koordlet_pod_eviction", "counter"),
        ("koordlet_used_total", "gauge"),
        ("koordlet_cpu_ms", "gauge"),
        ("koordlet_cpuUsage", "gauge"),
        ("koordlet_gauge_cores", "gauge"),
    ):
        assert list(lint(name, kind, "help")), name


def test_counters_are_those_that_end_in_total() -> None:
    for family in families():
        assert (family.kind is Kind.COUNTER) == family.name.endswith("_total"), family.name


def test_names_are_unique_on_each_page() -> None:
    for page in Page:
        names = [family.name for family in families() if page in family.pages]
        assert len(names) == len(set(names))


def test_every_field_named_by_the_table_exists() -> None:
    for family in families():
        for series in family.series:
            assert FIELDS[series.group][series.position] == series.field
            if series.full_field:
                assert series.full_field in FIELDS[series.group]


# -- Koordinator's pages ------------------------------------------------------------------------


def test_koordinators_internal_names_and_labels() -> None:
    rig = full_rig()
    page = MetricsPage(rig.table, Page.INTERNAL, node="node-1").render()
    found = samples(page)
    assert found["koordlet_node_used_cpu_cores"][0].labels == {"node": "node-1"}
    assert found["koordlet_node_used_memory_bytes"][0].value == float(2 << 30)
    usage = {
        each.labels["resource"]: each for each in found["koordlet_host_application_resource_usage"]
    }
    assert usage["cpu"].labels == {
        "node": "node-1",
        "host_application_name": "redis",
        "resource": "cpu",
        "priority_class": "koord-prod",
        "qos": "LS",
    }
    assert usage["memory"].value == 35 << 20


def test_koordinators_psi_in_percent_with_its_labels() -> None:
    table = table_of(
        (
            CONTAINER,
            Group.DETAIL,
            {"cpu_some_ratio": 0.125, "memory_some_ratio": 0.5, "memory_full_ratio": 0.25},
        )
    )
    page = MetricsPage(
        table, Page.EXTERNAL, node="n1", container_id_prefix=lambda: "containerd://"
    ).render()
    some = next(
        each
        for each in samples(page)["koordlet_container_psi"]
        if each.labels["psi_resource_type"] == "cpu"
    )
    assert some.value == 12.5
    assert some.labels == {
        "node": "n1",
        "container_id": "containerd://" + "c" * 64,
        "container_name": "main",
        "pod_uid": "u1",
        "pod_name": "web-1",
        "pod_namespace": "shop",
        "psi_resource_type": "cpu",
        "psi_precision": "avg10",
        "psi_degree": "some",
        "cpu_full_supported": "false",
    }
    full = {"psi_resource_type": "mem", "psi_degree": "full", "cpu_full_supported": "true"}
    assert value(page, "koordlet_container_psi", **full) == 25.0


# -- keeping up ---------------------------------------------------------------------------------


def test_series_of_what_is_gone_leave_at_the_next_scrape() -> None:
    rig = full_rig()
    page = MetricsPage(rig.table, Page.OURS)
    assert b'pod="batch"' in page.render()
    rig.pods = rig.pods[:1]
    rig.run()
    text = page.render()
    assert b'pod="batch"' not in text
    assert b'container="worker"' not in text
    assert b'pod="web"' in text


def test_OPS_03_pages_do_not_grow_with_churn() -> None:
    rig = full_rig()
    page = MetricsPage(rig.table, Page.OURS)
    lasting = rig.pods
    lines = []
    for batch in range(5):
        rig.pods = (*lasting, pod(f"short{batch}", [f"c{batch}-{n}" for n in range(100)]))
        rig.run()
        page.render()
        rig.pods = lasting
        rig.run()
        page.render()
        lines.append((len(page._labels), sum(len(each.kept) for each in page._all)))
    assert len(set(lines)) == 1


def test_a_page_that_was_kept_says_the_same_as_a_fresh_one() -> None:
    rig = full_rig()
    kept = MetricsPage(rig.table, Page.OURS)
    for step in range(12):
        rig.run(1, app=0.1 * step, worker=0.3)
        if step == 4:
            rig.pods = (replace(rig.pods[0], qos=Qos.LSR), rig.pods[1])
        if step == 8:
            rig.add(pod("late", ("third",)))
        fresh = MetricsPage(rig.table, Page.OURS).render()
        assert sorted(kept.render().splitlines()) == sorted(fresh.splitlines())


def test_a_value_that_is_missing_is_absent_not_zero() -> None:
    table = table_of(
        (CONTAINER, Group.CPU, {"used_cpu_cores": 0.5, "cpu_usage_seconds_total": 7.0})
    )
    page = MetricsPage(table, Page.OURS)
    assert value(page.render(), "koordlet_container_used_cpu_cores") == 0.5
    table.apply(Readings(2, changed=((0, int(Group.CPU), (None, None)),)))
    assert page.render() == b""


def test_H10_two_scrapes_of_one_tick_render_once() -> None:
    rig = full_rig()
    page = MetricsPage(rig.table, Page.OURS)
    page.render()
    body = page._body
    page.render()
    assert page._body is body
    rig.run(1, app=0.25)
    page.render()
    assert page._body is not body


def test_per_container_series_can_be_switched_off() -> None:
    rig = full_rig()
    for page in (Page.OURS, Page.EXTERNAL):
        text = MetricsPage(rig.table, page, container_metrics=False).render()
        assert b"koordlet_container_" not in text
        assert b"koordlet_pod_" in text


def test_a_restarted_core_begins_anew() -> None:
    rig = full_rig()
    page = MetricsPage(rig.table, Page.OURS)
    page.render()
    restarted = MetricsRig("v2")
    restarted.add(pod("other", ("only",)))
    restarted.run(3)
    rig.table.apply(restarted.collector.readings(1, Scope.WHOLE))
    text = page.render()
    assert b'pod="other"' in text
    assert b'pod="web"' not in text


def test_label_values_are_escaped_by_the_rules_of_the_format() -> None:
    odd = 'back\\slash "quoted"\nnew line {brace} ünï'
    key = EntityKey(Level.APP, name=odd, qos=Qos.BE, priority_class=PriorityClass.BATCH)
    table = table_of((key, Group.CPU, {"used_cpu_cores": 1.0}))
    page = MetricsPage(table, Page.OURS).render()
    assert value(page, "koordlet_host_application_used_cpu_cores", application=odd) == 1.0
    assert escape('a"b') == 'a\\"b'


def test_lines_about_koordlet_follow() -> None:
    page = MetricsPage(ReadingsTable(), Page.OURS, process=lambda: b"koordlet_ticks_total 1\n")
    assert page.render() == b"koordlet_ticks_total 1\n"


def test_values_for_an_entity_whose_key_never_came_are_dropped() -> None:
    table = ReadingsTable()
    table.apply(Readings(1, changed=((7, int(Group.CPU), (1.0, 1.0)),)))
    assert table.entities == {}
