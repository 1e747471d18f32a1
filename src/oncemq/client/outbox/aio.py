"""The asyncio client with an outbox."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from oncemq.client.aio import Client, Handle
from oncemq.client.outbox.connection import OutboxConnection
from oncemq.client.outbox.producer import Ticket
from oncemq.client.producer.encoding import Headers, Value, many_messages, one_message
from oncemq.client.runtime.event_loop import EventLoopDriver

if TYPE_CHECKING:
    from oncemq.client.outbox.contract import OutboxRefusal


class OutboxClient(Client):
    """A client whose puts go through a file on this machine; made by `oncemq.aio.connect(…, outbox=…)`. The file is
    written on the event loop: that takes as long as a sync of the disk.

    >>> async with oncemq.aio.connect(outbox="orders.outbox") as client:
    ...     await client.put("orders", "one pizza")
    """

    def __init__(self, driver: EventLoopDriver, connection: OutboxConnection[Handle]) -> None:
        super().__init__(driver, connection)
        self._outbox_connection = connection
        self._outbox_producer = connection.producer

    @property
    def pending(self) -> int:
        """How many operations are in the outbox that the broker has not decided, as far as this process knows."""
        return self._outbox_producer.outbox.pending_count

    async def put(  # type: ignore[override]  # A ticket instead of a receipt: the broker may be unreachable.
        self,
        topic: str,
        value: object,
        *,
        key: Value | None = None,
        headers: Headers | None = None,
        create: bool = False,
        ttl_s: float | None = None,
        delay_s: float | None = None,
    ) -> Ticket:
        """Store one message. When this returns, it is on this machine's disk; it reaches the broker automatically.

        >>> (await client.put("orders", "one pizza", create=True)).numbers
        (1,)
        """
        message = one_message(topic, value, key, headers, create, ttl_s, delay_s)
        return await self._driver.run(self._outbox_producer.put_one(message))

    async def put_many(  # type: ignore[override]
        self,
        topic: str,
        values: Iterable[object],
        *,
        keys: Iterable[Value | None] | None = None,
        headers: Iterable[Headers | None] | None = None,
        create: bool = False,
        ttl_s: float | None = None,
        delay_s: float | None = None,
    ) -> Ticket:
        """Store any number of messages, in order. When this returns, all are on this machine's disk.

        >>> (await client.put_many("orders", ["one pizza", "two salads"])).count
        2
        """
        messages = many_messages(topic, values, keys, headers, create, ttl_s, delay_s)
        return await self._driver.run(self._outbox_producer.store_many(messages))

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the broker has decided everything in the outbox. Raises the first refusal that is not `seen`, or
        TimeoutError.

        >>> await client.flush(timeout_s=10)
        """
        await super().flush(timeout_s)

    async def stored(self, ticket: Ticket | int) -> bool:
        """Return whether the broker has all of it on its disk. Raises the error that it was refused with. A number of
        an earlier process can be used instead of a ticket.

        >>> await client.stored(ticket)
        True
        """
        return await self._driver.run(self._outbox_producer.stored(ticket))

    async def refusals(self) -> list[OutboxRefusal]:
        """Return what the broker has refused, with its messages. Refusals are kept, also over restarts, until `seen`.

        >>> for refusal in await client.refusals():
        ...     log.error("%s: %s", refusal.code, refusal.text)
        ...     await client.seen(refusal)
        """
        return await self._driver.run(self._outbox_producer.refusals())

    async def seen(self, refusal: OutboxRefusal | int) -> None:
        """Delete a refusal from the outbox, once you have handled it.

        >>> await client.seen(refusal)
        """
        await self._driver.run(self._outbox_producer.seen(refusal))
