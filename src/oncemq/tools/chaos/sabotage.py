"""The proxy violates a guarantee on purpose, as a faulty broker would, to show that the verdict notices.

    lose      a put is acknowledged, and the broker never sees its message
    double    a put is stored twice, the second time by another session
    swap      a subscriber gets two messages in the wrong order

It decodes requests and replies, and forges them in such a way that neither side reports an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, decode_batch, encode_batch, layout_of
from oncemq.protocol.commands import Command, Hello, Numbered, Operation, Put, Void
from oncemq.protocol.frames import Frame, decode_request, decode_response, encode_request, encode_response
from oncemq.protocol.replies import Done, GetReply, HelloReply, PutReply, Reply

Sabotage = Literal["lose", "double", "swap"]
SABOTAGES: tuple[Sabotage, ...] = get_args(Sabotage)
#: One put in this many is changed.
_EVERY = 10
#: The offset in a forged receipt. No message is stored there.
_FORGED_OFFSET = 10**9


class PacketFilter:
    """Passes packets on without a change."""

    def request(self, _client: bytes, frames: list[bytes]) -> Sequence[bytes]:
        return frames

    def reply(self, _client: bytes, frames: list[bytes]) -> Sequence[bytes]:
        return frames


class PutLoser(PacketFilter):
    """Replaces some puts by commands without an effect, and acknowledges them itself."""

    def __init__(self) -> None:
        self._seen = 0
        #: By (session, number): the reply, which a retry must get, too. None: the put is passed on.
        self._forged: dict[tuple[str, int], PutReply | None] = {}
        #: By (client, request id): session and number of each command, None if it has none.
        self._requests: dict[tuple[bytes, int], list[tuple[str, int] | None]] = {}

    def request(self, client: bytes, frames: list[bytes]) -> Sequence[bytes]:
        request, payloads = decode_request(frames)
        commands: list[Command] = []
        kept: list[Frame] = []
        for command, own in zip(request.commands, payloads, strict=True):
            if isinstance(command, Numbered) and self._is_lost(command):
                commands.append(msgspec.structs.replace(command, operation=Void()))
            else:
                commands.append(command)
                kept += own
        self._requests[(client, request.request_id)] = [_number_of(command) for command in request.commands]
        return [bytes(frame) for frame in encode_request(request.request_id, commands, kept)]

    def _is_lost(self, command: Numbered) -> bool:
        if not isinstance(put := command.operation, Put):
            return False
        key = (command.session, command.number)
        if key not in self._forged:
            self._seen += 1
            forged = PutReply(1, _FORGED_OFFSET, put.envelope.count, int(time.time() * 1000), 1)
            self._forged[key] = forged if self._seen % _EVERY == 0 else None
        return self._forged[key] is not None

    def reply(self, client: bytes, frames: list[bytes]) -> Sequence[bytes]:
        response, payloads = decode_response(frames)
        asked = self._requests.get((client, response.request_id), [])
        replies = [*response.replies]
        for index, (key, reply) in enumerate(zip(asked, replies, strict=False)):
            if key is not None:
                replies[index] = self._forge(key, reply)
        return _encoded(response.request_id, replies, [part for own in payloads for part in own])

    def _forge(self, key: tuple[str, int], reply: Reply) -> Reply:
        if isinstance(reply, HelloReply):
            verdicts = tuple((number, self._forge((key[0], number), each)) for number, each in reply.verdicts)
            return msgspec.structs.replace(reply, verdicts=verdicts)
        return (self._forged.get(key) or reply) if isinstance(reply, Done) else reply


class PutDuplicator(PacketFilter):
    """Stores some messages a second time."""

    def __init__(self, put: Callable[[str, list[bytes]], None]) -> None:
        self._put = put
        self._seen: set[tuple[str, int]] = set()

    def request(self, _client: bytes, frames: list[bytes]) -> Sequence[bytes]:
        request, payloads = decode_request(frames)
        for command, own in zip(request.commands, payloads, strict=True):
            key = _number_of(command)
            if key is None or key in self._seen or not isinstance(put := _operation_of(command), Put):
                continue
            self._seen.add(key)
            if len(self._seen) % _EVERY == 0:
                self._put(put.topic, _values(own[0]))
        return frames


class BatchReverser(PacketFilter):
    """Reverses the order of messages in some batches on their way to a subscriber."""

    def __init__(self) -> None:
        self._seen = 0

    def reply(self, _client: bytes, frames: list[bytes]) -> Sequence[bytes]:
        response, payloads = decode_response(frames)
        replies = [*response.replies]
        for index, (reply, own) in enumerate(zip(replies, payloads, strict=True)):
            if isinstance(reply, GetReply):
                replies[index] = self._reverse(reply, own)
        return _encoded(response.request_id, replies, [part for own in payloads for part in own])

    def _reverse(self, reply: GetReply, payloads: list[Frame]) -> GetReply:
        batches = [*reply.batches]
        for index, payload in enumerate(payloads):
            values = _values(payload)
            if len(values) < 2:
                continue
            self._seen += 1
            if self._seen % _EVERY == 1:
                reversed_batch = encode_batch(values[::-1])
                payloads[index] = reversed_batch
                batches[index] = msgspec.structs.replace(batches[index], checksum=checksum(reversed_batch))
        return msgspec.structs.replace(reply, batches=tuple(batches))


def packet_filter_for(sabotage: Sabotage | None, broker_url: str) -> PacketFilter:
    """Return the filter of the proxy; None: without sabotage."""
    if sabotage is None:
        return PacketFilter()
    if sabotage == "lose":
        return PutLoser()
    return BatchReverser() if sabotage == "swap" else PutDuplicator(_DirectPut(broker_url))


class _DirectPut:
    """Puts messages without the faulty network. If the broker does not answer, nothing is duplicated."""

    def __init__(self, broker_url: str) -> None:
        self._url = broker_url

    def __call__(self, topic: str, values: list[bytes]) -> None:
        import oncemq

        try:
            with oncemq.connect(self._url, timeout_s=0.5, tries=1, record="") as client:
                client.put_many(topic, values)
        except errors.TRANSIENT:
            return


def _operation_of(command: Command) -> Operation | None:
    return command.operation if isinstance(command, Numbered) else None


def _number_of(command: Command) -> tuple[str, int] | None:
    if isinstance(command, Hello):
        return (command.session, 0)
    return (command.session, command.number) if isinstance(command, Numbered) else None


def _values(payload: Frame) -> list[bytes]:
    raw = bytes(payload)
    return [message.value for message in decode_batch(raw, "", 0, 0, 0, 0, layout_of(raw).count)]


def _encoded(request_id: int, replies: Sequence[Reply], payloads: Sequence[Frame]) -> list[bytes]:
    return [bytes(frame) for frame in encode_response(request_id, replies, payloads)]
