"""The XPUB socket of the feed: receives subscriptions, and sends with limited patience for slow subscribers.

A subscriber whose queue is full delays the feed for up to a second. After that, for a few seconds, messages that don't
fit into its queue are dropped for this subscriber only. It notices the loss by the offsets.

ZeroMQ limits a subscriber's queue by its number of messages, not by their size. `SLOT_BYTES` is the size that one of
them may have on average: after a larger message, small ones are sent as padding, so that no queue holds more than
`feed_messages_max` times this size.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

import zmq

from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.feed.feed_gate import FeedGate
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.zmq_reader import ZmqReader
from oncemq.net.unix_socket import set_mode

#: How long a full queue may delay the feed, and how long it may not after that.
PATIENCE_S = 1.0
_LOSSY_S = 5.0
RETRY_S = 0.001

_NOW = int(zmq.NOBLOCK)
_NOW_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
#: From this size on, pyzmq sends without copying.
_COPY_BYTES_MAX = 64 * 1024
SLOT_BYTES = 32 * 1024


class FeedSocket:
    def __init__(
        self,
        settings: PushSettings,
        counters: Counters,
        changed: Callable[[bytes, bool], None],
        on_failure: Callable[[], None],
        gate: FeedGate | None = None,
    ) -> None:
        """Listen. `changed` is called for each new subscription, and when the last one to a prefix has ended. With a
        `gate`, that decides about subscriptions."""
        self._counters = counters
        self._changed = changed
        self._lossy_until_s = 0.0
        self._is_lossy = False
        self._socket = gate or ZmqReader(zmq.XPUB, self._receive, on_failure=on_failure)
        if gate is None:
            self._socket.set(zmq.XPUB_VERBOSE, 1)
        self._socket.set(zmq.XPUB_NODROP, 1)
        self._socket.set(zmq.SNDHWM, settings.feed_messages_max)
        self._socket.set(zmq.RCVHWM, 100_000)
        self._socket.set(zmq.MAXMSGSIZE, 1024)
        self._socket.guard("the feed", settings.limits, counters)
        self._socket.bind(settings.feed)
        self.addresses = [self._socket.address]
        for url in settings.feed_listen:
            self._socket.bind(url)
            self.addresses.append(self._socket.address)
            set_mode(self._socket.address, settings.socket_mode)
        self._send_frame = self._socket.socket.send

    def _receive(self, frames: list[bytes], _: str) -> None:
        if len(frames) != 1 or frames[0][:1] not in (b"\0", b"\1"):
            self._counters.report("feed_malformed", "a peer of the feed sent a message that is not a subscription")
            return
        self._changed(frames[0][1:], frames[0][:1] == b"\1")

    def try_send(self, *frames: bytes) -> bool:
        """Send a message now. False: a subscriber's queue is full, and nothing was sent."""
        try:
            self._send_frame(frames[0], _NOW_MORE)
        except zmq.Again:
            return False
        for index in range(1, len(frames)):
            frame = frames[index]
            flags = _NOW if index == len(frames) - 1 else _NOW_MORE
            self._send_frame(frame, flags, copy=len(frame) < _COPY_BYTES_MAX)
        return True

    @contextlib.contextmanager
    def dropping(self) -> Iterator[None]:
        """Messages that are sent meanwhile are dropped for subscribers whose queue is full. Those also miss further
        messages until they have read half of their queue."""
        self._socket.set(zmq.XPUB_NODROP, 0)
        try:
            yield
        finally:
            self._set_lossy(self._is_lossy)

    async def send(self, *frames: bytes) -> None:
        """Send a message, and wait for slow subscribers for at most `PATIENCE_S`."""
        began_s = time.monotonic()
        while not self.try_send(*frames):
            self.read_soon()
            if time.monotonic() - began_s > PATIENCE_S:
                self._start_dropping()
            else:
                await asyncio.sleep(RETRY_S)

    def _start_dropping(self) -> None:
        self._counters.report("feed_overflows", "a subscriber of the feed is too slow, and loses messages")
        self._set_lossy(True)
        self._lossy_until_s = time.monotonic() + _LOSSY_S

    def read_soon(self) -> None:
        """Must be called between sends: reads subscriptions, and ends the time of dropping."""
        if self._is_lossy and time.monotonic() >= self._lossy_until_s:
            self._set_lossy(False)
        self._socket.read_soon()

    def _set_lossy(self, is_lossy: bool) -> None:
        self._is_lossy = is_lossy
        self._socket.set(zmq.XPUB_NODROP, 0 if is_lossy else 1)

    def close(self) -> None:
        self._socket.close()
