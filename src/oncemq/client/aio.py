"""The asyncio client: what `oncemq.aio.connect` returns. Any number of tasks of one event loop may use one.

It runs the flows that the blocking client runs (sync.py), and has the same methods. `inbox` exists only there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from oncemq.client.admin import Admin, Overflow
from oncemq.client.connection import Connection
from oncemq.client.consumer.aio import PatternSubscription, Subscription
from oncemq.client.consumer.options import ConsumerOptions
from oncemq.client.consumer.reader import Reader, Start
from oncemq.client.consumer.subscriptions import Subscriptions
from oncemq.client.producer.batch_buffer import PendingMessage
from oncemq.client.producer.encoding import Headers, Value, make_one_put
from oncemq.client.producer.receipt import Receipt
from oncemq.client.push.aio import PushSubscription
from oncemq.client.push.subscriptions import PushSubscriptions
from oncemq.client.runtime.event_loop import EventLoopDriver
from oncemq.client.staging import AsyncStager, StageCounts, Stages
from oncemq.client.transaction import AsyncTransaction
from oncemq.client.worker.aio import SharedSubscription
from oncemq.client.worker.dead_letter_admin import DeadLetterAdmin
from oncemq.client.worker.options import WorkerOptions
from oncemq.client.worker.subscriptions import SharedSubscriptions, sharing_of
from oncemq.protocol.message import Message

if TYPE_CHECKING:
    from oncemq.client.consumer.filter import Wanted
    from oncemq.client.worker.dead_letters import DeadLetter
    from oncemq.protocol import replies


class Handle(PendingMessage, gc=False):
    """What `put_nowait` returns: the receipt of one message, once the broker has answered.

    >>> handle = client.put_nowait("orders", b"one pizza")
    >>> (await handle.result()).offset
    0
    """

    async def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for the receipt. Raises the error that the message was refused with, or TimeoutError."""
        if self._is_stored():
            return self._receipt()
        producer = self.batch.producer
        assert isinstance(producer.driver, EventLoopDriver)
        return await producer.driver.run(producer.result_of(self, timeout_s))


class Client:
    """A connection to a broker; made by `oncemq.aio.connect`. The tasks of its event loop may share it.

    It has the methods of `oncemq.Client`, to be awaited. `put_nowait`, `read`, `transaction` and `stager` are not
    awaited.

    >>> async with oncemq.aio.connect() as client:
    ...     await client.put("orders", "one pizza")
    """

    def __init__(self, driver: EventLoopDriver, connection: Connection[Handle]) -> None:
        context = connection.context
        self._driver = driver
        self._context = context
        self._connection = connection
        self._producer = connection.producer
        self._admin = Admin(context)
        self._stages = Stages(context)
        self._dead_letters = DeadLetterAdmin(context)
        self._subscriptions = Subscriptions(context, Subscription, PatternSubscription)
        self._shared = SharedSubscriptions(context, SharedSubscription)
        self._push = PushSubscriptions(context, PushSubscription)

    def __repr__(self) -> str:
        return self._connection.describe()

    @property
    def name(self) -> str:
        """The session's name."""
        return self._driver.core.session

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that the broker accepts, as it said when this client connected; 0 = it did not say."""
        return self._driver.core.batch_bytes_max

    async def close(self) -> None:
        """Send what was put, ack what was delivered, and end. Raises if a part of that fails."""
        await self._close(clean=True)

    async def _close(self, clean: bool) -> None:
        await self._driver.run(self._connection.close(clean))

    # Putting messages.

    async def put(
        self,
        topic: str,
        value: Value,
        *,
        key: Value | None = None,
        headers: Headers | None = None,
        create: bool = False,
        ttl_s: float | None = None,
        delay_s: float | None = None,
    ) -> Receipt:
        """As `oncemq.Client.put`."""
        put, payload = make_one_put(topic, value, key, headers, create, ttl_s, delay_s)
        return await self._driver.run(self._producer.put(put, payload))

    async def put_many(
        self,
        topic: str,
        values: Iterable[Value],
        *,
        keys: Iterable[Value | None] | None = None,
        headers: Iterable[Headers | None] | None = None,
        create: bool = False,
        ttl_s: float | None = None,
        delay_s: float | None = None,
    ) -> Receipt:
        """As `oncemq.Client.put_many`."""
        batches = self._producer.batches_of(topic, values, keys, headers, create, ttl_s, delay_s)
        return await self._driver.run(self._producer.put_batches(topic, batches))

    def put_nowait(
        self,
        topic: str,
        value: Value,
        key: Value | None = None,
        headers: Headers | None = None,
        create: bool = False,
        ttl_s: float | None = None,
        delay_s: float | None = None,
    ) -> Handle:
        """As `oncemq.Client.put_nowait`; it is not awaited. While `buffer_bytes` are unanswered, it raises
        Overloaded, and nothing is put.

        >>> handle = client.put_nowait("orders", b"one pizza")
        >>> (await handle.result()).offset
        0
        """
        producer = self._producer
        buffer = producer.buffers.get(topic)
        if (
            buffer is None
            or type(value) is not bytes
            or key is not None
            or headers is not None
            or create is not buffer.create
            or ttl_s is not None
            or delay_s is not None
        ):
            return producer.put_nowait(topic, value, key, headers, create, ttl_s, delay_s)
        # A plain value costs no other call.
        handle = Handle(buffer, value)
        handles = buffer.handles
        handles.append(handle)
        buffer.size = size = buffer.size + len(value)
        if size >= producer.batch_bytes or not 1 < len(handles) < producer.batch_messages:
            producer.check_buffer(buffer)
        return handle

    async def flush(self, timeout_s: float | None = None) -> None:
        """As `oncemq.Client.flush`."""
        await self._driver.run(self._producer.flush(timeout_s))

    def transaction(self) -> AsyncTransaction:
        """As `oncemq.Client.transaction`, with `async with`. Its `put`, `put_many` and `ack` are not awaited.

        >>> async with client.transaction() as transaction:
        ...     transaction.put("invoices", "one pizza: 9.50")
        ...     transaction.ack(orders, message)
        """
        return AsyncTransaction(self._driver, self._context)

    # Subscriptions.

    async def subscribe(
        self,
        topic: str,
        subscriber: str,
        start: Start = "new",
        *,
        auto_ack: bool = True,
        filter: Wanted | None = None,
        prefetch_bytes: int = 1024 * 1024,
    ) -> Subscription:
        """As `oncemq.Client.subscribe`."""
        options = ConsumerOptions(auto_ack=auto_ack, filter=filter, prefetch_bytes=prefetch_bytes)
        return await self._driver.run(self._subscriptions.subscribe(topic, subscriber, start, options))

    async def subscription(
        self,
        topic: str,
        subscriber: str,
        *,
        auto_ack: bool = True,
        hold_ms: int = 0,
        busy_s: float = 0.0,
        filter: Wanted | None = None,
        prefetch_bytes: int = 1024 * 1024,
    ) -> Subscription:
        """As `oncemq.Client.subscription`."""
        options = ConsumerOptions(auto_ack=auto_ack, filter=filter, prefetch_bytes=prefetch_bytes, hold_ms=hold_ms)
        return await self._driver.run(self._subscriptions.subscription(topic, subscriber, options, busy_s))

    async def subscribe_pattern(
        self,
        pattern: str,
        subscriber: str,
        start: str = "new",
        *,
        auto_ack: bool = True,
        filter: Wanted | None = None,
        prefetch_bytes: int = 1024 * 1024,
    ) -> PatternSubscription:
        """As `oncemq.Client.subscribe_pattern`."""
        options = ConsumerOptions(auto_ack=auto_ack, filter=filter, prefetch_bytes=prefetch_bytes)
        return await self._driver.run(self._subscriptions.subscribe_pattern(pattern, subscriber, start, options))

    async def pattern_subscription(
        self,
        pattern: str,
        subscriber: str,
        *,
        auto_ack: bool = True,
        filter: Wanted | None = None,
        prefetch_bytes: int = 1024 * 1024,
    ) -> PatternSubscription:
        """As `oncemq.Client.pattern_subscription`."""
        options = ConsumerOptions(auto_ack=auto_ack, filter=filter, prefetch_bytes=prefetch_bytes)
        return await self._driver.run(self._subscriptions.pattern_subscription(pattern, subscriber, options))

    async def subscribe_shared(
        self,
        topic: str,
        subscriber: str,
        start: Start = "new",
        *,
        lease_s: float = 30.0,
        tries_max: int = 0,
        dead_topic: str | None = None,
        key_order: bool = False,
        prefetch: int | None = None,
        prefetch_bytes: int = 1024 * 1024,
        unsettled_max: int = 1000,
        auto_extend: bool = True,
        extend_max_s: float = 3600.0,
    ) -> SharedSubscription:
        """As `oncemq.Client.subscribe_shared`."""
        sharing = sharing_of(topic, lease_s, tries_max, dead_topic, key_order)
        options = WorkerOptions(
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            unsettled_max=unsettled_max,
            auto_extend=auto_extend,
            extend_max_s=extend_max_s,
        )
        return await self._driver.run(self._shared.subscribe(topic, subscriber, start, sharing, options))

    async def shared_subscription(
        self,
        topic: str,
        subscriber: str,
        *,
        prefetch: int | None = None,
        prefetch_bytes: int = 1024 * 1024,
        unsettled_max: int = 1000,
        auto_extend: bool = True,
        extend_max_s: float = 3600.0,
    ) -> SharedSubscription:
        """As `oncemq.Client.shared_subscription`."""
        options = WorkerOptions(
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            unsettled_max=unsettled_max,
            auto_extend=auto_extend,
            extend_max_s=extend_max_s,
        )
        return await self._driver.run(self._shared.subscription(topic, subscriber, options))

    async def push(
        self,
        topic: str,
        subscriber: str,
        start: Start = "new",
        *,
        feed: str = "tcp://127.0.0.1:5558",
        auto_ack: bool = True,
        filter: Wanted | None = None,
        prefetch_bytes: int = 1024 * 1024,
    ) -> PushSubscription:
        """As `oncemq.Client.push`."""
        options = ConsumerOptions(auto_ack=auto_ack, filter=filter, prefetch_bytes=prefetch_bytes)
        return await self._driver.run(self._push.push(topic, subscriber, start, feed, options))

    async def unsubscribe(self, topic: str, subscriber: str) -> None:
        """As `oncemq.Client.unsubscribe`."""
        await self._driver.run(self._subscriptions.unsubscribe(topic, subscriber))

    async def seek(self, topic: str, subscriber: str, to: Start | datetime) -> int:
        """As `oncemq.Client.seek`."""
        return await self._driver.run(self._subscriptions.seek(topic, subscriber, to))

    async def find(self, topic: str, time: datetime) -> int:
        """As `oncemq.Client.find`."""
        return await self._driver.run(self._subscriptions.find(topic, time))

    def read(
        self,
        topic: str,
        start: Start | datetime | None = None,
        *,
        stop: int | None = None,
        follow: bool = False,
        topic_id: int = 0,
    ) -> AsyncIterator[Message]:
        """As `oncemq.Client.read`, with `async for`.

        >>> [message.text async for message in client.read("orders")]
        ['one pizza']
        """
        return self._messages_of(Reader(self._driver, topic, start, stop, follow, topic_id))

    async def _messages_of(self, reader: Reader) -> AsyncIterator[Message]:
        try:
            while messages := await self._driver.run(reader.next_part()):
                for message in messages:
                    yield message
        finally:
            reader.close()

    # Dead letters.

    async def dead_letters(self, dead_topic: str) -> list[DeadLetter]:
        """As `oncemq.Client.dead_letters`."""
        return await self._driver.run(self._dead_letters.dead_letters(dead_topic))

    async def retry_dead_letters(self, dead_topic: str, offsets: Iterable[int] | None = None) -> int:
        """As `oncemq.Client.retry_dead_letters`."""
        return await self._driver.run(self._dead_letters.retry_dead_letters(dead_topic, offsets))

    # Stages.

    async def stage(self, stage: str, topic: str, writer: str, batch: int, values: Sequence[Value]) -> int:
        """As `oncemq.Client.stage`."""
        return await self._driver.run(self._stages.stage(stage, topic, writer, batch, values))

    def stager(self, stage: str, topic: str, writer: str, batch: int) -> AsyncStager:
        """As `oncemq.Client.stager`.

        >>> stager = client.stager("part-0", "results", "nightly", 1)
        >>> await stager.add(2, encode_batch([b"a", b"b"]))
        >>> await stager.finish()
        2
        """
        return AsyncStager(self._driver, stage, topic, writer, batch)

    async def commit(
        self, writer: str, batch: int, topic: str | Mapping[str, StageCounts], stages: StageCounts | None = None
    ) -> replies.CommitReply:
        """As `oncemq.Client.commit`."""
        return await self._driver.run(self._stages.commit(writer, batch, topic, stages))

    async def abort(self, stages: Iterable[str]) -> None:
        """As `oncemq.Client.abort`."""
        await self._driver.run(self._stages.abort(stages))

    # Administration.

    async def create_topic(
        self,
        name: str,
        *,
        retain_ms: int = 0,
        retain_bytes: int = 0,
        quota_bytes: int = 0,
        overflow: Overflow = "refuse",
        alter: bool = False,
    ) -> bool:
        """As `oncemq.Client.create_topic`."""
        settings = (retain_ms, retain_bytes, quota_bytes, overflow, alter)
        return await self._driver.run(self._admin.create_topic(name, *settings))

    async def delete_topic(self, name: str) -> None:
        """As `oncemq.Client.delete_topic`."""
        await self._driver.run(self._admin.delete_topic(name))

    async def topics(self) -> list[replies.TopicInfo]:
        """As `oncemq.Client.topics`."""
        return await self._driver.run(self._admin.topics())

    async def subscriptions(self, topic: str | None = None) -> list[replies.SubscriptionInfo]:
        """As `oncemq.Client.subscriptions`."""
        return await self._driver.run(self._admin.subscriptions(topic))

    async def patterns(self) -> list[replies.PatternInfo]:
        """As `oncemq.Client.patterns`."""
        return await self._driver.run(self._admin.patterns())

    async def sessions(self) -> list[replies.SessionInfo]:
        """As `oncemq.Client.sessions`."""
        return await self._driver.run(self._admin.sessions())

    async def remove_session(self, name: str) -> None:
        """As `oncemq.Client.remove_session`."""
        await self._driver.run(self._admin.remove_session(name))

    async def health(self) -> replies.HealthReply:
        """As `oncemq.Client.health`."""
        return await self._driver.run(self._admin.health())

    async def registry_set(self, namespace: str, key: str, value: Value | None, *, version: int = -1) -> int:
        """As `oncemq.Client.registry_set`."""
        return await self._driver.run(self._admin.registry_set(namespace, key, value, version))

    async def registry_list(self, namespace: str, prefix: str = "") -> list[replies.RegistryEntry]:
        """As `oncemq.Client.registry_list`."""
        return await self._driver.run(self._admin.registry_list(namespace, prefix))
