"""What a real kubelet and containerd said to each other, through the proxy; and what it learns."""

from __future__ import annotations

import base64
import json
from collections import defaultdict, deque
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from koordpb import cri_v1_pb2 as pb

from tests.support.hookserver import HookServer, write_server
from tests.support.proxyd import Proxy
from tests.support.rawruntime import RawClient, RawRuntime, Seen

CAPTURED = Path(__file__).parents[1] / "fixtures/captured/kubelet-1.36-cri-calls.jsonl"


def captured() -> list[dict[str, Any]]:
    calls = [json.loads(line) for line in CAPTURED.read_text().splitlines()]
    for call in calls:
        for part in ("request", "response"):
            call[part] = base64.b64decode(call[part] or "")
    return calls


class Replay:
    """Answers each call as the captured runtime did, in their order by method and request."""

    def __init__(self, calls: list[dict[str, Any]]) -> None:
        self._answers: dict[tuple[str, bytes], deque[dict[str, Any]]] = defaultdict(deque)
        for call in calls:
            self._answers[call["method"], call["request"]].append(call)

    def answer(self, path: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        queue = self._answers[path, request]
        call = queue.popleft() if len(queue) > 1 else queue[0]
        if call["code"] != "OK":
            context.abort(grpc.StatusCode[call["code"]], call["details"])
        return bytes(call["response"])


def said(client: RawClient, call: dict[str, Any]) -> tuple[str, str, bytes]:
    try:
        return "OK", "", client.call(call["method"], call["request"])
    except grpc.RpcError as error:
        return error.code().name, error.details(), b""


def of_the_proxy(seen: Seen) -> bool:
    """Its own questions, which kubelet knows nothing of."""
    return ("user-agent", "koord-runtimeproxy") in seen.metadata


@pytest.mark.parametrize("hooked", (False, True), ids=("plain", "hooked"))
def test_a_captured_run_gives_the_same_through_the_proxy(
    runtime: RawRuntime, proxy: Proxy, client: RawClient, short_path: Path, hooked: bool
) -> None:
    calls = captured()
    assert len({call["method"] for call in calls}) > 8
    with HookServer(short_path / "h.sock") as hooks:
        if hooked:
            write_server(proxy.hooks_dir, "h", hooks.socket, "Fail")
        for socket in (runtime.socket, proxy.socket):
            replay = Replay(calls)
            for path in {call["method"] for call in calls}:
                runtime.unary[path] = partial(replay.answer, path)
            runtime.seen.clear()
            with RawClient(socket) as talking:
                told = [said(talking, call) for call in calls]
            asked = [(one.path, one.request) for one in runtime.seen if not of_the_proxy(one)]
            if socket == runtime.socket:
                direct, directly_asked = told, asked
        assert told == direct
        assert told == [(c["code"], c["details"], c["response"]) for c in calls]
        assert asked == directly_asked
        assert bool(hooks.asked) is hooked


def test_the_proxy_knows_what_the_captured_run_left(
    runtime: RawRuntime, proxy: Proxy, client: RawClient
) -> None:
    calls = captured()
    made, removed = set(), set()
    for call in calls:
        name = call["method"].rpartition("/")[2]
        if call["code"] != "OK":
            continue
        if name == "CreateContainer":
            made.add(pb.CreateContainerResponse.FromString(call["response"]).container_id)
        elif name == "RemoveContainer":
            removed.add(pb.RemoveContainerRequest.FromString(call["request"]).container_id)
    replay = Replay(calls)
    for path in {call["method"] for call in calls}:
        runtime.unary[path] = partial(replay.answer, path)
    for call in calls:
        said(client, call)
    assert proxy.get("status")["containers"] == len(made - removed) > 0
