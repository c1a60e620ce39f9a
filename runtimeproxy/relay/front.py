"""The connections of our clients, kubelet above all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runtimeproxy.relay.call import Call, InterceptedCall, Interception
from runtimeproxy.relay.calls import CallCounts
from runtimeproxy.relay.endpoint import Endpoint
from runtimeproxy.relay.link import Link
from runtimeproxy.wire import frames
from runtimeproxy.wire.headers import Headers
from runtimeproxy.wire.peer import Peer
from runtimeproxy.wire.status import Code, find
from runtimeproxy.wire.traffic import Traffic

_GOODBYE_S = 1.0
_LINGER_S = 1.0
_RESTARTING = "runtimeproxy restarts; call again"


class Relay:
    """All client connections, and what they share."""

    def __init__(
        self,
        runtime: Endpoint,
        images: Endpoint,
        *,
        max_message_bytes: int,
        intercept: Callable[[bytes], Interception | None],
    ) -> None:
        self.runtime = runtime
        self.images = images
        self.max_message_bytes = max_message_bytes
        self.intercept = intercept
        self.counts = CallCounts()
        self.traffic = Traffic()
        self.fronts: set[Front] = set()
        self._leaving = False

    def accept(self) -> Peer:
        """The protocol of a new connection."""
        front = Front(self)
        self.fronts.add(front)
        if self._leaving:  # it came in the moment before we stopped listening
            asyncio.get_running_loop().call_soon(front.say_goodbye)
        return front.peer

    def endpoint_of(self, path: bytes) -> Endpoint:
        """``/runtime.v1.ImageService/...`` is the image endpoint's, all else the runtime's."""
        return self.images if b".ImageService/" in path else self.runtime

    def say_goodbye(self) -> None:
        """Every client goes to whoever listens next; calls under way end here."""
        self._leaving = True
        for front in list(self.fronts):
            front.say_goodbye()


class Front:
    """One client's connection and its calls."""

    def __init__(self, relay: Relay) -> None:
        self.counts = relay.counts
        self.max_message_bytes = relay.max_message_bytes
        self.peer = Peer(self, relay.traffic, client_side=False)
        self._relay = relay
        self._calls: dict[int, Call] = {}
        self._links: dict[Endpoint, Link] = {}
        self._leaving = False
        self._lingering = False

    @property
    def busy(self) -> bool:
        """Whether calls are under way, or their last words are still to be sent."""
        return bool(self._calls) or self.peer.busy

    def link_for(self, path: bytes) -> Link:
        """Raises Unreachable."""
        endpoint = self._relay.endpoint_of(path)
        link = self._links.get(endpoint)
        if link is None or not link.usable:
            fresh = Link(endpoint, self._relay.traffic)
            if link is not None:
                link.retire()
            link = self._links[endpoint] = fresh
        return link

    def forget(self, stream_id: int) -> None:
        self._calls.pop(stream_id, None)
        if self._leaving:
            asyncio.get_running_loop().call_soon(self._close_if_idle)

    def say_goodbye(self) -> None:
        """Endless streams end now; other calls end when they end, and the connection with them."""
        for call in list(self._calls.values()):
            if is_streaming(call.path):
                call.fail(Code.UNAVAILABLE, _RESTARTING)
        self.peer.say_goodbye()
        asyncio.get_running_loop().call_later(_GOODBYE_S, self._refuse_more)

    def _refuse_more(self) -> None:
        if not self._leaving:
            self._leaving = True
            self.peer.refuse_more()
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        """The client closes, as soon as it has read that it should. Were we the first, a call that
        it is just sending would fail, where it could have gone to the next proxy.
        """
        if not self.busy and not self._lingering:
            self._lingering = True
            asyncio.get_running_loop().call_later(_LINGER_S, self.peer.close)

    # -- Events --------------------------------------------------------------------------------

    def on_headers(self, stream_id: int, headers: Headers, *, ended: bool) -> None:
        call = self._calls.get(stream_id)
        if call is None:
            call = self._calls[stream_id] = self._new_call(stream_id, headers)
        call.requested_headers(headers, ended=ended)

    def _new_call(self, stream_id: int, headers: Headers) -> Call:
        path = find(headers, b":path")
        interception = self._relay.intercept(path)
        if interception is None:
            return Call(self, stream_id, path)
        return InterceptedCall(self, stream_id, path, interception)

    def on_data(self, stream_id: int, data: bytes, *, ended: bool) -> None:
        if (call := self._calls.get(stream_id)) is not None:
            call.requested_data(data, ended=ended)

    def on_sent(self, stream_id: int, count: int) -> None:
        if (call := self._calls.get(stream_id)) is not None:
            call.answer_sent(count)
        elif self._leaving:
            self._close_if_idle()

    def on_reset(self, stream_id: int, code: int) -> None:
        if (call := self._calls.get(stream_id)) is not None:
            call.cancelled(code)

    def on_go_away(self, last_stream_id: int) -> None:
        """The client opens no more calls here; it closes when it is done."""

    def on_ping_ack(self) -> None:
        self._refuse_more()

    def on_lost(self, why: str) -> None:
        self._relay.fronts.discard(self)
        for call in list(self._calls.values()):
            call.cancelled(frames.CANCEL)
        for link in self._links.values():
            link.close()


def is_streaming(path: bytes) -> bool:
    """Server streams that may go on for ever; future ones start like those of today."""
    method = path.rpartition(b"/")[2]
    return method == b"GetContainerEvents" or method.startswith(b"Stream")
