"""What a client writes down of its work: the lines of a record file (docs/audit.md).

A file is NDJSON: each line is one of these structs, as a JSON object whose `kind` is the struct's tag. Fields that
have their default are left out. The audit (spark/audit) reads them; this file knows nothing of either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import xxhash

from oncemq.protocol.batch import decode_batch, split
from oncemq.protocol.commands import BY_PATTERN
from oncemq.protocol.message import Message

FORMAT_VERSION = 1

#: (first offset, count)
Range = tuple[int, int]


class Line(msgspec.Struct, tag_field="kind", omit_defaults=True, kw_only=True):
    """What every line has."""

    #: Rises by one from line to line, from 0.
    seq: int = -1
    #: When it was written, in milliseconds since 1970.
    at_ms: int = 0


class Begin(Line, tag="begin", omit_defaults=False, kw_only=True):
    """The first line."""

    version: int = FORMAT_VERSION
    #: Everything that this client did is in the file. Becomes false, in place, when a line could not be written.
    complete: bool = True
    session: str
    pid: int
    host: str
    #: Of OnceMQ.
    software: str


class End(Line, tag="end", kw_only=True):
    """The client was closed: nothing was cut off."""


# Putting. A put is (session, number, part): part counts the puts of a transaction.


class Sent(Line, tag="sent", kw_only=True):
    """A put may reach the broker from here on. Without an answer it was stored once, or not at all."""

    session: str
    number: int
    part: int = 0
    topic: str
    count: int
    ttl_ms: int = 0
    #: It gets its offsets when it is due.
    due_ms: int = 0
    #: Of the messages, in their order.
    digests: list[int]


class Stored(Line, tag="stored", kw_only=True):
    """The broker's answer: it is on its disk."""

    session: str
    number: int
    part: int = 0
    broker: str
    #: 0: the broker said yes, and no more than that.
    topic_id: int
    topic: str
    #: -1: not known.
    first: int
    count: int


class Refused(Line, tag="refused", kw_only=True):
    """It was not stored, and won't be."""

    session: str
    number: int
    part: int = 0
    code: str


# Consuming. A subscription is (broker, topic id, subscriber, pattern).


class _OfSubscription(Line, kw_only=True):
    broker: str
    topic_id: int
    subscriber: str
    #: By which it is attached to the topic; "" = by its own name.
    pattern: str = ""


class Subscribed(_OfSubscription, tag="subscribed", kw_only=True):
    """This client made the subscription."""

    topic: str
    #: Where it begins.
    acked: int
    sent_ms: int


class Opened(_OfSubscription, tag="opened", kw_only=True):
    """This client became its owner, or a member of a shared one."""

    #: Or the pattern; then the topic's id is 0.
    topic: str
    epoch: int
    #: As the broker has it: everything below is done.
    acked: int
    shared: bool = False
    #: When the question left.
    sent_ms: int


class Got(_OfSubscription, tag="got", kw_only=True):
    """Messages that the application is about to be given."""

    topic: str
    epoch: int
    #: Offsets, in the order of delivery.
    ranges: list[Range]
    #: Of the messages in the ranges, in their order.
    digests: list[int]
    #: Offsets that its own filter has left out.
    passed: list[Range] = []
    #: Of a shared subscription's lease; 0 = it is not shared.
    token: int = 0


class Acked(_OfSubscription, tag="acked", kw_only=True):
    """The broker has said: everything below is done."""

    epoch: int
    acked: int
    #: Messages that the subscription has lost to its topic's quota, ever.
    dropped: int = 0


class Settled(_OfSubscription, tag="settled", kw_only=True):
    """Of a shared subscription: the broker has said that these are done."""

    epoch: int
    #: (token, first offset, count)
    done: list[tuple[int, int, int]]


class Skipped(_OfSubscription, tag="skipped", kw_only=True):
    """Offsets that the broker has left out of its answer."""

    epoch: int
    ranges: list[Range]


class Left(_OfSubscription, tag="left", kw_only=True):
    """Offsets that the application has acked without being given them."""

    epoch: int
    ranges: list[Range]


class Back(_OfSubscription, tag="back", kw_only=True):
    """A transaction did not happen: this client reads from here on again."""

    epoch: int
    to: int


class Moving(Line, tag="moving", kw_only=True):
    """A seek or an unsubscribe may reach the broker from here on."""

    session: str
    number: int
    #: seek or unsubscribe
    what: str
    #: Or a pattern.
    topic: str
    subscriber: str


class Moved(Line, tag="moved", kw_only=True):
    """It happened."""

    session: str
    number: int
    what: str
    topic: str
    subscriber: str
    broker: str
    #: Where the subscription stands; -1 = nowhere.
    acked: int
    sent_ms: int


class Stayed(Line, tag="stayed", kw_only=True):
    """It was refused."""

    session: str
    number: int
    code: str


class Displaced(_OfSubscription, tag="displaced", kw_only=True):
    """The broker told the owner of this epoch that a seek has moved its subscription."""

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


class Whose(msgspec.Struct, frozen=True):
    """A subscription on one topic, and the epoch in which it is spoken of."""

    broker: str
    topic_id: int
    #: As the broker knows it on its topics: the subscriber, and behind BY_PATTERN its pattern.
    key: str
    epoch: int

    @property
    def fields(self) -> dict[str, Any]:
        return {**subscription_fields(self.broker, self.topic_id, self.key), "epoch": self.epoch}


def subscription_fields(broker: str, topic_id: int, key: str) -> dict[str, Any]:
    """The broker knows a subscription by pattern, on its topics, by subscriber and pattern."""
    subscriber, _, pattern = key.partition(BY_PATTERN)
    return {"broker": broker, "topic_id": topic_id, "subscriber": subscriber, "pattern": pattern}


# Digests.

#: JSON readers have signed numbers: a digest is the lower 63 bits of XXH3's 64.
_MASK = 2**63 - 1
_hash = xxhash.xxh3_64_intdigest
_encode = msgspec.msgpack.Encoder().encode


def digest_of(value: bytes, key: bytes | None, headers: Mapping[str, bytes] | None) -> int:
    """What tells a message from another one: of its value; with key and headers too where it has some."""
    if key is None and not headers:
        return _hash(value) & _MASK
    return _hash(_encode((key, sorted((headers or {}).items()))), _hash(value)) & _MASK


def digests_of(messages: Sequence[Message]) -> list[int]:
    if not any(message.key is not None or message.headers for message in messages):
        return [_hash(message.value) & _MASK for message in messages]
    return [digest_of(message.value, message.key, message.headers) for message in messages]


def digests_of_payload(payload: bytes, count: int) -> list[int]:
    """The same of a batch as it is sent. Raises Malformed, Unsupported."""
    columns = split(payload)
    if columns.key_offsets is not None or columns.header_offsets is not None or columns.count != count:
        return digests_of(decode_batch(payload, "", 0, 0, 0, 0, count))
    at = columns.values_at
    ends = [at + end for end in columns.value_offsets]
    return [_hash(payload[begin:end]) & _MASK for begin, end in pairwise(ends)]


# Ranges.


def ranges_of(messages: Sequence[Message]) -> list[Range]:
    """Offsets as they came: a range ends where the next offset is not the following one."""
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
    """What lies between the ranges that were found, which rise."""
    gaps: list[Range] = []
    for first, count in found:
        if first > start:
            gaps.append((start, first - start))
        start = max(start, first + count)
    if stop > start:
        gaps.append((start, stop - start))
    return gaps
