"""`oncemq.aio.connect`: opens an asyncio client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Generic, TypeVar, Unpack, overload

from oncemq.client.aio import Client, Handle
from oncemq.client.connection import Connection
from oncemq.client.context import ClientContext
from oncemq.client.core.core import Core
from oncemq.client.options import ConnectOptions, ConnectSettings, OutboxOptions, settings_of
from oncemq.client.outbox.aio import OutboxClient
from oncemq.client.outbox.connection import OutboxConnection, open_outbox
from oncemq.client.outbox.producer import OutboxProducer
from oncemq.client.producer.producer import Producer
from oncemq.client.runtime.background import BackgroundTimer
from oncemq.client.runtime.event_loop import EventLoopDriver
from oncemq.client.runtime.transport import WatchedTransport, open_transport
from oncemq.protocol import errors

#: A client, with or without an outbox.
C = TypeVar("C", bound=Client)


@overload
def connect(
    url: str | Sequence[str] | None = None, *, outbox: None = None, **options: Unpack[ConnectOptions]
) -> Connecting[Client]: ...
@overload
def connect(
    url: str | Sequence[str] | None = None, *, outbox: str | os.PathLike[str], **options: Unpack[OutboxOptions]
) -> Connecting[OutboxClient]: ...
def connect(
    url: str | Sequence[str] | None = None, *, outbox: str | os.PathLike[str] | None = None, **options: Any
) -> Connecting[Any]:
    """Connect to a broker, on the running event loop. `oncemq.connect` explains the options; `busy_poll_us` is for
    blocking clients only.

    >>> async with oncemq.aio.connect() as client:
    ...     await client.put("orders", "one pizza", create=True)

    Or `client = await oncemq.aio.connect()`, and `await client.close()` at the end.
    """
    settings = settings_of(url, outbox, options)
    if settings.busy_poll_us:
        raise errors.SettingInvalid("busy_poll_us is for blocking clients: here the event loop waits")
    return Connecting(settings, _connect if outbox is None else _connect_outbox)


class Connecting(Generic[C]):
    """A client that is not connected yet: `await` it, or enter it with `async with`."""

    def __init__(
        self, settings: ConnectSettings, open_client: Callable[[ConnectSettings, WatchedTransport], Awaitable[C]]
    ) -> None:
        self._settings = settings
        self._open_client = open_client
        self._client: C | None = None

    def __await__(self) -> Generator[Any, None, C]:
        return self._connect().__await__()

    async def __aenter__(self) -> C:
        self._client = await self._connect()
        return self._client

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._client is not None
        await self._client._close(clean=kind is None)

    async def _connect(self) -> C:
        settings = self._settings
        return await self._open_client(settings, open_transport(settings.urls, credentials=settings.credentials))


async def _connect(settings: ConnectSettings, transport: WatchedTransport) -> Client:
    driver = _driver(settings.make_core(), transport)
    background = BackgroundTimer(driver)
    producer = Producer(driver, background, settings, Handle)
    context = ClientContext(driver, background, producer, settings.credentials)
    client = Client(driver, Connection(producer, context))
    await driver.run(client._connection.greet())
    return client


async def _connect_outbox(settings: ConnectSettings, transport: WatchedTransport) -> OutboxClient:
    """Does not wait for the broker, which may be unreachable."""
    outbox, driver = open_outbox(settings, transport, lambda core: _driver(core, transport))
    background = BackgroundTimer(driver)
    producer = OutboxProducer(driver, background, settings, Handle, outbox)
    return OutboxClient(driver, OutboxConnection(producer, background))


def _driver(core: Core, transport: WatchedTransport) -> EventLoopDriver:
    try:
        return EventLoopDriver(core, transport, asyncio.get_running_loop())
    except BaseException:
        transport.close()
        raise
