"""Dead letters: how a message lies in a dead-letter topic, and how it gets back out of it.

A dead letter has the value, key and headers of the message that it was, and these headers besides, as UTF-8 text:

    oncemq-topic, oncemq-offset, oncemq-topic-id, oncemq-timestamp-ms    which message it was
    oncemq-subscriber, oncemq-tries, oncemq-reason                       who gave it up, after how many deliveries, why

A dead-letter topic has the shared subscription `oncemq-dead`, made before the first letter comes: a topic without
subscriptions would keep nothing. Letters stay until somebody takes them from it.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence

import msgspec

from oncemq.client.producer.encoding import make_put
from oncemq.protocol.commands import START_EARLIEST, Put, Sharing, Subscribe
from oncemq.protocol.message import Message

#: The subscription that keeps dead letters.
DEAD_SUBSCRIBER = "oncemq-dead"
#: Why a message is there, where nobody said more: it was delivered too often; it was rejected.
TRIES = "tries"
REJECTED = "rejected"

_PREFIX = "oncemq-"
_REASON_CHARACTERS_MAX = 500
_LEASE_MS = 30_000


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """A message that was given up, and what is known of it.

    >>> [(letter.topic, letter.reason) for letter in client.dead_letters("orders.dead")]
    [('orders', 'no such customer')]
    """

    #: As it lies in the dead-letter topic.
    message: Message
    #: Where it was.
    topic: str
    offset: int
    topic_id: int
    #: When the broker stored it there.
    timestamp_ms: int
    #: Who gave it up, after so many deliveries.
    subscriber: str
    tries: int
    reason: str

    @property
    def value(self) -> bytes:
        return self.message.value

    @property
    def text(self) -> str:
        """The value as UTF-8 text."""
        return self.message.text

    @property
    def key(self) -> bytes | None:
        return self.message.key

    @property
    def headers(self) -> Mapping[str, bytes]:
        """Those that the message had."""
        return _own_headers(self.message)

    @classmethod
    def of(cls, message: Message) -> DeadLetter | None:
        """None: it is not one."""
        headers = message.headers
        try:
            topic, subscriber, reason = (headers[_PREFIX + name].decode() for name in ("topic", "subscriber", "reason"))
            offset, topic_id, timestamp_ms, tries = (
                int(headers[_PREFIX + name]) for name in ("offset", "topic-id", "timestamp-ms", "tries")
            )
        except (KeyError, ValueError):
            return None
        return cls(message, topic, offset, topic_id, timestamp_ms, subscriber, tries, reason)


class FailedMessage(msgspec.Struct, frozen=True):
    """A message that is given up."""

    message: Message
    tries: int
    reason: str


def reason_of(error: BaseException) -> str:
    """An exception as the reason of a dead letter: one line, not too long.

    >>> reason_of(ValueError("price missing"))
    'ValueError: price missing'
    """
    text = " ".join("".join(traceback.format_exception_only(error)).split())
    return text[:_REASON_CHARACTERS_MAX].encode(errors="replace").decode()


def dead_subscription(dead_topic: str) -> Subscribe:
    """What keeps dead letters. Harmless where it exists."""
    return Subscribe(dead_topic, DEAD_SUBSCRIBER, START_EARLIEST, Sharing(_LEASE_MS))


def make_dead_put(dead_topic: str, subscriber: str, given: Sequence[FailedMessage]) -> tuple[Put, bytes]:
    """Does not make the topic: one that is not there has no subscription either, and would keep nothing."""
    keys = [each.message.key for each in given]
    return make_put(
        dead_topic,
        False,
        [each.message.value for each in given],
        keys if any(key is not None for key in keys) else None,
        [_dead_headers(subscriber, each) for each in given],
    )


def _dead_headers(subscriber: str, given: FailedMessage) -> dict[str, bytes]:
    message = given.message
    added = {
        "topic": message.topic,
        "offset": message.offset,
        "topic-id": message.topic_id,
        "timestamp-ms": message.timestamp_ms,
        "subscriber": subscriber,
        "tries": given.tries,
        "reason": given.reason,
    }
    return {**message.headers, **{_PREFIX + name: str(value).encode() for name, value in added.items()}}


def make_retry_puts(letters: Sequence[DeadLetter]) -> tuple[tuple[Put, ...], tuple[bytes, ...]]:
    """Each to its topic, without what was added to it; a batch for each topic."""
    by_topic: dict[str, list[DeadLetter]] = {}
    for letter in letters:
        by_topic.setdefault(letter.topic, []).append(letter)
    made = [_make_retry_put(topic, found) for topic, found in by_topic.items()]
    return tuple(put for put, _ in made), tuple(payload for _, payload in made)


def _make_retry_put(topic: str, letters: Sequence[DeadLetter]) -> tuple[Put, bytes]:
    keys = [letter.key for letter in letters]
    return make_put(
        topic,
        False,
        [letter.value for letter in letters],
        keys if any(key is not None for key in keys) else None,
        [letter.headers for letter in letters],
    )


def _own_headers(message: Message) -> dict[str, bytes]:
    return {name: value for name, value in message.headers.items() if not name.startswith(_PREFIX)}
