"""Dead letters: the format of a message in a dead-letter topic, and the way back to its own topic.

A dead letter has the value, key and headers of the original message, and these headers as UTF-8 text:

    oncemq-topic, oncemq-offset, oncemq-topic-id, oncemq-timestamp-ms    the original message
    oncemq-subscriber, oncemq-tries, oncemq-reason                       which subscriber failed, after how many
                                                                         deliveries, and why

A dead-letter topic has the shared subscription `oncemq-dead`, which is created before the first letter is put: a topic
without subscriptions keeps nothing. Letters stay until they are taken from this subscription.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence

import msgspec

from oncemq.client.producer.encoding import make_put
from oncemq.protocol.commands import START_EARLIEST, Put, Sharing, Subscribe
from oncemq.protocol.message import Message
from oncemq.protocol.names import DEAD_SUBSCRIBER

#: The reason of a dead letter if the consumer gave none: it was delivered too often; it was rejected.
TRIES = "tries"
REJECTED = "rejected"

_PREFIX = "oncemq-"
_REASON_CHARACTERS_MAX = 500
_LEASE_MS = 30_000


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """A message in a dead-letter topic, and where it comes from.

    >>> [(letter.topic, letter.reason) for letter in client.dead_letters("orders.dead")]
    [('orders', 'no such customer')]
    """

    #: The message in the dead-letter topic.
    message: Message
    #: Where the original message was.
    topic: str
    offset: int
    topic_id: int
    #: When the broker stored the original message.
    timestamp_ms: int
    #: Which subscriber failed, and after how many deliveries.
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
        """The headers of the original message."""
        return _own_headers(self.message)

    @classmethod
    def of(cls, message: Message) -> DeadLetter | None:
        """Return a message of a dead-letter topic as a dead letter; None: it is not one."""
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
    """A message that becomes a dead letter."""

    message: Message
    tries: int
    reason: str
    #: More than 1: it stands for this many messages, from its offset on, which can't be decoded.
    count: int = 1

    @property
    def offsets(self) -> range:
        """The offsets of the messages that it stands for."""
        return range(self.message.offset, self.message.offset + self.count)


def reason_of(error: BaseException) -> str:
    """Return an exception as the reason of a dead letter: one line of limited length.

    >>> reason_of(ValueError("price missing"))
    'ValueError: price missing'
    """
    text = " ".join("".join(traceback.format_exception_only(error)).split())
    return text[:_REASON_CHARACTERS_MAX].encode(errors="replace").decode()


def dead_subscription(dead_topic: str) -> Subscribe:
    """Return the command that creates the subscription that keeps dead letters. It changes nothing if that exists."""
    return Subscribe(dead_topic, DEAD_SUBSCRIBER, START_EARLIEST, Sharing(_LEASE_MS))


def make_dead_put(dead_topic: str, subscriber: str, messages: Sequence[FailedMessage]) -> tuple[Put, bytes]:
    """Return the put of dead letters. It does not create the topic: a new one would have no subscription, and keep
    nothing."""
    return make_put(
        dead_topic,
        False,
        [each.message.value for each in messages],
        [each.message.key for each in messages],
        [_dead_headers(subscriber, each) for each in messages],
    )


def _dead_headers(subscriber: str, failed: FailedMessage) -> dict[str, bytes]:
    message = failed.message
    added = {
        "topic": message.topic,
        "offset": message.offset,
        "topic-id": message.topic_id,
        "timestamp-ms": message.timestamp_ms,
        "subscriber": subscriber,
        "tries": failed.tries,
        "reason": failed.reason,
    }
    return {**message.headers, **{_PREFIX + name: str(value).encode() for name, value in added.items()}}


def make_retry_puts(letters: Sequence[DeadLetter]) -> tuple[tuple[Put, ...], tuple[bytes, ...]]:
    """Return the puts that send letters back to their topics, one batch per topic, without the added headers."""
    by_topic: dict[str, list[DeadLetter]] = {}
    for letter in letters:
        by_topic.setdefault(letter.topic, []).append(letter)
    made = [_make_retry_put(topic, found) for topic, found in by_topic.items()]
    return tuple(put for put, _ in made), tuple(payload for _, payload in made)


def _make_retry_put(topic: str, letters: Sequence[DeadLetter]) -> tuple[Put, bytes]:
    return make_put(
        topic,
        False,
        [letter.value for letter in letters],
        [letter.key for letter in letters],
        [letter.headers for letter in letters],
    )


def _own_headers(message: Message) -> dict[str, bytes]:
    return {name: value for name, value in message.headers.items() if not name.startswith(_PREFIX)}
