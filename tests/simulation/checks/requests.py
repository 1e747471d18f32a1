"""Checks that a broker answers each request once, and the requests of one peer in the order of their arrival."""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.protocol.frames import Frame, decode_request, decode_response
from oncemq.protocol.replies import NotNow
from tests.simulation.environment.world import Violation


class RequestCheck:
    """The requests that a broker has taken and not answered."""

    def __init__(self) -> None:
        #: Request id, and whether it is answered in order, by peer. A request that waits for messages is not.
        self._open: dict[bytes, list[tuple[int, bool]]] = {}

    def took(self, peer: bytes, frames: Sequence[Frame]) -> None:
        request, _ = decode_request(frames)
        waits = any(getattr(command, "wait_ms", 0) for command in request.commands)
        self._open.setdefault(peer, []).append((request.request_id, not waits))

    def answers(self, peer: bytes, frames: Sequence[Frame]) -> None:
        response, _ = decode_response(frames)
        requests = self._open.get(peer, [])
        at = next((at for at, (request_id, _) in enumerate(requests) if request_id == response.request_id), None)
        if at is None:
            raise Violation(f"request {response.request_id} was answered twice")
        _, is_ordered = requests.pop(at)
        # What does not fit into the queue is refused at once.
        is_refused = all(isinstance(reply, NotNow) and reply.code == "OVERLOADED" for reply in response.replies)
        if is_ordered and not is_refused and any(is_earlier for _, is_earlier in requests[:at]):
            raise Violation(f"request {response.request_id} was answered before an earlier one of the same peer")
