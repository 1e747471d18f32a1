"""What one request may keep in memory: a large body and a large response are reserved before they exist.

Small ones are not counted here; their number is limited with that of the connections.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

from oncemq.gateways.http.framework.byte_budget import ByteBudget, Reservation
from oncemq.gateways.http.settings import GatewaySettings

#: A body up to this size, and a response of about this size, reserves nothing.
SMALL_BYTES = 64 * 1024
#: Name of an extension in the ASGI scope: a function that ends the connection at once, with what was not sent yet.
ABORT = "oncemq.abort"

#: A body exists as bytes and as decoded values. Messages exist as they are stored and as they are sent.
_COPIES = 2


class GatewayMemory:
    """The budgets of all requests of a gateway."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.bodies = ByteBudget(settings.buffer_bytes_max)
        self.replies = ByteBudget(settings.buffer_bytes_max)


class RequestMemory:
    """What one request has reserved."""

    __slots__ = ("_abort", "_body", "_memory", "_reply")

    def __init__(self, memory: GatewayMemory, scope: MutableMapping[str, Any]) -> None:
        self._memory = memory
        self._abort: Callable[[], None] = scope.get("extensions", {}).get(ABORT, _nothing)
        self._body: Reservation | None = None
        self._reply: Reservation | None = None

    async def reserve_body(self, body_bytes: int) -> Reservation:
        """Wait until there is space for a body of this size."""
        self._body = await self._memory.bodies.reserve(_COPIES * body_bytes, self._abort)
        return self._body

    async def reserve_reply(self, reply_bytes: int) -> None:
        """Wait until there is space for messages of this size. Releases what was reserved for the messages before."""
        if self._reply is not None:
            self._reply.release()
            self._reply = None
        if reply_bytes:
            self._reply = await self._memory.replies.reserve(_COPIES * reply_bytes, self._abort)

    def note_reply(self, reply_bytes: int) -> None:
        """The reply is encoded, and has this size."""
        if self._reply is not None:
            self._reply.shrink(reply_bytes)

    def note_sent(self, sent_bytes: int) -> None:
        """The connection has accepted a part of the reply."""
        if self._reply is not None:
            self._reply.note_moved(sent_bytes)

    def release(self) -> None:
        for reservation in (self._body, self._reply):
            if reservation is not None:
                reservation.release()


def _nothing() -> None:
    pass


#: The memory of the request that the running task serves.
current_memory: ContextVar[RequestMemory] = ContextVar("current_memory")


async def reserve_reply(reply_bytes: int) -> None:
    """Reserve for the request that the running task serves."""
    memory = current_memory.get(None)
    if memory is not None:
        await memory.reserve_reply(reply_bytes)
