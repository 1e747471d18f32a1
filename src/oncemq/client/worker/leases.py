"""Leases of a shared subscription: what one take brought, and what its messages are.

Whoever settles a message appends its offset to its lease, without a lock: appending to a list is atomic, and whoever
sends takes a prefix, under the client's lock (acks.py). So an ack costs next to nothing, may come from any
thread, and none is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, decode_batch
from oncemq.protocol.frames import Frame
from oncemq.protocol.message import Message
from oncemq.protocol.replies import TakeReply, TaskHead

T = TypeVar("T")


class Lease:
    """What one take got, as this consumer sees it."""

    __slots__ = (
        "done",
        "elsewhere",
        "epoch",
        "extend_ms",
        "extend_until_ms",
        "is_lost",
        "is_over",
        "left",
        "lost",
        "returned",
        "subscriber",
        "token",
        "topic_id",
        "until_ms",
        "working",
    )

    def __init__(self, working: Any, subscriber: str, epoch: int, reply: TakeReply) -> None:
        #: Whose it is: a Working of either shell.
        self.working = working
        self.topic_id = reply.topic_id
        self.subscriber = subscriber
        self.epoch = epoch
        self.token = reply.token
        #: Messages that are not on their way to being settled.
        self.left = sum(head.count for head in reply.heads)
        #: Offsets that were acked; offsets that were given back, and after how many milliseconds they may go out
        #: again; offsets that others have settled, in a transaction. Not sent yet.
        self.done: list[int] = []
        self.returned: list[tuple[int, int]] = []
        self.elsewhere: list[int] = []
        #: When it ends, by our clock; when it is to be extended; until when that may go on.
        self.until_ms = self.extend_ms = self.extend_until_ms = 0.0
        #: It has ended, or is going to: none of its messages is handed out any more.
        self.is_over = False
        #: The broker said so.
        self.is_lost = False
        #: Offsets whose acks came too late.
        self.lost: set[int] = set()


def taken_from(entries: list[T]) -> list[T]:
    """What is there now; what comes meanwhile stays."""
    count = len(entries)
    taken = entries[:count]
    del entries[:count]
    return taken


# What a take brought.


class Part(msgspec.Struct, frozen=True):
    """Messages of one head: delivered equally often."""

    head: TaskHead
    messages: list[Message]
    #: Why they can't be read.
    error: errors.OnceMQError | None = None


def decode_take(topic: str, reply: TakeReply, payloads: Sequence[Frame]) -> list[Part]:
    """The messages, in order. Raises DamagedInTransit."""
    by_payload: dict[int, list[TaskHead]] = {}
    for head in reply.heads:
        by_payload.setdefault(head.payload, []).append(head)
    parts: list[Part] = []
    for place, heads in by_payload.items():
        frame = payloads[place]
        payload = frame if isinstance(frame, bytes) else bytes(frame)
        if checksum(payload) != heads[0].checksum:
            text = f"the messages of '{topic}' from offset {heads[0].first_offset} on don't match their checksum"
            raise errors.DamagedInTransit(text)
        parts += _decode(topic, reply.topic_id, payload, heads)
    return parts


def _decode(topic: str, topic_id: int, payload: bytes, heads: list[TaskHead]) -> list[Part]:
    """Once for all heads of a payload: there may be many, with gaps between."""
    first, last = heads[0], heads[-1]
    start, stop = first.skip, last.skip + last.count
    try:
        found = decode_batch(payload, topic, topic_id, first.first_offset, first.time_ms, start, stop)
    except errors.OnceMQError as error:
        where = f"the messages of '{topic}' from offset {first.first_offset} on can't be decoded"
        failure = type(error)(f"{where}: {error.text}")
        return [Part(head, [], failure) for head in heads]
    if len(heads) == 1:
        return [Part(first, found)]
    return [Part(head, found[head.skip - start : head.skip - start + head.count]) for head in heads]
