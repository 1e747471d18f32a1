"""The lines of a record file (docs/audit.md).

A file is NDJSON: each line is one of these structs, as a JSON object whose `kind` is the struct's tag. Fields with
their default value are omitted. The recorder writes the lines and the audit (spark/audit) reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import xxhash

from oncemq.client.core.commands.observer import SubscriptionEpoch
from oncemq.protocol.batch import decode_batch, split
from oncemq.protocol.commands import BY_PATTERN
from oncemq.protocol.message import Message

FORMAT_VERSION = 1

#: (first offset, count)
Range = tuple[int, int]


class Line(msgspec.Struct, tag_field="kind", omit_defaults=True, kw_only=True):
    """The fields of every line."""

    #: Starts at 0 and rises by one with each line.
    seq: int = -1
    #: When the line was written, in milliseconds since 1970.
    at_ms: int = 0


class Begin(Line, tag="begin", omit_defaults=False, kw_only=True):
    """The first line."""

    version: int = FORMAT_VERSION
    #: Everything that this client did is in the file. Overwritten with false if a line could not be written.
    complete: bool = True
    session: str
    pid: int
    host: str
    #: The version of OnceMQ.
    software: str


class End(Line, tag="end", kw_only=True):
    """The client was closed: no lines are missing at the end."""


# Puts. A put is identified by (session, number, part): part counts the puts of a transaction.


class Sent(Line, tag="sent", kw_only=True):
    """A put may reach the broker from now on. Without an answer it was stored once, or not at all."""

    session: str
    number: int
    part: int = 0
    topic: str
    count: int
    ttl_ms: int = 0
    #: When a delayed put gets its offsets.
    due_ms: int = 0
    #: The digests of the messages, in their order.
    digests: list[int]


class Stored(Line, tag="stored", kw_only=True):
    """The broker has stored the put on its disk."""

    session: str
    number: int
    part: int = 0
    broker: str
    #: 0: the broker confirmed the put without any detail.
    topic_id: int
    topic: str
    #: The first offset; -1: not known.
    first: int
    count: int


class Refused(Line, tag="refused", kw_only=True):
    """The put was not stored, and will not be."""

    session: str
    number: int
    part: int = 0
    code: str


# Deliveries. A subscription is identified by (broker, topic id, subscriber, pattern).


class _SubscriptionLine(Line, kw_only=True):
    broker: str
    topic_id: int
    subscriber: str
    #: The pattern that attaches it to the topic; "": it is a subscription of the topic itself.
    pattern: str = ""


class Subscribed(_SubscriptionLine, tag="subscribed", kw_only=True):
    """This client created the subscription."""

    topic: str
    #: The position where it begins.
    acked: int
    sent_ms: int


class Opened(_SubscriptionLine, tag="opened", kw_only=True):
    """This client became the owner of the subscription, or a worker of a shared one."""

    #: For a subscription by pattern, the pattern; then the topic's id is 0.
    topic: str
    epoch: int
    #: The broker's position: everything below is acked.
    acked: int
    shared: bool = False
    #: When the request was sent.
    sent_ms: int


class Got(_SubscriptionLine, tag="got", kw_only=True):
    """Messages that are about to be delivered to the application."""

    topic: str
    epoch: int
    #: Offsets, in the order of delivery.
    ranges: list[Range]
    #: The digests of the messages in the ranges, in their order.
    digests: list[int]
    #: Offsets that the subscription's filter has dropped.
    passed: list[Range] = []
    #: The token of a shared subscription's lease; 0: it is not shared.
    token: int = 0


class Acked(_SubscriptionLine, tag="acked", kw_only=True):
    """The broker has confirmed that everything below is acked."""

    epoch: int
    acked: int
    #: How many messages the subscription has ever lost to its topic's quota.
    dropped: int = 0


class Settled(_SubscriptionLine, tag="settled", kw_only=True):
    """The broker has confirmed acks of a shared subscription."""

    epoch: int
    #: (token, first offset, count)
    done: list[tuple[int, int, int]]


class Skipped(_SubscriptionLine, tag="skipped", kw_only=True):
    """Offsets that the broker has omitted from its answer."""

    epoch: int
    ranges: list[Range]


class Left(_SubscriptionLine, tag="left", kw_only=True):
    """Offsets that the application has acked although they were not delivered to it."""

    epoch: int
    ranges: list[Range]


class Back(_SubscriptionLine, tag="back", kw_only=True):
    """A transaction failed: this client reads from this offset again."""

    epoch: int
    to: int


class Moving(Line, tag="moving", kw_only=True):
    """A seek or an unsubscribe may reach the broker from now on."""

    session: str
    number: int
    #: seek or unsubscribe
    what: str
    #: A topic or a pattern.
    topic: str
    subscriber: str


class Moved(Line, tag="moved", kw_only=True):
    """The seek or unsubscribe was executed."""

    session: str
    number: int
    what: str
    topic: str
    subscriber: str
    broker: str
    #: The new position of the subscription; -1: it has none.
    acked: int
    sent_ms: int


class Stayed(Line, tag="stayed", kw_only=True):
    """The seek or unsubscribe was refused."""

    session: str
    number: int
    code: str


class Displaced(_SubscriptionLine, tag="displaced", kw_only=True):
    """The owner of this epoch was told that a seek has moved its subscription."""

    epoch: int


AnyLine = (
    Begin
    | End
    | Sent
    | Stored
    | Refused
    | Subscribed
    | Opened
    | Got
    | Acked
    | Settled
    | Skipped
    | Left
    | Back
    | Moving
    | Moved
    | Stayed
    | Displaced
)

# Subscriptions.


def epoch_fields(subscription: SubscriptionEpoch) -> dict[str, Any]:
    """The fields of a line that identify a subscription and its epoch."""
    fields = subscription_fields(subscription.broker, subscription.topic_id, subscription.key)
    return {**fields, "epoch": subscription.epoch}


def subscription_fields(broker: str, topic_id: int, key: str) -> dict[str, Any]:
    """The fields of a line that identify a subscription."""
    subscriber, _, pattern = key.partition(BY_PATTERN)
    return {"broker": broker, "topic_id": topic_id, "subscriber": subscriber, "pattern": pattern}


# Digests.

#: A digest is the lower 63 bits of the 64 bits of XXH3, because many JSON readers have signed numbers.
_MASK = 2**63 - 1
_hash = xxhash.xxh3_64_intdigest
_encode = msgspec.msgpack.Encoder().encode


def digest_of(value: bytes, key: bytes | None, headers: Mapping[str, bytes] | None) -> int:
    """The digest of a message: of its value, and of its key and headers if it has some."""
    if key is None and not headers:
        return _hash(value) & _MASK
    return _hash(_encode((key, sorted((headers or {}).items()))), _hash(value)) & _MASK


def digests_of(messages: Sequence[Message]) -> list[int]:
    if not any(message.key is not None or message.headers for message in messages):
        return [_hash(message.value) & _MASK for message in messages]
    return [digest_of(message.value, message.key, message.headers) for message in messages]


def digests_of_payload(payload: bytes, count: int) -> list[int]:
    """The digests of the messages in an encoded batch. Raises Malformed or Unsupported."""
    columns = split(payload)
    if columns.key_offsets is not None or columns.header_offsets is not None or columns.count != count:
        return digests_of(decode_batch(payload, "", 0, 0, 0, 0, count))
    at = columns.values_at
    ends = [at + end for end in columns.value_offsets]
    return [_hash(columns.values[begin:end]) & _MASK for begin, end in pairwise(ends)]


# Ranges.


def ranges_of(messages: Sequence[Message]) -> list[Range]:
    """The offsets of messages, in their order: a range ends where the next offset is not the following one."""
    if not messages:
        return []
    first, count = messages[0].offset, len(messages)
    if messages[-1].offset - first + 1 == count and _rises(messages):
        return [(first, count)]
    ranges: list[Range] = []
    count = 0
    for message in messages:
        if count and message.offset == first + count:
            count += 1
            continue
        if count:
            ranges.append((first, count))
        first, count = message.offset, 1
    return [*ranges, (first, count)]


def _rises(messages: Sequence[Message]) -> bool:
    first = messages[0].offset
    return [message.offset for message in messages] == list(range(first, first + len(messages)))


def ranges_between(start: int, stop: int, found: Sequence[Range]) -> list[Range]:
    """The gaps between rising ranges, from `start` up to `stop`."""
    gaps: list[Range] = []
    for first, count in found:
        if first > start:
            gaps.append((start, first - start))
        start = max(start, first + count)
    if stop > start:
        gaps.append((start, stop - start))
    return gaps
