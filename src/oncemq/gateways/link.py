"""A gateway's connection to the broker, shared by all callers of the gateway.

A numbered operation goes out under the gateway's own session (`operate`, `call`). A command that is safe to repeat goes
out as it is (`ask`, `query`): a get, or an operation that a caller's own key or number protects. Commands of one turn
of the event loop travel together. Single messages for one topic are put as one batch (`put`).

`for_caller` returns the same connection for one caller: the broker then allows what that caller may do, and no more.

Knows commands and replies; knows nothing of HTTP or any other protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from functools import partial
from typing import TypeVar

import msgspec

from oncemq.client.gateway_api import (
    NO_CREDENTIALS,
    BrokerSession,
    Credentials,
    EventLoopDriver,
    Payloads,
    Pending,
    again,
    claim_payloads,
    make_put,
)
from oncemq.gateways.put_batcher import BATCH_BYTES_MAX, Headers, PutBatcher, error_for_caller
from oncemq.gateways.topic_schemas import GatewaySchemas
from oncemq.protocol import errors
from oncemq.protocol.commands import (
    START_NEW,
    As,
    Command,
    Get,
    GetAny,
    Keyed,
    Login,
    Numbered,
    Operation,
    Put,
    Read,
    Take,
)
from oncemq.protocol.frames import Frame
from oncemq.protocol.limits import Limits
from oncemq.protocol.replies import GetReply, LoginReply, PutReply, Reply, SchemasReply, expect

R = TypeVar("R", bound=Reply)

#: Obstacles that may last long.
_LACK_OF_SPACE: frozenset[str] = frozenset(
    {"DISK_FULL", "TOPIC_FULL", "QUOTA_FULL", "RATE_LIMITED", "BUSY", "KEYS_FULL"}
)

#: How long a command waits at the broker before it is sent again.
WAIT_SLICE_MS = 5_000
#: A long poll that returns early and empty was replaced by a newer one for the same subscription.
_REPLACED_PAUSE_S = 0.2
_TICK_S = 0.005

LongPoll = Get | GetAny | Read | Take

#: What a reply may hold before space is reserved for it.
_UNRESERVED_BYTES = 64 * 1024


class Link:
    """Belongs to the event loop that is running when it is created."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        label: str,
        timeout_s: float = 1.0,
        tries: int = 5,
        waits_for_space: bool = True,
        reserve: Callable[[int], Awaitable[None]] | None = None,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        """The broker may be unreachable: then calls raise BrokerAway.

        `waits_for_space`: an operation that lacks space waits for it, and so do the operations after it, since they
        keep their order. Use False where callers are independent of each other: the operation fails at once. So do the
        operations of `for_caller`.

        `reserve` is called by the task that gets or reads messages, before a large reply is requested, with its maximum
        size. A call with 0 means that the reply before is not needed any more.

        `credentials` are those of the gateway itself, which needs the role `gateway` if the broker has users.
        """
        self._reserve = reserve
        at_once = frozenset() if waits_for_space else _LACK_OF_SPACE
        self._start_session = partial(
            BrokerSession,
            urls,
            label=label,
            timeout_s=timeout_s,
            tries=tries,
            report_at_once=at_once,
            credentials=credentials,
        )
        self._loop = asyncio.get_running_loop()
        #: The caller that it belongs to; "" = the gateway itself, or everybody where there are no users.
        self.caller = ""
        self._session = self._start_session()
        #: For the operations of callers, from the first one on. None of them waits for the space of another one.
        self._caller_sessions: list[BrokerSession] = []
        #: For commands that wait, from the first one on: a thousand long polls don't slow the other commands down.
        self._poll_sessions: list[BrokerSession] = []
        self._batchers: dict[tuple[str, str, bool], PutBatcher] = {}
        self.schemas = GatewaySchemas(partial(self.query, kind=SchemasReply))

    def for_caller(self, caller: str) -> Link:
        """Return this connection for one caller (`LoginReply.caller`). Nothing that it remembers, such as schemas, is
        shared with other callers. Only the gateway's own link is closed."""
        if caller == self.caller:
            return self
        link = copy(self)
        link.caller = caller
        link.schemas = GatewaySchemas(partial(link.query, kind=SchemasReply))
        return link

    async def login(self, kind: str, credential: str, address: str, listener: str) -> LoginReply:
        """Find the caller of a credential (protocol/commands: TOKEN, MAC, CURVE or NO_CREDENTIAL). Raises
        Unauthenticated, RateLimited and BrokerAway."""
        raw, _ = await self._ask(Login(kind, credential, address, listener))
        return expect(raw, LoginReply)

    def principal(self, name: str) -> str:
        """Return the principal of a caller's idempotency keys. The keys of a user are the user's own."""
        return f"{self.caller.partition('/')[0]}/{name}" if self.caller else name

    def _as_caller(self, command: Command) -> Command:
        return As(self.caller, command) if self.caller and not isinstance(command, As) else command

    def _usable_driver(self, *, waits: bool = False) -> EventLoopDriver:
        if self._session.is_closed:
            raise errors.Stopping("the gateway is stopping")
        if self.caller and not waits:
            if not self._caller_sessions:
                self._caller_sessions.append(self._start_session(report_at_once=_LACK_OF_SPACE))
            return self._caller_sessions[0].driver()
        if not waits:
            return self._session.driver()
        if not self._poll_sessions:
            self._poll_sessions.append(self._start_session())
        return self._poll_sessions[0].driver()

    async def operate(self, operation: Operation, payload: Payloads = None) -> Reply:
        """Send an operation under the next number of the gateway's session: it happens once, while the gateway lives.
        Raises what the broker refuses it with, and BrokerAway."""
        if payload is None:
            return await self._operate(operation, None)
        await self._learn_limits(payload)
        payloads = payload if isinstance(payload, tuple) else (payload,)
        try:
            return await self._operate(*await self.schemas.claim(operation, payloads, is_identified=False))
        except errors.OnceMQError as error:
            if not await self.schemas.heard(operation, error):
                raise
        return await self._operate(*await self.schemas.claim(operation, payloads, is_identified=False))

    async def _operate(self, operation: Operation, payload: Payloads) -> Reply:
        driver = self._usable_driver()
        try:
            return (await self._wait_for(driver, driver.core.submit(operation, payload, caller=self.caller)))[0]
        except (errors.Fenced, errors.SessionUnknown) as error:
            raise error_for_caller(driver, error) from None

    async def call(self, operation: Operation, kind: type[R], payload: Payloads = None) -> R:
        """Like `operate`, with the type of the reply. Raises BrokerBug if the reply has another type."""
        return expect(await self.operate(operation, payload), kind)

    async def ask(
        self, command: Command, payload: Payloads = None, *, give_up_ms: float = 0.0
    ) -> tuple[Reply, Sequence[Frame]]:
        """Send a command that is safe to repeat. Returns the reply and its payloads. Raises as `operate` does. If the
        caller is cancelled, the command is dropped."""
        if self._reserve is not None and isinstance(command, Get | Read):
            return await self._ask_reserved(command, self._reserve)
        if payload is not None and isinstance(command, Numbered | Keyed):
            return await self._ask_to_put(command, payload, give_up_ms)
        reply, payloads = await self._ask(command, payload, give_up_ms)
        if self._reserve is not None and (size := sum(map(len, payloads))) > _UNRESERVED_BYTES:
            # A take: its messages go to nobody else, so there are not many large ones at a time.
            await self._reserve(size)
        return reply, payloads

    async def _ask_to_put(
        self, command: Numbered | Keyed, payload: Frame | tuple[Frame, ...], give_up_ms: float
    ) -> tuple[Reply, Sequence[Frame]]:
        """Send an operation with payloads that a caller's number or key identifies."""
        payloads = payload if isinstance(payload, tuple) else (payload,)
        operation, payloads = await self.schemas.claim(command.operation, payloads, is_identified=True)
        command = msgspec.structs.replace(command, operation=operation)
        try:
            return await self._ask(command, payloads, give_up_ms)
        except errors.OnceMQError as error:
            # The number is used up. The caller's next request finds what is known now.
            await self.schemas.heard(operation, error)
            raise

    async def _ask_reserved(
        self, command: Get | Read, reserve: Callable[[int], Awaitable[None]]
    ) -> tuple[Reply, Sequence[Frame]]:
        """Ask for what a small reply can hold. If there is more, reserve space for it and ask again: a reply that is
        larger than its reservation is never requested."""
        await reserve(0)
        raw, payloads = await self._ask(msgspec.structs.replace(command, bytes_max=-_UNRESERVED_BYTES))
        reply = expect(raw, GetReply)
        is_all = reply.next_position >= reply.end_offset
        if is_all or (payloads and command.bytes_max <= _UNRESERVED_BYTES):
            return reply, payloads
        await reserve(command.bytes_max if payloads else max(command.bytes_max, self._batch_bytes_max))
        # A position such as START_NEW has become an offset.
        position = reply.batches[0].first_offset if reply.batches else reply.next_position
        again_at = command.position if command.position >= 0 else position
        return await self._ask(msgspec.structs.replace(command, position=again_at, wait_ms=0))

    async def _ask(
        self, command: Command, payload: Payloads = None, give_up_ms: float = 0.0
    ) -> tuple[Reply, Sequence[Frame]]:
        if payload is not None:
            await self._learn_limits(payload)
        driver = self._usable_driver(waits=bool(getattr(command, "wait_ms", 0)))
        pending = driver.core.ask(self._as_caller(command), payload, give_up_ms=give_up_ms)
        try:
            return await self._wait_for(driver, pending)
        except asyncio.CancelledError:
            driver.drop(pending)
            driver.pump_soon()
            raise
        except (errors.Fenced, errors.SessionUnknown):
            if driver.core.finished is None:
                raise
        # The gateway's own session has ended meanwhile. Repeating the command does no harm.
        return await self._ask(command, payload, give_up_ms)

    async def query(self, command: Command, kind: type[R]) -> R:
        """Like `ask` for a reply without payloads, with its type. Raises BrokerBug if the reply has another type."""
        return expect((await self.ask(command))[0], kind)

    async def wait(self, command: LongPoll) -> tuple[Reply, Sequence[Frame]]:
        """Like `ask`, for a command that waits for messages for its `wait_ms`. The wait is divided into slices, so
        that a broker that was restarted meanwhile soon gets the command again."""
        until_s = self._loop.time() + command.wait_ms / 1000
        while True:
            asked_s = self._loop.time()
            slice_ms = min(WAIT_SLICE_MS, max(0, int((until_s - asked_s) * 1000)))
            reply, payloads = await self.ask(msgspec.structs.replace(command, wait_ms=slice_ms))
            if payloads or self._loop.time() + _TICK_S >= until_s:
                return reply, payloads
            if isinstance(command, Read) and command.position == START_NEW:
                # Messages that are stored between two slices are new as well.
                found = expect(reply, GetReply)
                command = msgspec.structs.replace(command, position=found.next_position, topic_id=found.topic_id)
            if self._loop.time() - asked_s < slice_ms / 2000:
                # Another caller's long poll replaced it. Without a pause the two would replace each other in a loop.
                await asyncio.sleep(_REPLACED_PAUSE_S)
                return reply, payloads

    @property
    def _batch_bytes_max(self) -> int:
        return self._usable_driver().core.batch_bytes_max or Limits().batch_bytes_max

    async def _learn_limits(self, payload: Frame | tuple[Frame, ...]) -> None:
        """Ask the broker for its limits before a large payload: a payload that is too large is not even received."""
        core = self._usable_driver().core
        if core.batch_bytes_max:
            return
        size = sum(map(len, payload)) if isinstance(payload, tuple) else len(payload)
        if size > BATCH_BYTES_MAX:
            await self._wait_for(self._usable_driver(), core.greet())

    def _wait_for(self, driver: EventLoopDriver, pending: Pending) -> asyncio.Future[tuple[Reply, Sequence[Frame]]]:
        future: asyncio.Future[tuple[Reply, Sequence[Frame]]] = self._loop.create_future()
        if pending.done:
            _resolve(future, pending)
        else:
            pending.on_done = lambda done: _resolve(future, done)
            driver.pump_soon()
        return future

    # Single messages.

    async def put(
        self, topic: str, value: bytes, key: bytes | None = None, headers: Headers | None = None, create: bool = False
    ) -> PutReply:
        """Store one message, in one batch with the messages that other callers put on the topic at this moment. Each
        caller gets its own offset. Raises as `operate` does."""
        message = make_put(topic, create, [value]) if self.schemas.is_typed(topic) else None
        if message is not None:
            # A value that does not match must not fail the messages of others.
            await self.schemas.claim(message[0], (message[1],), is_identified=False)
        try:
            return await self._put_batched(topic, value, key, headers, create)
        except errors.OnceMQError as error:
            if not await self.schemas.heard(make_put(topic, create, [value])[0], error):
                raise
        return await self._put_batched(topic, value, key, headers, create)

    def _put_batched(
        self, topic: str, value: bytes, key: bytes | None, headers: Headers | None, create: bool
    ) -> asyncio.Future[PutReply]:
        batcher = self._batchers.get((self.caller, topic, create))
        if batcher is None:
            batcher = PutBatcher(self._loop, self._submit_put, self._discard_batcher, topic, create)
            self._batchers[self.caller, topic, create] = batcher
        return batcher.add(value, key, headers)

    def _submit_put(self, operation: Put, payload: bytes) -> tuple[EventLoopDriver, Pending]:
        driver = self._usable_driver()
        claimed, payloads = claim_payloads(operation, (payload,), self.schemas.find)
        return driver, driver.core.submit(claimed, payloads, caller=self.caller)

    def _discard_batcher(self, batcher: PutBatcher) -> None:
        self._batchers.pop((self.caller, batcher.topic, batcher.create), None)

    def close(self) -> None:
        """Close the connection. Later calls raise Stopping."""
        self._session.close()
        for session in (*self._poll_sessions, *self._caller_sessions):
            session.close()


def _resolve(future: asyncio.Future[tuple[Reply, Sequence[Frame]]], pending: Pending) -> None:
    if future.done():
        return
    if pending.error is not None:
        future.set_exception(again(pending.error))
    else:
        assert pending.reply is not None
        future.set_result((pending.reply, pending.payloads))
