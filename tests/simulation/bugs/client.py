"""Planted bugs in the client core and in delivery."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncemq.client.consumer.fetch_buffer import FetchBuffer
from oncemq.client.consumer.topic import TopicCursor
from oncemq.client.core.commands.command_table import CommandTable
from oncemq.client.core.commands.inflight import InflightWindow
from oncemq.client.core.commands.pending import PendingCommand
from oncemq.client.core.handshake import Handshake
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import GetReply
from tests.simulation.bugs.registry import Patch, bug


@bug("a resent command gets a new number")
def client_renumbers() -> Sequence[Patch]:
    def resend_from(self: InflightWindow, number: int) -> None:
        again = [each for each in self._inflight.values() if each.number >= number and each.pending is not None]
        for command in reversed(again):
            del self._inflight[command.number]
            self._queue.appendleft(command)
            command.must_send = True
        real(self, number)

    real: Any = InflightWindow.resend_from
    return [(InflightWindow, "resend_from", resend_from)]


@bug("after a reconnect the session is taken over, not resumed")
def client_resumes_with_epoch_0() -> Sequence[Patch]:
    real: Any = Handshake.request

    def request(self: Handshake, now_ms: float) -> list[Frame]:
        if self._session.epoch:
            self._session.nonce += 1
        self._session.epoch = 0
        frames: list[Frame] = real(self, now_ms)
        return frames

    return [(Handshake, "request", request)]


@bug("a command is dropped when the connection is given up")
def client_drops_a_pending() -> Sequence[Patch]:
    real: Any = CommandTable.disconnect

    def disconnect(self: CommandTable) -> None:
        real(self)
        for command in list(self.window._inflight.values())[-1:]:
            self.window.complete(command)

    return [(CommandTable, "disconnect", disconnect)]


@bug("a put that is sent alone uses the number of the next one")
def client_reuses_the_number_of_a_put_alone() -> Sequence[Patch]:
    real: Any = InflightWindow.start

    def start(self: InflightWindow, command: PendingCommand, size: int) -> None:
        real(self, command, size)
        self.next_number -= 1

    return [(InflightWindow, "start", start)]


@bug("a put that is sent alone overtakes the commands before it")
def client_put_alone_overtakes() -> Sequence[Patch]:
    return [(InflightWindow, "__bool__", lambda _: False)]


@bug("a put that is sent alone is forgotten if its request is lost")
def client_put_alone_is_not_sent_again() -> Sequence[Patch]:
    real: Any = InflightWindow.start

    def start(self: InflightWindow, command: PendingCommand, size: int) -> None:
        real(self, command, size)
        del self._inflight[command.number]

    return [(InflightWindow, "start", start)]


@bug("a number that was given up is not voided")
def client_does_not_void_numbers() -> Sequence[Patch]:
    def void(self: InflightWindow, command: PendingCommand) -> None:
        command.pending = None
        self._inflight.pop(command.number, None)

    def give_up_all(self: InflightWindow, error: Any) -> None:
        pendings = [command.pending for command in self]
        self._queue.clear()
        self._inflight.clear()
        for pending in pendings:
            if pending is not None:
                pending.fail(error)

    return [(InflightWindow, "void", void), (InflightWindow, "give_up_all", give_up_all)]


@bug("the client confirms replies that it has not received")
def client_has_seen_everything() -> Sequence[Patch]:
    def seen_below(self: InflightWindow) -> int:
        return max(1, self.next_number - 1)

    return [(InflightWindow, "seen_below", property(seen_below))]


@bug("prefetched messages are acked before they are returned to the user")
def subscription_acks_what_it_fetched() -> Sequence[Patch]:
    real: Any = TopicCursor.get_command

    def get_command(self: TopicCursor, bytes_max: int, wait_ms: int, with_acks: bool = True) -> Any:
        self._finished = max(self._finished, self.buffer.position)
        return real(self, bytes_max, wait_ms, with_acks)

    return [(TopicCursor, "get_command", get_command)]


@bug("a payload that was damaged in transit is delivered")
def damaged_payload_is_delivered() -> Sequence[Patch]:
    def take(self: FetchBuffer, reply: GetReply, payloads: Sequence[Frame]) -> None:
        self.topic_id = reply.topic_id
        for head, frame in zip(reply.batches, payloads, strict=True):
            self._batches.append((head, bytes(frame)))
            self.buffered_bytes += len(frame)
        self.position = reply.next_position
        self.end_offset = reply.end_offset

    return [(FetchBuffer, "take", take)]


@bug("the position advances past a damaged payload")
def damaged_payload_is_skipped() -> Sequence[Patch]:
    real: Any = FetchBuffer.take

    def take(self: FetchBuffer, reply: GetReply, payloads: Sequence[Frame]) -> None:
        real(self, reply, payloads)
        self.position = reply.next_position
        self.end_offset = reply.end_offset

    return [(FetchBuffer, "take", take)]
