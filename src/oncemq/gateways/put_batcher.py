"""Single messages that many callers put on one topic, made into batches: each caller learns its own offset.

What comes while a batch or two are on their way makes up the next one. Knows nothing of who the callers are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from oncemq.client.core.pending import Pending, again
from oncemq.client.runtime.event_loop import EventLoopDriver
from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, encode_batch, key_hashes
from oncemq.protocol.commands import Envelope, Put
from oncemq.protocol.replies import PutReply

#: Single messages that become one batch, at the most.
_MERGED_MESSAGES = 1000
#: The same in bytes. A larger one goes by itself, with `operate`.
MERGED_BYTES = 256 * 1024
#: Batches of one topic that are on their way at a time: what comes meanwhile makes up the next one.
_MERGED_IN_FLIGHT = 2

Headers = Mapping[str, bytes]
Begin = Callable[[Put, bytes], tuple[EventLoopDriver, Pending]]


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


class Merging:
    """The messages of one topic that wait to be sent as a batch, and the batches that are on their way."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, begin: Begin, forget: Callable[[Merging], None], topic: str, create: bool
    ) -> None:
        """`begin` submits a batch; `forget` is called when nothing waits and nothing is on its way."""
        self.topic = topic
        self.create = create
        self._loop = loop
        self._begin = begin
        self._forget = forget
        self._waiting: list[_Item] = []
        self._is_due = False
        self._in_flight = 0

    def add(self, value: bytes, key: bytes | None, headers: Headers | None) -> asyncio.Future[PutReply]:
        future: asyncio.Future[PutReply] = self._loop.create_future()
        self._waiting.append((value, key, headers, future))
        self._send_soon()
        return future

    def _send_soon(self) -> None:
        if not self._is_due and self._in_flight < _MERGED_IN_FLIGHT:
            self._is_due = True
            self._loop.call_soon(self._send)

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
            driver, pending = self._begin(operation, payload)
        except (errors.OnceMQError, TypeError, ValueError) as error:
            self._failed(items, error)
            return
        if pending.done:
            self._done(items, driver, pending)
        else:
            pending.on_done = lambda done: self._done(items, driver, done)
            driver.pump_soon()

    def _done(self, items: list[_Item], driver: EventLoopDriver, pending: Pending) -> None:
        if pending.error is not None:
            self._failed(items, error_for_caller(driver, pending.error))
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
            self._forget(self)


_Item = tuple[bytes, bytes | None, Headers | None, "asyncio.Future[PutReply]"]


def _fitting(items: Sequence[_Item]) -> int:
    """How many of them make up the next batch."""
    size = 0
    for count, (value, key, headers, _) in enumerate(items[:_MERGED_MESSAGES]):
        size += bytes_of(value, key, headers)
        if count and size > MERGED_BYTES:
            return count
    return min(len(items), _MERGED_MESSAGES)


def bytes_of(value: bytes, key: bytes | None, headers: Headers | None) -> int:
    """About what a message takes in a batch."""
    size = len(value) if key is None else len(value) + len(key)
    return size if not headers else size + sum(4 * len(name) + len(text) for name, text in headers.items())


def error_for_caller(driver: EventLoopDriver, error: errors.OnceMQError) -> errors.OnceMQError:
    """The end of the gateway's own session is nothing that a caller did, or can do anything about."""
    if driver.core.finished is None:
        return error
    return errors.BrokerAway(f"the gateway's session has ended ({error.code}); whether this happened is not known")
