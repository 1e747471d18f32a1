"""Subscriptions as threads use them. What they do is in consumer.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Self, TypeVar

from oncemq.client.consumer.consumer import Consumer
from oncemq.client.consumer.cursor import Cursor
from oncemq.client.consumer.options import ConsumerOptions
from oncemq.client.consumer.pattern import PatternCursor
from oncemq.client.consumer.reader import Start
from oncemq.client.consumer.session import MessageFeed
from oncemq.client.consumer.topic import TopicCursor
from oncemq.client.context import ClientContext
from oncemq.protocol.message import Message
from oncemq.protocol.replies import OpenReply

if TYPE_CHECKING:
    import pyarrow

    from oncemq.client.runtime.threads import ThreadDriver

T = TypeVar("T")


class Subscription:
    """A subscriber's messages, each once and in order. For one thread at a time: overlapping calls of several threads
    raise RuntimeError.

    >>> subscription = client.subscribe("orders", "kitchen")
    >>> for message in subscription.messages(timeout_s=1):
    ...     cook(message.value)
    """

    _cursor_type: type[TopicCursor | PatternCursor] = TopicCursor

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        subscriber: str,
        options: ConsumerOptions,
        feed: MessageFeed | None = None,
    ) -> None:
        #: The topic, or the pattern.
        self.topic = topic
        self.subscriber = subscriber
        #: A message is acked when the next one is requested.
        self.auto_ack = options.auto_ack
        #: `subscribe` has created the subscription; False: it existed.
        self.created = False
        cursor: Cursor = self._cursor_type(topic, subscriber, options.auto_ack)
        #: Internal: what transactions and inboxes use. It may change with any version.
        self.consumer = Consumer(context, repr(self), cursor, options, feed)
        self._driver: ThreadDriver = context.driver  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r}, {self.subscriber!r})"

    @property
    def dropped(self) -> int:
        """How many messages the subscription has lost to quotas, as far as is known."""
        return self.consumer.cursor.dropped

    def get(self, timeout_s: float | None = 0.0) -> Message | None:
        """Return the next message; None if there is none within `timeout_s` (None: no time limit).

        >>> message = subscription.get(timeout_s=5)
        """
        consumer = self.consumer
        guard = consumer.guard
        consumer.reader = guard.enter()
        try:
            guard.is_inside = True
            message = consumer.get_buffered()
            return message if message is not None else self._driver.run(consumer.get(timeout_s))
        finally:
            guard.is_inside = False
            guard.leave()

    def get_many(self, messages_max: int = 1000, timeout_s: float | None = 0.0) -> list[Message]:
        """Return at most `messages_max` messages, as soon as there are any; an empty list if none come within
        `timeout_s`.

        >>> for message in subscription.get_many(100, timeout_s=5):
        ...     cook(message.value)
        """
        return self._driver.run(self.consumer.get_many(messages_max, timeout_s))

    def messages(self, timeout_s: float | None = None) -> Iterator[Message]:
        """Iterate over messages. Ends when none came for `timeout_s` (None: never).

        >>> for message in subscription.messages(timeout_s=10):
        ...     cook(message.value)
        """
        # No code in Python runs between two messages of a stride.
        return chain.from_iterable(self._strides(timeout_s))

    def _strides(self, timeout_s: float | None) -> Iterator[Iterator[Message]]:
        consumer, run = self.consumer, self._driver.run
        stride = 0
        while stride := run(consumer.next_stride(stride, timeout_s)):
            yield islice(consumer.current, stride)

    def objects(self, as_type: type[T], timeout_s: float | None = None) -> Iterator[T]:
        """Iterate over the values of messages as objects: of a dataclass, a msgspec Struct, a pydantic model, a
        TypedDict or `dict`. Messages are acked as by `messages`. Raises SchemaMismatch for a value that can't be read
        so; its message is not acked.

        >>> for order in subscription.objects(Order, timeout_s=10):
        ...     cook(order)
        """
        schemas = self.consumer.context.schemas
        for message in self.messages(timeout_s):
            yield self._driver.run(schemas.decode(message, as_type))

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def frames(
        self, timeout_s: float | None = None, *, version: int = 0, columns: Sequence[str] = ()
    ) -> Iterator[pyarrow.Table]:
        """Iterate over messages of a topic with a schema as Arrow tables, each with what has arrived. Ends when nothing
        came for `timeout_s` (None: never). A table is acked as a whole, when the next one is requested.

        `version` of the schema: its columns; 0 is the newest. `columns` of the messages (`offset`, `key`, `timestamp`,
        …) are added, as `message_offset` and so on. Raises SchemaMismatch, with the offset, for a message that does not
        match.

        >>> for table in subscription.frames(timeout_s=10):
        ...     print(table.to_pandas()["price"].sum())
        """
        converter = self.consumer.context.frame_schemas.converter(version, columns)
        run, consumer = self._driver.run, self.consumer
        while (table := run(consumer.get_converted(converter.convert, timeout_s))) is not None:
            yield table

    def ack(self, message: Message | int | None = None, *, wait: bool = False) -> None:
        """Ack everything up to and including this message (or offset); None: everything that was delivered.

        Needed only with `auto_ack=False`. The ack is sent with the next get, or alone after a moment, or by `close`;
        with `wait` it is on the broker's disk when this returns. The ack of an offset that was not delivered yet
        skips the messages up to it: so a consumer gets past a message that can't be decoded.

        >>> subscription.ack(message)
        """
        consumer = self.consumer
        guard = consumer.guard
        guard.enter()
        try:
            guard.is_inside = True
            if wait or not consumer.ack_buffered(message):
                self._driver.run(consumer.ack(message, wait))
        finally:
            guard.is_inside = False
            guard.leave()

    def seek(self, to: Start | datetime) -> int:
        """Continue at an offset, `"earliest"`, `"new"`, or the first message that was stored at a time or later.
        Returns the offset. Messages that are still stored can be read again.

        >>> subscription.seek("earliest")
        0
        """
        return self._driver.run(self.consumer.seek(to))

    def close(self) -> None:
        """Ack what was delivered (with `auto_ack`), and stop. The durable subscription stays."""
        self._driver.run(self.consumer.close(clean=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._driver.run(self.consumer.close(clean=kind is None))


class PatternSubscription(Subscription):
    """Messages of every topic that matches a pattern, each once and in its topic's order. For one thread at a time.

    It has the methods of `Subscription`. `ack` takes messages, not offsets. `seek` moves all topics, takes no offset,
    and returns 0.

    >>> subscription = client.subscribe_pattern("orders.*", "audit")
    >>> for message in subscription.messages(timeout_s=1):
    ...     print(message.topic, message.text)
    """

    _cursor_type = PatternCursor


def open_now(subscription: Subscription) -> OpenReply:
    """Open a subscription now, not with its first use. It is taken over from another client that uses it."""
    return subscription._driver.run(subscription.consumer.open())
