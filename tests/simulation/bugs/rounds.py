"""Planted bugs in the turns of peers, and in the requests that take several rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncemq.broker.loop import Broker
from oncemq.broker.requests.request import Request
from oncemq.broker.requests.request_queue import PeerQueue, RequestQueue
from oncemq.broker.round import Round
from oncemq.protocol.frames import Frame
from tests.simulation.bugs.registry import Patch, bug


@bug("the newest request of a peer is decided first")
def peer_order_is_lost() -> Sequence[Patch]:
    real_take: Any = RequestQueue.take

    def take(self: RequestQueue, queue: PeerQueue) -> Sequence[Frame]:
        queue.arrivals.rotate(1)
        frames: Sequence[Frame] = real_take(self, queue)
        return frames

    return [(RequestQueue, "take", take)]


@bug("a later request of a peer overtakes the one that its turn has interrupted")
def unfinished_request_is_overtaken() -> Sequence[Patch]:
    real_turn: Any = Broker._take_turn

    def take_turn(self: Broker, current: Round, queue: PeerQueue) -> None:
        unfinished = queue.unfinished
        if unfinished is None or not queue.arrivals:
            real_turn(self, current, queue)
            return
        queue.unfinished = None
        real_turn(self, current, queue)
        if queue.unfinished is None:
            queue.unfinished = unfinished
            self._queue._by_peer[queue.peer] = queue
            if queue not in self._queue._turns and queue not in self._queue._after_turn:
                self._queue._after_turn.append(queue)

    return [(Broker, "_take_turn", take_turn)]


@bug("a request is answered when its turn ends, and again when it is finished")
def unfinished_request_is_answered_twice() -> Sequence[Patch]:
    real_advance: Any = Round.advance

    def advance(self: Round, request: Request) -> bool:
        is_finished: bool = real_advance(self, request)
        if not is_finished and request.replies:
            self.finished.append(request)
        return is_finished

    return [(Round, "advance", advance)]


@bug("a peer that pays back an overdraft is never served again")
def held_peer_is_forgotten() -> Sequence[Patch]:
    def start_round(self: RequestQueue) -> None:
        self._turns += self._after_turn
        self._after_turn.clear()

    return [(RequestQueue, "start_round", start_round)]
