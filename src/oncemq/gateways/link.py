"""A gateway's one connection to the broker, shared by everybody who calls the gateway.

Commands go out as the gateway's callers mean them: an operation under a number of the gateway's own session
(`operate`), or a command as it is (`ask`): a get, or an operation that somebody else's key or number protects. What
is asked for in one turn of the event loop travels together. Single messages for one topic become one batch (`put`).

Knows commands and replies; nothing of HTTP or any other protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from oncemq import errors
from oncemq.client.connection import Settings
from oncemq.client.core import Payloads
from oncemq.client.loop_driver import LoopDriver
from oncemq.client.pending import Pending, again
from oncemq.client.transport import open_transport
from oncemq.engine.commands import Command, Envelope, Operation, Put
from oncemq.engine.replies import PutReply, Reply
from oncemq.message import checksum, encode_batch, key_hashes
from oncemq.wire.frames import Frame

R = TypeVar("R", bound=Reply)

#: Single messages that become one batch, at the most.
_MERGED_MESSAGES = 1000
#: The same in bytes. A larger one goes by itself, with `operate`.
MERGED_BYTES = 256 * 1024
#: Batches of one topic that are on their way at a time: what comes meanwhile makes up the next one.
_MERGED_IN_FLIGHT = 2

#: Obstacles that may stay for long. Operations keep their order, so one that waits for room holds up all behind it.
_TOLD_AT_ONCE = frozenset({"DISK_FULL", "TOPIC_FULL", "BUSY", "KEYS_FULL"})

Headers = Mapping[str, bytes]


def make_put(
    topic: str,
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
    *,
    create: bool = False,
    ttl_ms: int = 0,
    due_ms: int = 0,
) -> tuple[Put, bytes]:
    """A put and its payload."""
    payload = encode_batch(values, keys, headers)
    hashes = key_hashes(keys) if keys is not None and any(key is not None for key in keys) else b""
    envelope = Envelope(len(values), len(payload), checksum(payload), ttl_ms, due_ms, hashes)
    return Put(topic, envelope, create), payload


class Link:
    """Belongs to the event loop that was running when it was made."""

    def __init__(self, urls: Sequence[str], *, label: str, timeout_s: float = 1.0, tries: int = 5) -> None:
        """The broker may be away: who asks for something is told."""
        self._settings = Settings(
            urls=list(urls), name=None, label=label, timeout_s=timeout_s, tries=tries, window=256,
            batch_messages=1, batch_bytes=1, linger_ms=0, buffer_bytes=1,
        )
        self._loop = asyncio.get_running_loop()
        self._driver = self._connect()
        #: For what waits, from the first such command on: a thousand of them don't slow the others down.
        self._patient: LoopDriver | None = None
        self._merging: dict[tuple[str, bool], _Merging] = {}

    def _connect(self) -> LoopDriver:
        core = self._settings.core()
        core.options = msgspec.structs.replace(core.options, told_at_once=_TOLD_AT_ONCE)
        return LoopDriver(core, open_transport(self._settings.urls), self._loop)

    @property
    def _usable(self) -> LoopDriver:
        self._check_open()
        if self._driver.core.finished is not None:
            self._driver = self._replace(self._driver)
        return self._driver

    @property
    def _waiting(self) -> LoopDriver:
        self._check_open()
        if self._patient is None:
            self._patient = self._connect()
        elif self._patient.core.finished is not None:
            self._patient = self._replace(self._patient)
        return self._patient

    def _replace(self, former: LoopDriver) -> LoopDriver:
        """Its session was removed, or is in doubt. Whoever waited was told; others go on with another one."""
        # In this order: an embedded broker ends with its last client.
        driver = self._connect()
        former.stop(errors.ClientClosed("the session ended"))
        return driver

    def _check_open(self) -> None:
        if self._driver.stopped is not None:
            raise errors.Stopping("the gateway is stopping")

    async def operate(self, operation: Operation, payload: Payloads = None) -> Reply:
        """An operation under a number of the gateway's own: it happens once, as long as the gateway lives. Raises what
        it was refused with, and BrokerAway."""
        if payload is not None:
            await self._learn_limits(payload)
        driver = self._usable
        try:
            return (await self._answer(driver, driver.core.submit(operation, payload)))[0]
        except (errors.Fenced, errors.SessionUnknown) as error:
            raise _of_caller(driver, error) from None

    async def ask(
        self, command: Command, payload: Payloads = None, *, give_up_ms: float = 0.0
    ) -> tuple[Reply, Sequence[Frame]]:
        """A command that may be repeated: the reply and its payloads. Raises as `operate` does. Where the caller is
        cancelled, it is given up."""
        if payload is not None:
            await self._learn_limits(payload)
        driver = self._waiting if getattr(command, "wait_ms", 0) else self._usable
        pending = driver.core.ask(command, payload, give_up_ms=give_up_ms)
        try:
            return await self._answer(driver, pending)
        except asyncio.CancelledError:
            driver.drop(pending)
            driver.pump_soon()
            raise
        except (errors.Fenced, errors.SessionUnknown):
            if driver.core.finished is None:
                raise
        # The gateway's own session has ended meanwhile. Repeating this can't harm.
        return await self.ask(command, payload, give_up_ms=give_up_ms)

    async def _learn_limits(self, payload: Frame | tuple[Frame, ...]) -> None:
        """What is too large the broker does not even receive, so it has to say first how much it takes."""
        core = self._usable.core
        if core.batch_bytes_max:
            return
        size = sum(map(len, payload)) if isinstance(payload, tuple) else len(payload)
        if size > MERGED_BYTES:
            await self._answer(self._usable, core.greet())

    def _answer(self, driver: LoopDriver, pending: Pending) -> asyncio.Future[tuple[Reply, Sequence[Frame]]]:
        future: asyncio.Future[tuple[Reply, Sequence[Frame]]] = self._loop.create_future()
        if pending.done:
            _resolve(future, pending)
        else:
            pending.on_done = lambda done: _resolve(future, done)
            driver.pump_soon()
        return future

    # Single messages.

    def put(
        self, topic: str, value: bytes, key: bytes | None = None, headers: Headers | None = None, create: bool = False
    ) -> asyncio.Future[PutReply]:
        """Store one message, together with whatever others put on the same topic at this moment; each learns its own
        offset. Raises as `operate` does."""
        merging = self._merging.get((topic, create))
        if merging is None:
            merging = self._merging[topic, create] = _Merging(self, topic, create)
        return merging.add(value, key, headers)

    def _begin(self, operation: Put, payload: bytes) -> tuple[LoopDriver, Pending]:
        driver = self._usable
        return driver, driver.core.submit(operation, payload)

    def _forget(self, merging: _Merging) -> None:
        self._merging.pop((merging.topic, merging.create), None)

    def close(self) -> None:
        """Whoever asks for something from now on is told."""
        for driver in (self._driver, self._patient):
            if driver is not None and driver.stopped is None:
                driver.stop(errors.ClientClosed("the gateway is stopping"))


class _Merging:
    """The messages of one topic that wait to be sent as a batch, and the batches that are on their way."""

    def __init__(self, link: Link, topic: str, create: bool) -> None:
        self.topic = topic
        self.create = create
        self._link = link
        self._waiting: list[_Item] = []
        self._is_due = False
        self._in_flight = 0

    def add(self, value: bytes, key: bytes | None, headers: Headers | None) -> asyncio.Future[PutReply]:
        future: asyncio.Future[PutReply] = self._link._loop.create_future()
        self._waiting.append((value, key, headers, future))
        self._send_soon()
        return future

    def _send_soon(self) -> None:
        if not self._is_due and self._in_flight < _MERGED_IN_FLIGHT:
            self._is_due = True
            self._link._loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_due = False
        count = _fitting(self._waiting)
        items, self._waiting = self._waiting[:count], self._waiting[count:]
        self._send_batch(items)
        if self._waiting:
            self._send_soon()

    def _send_batch(self, items: list[_Item]) -> None:
        self._in_flight += 1
        try:
            values, keys, headers, _ = zip(*items, strict=True)
            operation, payload = make_put(self.topic, values, keys, headers, create=self.create)
            driver, pending = self._link._begin(operation, payload)
        except (errors.OnceMQError, TypeError, ValueError) as error:
            self._failed(items, error)
            return
        if pending.done:
            self._done(items, driver, pending)
        else:
            pending.on_done = lambda done: self._done(items, driver, done)
            driver.pump_soon()

    def _done(self, items: list[_Item], driver: LoopDriver, pending: Pending) -> None:
        if pending.error is not None:
            self._failed(items, _of_caller(driver, pending.error))
            return
        reply = pending.reply
        assert isinstance(reply, PutReply)
        offset = reply.first_offset
        for *_, future in items:
            if not future.done():
                future.set_result(PutReply(reply.topic_id, offset, 1, reply.time_ms, reply.subscriptions))
            offset += 1
        self._over()

    def _failed(self, items: list[_Item], error: Exception) -> None:
        if isinstance(error, errors.TooLarge) and len(items) > 1:
            # Together they were; each alone may not be.
            for item in items:
                self._send_batch([item])
        else:
            for *_, future in items:
                if not future.done():
                    future.set_exception(again(error) if isinstance(error, errors.OnceMQError) else error)
        self._over()

    def _over(self) -> None:
        self._in_flight -= 1
        if self._waiting:
            self._send_soon()
        elif not self._in_flight:
            self._link._forget(self)


_Item = tuple[bytes, bytes | None, Headers | None, "asyncio.Future[PutReply]"]


def _fitting(items: Sequence[_Item]) -> int:
    """How many of them make up the next batch."""
    size = 0
    for count, (value, *_) in enumerate(items[:_MERGED_MESSAGES]):
        size += len(value)
        if count and size > MERGED_BYTES:
            return count
    return min(len(items), _MERGED_MESSAGES)


def _resolve(future: asyncio.Future[tuple[Reply, Sequence[Frame]]], pending: Pending) -> None:
    if future.done():
        return
    if pending.error is not None:
        future.set_exception(again(pending.error))
    else:
        assert pending.reply is not None
        future.set_result((pending.reply, pending.payloads))


def _of_caller(driver: LoopDriver, error: errors.OnceMQError) -> errors.OnceMQError:
    """The end of the gateway's own session is nothing that a caller did, or can do anything about."""
    if driver.core.finished is None:
        return error
    return errors.BrokerAway(f"the gateway's session has ended ({error.code}); whether this happened is not known")


def expect(reply: Reply, kind: type[R]) -> R:
    """The reply, of the kind that its command has. Raises BrokerBug: the broker speaks another language."""
    if not isinstance(reply, kind):
        raise errors.BrokerBug(f"the broker answered with {type(reply).__name__} where {kind.__name__} belongs")
    return reply
