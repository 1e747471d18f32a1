"""A gateway's one connection to the broker, shared by everybody who calls the gateway.

Commands go out as the gateway's callers mean them: an operation under a number of the gateway's own session
(`operate`), or a command as it is (`ask`): a get, or an operation that somebody else's key or number protects. What
is asked for in one turn of the event loop travels together. Single messages for one topic become one batch (`put`).

Knows commands and replies; nothing of HTTP or any other protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from oncemq.client.core.core import Payloads
from oncemq.client.core.pending import Pending, again
from oncemq.client.options import ConnectSettings
from oncemq.client.runtime.event_loop import EventLoopDriver
from oncemq.client.runtime.transport import open_transport
from oncemq.gateways.put_batcher import MERGED_BYTES, Headers, Merging, bytes_of, error_for_caller, make_put
from oncemq.protocol import errors
from oncemq.protocol.commands import START_NEW, Command, Get, GetAny, Operation, Put, Read, Take
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import GetReply, PutReply, Reply

__all__ = ["MERGED_BYTES", "Link", "bytes_of", "expect", "make_put"]

R = TypeVar("R", bound=Reply)

#: Obstacles that may stay for long.
_OF_ROOM: frozenset[str] = frozenset({"DISK_FULL", "TOPIC_FULL", "BUSY", "KEYS_FULL"})

#: So long a command waits at the broker before it is sent again.
WAIT_SLICE_MS = 5_000
#: A wait that is answered before its time, with nothing, was replaced by another one for the same subscription.
_REPLACED_PAUSE_S = 0.2
_TICK_S = 0.005

Waiting = Get | GetAny | Read | Take


class Link:
    """Belongs to the event loop that was running when it was made."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        label: str,
        timeout_s: float = 1.0,
        tries: int = 5,
        waits_for_room: bool = True,
    ) -> None:
        """The broker may be away: who asks for something is told. Where callers have nothing to do with each other,
        none of them `waits_for_room`: operations keep their order, so it would hold up all others."""
        self._settings = ConnectSettings(
            urls=list(urls),
            label=label,
            timeout_s=timeout_s,
            tries=tries,
            window=256,
        )
        self._told_at_once = frozenset() if waits_for_room else _OF_ROOM
        self._loop = asyncio.get_running_loop()
        self._driver = self._connect()
        #: For what waits, from the first such command on: a thousand of them don't slow the others down.
        self._patient: EventLoopDriver | None = None
        self._merging: dict[tuple[str, bool], Merging] = {}

    def _connect(self) -> EventLoopDriver:
        core = self._settings.make_core()
        core.report_at_once(self._told_at_once)
        return EventLoopDriver(core, open_transport(self._settings.urls), self._loop)

    @property
    def _usable(self) -> EventLoopDriver:
        self._check_open()
        if self._driver.core.finished is not None:
            self._driver = self._replace(self._driver)
        return self._driver

    @property
    def _waiting(self) -> EventLoopDriver:
        self._check_open()
        if self._patient is None:
            self._patient = self._connect()
        elif self._patient.core.finished is not None:
            self._patient = self._replace(self._patient)
        return self._patient

    def _replace(self, former: EventLoopDriver) -> EventLoopDriver:
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
            raise error_for_caller(driver, error) from None

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

    async def wait(self, command: Waiting) -> tuple[Reply, Sequence[Frame]]:
        """The same for what brings messages: waits for some, for its `wait_ms`. In slices, so that a broker that was
        restarted meanwhile is asked again soon."""
        until_s = self._loop.time() + command.wait_ms / 1000
        while True:
            asked_s = self._loop.time()
            slice_ms = min(WAIT_SLICE_MS, max(0, int((until_s - asked_s) * 1000)))
            reply, payloads = await self.ask(msgspec.structs.replace(command, wait_ms=slice_ms))
            if payloads or self._loop.time() + _TICK_S >= until_s:
                return reply, payloads
            if isinstance(command, Read) and command.position == START_NEW:
                # What comes between two slices is new as well.
                found = expect(reply, GetReply)
                command = msgspec.structs.replace(command, position=found.next_position, topic_id=found.topic_id)
            if self._loop.time() - asked_s < slice_ms / 2000:
                # Replaced by somebody else's. Callers who take turns at this must not do so as fast as they can.
                await asyncio.sleep(_REPLACED_PAUSE_S)
                return reply, payloads

    async def _learn_limits(self, payload: Frame | tuple[Frame, ...]) -> None:
        """What is too large the broker does not even receive, so it has to say first how much it takes."""
        core = self._usable.core
        if core.batch_bytes_max:
            return
        size = sum(map(len, payload)) if isinstance(payload, tuple) else len(payload)
        if size > MERGED_BYTES:
            await self._answer(self._usable, core.greet())

    def _answer(self, driver: EventLoopDriver, pending: Pending) -> asyncio.Future[tuple[Reply, Sequence[Frame]]]:
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
            merging = self._merging[topic, create] = Merging(self._loop, self._begin, self._forget, topic, create)
        return merging.add(value, key, headers)

    def _begin(self, operation: Put, payload: bytes) -> tuple[EventLoopDriver, Pending]:
        driver = self._usable
        return driver, driver.core.submit(operation, payload)

    def _forget(self, merging: Merging) -> None:
        self._merging.pop((merging.topic, merging.create), None)

    def close(self) -> None:
        """Whoever asks for something from now on is told."""
        for driver in (self._driver, self._patient):
            if driver is not None and driver.stopped is None:
                driver.stop(errors.ClientClosed("the gateway is stopping"))


def _resolve(future: asyncio.Future[tuple[Reply, Sequence[Frame]]], pending: Pending) -> None:
    if future.done():
        return
    if pending.error is not None:
        future.set_exception(again(pending.error))
    else:
        assert pending.reply is not None
        future.set_result((pending.reply, pending.payloads))


def expect(reply: Reply, kind: type[R]) -> R:
    """The reply, of the kind that its command has. Raises BrokerBug: the broker speaks another language."""
    if not isinstance(reply, kind):
        raise errors.BrokerBug(f"the broker answered with {type(reply).__name__} where {kind.__name__} belongs")
    return reply
