"""Planted bugs in the client's core and in what it delivers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncemq.client.consumer.delivery import Delivery
from oncemq.client.consumer.sync import Subscription
from oncemq.client.core.core import Core
from oncemq.client.core.inflight import Flight
from oncemq.client.core.pending import Entry
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import GetReply
from tests.simulation.bugs import Patch, bug


@bug("what is sent again gets a new number")
def client_renumbers() -> Sequence[Patch]:
    def go_back(self: Flight, number: int) -> None:
        again = [entry for entry in self._entries.values() if entry.number >= number and entry.pending is not None]
        for entry in reversed(again):
            del self._entries[entry.number]
            self._queue.appendleft(entry)
            entry.must_send = True
        real(self, number)

    real: Any = Flight.go_back
    return [(Flight, "go_back", go_back)]


@bug("after a reconnect the session is taken over, not resumed")
def client_resumes_with_epoch_0() -> Sequence[Patch]:
    real: Any = Core._send_hello

    def send_hello(self: Core, now_ms: float, requests: list[list[Frame]]) -> None:
        if self.epoch:
            self._nonce += 1
        self.epoch = 0
        real(self, now_ms, requests)

    return [(Core, "_send_hello", send_hello)]


@bug("a command is dropped when the connection is given up")
def client_drops_a_pending() -> Sequence[Patch]:
    real: Any = Core._disconnect

    def disconnect(self: Core) -> None:
        real(self)
        for entry in list(self._flight._entries.values())[-1:]:
            self._flight.settle(entry)

    return [(Core, "_disconnect", disconnect)]


@bug("a number that was given up is not voided")
def client_leaves_a_hole() -> Sequence[Patch]:
    def void(self: Flight, entry: Entry) -> None:
        entry.pending = None
        self._entries.pop(entry.number, None)

    def give_up(self: Flight, error: Any) -> None:
        pendings = [entry.pending for entry in self]
        self._queue.clear()
        self._entries.clear()
        for pending in pendings:
            if pending is not None:
                pending.fail(error)

    return [(Flight, "void", void), (Flight, "give_up", give_up)]


@bug("the client says that it has seen answers which it has not")
def client_has_seen_everything() -> Sequence[Patch]:
    def seen_below(self: Flight) -> int:
        return max(1, self.next_number - 1)

    return [(Flight, "seen_below", property(seen_below))]


@bug("what was fetched ahead is acked before it was given to anybody")
def subscription_acks_what_it_fetched() -> Sequence[Patch]:
    real: Any = Subscription._ask_get

    def ask_get(self: Subscription, wait_ms: int) -> None:
        self._finished = max(self._finished, self._delivery.position)
        real(self, wait_ms)

    return [(Subscription, "_ask_get", ask_get)]


@bug("a payload that was damaged on its way is delivered")
def damaged_payload_is_delivered() -> Sequence[Patch]:
    def take(self: Delivery, reply: GetReply, payloads: Sequence[Frame]) -> None:
        self.topic_id = reply.topic_id
        for head, frame in zip(reply.batches, payloads, strict=True):
            self._batches.append((head, bytes(frame)))
            self.buffered_bytes += len(frame)
        self.position = reply.next_position
        self.end_offset = reply.end_offset

    return [(Delivery, "take", take)]


@bug("after a damaged payload the position moves on as if it had been whole")
def damaged_payload_is_skipped() -> Sequence[Patch]:
    real: Any = Delivery.take

    def take(self: Delivery, reply: GetReply, payloads: Sequence[Frame]) -> None:
        real(self, reply, payloads)
        self.position = reply.next_position
        self.end_offset = reply.end_offset

    return [(Delivery, "take", take)]
