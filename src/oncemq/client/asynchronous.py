"""The asyncio client: what `oncemq.aio.connect` gives. Any number of tasks of one event loop may use one.

The flows are those of the blocking client. Here are only the iterators, what is at hand, and the timer that keeps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Generator, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, TypeVar

from oncemq import errors
from oncemq.client.asynchronous_shared import SharedSubscription
from oncemq.client.batching import Place, Stream
from oncemq.client.connection import Connection, Settings
from oncemq.client.consuming import Consuming
from oncemq.client.driver import now_ms
from oncemq.client.flow import Asynchronous, Flow, Until
from oncemq.client.keeping import Keeping
from oncemq.client.loop_driver import LoopDriver
from oncemq.client.reading import Reader, Start
from oncemq.client.receipt import Receipt
from oncemq.client.retrying import Retrying
from oncemq.client.shared_subscribing import SharedSubscribing
from oncemq.client.transport import open_transport, split_urls
from oncemq.message import Message

log = logging.getLogger("oncemq.client")

T = TypeVar("T")

_NEVER = float("inf")


def connect(
    url: str | Sequence[str] | None = None,
    *,
    name: str | None = None,
    label: str = "anonymous",
    timeout_s: float = 1.0,
    tries: int = 5,
    window: int = 64,
    batch_messages: int = 1000,
    batch_bytes: int = 256 * 1024,
    linger_ms: float = 5.0,
    buffer_bytes: int = 64 * 1024 * 1024,
) -> Connecting:
    """Connect to a broker, on the event loop that runs. What can be set is what `oncemq.connect` explains.

    >>> async with oncemq.aio.connect() as client:
    ...     await client.put("orders", "one pizza", create=True)

    Or `client = await oncemq.aio.connect()`, and `await client.close()` at the end.
    """
    return Connecting(
        Settings(
            urls=split_urls(url), name=name, label=label, timeout_s=timeout_s, tries=tries, window=window,
            batch_messages=batch_messages, batch_bytes=batch_bytes, linger_ms=linger_ms, buffer_bytes=buffer_bytes,
        )
    )


class Connecting:
    """A client that is not there yet: `await` it, or enter it with `async with`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._client is not None
        await self._client._close(clean=kind is None)

    async def _connect(self) -> Client:
        settings = self._settings
        transport = open_transport(settings.urls)
        try:
            driver = LoopDriver(settings.core(), transport, asyncio.get_running_loop())
        except BaseException:
            transport.close()
            raise
        client = Client(
            driver,
            batch_messages=settings.batch_messages,
            batch_bytes=settings.batch_bytes,
            linger_ms=settings.linger_ms,
            buffer_bytes=settings.buffer_bytes,
        )
        await client._greet()
        return client


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


class Subscription(Asynchronous, Consuming):
    """A subscriber's messages, each once and in order. For one task at a time: overlapping calls of several raise
    RuntimeError.

    >>> subscription = await client.subscribe("orders", "kitchen")
    >>> async for message in subscription.messages(timeout_s=1):
    ...     cook(message.value)
    """

    _driver: LoopDriver
    _user = "task"

    async def get(self, timeout_s: float | None = 0.0) -> Message | None:
        """The next message; None if there is none within `timeout_s` (None: wait for ever).

        A task that is cancelled here has not been given one.

        >>> message = await subscription.get(timeout_s=5)
        """
        with self._one_user:
            message = self._get_at_hand()
            return message if message is not None else await self._driver.run(self._get_one(timeout_s))

    async def messages(self, timeout_s: float | None = None) -> AsyncIterator[Message]:
        """Iterate; ends when nothing came for `timeout_s` (None: never).

        >>> async for message in subscription.messages(timeout_s=10):
        ...     cook(message.value)
        """
        stride = await self._driver.run(self._next_stride(0, False, timeout_s))
        while stride:
            message = None
            for message in islice(self._current, stride):
                self._hand = message
                yield message
            stride = await self._driver.run(self._next_stride(stride, message is None, timeout_s))

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.messages()

    async def ack(self, message: Message | int | None = None, *, wait: bool = False) -> None:
        """Everything up to and including this message (or offset) is done; None: everything that was given.

        Needed only with `auto_ack=False`. It rides on the next get, goes alone after a moment, and at `close` at
        the latest; with `wait` it is on the broker's disk when this returns. An offset that was not given yet
        moves on: what lies before it is left out. So one gets past a message that can't be read.

        >>> await subscription.ack(message)
        """
        with self._one_user:
            if wait or not self._ack_at_hand(message):
                await self._driver.run(self._ack_one(message, wait))

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._run(self._close(clean=kind is None))


class KeeperTimer(Keeping):
    """The keeper of a client on an event loop. What is unanswered needs no keeping there: the loop takes it in."""

    _driver: LoopDriver

    def __init__(self, linger_ms: float) -> None:
        super().__init__(linger_ms)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = _NEVER

    def _wake_keeper(self) -> None:
        self._set_keeper(min(now_ms() + self._linger_ms, self._next_duty_ms()))

    def _set_keeper(self, due_ms: float) -> None:
        if due_ms == _NEVER or (self._timer is not None and self._timer_ms <= due_ms):
            return
        self._stop_keeper()
        self._timer_ms = due_ms
        self._timer = self._driver.loop.call_later(max(0.0, due_ms - now_ms()) / 1000, self._keep)

    def _stop_keeper(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _keep(self) -> None:
        self._timer = None
        if self._driver.stopped is not None:
            return
        try:
            self._keep_once()
        except Exception:
            # Whatever it was: without the keeper, messages would lie for ever.
            log.exception("the keeper met an error, and goes on")
        opened_ms = [stream.opened_ms for stream in self._waiting_streams()]
        self._set_keeper(min(min(opened_ms, default=_NEVER) + self._linger_ms, self._next_duty_ms()))


class Client(
    Connection[Handle, Subscription, Any],
    SharedSubscribing[SharedSubscription],
    Retrying,
    KeeperTimer,
    Asynchronous,
):
    """A connection to a broker; made by `oncemq.aio.connect`. The tasks of its event loop may share it.

    It has the methods of `oncemq.Client`, to be awaited, except `put_nowait` and `read`.

    >>> async with oncemq.aio.connect() as client:
    ...     await client.put("orders", "one pizza")
    """

    _driver: LoopDriver
    _handle_type = Handle
    _subscription_type = Subscription
    _shared_subscription_type = SharedSubscription

    def _attend(self, stream: Stream) -> None:
        try:
            super()._attend(stream)
        except errors.Overloaded:
            # Nothing else has run since: the last message is the caller's.
            stream.take_back()
            raise

    def _at_once(self, flow: Flow[T]) -> T:
        """Plain code can't wait on an event loop: where a thread would, this raises Overloaded."""
        try:
            wait = flow.send(None)
            self._driver.pump()
            while isinstance(wait, Until) and wait.is_done():
                wait = flow.send(True)
            flow.throw(self._overloaded())
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise AssertionError("a flow went on waiting")

    def _overloaded(self) -> errors.Overloaded:
        return errors.Overloaded(
            f"{self._unanswered_bytes} bytes are unanswered, and buffer_bytes is {self._buffer_bytes};"
            " await flush(), then put it again"
        )

    def read(
        self,
        topic: str,
        start: Start | None = None,
        *,
        stop: int | None = None,
        follow: bool = False,
        topic_id: int = 0,
    ) -> AsyncIterator[Message]:
        """Messages that are still stored, from `start` up to `stop` (exclusive) or the end; with `follow`, on and on.

        `start` is `"earliest"` where it is not said; with `follow`, `"new"`.

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
