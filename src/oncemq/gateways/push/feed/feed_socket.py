"""The XPUB socket: who listens to what, and sending with a little patience for slow subscribers.

A subscriber whose queue is full holds the feed up for a moment; then, for a second, what it has no room for is
dropped for it alone. It sees that by the offsets.

ZeroMQ counts what waits for a subscriber in messages, whatever their size. `SLOT_BYTES` is what one of them may take
on average: who sends a larger one sends small ones behind it, and so nobody's queue holds more than
`feed_messages_max` times that.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

import zmq

from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.sockets import PushSocket

#: How long a full queue holds the feed up, and how long it does not after that.
PATIENCE_S = 1.0
_LOSSY_S = 5.0
LOOK_S = 0.001

_NOW = int(zmq.NOBLOCK)
_NOW_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
#: From this size on, pyzmq sends without copying.
_COPY_BYTES_MAX = 64 * 1024
SLOT_BYTES = 32 * 1024


class FeedSocket:
    def __init__(self, settings: PushSettings, counters: Counters, changed: Callable[[bytes, bool], None]) -> None:
        """`changed` is told of each subscription that somebody makes, and of one that the last one gave up."""
        self._counters = counters
        self._changed = changed
        self._lossy_until_s = 0.0
        self._is_lossy = False
        self._watched = PushSocket(zmq.XPUB, self._take)
        self._watched.set(zmq.XPUB_VERBOSE, 1)
        self._watched.set(zmq.XPUB_NODROP, 1)
        self._watched.set(zmq.SNDHWM, settings.feed_messages_max)
        self._watched.set(zmq.RCVHWM, 100_000)
        self._watched.set(zmq.MAXMSGSIZE, 1024)
        self._watched.bind(settings.feed)
        self.addresses = [self._watched.address]
        for url in settings.feed_listen:
            self._watched.bind(url)
            self.addresses.append(self._watched.address)
        self._send_frame = self._watched.socket.send

    def _take(self, frames: list[bytes]) -> None:
        if len(frames) != 1 or frames[0][:1] not in (b"\0", b"\1"):
            self._counters.trouble("feed_malformed", "a peer of the feed sent something that is no subscription")
            return
        self._changed(frames[0][1:], frames[0][:1] == b"\1")

    def try_send(self, *frames: bytes) -> bool:
        """False: somebody's queue is full."""
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
        """What is sent meanwhile goes to those who have room. Others miss that, and what comes until they have read
        half of what they have."""
        self._watched.set(zmq.XPUB_NODROP, 0)
        try:
            yield
        finally:
            self._set_lossy(self._is_lossy)

    async def send(self, *frames: bytes) -> None:
        began_s = time.monotonic()
        while not self.try_send(*frames):
            self.look()
            if time.monotonic() - began_s > PATIENCE_S:
                self._lose()
            else:
                await asyncio.sleep(LOOK_S)

    def _lose(self) -> None:
        self._counters.trouble("feed_overflows", "a subscriber of the feed is too slow, and misses messages")
        self._set_lossy(True)
        self._lossy_until_s = time.monotonic() + _LOSSY_S

    def look(self) -> None:
        """Between sends: take in subscriptions, and be patient again."""
        if self._is_lossy and time.monotonic() >= self._lossy_until_s:
            self._set_lossy(False)
        self._watched.look()

    def _set_lossy(self, is_lossy: bool) -> None:
        self._is_lossy = is_lossy
        self._watched.set(zmq.XPUB_NODROP, 0 if is_lossy else 1)

    def close(self) -> None:
        self._watched.close()
