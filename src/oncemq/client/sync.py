"""The blocking client: what `oncemq.connect` returns. Any number of threads may use one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from oncemq.client.connection import Connection, Settings
from oncemq.client.consumer.reader import Reader, Start
from oncemq.client.consumer.sync import PatternSubscription, Subscription
from oncemq.client.inbox.database import TABLE, database_of
from oncemq.client.inbox.inbox import Inbox
from oncemq.client.outbox.client import Outboxing
from oncemq.client.outbox.file import OutboxFile
from oncemq.client.producer.batch_buffer import Handle
from oncemq.client.push.subscribe import PushSubscribing
from oncemq.client.push.sync import PushSubscription
from oncemq.client.runtime.background import BackgroundThread
from oncemq.client.runtime.flow import Blocking
from oncemq.client.runtime.threads import ThreadDriver
from oncemq.client.runtime.transport import Transport, open_transport, split_urls
from oncemq.client.staging import Stager
from oncemq.client.transaction import Transaction
from oncemq.client.worker.dead_letter_admin import Retrying
from oncemq.client.worker.subscribe import SharedSubscribing
from oncemq.client.worker.sync import SharedSubscription
from oncemq.protocol.message import Message

if TYPE_CHECKING:
    from oncemq.client.inbox.inbox import Connection as Database

T = TypeVar("T")


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
) -> Client: ...
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
) -> OutboxClient: ...
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
) -> Client:
    """Connect to a broker.

    `url`: `tcp://HOST:PORT` or `ipc://PATH` (several, as a sequence or with commas between: the next is tried
    when one does not answer); `file:FOLDER` or `memory:` for a broker inside this process. Default: the
    environment's ONCEMQ_URL, or tcp://127.0.0.1:5555.

    `name` makes the session durable: it goes on where an earlier process of that name ended, and fences off one
    that still runs. Without it the session is this client's own; `label` is the beginning of its name.

    `outbox` is a file on this machine: what is put is written there first, and reaches the broker by itself, once
    and in order, even if this process dies. It need not be connected to put.

    `record` is a folder: what this client puts and consumes is written down there, for `oncemq pipeline audit`.
    Default: the environment's ONCEMQ_RECORD; "" for nowhere.

    >>> with oncemq.connect() as client:
    ...     client.put("orders", "one pizza", create=True)
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
    transport = open_transport(settings.urls)
    if settings.outbox is not None:
        return _with_outbox(settings, transport)
    client = Client(ThreadDriver(settings.core(), transport), **settings.batching())
    client._greet()
    return client


def _with_outbox(settings: Settings, transport: Transport) -> OutboxClient:
    """The broker may be away: nothing waits for it."""
    assert settings.outbox is not None
    outbox = None
    try:
        outbox = OutboxFile.open(settings.outbox)
        client = OutboxClient(ThreadDriver(settings.core(outbox), transport), **settings.batching())
    except BaseException:
        transport.close()
        if outbox is not None:
            outbox.close()
        raise
    client._begin_sending(outbox)
    return client


class Client(
    Connection[Handle, Subscription, PatternSubscription],
    SharedSubscribing[SharedSubscription],
    PushSubscribing[PushSubscription],
    Retrying,
    Blocking,
):
    """A connection to a broker; made by `oncemq.connect`. Threads may share it; forked children may not.

    >>> with oncemq.connect() as client:
    ...     client.put("orders", "one pizza")
    """

    _driver: ThreadDriver
    _handle_type = Handle
    _subscription_type = Subscription
    _pattern_subscription_type = PatternSubscription
    _shared_subscription_type = SharedSubscription
    _push_subscription_type = PushSubscription

    def __init__(self, driver: ThreadDriver, **batching: Any) -> None:
        super().__init__(driver, BackgroundThread(driver), driver.run_now, **batching)

    def transaction(self) -> Transaction:
        """Acks and puts over any topics: all of it, or nothing.

        >>> with client.transaction() as transaction:
        ...     transaction.put("invoices", "one pizza: 9.50")
        ...     transaction.ack(orders, message)
        """
        return Transaction(self)

    def stager(self, stage: str, topic: str, writer: str, batch: int) -> Stager:
        """Fill a stage with encoded batches, without waiting for each; `commit` publishes it.

        >>> stager = client.stager("part-0", "results", "nightly", 1)
        >>> stager.add(2, encode_batch([b"a", b"b"]))
        >>> client.commit("nightly", 1, "results", [("part-0", stager.finish())]).count
        2
        """
        return Stager(self, stage, topic, writer, batch)

    def inbox(
        self, topic: str, subscriber: str, connection: Database, *, start: Start = "new", table: str = TABLE
    ) -> Inbox:
        """A subscription whose position is stored by your own database, in the transaction of its effects.

        >>> inbox = client.inbox("orders", "billing", sqlite3.connect("billing.db"))
        """
        # First of all: a subscription stays, and must not be left behind by a mistake.
        database_of(connection, table)
        subscription = self.subscribe(topic, subscriber, start, auto_ack=False)
        return Inbox(subscription, connection, table=table)

    def read(
        self,
        topic: str,
        start: Start | datetime | None = None,
        *,
        stop: int | None = None,
        follow: bool = False,
        topic_id: int = 0,
    ) -> Iterator[Message]:
        """Messages that are still stored, from `start` up to `stop` (exclusive) or the end; with `follow`, on and on.

        `start` is `"earliest"` where it is not said; with `follow`, `"new"`. A time means the first message that was
        stored then or later.

        >>> [message.text for message in client.read("orders")]
        ['one pizza']
        """
        return self._messages_of(Reader(self._driver, topic, start, stop, follow, topic_id))

    def _messages_of(self, reader: Reader) -> Iterator[Message]:
        try:
            while messages := self._run(reader.next_part()):
                yield from messages
        finally:
            reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(clean=kind is None)


class OutboxClient(Outboxing, Client):
    """A client whose puts go through a file on this machine; made by `oncemq.connect(…, outbox=…)`.

    >>> with oncemq.connect(outbox="orders.outbox") as client:
    ...     client.put("orders", "one pizza")
    """
