"""Subscriptions as tasks of an event loop use them. What they do is in consumer.py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from itertools import islice
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

if TYPE_CHECKING:
    import pyarrow

    from oncemq.client.runtime.event_loop import EventLoopDriver

T = TypeVar("T")


class Subscription:
    """As `oncemq.Subscription`, with methods that are awaited. For one task at a time: overlapping calls of several
    tasks raise RuntimeError.

    >>> subscription = await client.subscribe("orders", "kitchen")
    >>> async for message in subscription.messages(timeout_s=1):
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
        #: Internal: what transactions use. It may change with any version.
        self.consumer = Consumer(context, repr(self), cursor, options, feed)
        self._driver: EventLoopDriver = context.driver  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r}, {self.subscriber!r})"

    @property
    def dropped(self) -> int:
        """How many messages the subscription has lost to quotas, as far as is known."""
        return self.consumer.cursor.dropped

    async def get(self, timeout_s: float | None = 0.0) -> Message | None:
        """Return the next message; None if there is none within `timeout_s` (None: no time limit).

        A task that is cancelled here has not received one.

        >>> message = await subscription.get(timeout_s=5)
        """
        consumer = self.consumer
        guard = consumer.guard
        consumer.reader = guard.enter()
        try:
            guard.is_inside = True
            message = consumer.get_buffered()
            return message if message is not None else await self._driver.run(consumer.get(timeout_s))
        finally:
            guard.is_inside = False
            guard.leave()

    async def get_many(self, messages_max: int = 1000, timeout_s: float | None = 0.0) -> list[Message]:
        """Return at most `messages_max` messages, as soon as there are any; an empty list if none come within
        `timeout_s`.

        >>> for message in await subscription.get_many(100, timeout_s=5):
        ...     cook(message.value)
        """
        return await self._driver.run(self.consumer.get_many(messages_max, timeout_s))

    async def messages(self, timeout_s: float | None = None) -> AsyncIterator[Message]:
        """Iterate over messages. Ends when none came for `timeout_s` (None: never).

        >>> async for message in subscription.messages(timeout_s=10):
        ...     cook(message.value)
        """
        consumer, run = self.consumer, self._driver.run
        stride = 0
        while stride := await run(consumer.next_stride(stride, timeout_s)):
            for message in islice(consumer.current, stride):
                yield message

    async def objects(self, as_type: type[T], timeout_s: float | None = None) -> AsyncIterator[T]:
        """Iterate over the values of messages as objects: of a dataclass, a msgspec Struct, a pydantic model, a
        TypedDict or `dict`. Messages are acked as by `messages`. Raises SchemaMismatch for a value that can't be read
        so; its message is not acked.

        >>> async for order in subscription.objects(Order, timeout_s=10):
        ...     cook(order)
        """
        schemas = self.consumer.context.schemas
        async for message in self.messages(timeout_s):
            yield await self._driver.run(schemas.decode(message, as_type))

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.messages()

    async def frames(
        self, timeout_s: float | None = None, *, version: int = 0, columns: Sequence[str] = ()
    ) -> AsyncIterator[pyarrow.Table]:
        """Iterate over messages of a topic with a schema as Arrow tables, each with what has arrived. Ends when nothing
        came for `timeout_s` (None: never). A table is acked as a whole, when the next one is requested.

        `version` of the schema: its columns; 0 is the newest. `columns` of the messages (`offset`, `key`, `timestamp`,
        …) are added, as `message_offset` and so on. Raises SchemaMismatch, with the offset, for a message that does not
        match.

        >>> async for table in subscription.frames(timeout_s=10):
        ...     print(table.to_pandas()["price"].sum())
        """
        converter = self.consumer.context.frame_schemas.converter(version, columns)
        run, consumer = self._driver.run, self.consumer
        while (table := await run(consumer.get_converted(converter.convert, timeout_s))) is not None:
            yield table

    async def ack(self, message: Message | int | None = None, *, wait: bool = False) -> None:
        """Ack everything up to and including this message (or offset); None: everything that was delivered.

        Needed only with `auto_ack=False`. The ack is sent with the next get, or alone after a moment, or by `close`;
        with `wait` it is on the broker's disk when this returns. The ack of an offset that was not delivered yet
        skips the messages up to it: so a consumer gets past a message that can't be decoded.

        >>> await subscription.ack(message)
        """
        consumer = self.consumer
        guard = consumer.guard
        guard.enter()
        try:
            guard.is_inside = True
            if wait or not consumer.ack_buffered(message):
                await self._driver.run(consumer.ack(message, wait))
        finally:
            guard.is_inside = False
            guard.leave()

    async def seek(self, to: Start | datetime) -> int:
        """Continue at an offset, `"earliest"`, `"new"`, or the first message that was stored at a time or later.
        Returns the offset. Messages that are still stored can be read again.

        >>> await subscription.seek("earliest")
        0
        """
        return await self._driver.run(self.consumer.seek(to))

    async def close(self) -> None:
        """Ack what was delivered (with `auto_ack`), and stop. The durable subscription stays."""
        await self._driver.run(self.consumer.close(clean=True))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._driver.run(self.consumer.close(clean=kind is None))


class PatternSubscription(Subscription):
    """As `oncemq.PatternSubscription`, with methods that are awaited. For one task at a time.

    >>> subscription = await client.subscribe_pattern("orders.*", "audit")
    >>> async for message in subscription.messages(timeout_s=1):
    ...     print(message.topic, message.text)
    """

    _cursor_type = PatternCursor
