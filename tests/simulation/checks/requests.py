"""Checks that a broker answers each request once and after a limited time, and the requests of one peer in the order of
their arrival."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.frames import Frame, decode_request, decode_response
from oncemq.protocol.replies import NotNow
from tests.simulation.environment.world import Violation

#: A request that does not wait for messages is answered within this time, also if its peer pays back an overdraft.
ANSWERED_WITHIN_MS = 2_000


class _OpenRequest(msgspec.Struct):
    request_id: int
    #: It is answered in order. A request that waits for messages is not.
    is_ordered: bool
    taken_ms: int
    #: A later request was answered first. This one can only be refused: what does not fit into the queue is refused at
    #: once, and its refusal may leave after the answers of the round.
    is_overtaken: bool = False


class RequestCheck:
    """The requests that a broker has taken and not answered."""

    def __init__(self) -> None:
        self._open: dict[bytes, list[_OpenRequest]] = {}
        #: Peers that do not read: their answers are dropped.
        self._unread: set[bytes] = set()

    def took(self, peer: bytes, frames: Sequence[Frame], now_ms: int) -> None:
        try:
            request, _ = decode_request(frames)
        except errors.Malformed as error:
            raise Violation(f"a request arrived that no client has sent: {error}") from None
        waits = any(getattr(command, "wait_ms", 0) for command in request.commands)
        self._open.setdefault(peer, []).append(_OpenRequest(request.request_id, not waits, now_ms))

    def answers(self, peer: bytes, frames: Sequence[Frame]) -> None:
        response, _ = decode_response(frames)
        requests = self._open.get(peer, [])
        copies = [at for at, each in enumerate(requests) if each.request_id == response.request_id]
        if not copies:
            raise Violation(f"request {response.request_id} was answered twice")
        is_refused = _is_refused(response.replies)
        # The network duplicates requests. It is the newest copy that did not fit into the queue.
        at = copies[-1 if is_refused else 0]
        request = requests.pop(at)
        if not request.is_ordered or is_refused:
            return
        if request.is_overtaken:
            raise Violation(f"request {response.request_id} was answered after a later one of the same peer")
        for earlier in requests[:at]:
            earlier.is_overtaken = True

    def dropped(self, peer: bytes) -> None:
        """An answer to this peer was dropped."""
        self._unread.add(peer)

    def check_answered(self, now_ms: int) -> None:
        """Check that no request was left without an answer."""
        for peer, requests in self._open.items():
            for request in requests if peer not in self._unread else ():
                if request.is_ordered and request.taken_ms + ANSWERED_WITHIN_MS < now_ms:
                    age_ms = now_ms - request.taken_ms
                    raise Violation(f"request {request.request_id} was taken {age_ms} ms ago and is not answered")


def _is_refused(replies: Sequence[object]) -> bool:
    return all(isinstance(reply, NotNow) and reply.code == "OVERLOADED" for reply in replies)
