"""Single messages that many callers put on one topic, gathered into batches. Each caller gets its own offset.

At most two batches of a topic are in flight; messages that come meanwhile make up the next batch. Knows nothing of the
callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from oncemq.client.gateway_api import EventLoopDriver, Pending, again, make_put
from oncemq.protocol import errors
from oncemq.protocol.commands import Put
from oncemq.protocol.replies import PutReply

_BATCH_MESSAGES_MAX = 1000
#: A larger message is put alone, with `Link.operate`.
BATCH_BYTES_MAX = 256 * 1024
_BATCHES_IN_FLIGHT_MAX = 2

Headers = Mapping[str, bytes]
SubmitPut = Callable[[Put, bytes], tuple[EventLoopDriver, Pending]]


class PutBatcher:
    """The messages of one topic that wait to be sent as a batch, and the batches in flight."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        submit: SubmitPut,
        on_idle: Callable[[PutBatcher], None],
        topic: str,
        create: bool,
    ) -> None:
        """`submit` sends a batch. `on_idle` is called when no message waits and no batch is in flight."""
        self.topic = topic
        self.create = create
        self._loop = loop
        self._submit = submit
        self._on_idle = on_idle
        self._waiting: list[_Item] = []
        self._is_scheduled = False
        self._in_flight = 0

    def add(self, value: bytes, key: bytes | None, headers: Headers | None) -> asyncio.Future[PutReply]:
        """Put a message into the next batch. The future has the message's own offset."""
        future: asyncio.Future[PutReply] = self._loop.create_future()
        self._waiting.append((value, key, headers, future))
        self._schedule()
        return future

    def _schedule(self) -> None:
        if not self._is_scheduled and self._in_flight < _BATCHES_IN_FLIGHT_MAX:
            self._is_scheduled = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_scheduled = False
        count = _next_batch_count(self._waiting)
        items, self._waiting = self._waiting[:count], self._waiting[count:]
        self._send_batch(items)
        if self._waiting:
            self._schedule()

    def _send_batch(self, items: list[_Item]) -> None:
        self._in_flight += 1
        try:
            values, keys, headers, _ = zip(*items, strict=True)
            operation, payload = make_put(self.topic, self.create, values, keys, headers)
            driver, pending = self._submit(operation, payload)
        except (errors.OnceMQError, TypeError, ValueError) as error:
            self._fail(items, error)
            return
        if pending.done:
            self._complete(items, driver, pending)
        else:
            pending.on_done = lambda done: self._complete(items, driver, done)
            driver.pump_soon()

    def _complete(self, items: list[_Item], driver: EventLoopDriver, pending: Pending) -> None:
        if pending.error is not None:
            self._fail(items, error_for_caller(driver, pending.error))
            return
        reply = pending.reply
        assert isinstance(reply, PutReply)
        offset = reply.first_offset
        for *_, future in items:
            if not future.done():
                future.set_result(PutReply(reply.topic_id, offset, 1, reply.time_ms, reply.subscriptions))
            offset += 1
        self._finish_batch()

    def _fail(self, items: list[_Item], error: Exception) -> None:
        if isinstance(error, errors.TooLarge | errors.SchemaMismatch) and len(items) > 1:
            # Together they are too large, or one of them does not match the schema: each one alone may be stored.
            for item in items:
                self._send_batch([item])
        else:
            for *_, future in items:
                if not future.done():
                    future.set_exception(again(error) if isinstance(error, errors.OnceMQError) else error)
        self._finish_batch()

    def _finish_batch(self) -> None:
        self._in_flight -= 1
        if self._waiting:
            self._schedule()
        elif not self._in_flight:
            self._on_idle(self)


_Item = tuple[bytes, bytes | None, Headers | None, "asyncio.Future[PutReply]"]


def _next_batch_count(items: Sequence[_Item]) -> int:
    """Return how many messages make up the next batch."""
    size = 0
    for count, (value, key, headers, _) in enumerate(items[:_BATCH_MESSAGES_MAX]):
        size += bytes_of(value, key, headers)
        if count and size > BATCH_BYTES_MAX:
            return count
    return min(len(items), _BATCH_MESSAGES_MAX)


def bytes_of(value: bytes, key: bytes | None, headers: Headers | None) -> int:
    """Return about how many bytes a message takes in a batch."""
    size = len(value) if key is None else len(value) + len(key)
    return size if not headers else size + sum(4 * len(name) + len(text) for name, text in headers.items())


def error_for_caller(driver: EventLoopDriver, error: errors.OnceMQError) -> errors.OnceMQError:
    """Return the error that a caller gets. The end of the gateway's own session is not the caller's fault, and the
    caller can't do anything about it."""
    if driver.core.finished is None:
        return error
    return errors.BrokerAway(
        f"the gateway's session has ended ({error.code}); it is not known whether the operation happened"
    )
