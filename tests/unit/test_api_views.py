"""Views: every answer of every kind of host follows its published schema, and says what it must."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import fastjsonschema
import pytest

from koordlet.api.views.common import envelope, iso_time, number
from koordlet.api.views.doctor import doctor_data
from koordlet.api.views.explain import NoSuchTargetError, explain_data
from koordlet.api.views.metrics import metrics_data
from koordlet.api.views.modes import modes_data
from koordlet.api.views.plan import plan_data
from koordlet.api.views.pods import pods_data
from koordlet.api.views.scopes import owned_in_scope, resolve_released, resolve_scope
from koordlet.api.views.slo import slo_check_data, slo_data, slo_defaults_data
from koordlet.api.views.status import status_data, view_problems
from koordlet.api.views.ticks import ticks_data
from koordlet.api.views.undo import undo_data, would_restore
from koordlet.model.actions import Outcome, Plan, Status
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import AppBackend, BeRoot
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import DEFAULT_NODESLO
from koordlet.protocol.nodeslo_schema import load_nodeslo
from koordlet.protocol.problem import Problem, RefusedError
from koordlet.protocol.qos import Qos
from koordlet.report import CoreStatus, NodeView, SourceState, SourceStatus
from tests.support import genschema, views

Shape = Callable[[NodeView], Any]
BY_COMMAND: dict[str, Shape] = {
    "status": status_data,
    "doctor": doctor_data,
    "pods": pods_data,
    "metrics": metrics_data,
    "plan": plan_data,
    "slo": slo_data,
    "ticks": ticks_data,
    "modes": modes_data,
}
TIER_FILE = views.file_path(views.TIER_QUOTA)


@cache
def validator(command: str) -> Callable[[object], object]:
    """A check that also refuses fields that the schema does not name."""
    check: Callable[[object], object] = fastjsonschema.compile(
        genschema.closed(genschema.schema_of(command))
    )
    return check


def follows_schema(command: str, data: object, view: NodeView) -> None:
    """Raises where ``data`` in its envelope breaks the schema, or has a field it does not name."""
    body = envelope(command, data, node=view.node, taken_wall_s=view.taken_wall_s)
    document = json.loads(json.dumps(body, allow_nan=False))
    validator(command)(document)


@pytest.mark.parametrize("command", BY_COMMAND)
@pytest.mark.parametrize("kind", views.ALL_VIEWS)
def test_every_answer_follows_its_schema(kind: str, command: str) -> None:
    view = views.ALL_VIEWS[kind]()
    follows_schema(command, BY_COMMAND[command](view), view)


@pytest.mark.parametrize("kind", views.ALL_VIEWS)
def test_explain_follows_its_schema_for_all_that_is_known(kind: str) -> None:
    view = views.ALL_VIEWS[kind]()
    pods = pods_data(view)
    targets = [*view.paths.values()]
    if isinstance(pods["pods"], list):
        targets += [pod["uid"] for pod in pods["pods"]]
    if isinstance(pods["host_applications"], list):
        targets += [app["name"] for app in pods["host_applications"]]
    for target in targets:
        follows_schema("explain", explain_data(view, target), view)


def test_the_schema_check_can_fail() -> None:
    view = views.node_view()
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        follows_schema("ticks", {"ticks": [], "core_age_s": "soon"}, view)
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        follows_schema("ticks", {"ticks": [], "core_age_s": 1.0, "extra": 1}, view)


def test_unknown_is_never_zero_and_json_has_no_nan() -> None:
    data = status_data(views.everything_missing())
    assert data["usage"]["used_cpu_cores"] == {
        "missing": "not measured yet, or not measurable here"
    }
    assert data["node"] == {"missing": "nothing has answered yet"}
    assert data["floor_bound"] == {"missing": "nothing has answered yet"}
    assert number(float("nan")) == {"missing": "not a finite number"}
    assert number(float("inf")) == {"missing": "not a finite number"}
    assert number(Missing("why")) == {"missing": "why"}


def test_times_are_utc_with_milliseconds() -> None:
    assert iso_time(views.WALL_S + 0.25) == "2026-01-01T00:00:00.250Z"


# -- status ---------------------------------------------------------------------------------------


def test_status_shows_budget_terms_in_order_and_be_roots_with_quota_and_use() -> None:
    data = status_data(views.node_view())
    assert [term["name"] for term in data["budget"]][:3] == [
        "capacity_cores",
        "threshold_percent",
        "nonbe_pods_cores",
    ]
    roots = {root["cgroup"]: root for root in data["be_roots"]}
    tier = roots["kubepods/besteffort"]
    assert (tier["quota_cores"], tier["used_cpu_cores"]) == (0.8, 0.8)
    assert roots["host-best-effort/encoder"]["claimed_by"] == "encoder"
    assert data["marked"] == {
        "pods": 3,
        "pods_marked": 2,
        "pods_refused": 1,
        "pods_by_qos": {"LS": 2, "BE": 1},
        "host_applications": 1,
    }


def test_a_root_with_an_unlimited_quota_has_null_and_an_unknown_period_says_so() -> None:
    view = views.node_view()
    unlimited = replace(views.quota(views.TIER_QUOTA, 1), value=None)
    vague = replace(views.quota(views.ENCODER_QUOTA, 40_000), terms=())
    view = replace(view, plan=Plan(writes=(unlimited, vague)))
    roots = {root["cgroup"]: root for root in status_data(view)["be_roots"]}
    assert roots["kubepods/besteffort"]["quota_cores"] is None
    assert roots["host-best-effort/encoder"]["quota_cores"] == {
        "missing": "the cfs period is not known"
    }


def test_status_says_that_the_core_is_silent_and_for_how_long() -> None:
    view = views.core_gone()
    data = status_data(view)
    assert "missing" not in data["core"]
    assert data["core"]["silent"] is True  # type: ignore[typeddict-item]
    problem = view_problems(view)[0]
    assert problem.code == "core-silent"
    assert "31 s" in problem.what
    assert problem.limit
    assert problem.remedy


def test_status_names_holds_with_their_age_and_what_was_released() -> None:
    data = status_data(views.observing())
    assert data["held"] == [
        {"owner": "cpu_suppress", "why": "the use of this node is not known", "age_s": 12.5}
    ]
    assert data["released"] == ["owner:be_priority"]
    assert [strategy["mode"] for strategy in data["strategies"]] == ["enforce", "observe"]
    assert data["strategies"][1]["mode_until"] == "2026-01-01T00:30:00.000Z"


def test_each_problem_is_told_once() -> None:
    view = views.node_view()
    note = Problem("x", "here", "twice")
    core = replace(
        views.core_status(),
        problems=(note,),
        strategies=tuple(replace(s, notes=(note,)) for s in views.strategies()),
    )
    codes = [problem.code for problem in view_problems(replace(view, core=core))]
    assert codes.count("x") == 1


@pytest.mark.parametrize(
    ("view", "code"),
    [
        (views.no_workloads(), "nothing-marked"),
        (replace(views.node_view(), slo=replace(views.slo_status(), slo=DEFAULT_NODESLO)), ""),
        (views.observing(), "released"),
        (replace(views.node_view(), core=replace(views.core_status(), dry_run=True)), "dry-run"),
    ],
)
def test_hints_say_what_to_do_next(view: NodeView, code: str) -> None:
    hints = status_data(view)["hints"]
    assert [hint["code"] for hint in hints] == ([code] if code else [])
    assert all(hint["remedy"] for hint in hints)


def test_nothing_marked_tells_the_label_and_the_file_to_write() -> None:
    (hint,) = status_data(views.no_workloads())["hints"]
    assert "koordinator.sh/qosClass: BE" in hint["remedy"]
    assert "/etc/koordlet/hostapps.d/batch.yaml" in hint["remedy"]


def test_marked_latency_sensitive_work_alone_is_told_apart() -> None:
    whole = views.workloads()
    only_ls = replace(whole, pods=whole.known_pods()[:1], apps=())
    hints = status_data(replace(views.node_view(), workloads=only_ls))["hints"]
    assert [hint["code"] for hint in hints] == ["no-be-marked"]


def test_an_slo_that_switches_nothing_on_is_hinted_at() -> None:
    off = tuple(replace(strategy, enabled=False) for strategy in views.strategies())
    view = replace(views.node_view(), core=replace(views.core_status(), strategies=off))
    assert [hint["code"] for hint in status_data(view)["hints"]] == ["slo-all-off"]
    assert isinstance(view.core, CoreStatus)
    waiting = replace(view, core=replace(view.core, waiting_for=("two valid samples",)))
    assert not status_data(waiting)["hints"]


# -- pods -----------------------------------------------------------------------------------------


def test_H26_a_refused_claim_is_shown_with_its_reason() -> None:
    pods = pods_data(views.node_view())["pods"]
    assert isinstance(pods, list)
    liar = next(pod for pod in pods if pod["name"] == "liar-1")
    assert liar["qos"]["effective"] == "LS"
    assert liar["qos"]["claim"] == "LSR"
    assert liar["qos"]["source"] == "refused by policy"
    assert "Guaranteed" in liar["qos"]["refused"]


def test_H13_unknown_requests_are_unknown_and_unset_limits_are_null() -> None:
    whole = views.workloads()
    known, *_ = whole.known_pods()
    blank = replace(known, record=replace(known.record, resources_source=views.ValueSource.UNKNOWN))
    blank = replace(
        blank, record=replace(blank.record, requests=views.Resources(), limits=views.Resources())
    )
    view = replace(views.node_view(), workloads=replace(whole, pods=(known, blank)))
    pods = pods_data(view)["pods"]
    assert isinstance(pods, list)
    assert pods[0]["limits"]["cpu_milli"] is None
    assert pods[0]["limits"]["memory_bytes"] == 512 << 20
    assert pods[1]["limits"]["cpu_milli"] == {"missing": "no source tells it"}


def test_pods_tell_use_and_what_is_done_to_them() -> None:
    pods = pods_data(views.node_view())["pods"]
    assert isinstance(pods, list)
    batch = next(pod for pod in pods if pod["name"] == "batch-1")
    assert batch["governed_by"] == "kubepods/besteffort"
    assert batch["usage"]["used_cpu_cores"] == 0.8
    assert [touch["knob"] for touch in batch["settings"]] == ["cpu.idle", "cpu.shares", "cpu.quota"]
    web = next(pod for pod in pods if pod["name"] == "web-1")
    assert web["governed_by"] is None


def test_a_pod_without_a_cgroup_says_why() -> None:
    whole = views.workloads()
    lost = replace(whole.known_pods()[0], cgroup=Missing("no directory of any spelling"))
    view = replace(views.node_view(), workloads=replace(whole, pods=(lost,)))
    pods = pods_data(view)["pods"]
    assert isinstance(pods, list)
    assert pods[0]["cgroup"] == {"missing": "no directory of any spelling"}
    assert pods[0]["settings"] == []


def test_five_hundred_pods_are_shown_in_time_proportional_to_them() -> None:
    whole = views.workloads()
    one = whole.known_pods()[1]
    many = tuple(
        replace(one, cgroup=CgroupPath(f"kubepods/besteffort/pod{number}")) for number in range(500)
    )
    owned = tuple(
        replace(views.owned()[3], target=CgroupPath(f"kubepods/besteffort/pod{number}"))
        for number in range(500)
    )
    view = replace(views.node_view(), workloads=replace(whole, pods=many), owned=owned)
    pods = pods_data(view)["pods"]
    assert isinstance(pods, list)
    assert all(len(pod["settings"]) == 1 for pod in pods)


# -- plan and explain -----------------------------------------------------------------------------


def states(view: NodeView) -> dict[str, str]:
    return {
        str(entry["file"]): entry["state"]
        for entry in plan_data(view)["settings"]
        if isinstance(entry["file"], str)
    }


def test_plan_tells_the_state_of_every_file() -> None:
    found = states(views.node_view())
    assert found[TIER_FILE] == "in-force"
    assert found[views.file_path(views.ENCODER_QUOTA)] == "refused"
    assert found[views.file_path(views.HELD)] == "held"
    assert found[views.file_path((views.WEB, Knob.CPU_QUOTA))] == "struck"
    assert not any("podgone" in file for file in found)


def test_plan_without_a_daemon_shows_what_would_be_written() -> None:
    view = views.node_view()
    core = replace(views.core_status(), dry_run=True)
    dry = replace(view, core=core, owned=(), outcomes={})
    assert states(dry)[TIER_FILE] == "planned"
    assert plan_data(dry)["dry_run"] is True
    assert states(views.observing()) == {TIER_FILE: "would"}


def test_explain_file_tells_original_present_owner_age_reason_and_terms_in_order() -> None:
    (subject,) = explain_data(views.node_view(), TIER_FILE)["subjects"]
    (setting,) = subject["settings"]
    assert setting["original"] == "-1"
    assert setting["last_written"] == "80000"
    assert setting["present"] == "80000"
    assert setting["owner"] == "cpu_suppress"
    assert setting["age_s"] == 120.0
    assert setting["reason"].startswith("BE may use 1.20 of 4 cores")
    names = [term["name"] for term in setting["terms"]]
    assert names == [name for name, _ in views.quota(views.TIER_QUOTA, 80_000).terms]
    assert setting["conflicts"] == [
        "cpu_suppress wants 80000 us and wins over cpu_burst with unlimited:"
        " protection before benefit"
    ]


@pytest.mark.parametrize(
    "target",
    [
        "default/batch-1",
        "batch-1",
        "22222222",
        "22222222-aaaa-bbbb-cccc-000000000002",
        "cccc",
        "containerd://" + "c" * 64,
    ],
)
def test_explain_finds_a_pod_by_any_of_its_names(target: str) -> None:
    (subject,) = explain_data(views.node_view(), target)["subjects"]
    assert (subject["kind"], subject["name"]) == ("pod", "default/batch-1")
    assert [entry["knob"] for entry in subject["above"]] == ["cpu.quota", "cpu.shares"]


def test_explain_tells_the_refusal_of_a_claim_as_a_sentence() -> None:
    (subject,) = explain_data(views.node_view(), "default/liar-1")["subjects"]
    assert "refused" in subject["sentence"]
    assert "Guaranteed" in subject["sentence"]


def test_explain_knows_host_applications_strategies_cgroups_and_directories() -> None:
    view = views.node_view()
    kinds = {
        target: explain_data(view, target)["subjects"][0]["kind"]
        for target in (
            "encoder",
            "cpu_suppress",
            "kubepods/besteffort",
            "/sys/fs/cgroup/cpu/kubepods/besteffort/",
        )
    }
    assert list(kinds.values()) == ["host-application", "strategy", "cgroup", "file"]


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("defualt/batch-1", "target-unknown"),
        ("ccc", "target-unknown"),
        ("/sys/fs/cgroup/cpu/system.slice/cpu.shares", "file-not-managed"),
        ("5555", "target-ambiguous"),
    ],
)
def test_explain_of_nothing_says_what_could_be_meant(target: str, code: str) -> None:
    with pytest.raises(NoSuchTargetError) as caught:
        explain_data(views.node_view(), target)
    problem = caught.value.problem
    assert problem.code == code
    assert problem.where == target
    assert problem.remedy


def test_explain_suggests_the_nearest_name() -> None:
    with pytest.raises(NoSuchTargetError, match="did you mean default/batch-1"):
        explain_data(views.node_view(), "defualt/batch-1")


def test_explain_shows_both_pods_of_one_name() -> None:
    whole = views.workloads()
    first = whole.known_pods()[0]
    second = replace(first, record=replace(first.record, uid="other", api_uid="other"))
    view = replace(views.node_view(), workloads=replace(whole, pods=(first, second)))
    assert len(explain_data(view, "default/web-1")["subjects"]) == 2


def test_an_age_without_a_clock_is_unknown() -> None:
    view = replace(views.node_view(), taken_s=None)
    (subject,) = explain_data(view, TIER_FILE)["subjects"]
    assert subject["settings"][0]["age_s"] == {"missing": "no clock came with this view"}


def test_an_age_from_before_a_takeover_is_unknown() -> None:
    view = views.node_view()
    taken_over = replace(view.owned[0], since_s=-1.0)
    (subject,) = explain_data(replace(view, owned=(taken_over,)), TIER_FILE)["subjects"]
    assert subject["settings"][0]["age_s"] == {"missing": "an earlier run wrote it"}


def test_a_gone_cgroup_has_no_present_value() -> None:
    view = views.node_view()
    gone = replace(view.outcomes[views.TIER_QUOTA], status=Status.GONE)
    view = replace(view, outcomes={views.TIER_QUOTA: gone})
    (subject,) = explain_data(view, TIER_FILE)["subjects"]
    assert subject["settings"][0]["present"] == {"missing": "the cgroup is gone"}


# -- doctor ---------------------------------------------------------------------------------------


def test_H25_doctor_tells_what_does_not_work_why_and_the_remedy() -> None:
    data = doctor_data(views.node_view())
    assert isinstance(data["capabilities"], list)
    idle = next(entry for entry in data["capabilities"] if entry["name"] == "cpu.idle")
    assert (idle["works"], idle["proof"]) == (False, "absent")
    assert idle["why"]
    assert idle["remedy"]
    assert idle["needed_by"] == ["be_priority"]
    assert data["missing_needed"] == ["cpu.idle"]


def test_doctor_needs_nothing_while_the_slo_is_off() -> None:
    view = replace(views.node_view(), slo=replace(views.slo_status(), slo=DEFAULT_NODESLO))
    assert doctor_data(view)["missing_needed"] == []


def test_doctor_names_a_needed_knob_that_was_never_probed() -> None:
    view = views.node_view()
    assert not isinstance(view.capabilities, Missing)
    view = replace(view, capabilities=replace(view.capabilities, knobs={}))
    assert doctor_data(view)["missing_needed"] == ["cpu.shares", "cpu.quota", "cpu.idle"]


def test_H04_doctor_names_the_limit_of_cfs_quota_on_v1_only_where_it_applies() -> None:
    view = views.node_view()
    codes = [warning["code"] for warning in doctor_data(view)["warnings"]]
    assert codes == ["cfs-quota-new-containers"]
    assert not isinstance(view.capabilities, Missing)
    v2 = replace(view, capabilities=replace(view.capabilities, others={}))
    assert doctor_data(v2)["warnings"] == []
    off = replace(view, slo=replace(views.slo_status(), slo=DEFAULT_NODESLO))
    assert doctor_data(off)["warnings"] == []


def test_H07_doctor_warns_of_old_kubelets_where_there_is_a_kubelet() -> None:
    view = views.node_view()
    kubelet = SourceStatus("kubelet", SourceState.OK, "https://127.0.0.1:10250/pods", 1.0)
    codes = [entry["code"] for entry in doctor_data(replace(view, sources=(kubelet,)))["warnings"]]
    assert codes == ["cfs-quota-new-containers", "kubelet-resize"]


# -- slo ------------------------------------------------------------------------------------------


def test_slo_lists_what_differs_from_the_defaults() -> None:
    data = slo_data(views.node_view())
    assert "resourceUsedThresholdWithBE.enable" in data["changed"]
    assert "resourceUsedThresholdWithBE.cpuSuppressPolicy" in data["changed"]
    assert "resourceUsedThresholdWithBE.cpuSuppressThresholdPercent" not in data["changed"]
    assert [warning["code"] for warning in data["warnings"]] == ["nodeslo-unknown-field"]


def test_slo_check_tells_clean_warnings_and_refused_apart() -> None:
    view = views.node_view()
    clean = slo_check_data("x", load_nodeslo("{}", "x"))
    odd = slo_check_data("x", load_nodeslo("{resourceUsedThresholdWithBE: {enabel: true}}", "x"))
    with pytest.raises(RefusedError) as refusal:
        load_nodeslo("{resourceUsedThresholdWithBE: {enable: 7}}", "x")
    refused = slo_check_data("x", refusal.value.problems)
    assert [data["verdict"] for data in (clean, odd, refused)] == ["clean", "warnings", "refused"]
    assert refused["document"] is None
    for data in (clean, odd, refused):
        follows_schema("slo-check", data, view)
    follows_schema("slo-defaults", slo_defaults_data(), view)
    assert clean["changed"] == []


# -- undo and scopes ------------------------------------------------------------------------------


def test_undo_counts_what_was_restored_left_failed_and_pending() -> None:
    statuses = [Status.RESTORED, Status.UNCHANGED, Status.GONE, Status.FOREIGN, Status.REFUSED]
    outcomes = [
        Outcome(*views.TIER_QUOTA, "cpu_suppress", status)
        for status in (*statuses, Status.PENDING, Status.UNSUPPORTED)
    ]
    data = undo_data(outcomes, views.node_view().paths, done_by="journal")
    assert (data["restored"], data["gone"], data["left"]) == (2, 1, 1)
    assert (data["failed"], data["pending"]) == (2, 1)
    assert data["files"][0]["file"] == TIER_FILE
    follows_schema("rollback", data, views.node_view())


def test_a_dry_run_restores_nothing_and_shows_the_originals() -> None:
    data = undo_data(would_restore(views.owned()), {}, done_by="daemon", dry_run=True)
    assert data["restored"] == 0
    assert {entry["outcome"] for entry in data["files"]} == {"dry-run"}
    assert data["files"][0]["after"] == "-1"
    assert data["files"][0]["file"] == {"missing": "the cgroup is gone"}


@pytest.mark.parametrize(
    ("text", "scope", "count"),
    [
        ("", "all", 7),
        ("all", "all", 7),
        ("cpu_suppress", "owner:cpu_suppress", 3),
        ("owner:be_priority", "owner:be_priority", 4),
        ("default/batch-1", "pod:22222222-aaaa-bbbb-cccc-000000000002", 3),
        ("pod:batch-1", "pod:22222222-aaaa-bbbb-cccc-000000000002", 3),
        (TIER_FILE, f"file:{TIER_FILE}", 1),
        (f"file:{TIER_FILE}", f"file:{TIER_FILE}", 1),
    ],
)
def test_scopes_are_what_a_person_writes(text: str, scope: str, count: int) -> None:
    view = views.node_view()
    assert resolve_scope(view, text) == scope
    assert len(owned_in_scope(view, scope)) == count


@pytest.mark.parametrize("text", ["owner:nobody", "pod:nobody", "nobody", "file:relative"])
def test_a_scope_that_names_nothing_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(RefusedError, match="owner:STRATEGY"):
        resolve_scope(views.node_view(), text)


def test_a_release_of_a_pod_that_left_can_be_taken_back() -> None:
    view = views.node_view()
    core = replace(views.core_status(), released=("pod:gone-uid",))
    view = replace(view, core=core)
    assert resolve_released(view, "gone-uid") == "pod:gone-uid"
    assert resolve_released(view, "pod:gone-uid") == "pod:gone-uid"


def test_H06_a_unit_root_is_shown_as_not_writable() -> None:
    view = views.node_view()
    unit = CgroupPath("system.slice/job.service")
    app = replace(
        views.workloads().apps[0],
        name="job",
        cgroup=unit,
        backend=AppBackend.SYSTEMD_UNIT,
        systemd_unit="job.service",
        qos=Qos.BE,
        unwritable="PID 1 is not systemd (init)",
    )
    core = replace(views.core_status(), be_roots=(BeRoot(unit, "job", app.unwritable),))
    view = replace(view, core=core, workloads=replace(views.workloads(), apps=(app,)))
    (root,) = status_data(view)["be_roots"]
    assert root["writable"] is False
    assert root["used_cpu_cores"] == {"missing": "not measured yet"}
    apps = pods_data(view)["host_applications"]
    assert isinstance(apps, list)
    assert (apps[0]["backend"], apps[0]["systemd_unit"]) == ("systemd-unit", "job.service")


def test_schema_files_are_up_to_date() -> None:
    assert genschema.stale_files() == []
