"""H27: what hook servers may set, whatever they answer; and the files that name them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from koordpb import cri_v1_pb2 as cri_pb
from koordpb import hooks_v1alpha1_pb2 as pb

from koordlet.protocol.problem import RefusedError
from runtimeproxy.cri.questions import CreateQuestion, PodQuestion
from runtimeproxy.hooks.answers import Area, judge_container, parent_objection
from runtimeproxy.hooks.client import FAILURES_TO_OPEN, FIRST_REST_S, LAST_REST_S, Breaker
from runtimeproxy.hooks.files import HookDirectory, parse_server
from runtimeproxy.hooks.stages import Policy, Stage
from tests.support.rawruntime import pod_config

UID = "0a1b2c3d-0000-4000-8000-000000000001"
OTHER = "99999999-0000-4000-8000-000000000009"
SLICE = f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("asked", "wanted"),
    (
        (f"/kubepods/burstable/pod{UID}", f"/kubepods/burstable/pod{UID}/inner"),
        (f"/kubepods/burstable/pod{UID}", "/kubepods/burstable/group/x"),
        (f"/kubepods/pod{UID}", f"/kubepods/pod{UID}/a"),
        (SLICE, SLICE),
        (SLICE, "kubepods-burstable-group.slice"),
        (SLICE, SLICE.replace(".slice", "-inner.slice")),
        (f"/kubepods.slice/{SLICE}", f"/kubepods.slice/{SLICE}"),
    ),
)
def test_POD_03_a_place_in_the_pods_own_tier_is_accepted(asked: str, wanted: str) -> None:
    assert parent_objection(asked, wanted, UID) == ""


@pytest.mark.parametrize(
    ("asked", "wanted"),
    (
        ("", "/anything"),
        (f"/kubepods/burstable/pod{UID}", SLICE),
        (f"/kubepods/burstable/pod{UID}", f"/kubepods/burstable/pod{OTHER}"),
        (f"/kubepods/burstable/pod{UID}", f"/kubepods/burstable/group/pod{OTHER}"),
        (f"/kubepods/burstable/pod{UID}", "/kubepods/burstablefake/x"),
        (f"/kubepods/burstable/pod{UID}", "/kubepods/burstable/./x"),
        (f"/kubepods/burstable/pod{UID}", "/kubepods/burstable/x\0"),
        (f"/kubepods/burstable/pod{UID}", "/kubepods/burstable/x/"),
        (f"/kubepods/pod{UID}", "/kubepods/besteffort/x"),
        (f"/kubepods/pod{UID}", "/kubepods/burstable/x"),
        (SLICE, f"/kubepods/burstable/pod{UID}"),
        (SLICE, "system-x.slice"),
        (SLICE, "kubepods-besteffort-x.slice"),
        (SLICE, f"kubepods-burstable-pod{OTHER.replace('-', '_')}.slice"),
        (SLICE, "kubepods-burstable-.slice"),
        (SLICE, "kubepods-burstable--x.slice"),
        (SLICE, "../kubepods-burstable-x.slice"),
        (SLICE, "kubepods-burstable-x.scope"),
        ("kubepods-podu.slice", "kubepods-besteffort-x.slice"),
    ),
)
def test_POD_08_a_foreign_or_broken_place_is_refused(asked: str, wanted: str) -> None:
    assert parent_objection(asked, wanted, UID)


@given(st.text(max_size=60), st.sampled_from((f"/kubepods/burstable/pod{UID}", SLICE)))
def test_H27_no_text_leads_out_of_the_tier(wanted: str, asked: str) -> None:
    if parent_objection(asked, wanted, UID) == "":
        start = "/kubepods/burstable/" if asked.startswith("/") else "kubepods-burstable-"
        assert wanted.startswith(start)
        assert ".." not in wanted and "\0" not in wanted


@given(st.binary(max_size=80))
def test_H27_no_answer_breaks_a_request(answer: bytes) -> None:
    request = cri_pb.CreateContainerRequest(
        config=cri_pb.ContainerConfig(envs=[cri_pb.KeyValue(key="PATH", value=b"/bin")]),
        sandbox_config=pod_config(uid=UID),
    )
    question = CreateQuestion(None, request)
    pod = PodQuestion(pod_config(uid=UID), "")
    for asking in (question, pod):
        try:
            judged = asking.judge(answer)
        except DecodeError:
            continue
        for change in judged.accepted:
            asking.apply(change)
    assert request.config.envs[0].value == b"/bin"
    cri_pb.CreateContainerRequest.FromString(request.SerializeToString())


def test_what_equals_the_question_or_is_at_its_default_is_no_change() -> None:
    asked = pb.ContainerResourceHookRequest(
        container_envs={"A": "1"},
        container_resources=pb.LinuxContainerResources(cpu_quota=7, cpuset_cpus="0"),
    )
    same = pb.ContainerResourceHookResponse(
        container_envs={"A": "1"}, container_resources=asked.container_resources
    )
    for answer in (same, pb.ContainerResourceHookResponse()):
        judged = judge_container(asked, answer)
        assert judged.accepted == judged.refused == ()


def test_unlimited_is_a_value() -> None:
    answer = pb.ContainerResourceHookResponse(
        container_resources=pb.LinuxContainerResources(
            cpu_quota=-1, memory_swap_limit_in_bytes=-1, memory_limit_in_bytes=-1
        )
    )
    judged = judge_container(pb.ContainerResourceHookRequest(), answer)
    assert {change.key for change in judged.accepted} == {
        "cpu_quota",
        "memory_swap_limit_in_bytes",
    }
    assert [change.key for change, _ in judged.refused] == ["memory_limit_in_bytes"]


def test_values_of_variables_do_not_reach_the_log() -> None:
    answer = pb.ContainerResourceHookResponse(container_envs={"TOKEN": "secret"})
    change = judge_container(pb.ContainerResourceHookRequest(), answer).accepted[0]
    assert change.area is Area.ENVS and "secret" not in str(change)


# -- the breaker -----------------------------------------------------------------------------------


def test_a_server_that_fails_again_and_again_rests_longer_and_recovers_at_once() -> None:
    now_s = [0.0]
    breaker = Breaker(lambda: now_s[0])
    for _ in range(FAILURES_TO_OPEN):
        assert not breaker.open
        breaker.failed()
    assert breaker.open
    now_s[0] += FIRST_REST_S
    assert not breaker.open, "one call tries again"
    for _ in range(10):
        breaker.failed()
    now_s[0] += LAST_REST_S - 0.01
    assert breaker.open
    now_s[0] += 0.02
    assert not breaker.open
    breaker.succeeded()
    breaker.failed()
    assert not breaker.open


# -- files -----------------------------------------------------------------------------------------


def text(**more: object) -> bytes:
    document = {"remote-endpoint": "/run/x.sock", "runtime-hooks": ["PreRunPodSandbox"], **more}
    return json.dumps(document).encode()


def test_a_file_as_koordlet_writes_it() -> None:
    names = [*(stage.value for stage in Stage), "PreRemoveRunPodSandbox"]
    content = text(**{"failure-policy": "Fail", "runtime-hooks": names})
    server, notes = parse_server("koordlet.json", content, "koordlet.json")
    assert (server.name, server.policy, server.socket) == (
        "koordlet",
        Policy.FAIL,
        Path("/run/x.sock"),
    )
    assert server.stages == frozenset(Stage) and notes == ()


def test_oddities_are_told_and_tolerated() -> None:
    odd = {"failure-policy": "fail", "remote_endpoint": "x", "runtime-hooks": ["PreStart"]}
    server, notes = parse_server("a.json", text(**odd), "a.json")
    assert server.policy is Policy.IGNORE and not server.stages
    assert {note.code for note in notes} == {
        "hook-file-policy",
        "hook-file-unknown-key",
        "hook-file-unknown-stage",
    }


@pytest.mark.parametrize(
    "content",
    (
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"runtime-hooks": []}',
        text(**{"remote-endpoint": "relative.sock"}),
        text(**{"remote-endpoint": 7}),
        text(**{"remote-endpoint": "/" + "x" * 108}),
        text(**{"runtime-hooks": "PreRunPodSandbox"}),
    ),
)
def test_what_is_no_hook_server_is_refused_with_a_reason(content: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        parse_server("a.json", content, "a.json")
    assert caught.value.problems[0].remedy


@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(("remote-endpoint", "failure-policy", "runtime-hooks")), inner
    ),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_no_file_breaks_anything(content: bytes) -> None:
    try:
        parse_server("a.json", content, "a.json")
    except RefusedError as refusal:
        assert refusal.problems


def test_a_truncated_file_keeps_what_it_said(tmp_path: Path) -> None:
    directory = HookDirectory(tmp_path)
    path = tmp_path / "a.json"
    whole = text()
    path.write_bytes(whole)
    path.chmod(0o644)
    (before,) = directory.servers()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert directory.servers() == (before,)
        assert directory.problems
    path.write_bytes(whole)
    assert directory.servers() == (before,) and not directory.problems
    path.unlink()
    assert directory.servers() == ()


def test_names_order_servers_and_other_files_are_none(tmp_path: Path) -> None:
    for name in ("20-b.json", "10-a.json", "README", "xjson", ".hidden.new"):
        (tmp_path / name).write_bytes(text())
        (tmp_path / name).chmod(0o644)
    assert [server.name for server in HookDirectory(tmp_path).servers()] == ["10-a", "20-b", "x"]


def test_an_absent_directory_is_no_problem_and_a_foreign_one_is(tmp_path: Path) -> None:
    directory = HookDirectory(tmp_path / "absent")
    assert directory.servers() == () and not directory.problems
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent").chmod(0o777)
    assert directory.servers() == () and directory.problems
    (tmp_path / "absent").chmod(0o755)
    assert directory.servers() == () and not directory.problems


def test_H27_in_a_directory_that_others_may_write_nothing_new_is_believed(tmp_path: Path) -> None:
    directory = HookDirectory(tmp_path)
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_bytes(text())
        (tmp_path / name).chmod(0o644)
        if name == "a.json":
            (before,) = directory.servers()
            tmp_path.chmod(0o777)
    assert directory.servers() == (before,), "a server with policy Fail must not vanish this way"
    assert directory.problems
    tmp_path.chmod(0o755)
    assert len(directory.servers()) == 2
