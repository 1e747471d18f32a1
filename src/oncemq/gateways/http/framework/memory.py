"""What one request may keep in memory: a large body and a large response are reserved before they exist, a small body
when it is complete. Small responses are not counted here; their number is limited with that of the connections.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any, Protocol

from oncemq.gateways.http.framework.byte_budget import ByteBudget, Reservation
from oncemq.gateways.http.framework.turns import Turn, Turns
from oncemq.gateways.http.settings import GatewaySettings
from oncemq.protocol import errors

#: A body up to this size, and a response of about this size, need not wait for memory.
SMALL_BYTES = 64 * 1024
#: Name of an extension in the ASGI scope: the client's connection, a `ClientConnection`.
CONNECTION = "oncemq.connection"
#: The same: whether the client has sent the request without waiting for the response to the one before.
IS_PIPELINED = "oncemq.is_pipelined"
#: Requests that fetch and encode a large response at a time: each takes the event loop for some milliseconds.
_LARGE_REPLIES_MAX = 1

#: A body exists as bytes and as decoded values. Messages exist as they are stored and as they are sent.
_COPIES = 2


class Disconnected(Exception):
    """The client disconnected before its request was answered."""


class ClientConnection(Protocol):
    def is_gone(self) -> bool:
        """Whether the client has closed it."""

    def abort(self) -> None:
        """End it at once, with all that is unsent."""

    async def drain(self) -> None:
        """Wait until the client has read most of the responses before."""


class _NoConnection:
    """A server without a network has none."""

    def is_gone(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    async def drain(self) -> None:
        pass


class GatewayMemory:
    """The budgets of all requests of a gateway."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.bodies = ByteBudget(settings.buffer_bytes_max)
        #: Complete ones, as they were received. Unfinished ones are limited by `connections.Connections`.
        self.small_bodies = ByteBudget(settings.buffer_bytes_max)
        self.replies = ByteBudget(settings.buffer_bytes_max)
        self.large_replies = Turns(_LARGE_REPLIES_MAX)


class RequestMemory:
    """What one request has reserved."""

    __slots__ = ("_body", "_connection", "_memory", "_reply", "_turn")

    def __init__(self, memory: GatewayMemory, scope: MutableMapping[str, Any]) -> None:
        self._memory = memory
        self._connection: ClientConnection = scope.get("extensions", {}).get(CONNECTION) or _NoConnection()
        self._body: Reservation | None = None
        self._reply: Reservation | None = None
        #: While a large reply is fetched and encoded.
        self._turn: Turn | None = None

    async def drain(self) -> None:
        """Wait until the client has read most of the responses before."""
        await self._connection.drain()

    async def reserve_body(self, body_bytes: int) -> Reservation:
        """Wait until there is space for a body of this size, which the client must send then."""
        self._body = await self._memory.bodies.reserve(_COPIES * body_bytes, self._connection.abort)
        self._body.start_transfer()
        return self._body

    def keep_body(self, body_bytes: int) -> None:
        """The body is complete, and has this size. Raises Overloaded if there is no space for a small one."""
        if self._body is not None:
            self._body.end_transfer()
            self._body.shrink(_COPIES * body_bytes)
        elif body_bytes:
            self._body = self._memory.small_bodies.reserve_now(body_bytes)
            if self._body is None:
                raise errors.Overloaded("there are too many requests at the moment")

    def release_body(self) -> None:
        """The request needs its body no more. May be called more than once."""
        if self._body is not None:
            self._body.release()

    async def reserve_reply(self, reply_bytes: int) -> None:
        """Wait until there is space for messages of this size. Releases what was reserved for the messages before.
        Raises Disconnected."""
        self._end_turn()
        if self._reply is not None:
            self._reply.release()
            self._reply = None
        if reply_bytes:
            self._reply = await self._memory.replies.reserve(_COPIES * reply_bytes, self._connection.abort)
            self._turn = await self._memory.large_replies.take()
            if self._connection.is_gone():
                raise Disconnected

    def is_client_gone(self) -> bool:
        return self._connection.is_gone()

    def abort_connection(self) -> None:
        """The client is gone: end its connection."""
        self._connection.abort()

    def note_reply(self, reply_bytes: int) -> None:
        """The reply is encoded, and has this size. The client must read it."""
        if self._reply is not None:
            self._reply.shrink(_COPIES * reply_bytes)
        self.start_sending()

    def start_sending(self) -> None:
        """The client must read what is sent from now on, until the next reservation."""
        self._end_turn()
        if self._reply is not None:
            self._reply.start_transfer()

    def note_sent(self, sent_bytes: int) -> None:
        """The connection has accepted a part of the reply."""
        if self._reply is not None:
            self._reply.note_moved(sent_bytes)

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.end()
            self._turn = None

    def release(self) -> None:
        self._end_turn()
        self.release_body()
        if self._reply is not None:
            self._reply.release()


#: The memory of the request that the running task serves.
current_memory: ContextVar[RequestMemory] = ContextVar("current_memory")


async def reserve_reply(reply_bytes: int) -> None:
    """Reserve for the request that the running task serves."""
    memory = current_memory.get(None)
    if memory is not None:
        await memory.reserve_reply(reply_bytes)
