"""The asyncio client: what `oncemq.aio.connect` gives. Any number of tasks of one event loop may use one.

The flows are those of the blocking client. Here are only the iterators, what is at hand, and the timer that keeps.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, TypeVar, overload

from oncemq.client.connection import Connection, Settings
from oncemq.client.consumer.aio import PatternSubscription, Subscription
from oncemq.client.consumer.reader import Reader, Start
from oncemq.client.core.core import Core
from oncemq.client.outbox.client import Outboxing
from oncemq.client.outbox.file import OutboxFile
from oncemq.client.producer.batch_buffer import Place
from oncemq.client.producer.receipt import Receipt
from oncemq.client.push.aio import PushSubscription
from oncemq.client.push.subscribe import PushSubscribing
from oncemq.client.runtime.background import BackgroundTimer
from oncemq.client.runtime.event_loop import EventLoopDriver
from oncemq.client.runtime.flow import Asynchronous
from oncemq.client.runtime.transport import WatchedTransport, open_transport, split_urls
from oncemq.client.staging import AsyncStager
from oncemq.client.transaction import AsyncTransaction
from oncemq.client.worker.aio import SharedSubscription
from oncemq.client.worker.dead_letter_admin import Retrying
from oncemq.client.worker.subscribe import SharedSubscribing
from oncemq.protocol.message import Message

log = logging.getLogger("oncemq.client")

T = TypeVar("T")
#: A client, with or without an outbox.
C = TypeVar("C", bound="Client")

_NEVER = float("inf")


@overload
def connect(
    url: str | Sequence[str] | None = None,
    *,
    outbox: None = None,
    name: str | None = None,
    label: str = "anonymous",
    timeout_s: float = 1.0,
    tries: int = 5,
    window: int = 64,
    batch_messages: int = 1000,
    batch_bytes: int = 256 * 1024,
    linger_ms: float = 5.0,
    buffer_bytes: int = 64 * 1024 * 1024,
    record: str | os.PathLike[str] | None = None,
) -> Connecting[Client]: ...
@overload
def connect(
    url: str | Sequence[str] | None = None,
    *,
    outbox: str | os.PathLike[str],
    timeout_s: float = 1.0,
    tries: int = 5,
    window: int = 64,
    batch_messages: int = 1000,
    batch_bytes: int = 256 * 1024,
    linger_ms: float = 5.0,
    buffer_bytes: int = 64 * 1024 * 1024,
    record: str | os.PathLike[str] | None = None,
) -> Connecting[OutboxClient]: ...
def connect(
    url: str | Sequence[str] | None = None,
    *,
    outbox: str | os.PathLike[str] | None = None,
    name: str | None = None,
    label: str = "anonymous",
    timeout_s: float = 1.0,
    tries: int = 5,
    window: int = 64,
    batch_messages: int = 1000,
    batch_bytes: int = 256 * 1024,
    linger_ms: float = 5.0,
    buffer_bytes: int = 64 * 1024 * 1024,
    record: str | os.PathLike[str] | None = None,
) -> Connecting[Any]:
    """Connect to a broker, on the event loop that runs. What can be set is what `oncemq.connect` explains.

    >>> async with oncemq.aio.connect() as client:
    ...     await client.put("orders", "one pizza", create=True)

    Or `client = await oncemq.aio.connect()`, and `await client.close()` at the end.
    """
    settings = Settings(
        urls=split_urls(url),
        outbox=outbox,
        name=name,
        label=label,
        timeout_s=timeout_s,
        tries=tries,
        window=window,
        batch_messages=batch_messages,
        batch_bytes=batch_bytes,
        linger_ms=linger_ms,
        buffer_bytes=buffer_bytes,
        record=record,
    )
    return Connecting(settings, _connect if outbox is None else _connect_outbox)


class Connecting(Generic[C]):
    """A client that is not there yet: `await` it, or enter it with `async with`."""

    def __init__(self, settings: Settings, begin: Callable[[Settings, WatchedTransport], Awaitable[C]]) -> None:
        self._settings = settings
        self._begin = begin
        self._client: C | None = None

    def __await__(self) -> Generator[Any, None, C]:
        return self._connect().__await__()

    async def __aenter__(self) -> C:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._client is not None
        await self._client._close(clean=kind is None)

    async def _connect(self) -> C:
        return await self._begin(self._settings, open_transport(self._settings.urls))


async def _connect(settings: Settings, transport: WatchedTransport) -> Client:
    client = Client(_driver(settings.core(), transport), **settings.batching())
    await client._greet()
    return client


async def _connect_outbox(settings: Settings, transport: WatchedTransport) -> OutboxClient:
    """The broker may be away: nothing waits for it."""
    assert settings.outbox is not None
    outbox = None
    try:
        outbox = OutboxFile.open(settings.outbox)
        client = OutboxClient(_driver(settings.core(outbox), transport), **settings.batching())
    except BaseException:
        transport.close()
        if outbox is not None:
            outbox.close()
        raise
    client._begin_sending(outbox)
    return client


def _driver(core: Core, transport: WatchedTransport) -> EventLoopDriver:
    try:
        return EventLoopDriver(core, transport, asyncio.get_running_loop())
    except BaseException:
        transport.close()
        raise


class Handle(Place, gc=False):
    """What `put_nowait` returns: one message's answer, once it is there.

    >>> handle = client.put_nowait("orders", b"one pizza")
    >>> (await handle.result()).offset
    0
    """

    async def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for the answer. Raises what the message was refused with, or TimeoutError."""
        if self._is_stored():
            return self._receipt()
        producer = self.batch.producer
        receipt: Receipt = await producer._run(producer._result_of(self, timeout_s))
        return receipt


class Client(
    Connection[Handle, Subscription, PatternSubscription],
    SharedSubscribing[SharedSubscription],
    PushSubscribing[PushSubscription],
    Retrying,
    Asynchronous,
):
    """A connection to a broker; made by `oncemq.aio.connect`. The tasks of its event loop may share it.

    It has the methods of `oncemq.Client`, to be awaited, except `put_nowait` and `read`.

    >>> async with oncemq.aio.connect() as client:
    ...     await client.put("orders", "one pizza")
    """

    _driver: EventLoopDriver
    _handle_type = Handle
    _subscription_type = Subscription
    _pattern_subscription_type = PatternSubscription
    _shared_subscription_type = SharedSubscription
    _push_subscription_type = PushSubscription

    def __init__(self, driver: EventLoopDriver, **batching: Any) -> None:
        super().__init__(driver, BackgroundTimer(driver), driver.run_now, **batching)

    def transaction(self) -> AsyncTransaction:
        """Acks and puts over any topics: all of it, or nothing. What it gathers is not awaited.

        >>> async with client.transaction() as transaction:
        ...     transaction.put("invoices", "one pizza: 9.50")
        ...     transaction.ack(orders, message)
        """
        return AsyncTransaction(self)

    def stager(self, stage: str, topic: str, writer: str, batch: int) -> AsyncStager:
        """Fill a stage with encoded batches, without waiting for each; `commit` publishes it.

        >>> stager = client.stager("part-0", "results", "nightly", 1)
        >>> await stager.add(2, encode_batch([b"a", b"b"]))
        >>> await stager.finish()
        2
        """
        return AsyncStager(self, stage, topic, writer, batch)

    def read(
        self,
        topic: str,
        start: Start | datetime | None = None,
        *,
        stop: int | None = None,
        follow: bool = False,
        topic_id: int = 0,
    ) -> AsyncIterator[Message]:
        """Messages that are still stored, from `start` up to `stop` (exclusive) or the end; with `follow`, on and on.

        `start` is `"earliest"` where it is not said; with `follow`, `"new"`. A time means the first message that was
        stored then or later.

        >>> [message.text async for message in client.read("orders")]
        ['one pizza']
        """
        return self._messages_of(Reader(self._driver, topic, start, stop, follow, topic_id))

    async def _messages_of(self, reader: Reader) -> AsyncIterator[Message]:
        try:
            while messages := await self._run(reader.next_part()):
                for message in messages:
                    yield message
        finally:
            reader.close()


class OutboxClient(Outboxing, Client):
    """A client whose puts go through a file on this machine; made by `oncemq.aio.connect(…, outbox=…)`. Writing the
    file is not awaited: it takes as long as a sync of the disk.

    >>> async with oncemq.aio.connect(outbox="orders.outbox") as client:
    ...     await client.put("orders", "one pizza")
    """
