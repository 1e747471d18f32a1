"""Requests of many peers: those of one are answered one after the other, in their order, those of all side by side.

Knows frames, and that every request gets one reply; nothing of what either means.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

import zmq

from oncemq.gateways.text.requests import format_error
from oncemq.gateways.text.settings import TextSettings
from oncemq.gateways.zmq_reader import Watched
from oncemq.protocol import errors

log = logging.getLogger("oncemq.text")

#: Between tries to send to a peer that does not read; it doubles with each, up to the other.
_PAUSE_S = 0.01
_PAUSE_S_MAX = 0.5
#: What a reply must begin with has to be kept. No proxies on the way add that much.
_ENVELOPE_BYTES_MAX = 4096
_OVERLOADED = format_error(errors.Overloaded("too many requests are in hand; send it again"))

Envelope = tuple[bytes, ...]


class _Waiting:
    """A request; or, without a body, requests in a row that were too many."""

    __slots__ = ("body", "count", "envelope", "size")

    def __init__(self, envelope: Envelope, body: list[bytes] | None, size: int) -> None:
        self.envelope = envelope
        self.body = body
        self.size = size
        self.count = 1


class _Peer:
    __slots__ = ("requests", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        #: Those with a body, and the one that is being answered.
        self.requests = 0


class Peers:
    def __init__(self, settings: TextSettings, answer: Callable[[list[bytes]], Awaitable[bytes]]) -> None:
        """Raises ListenFailed. `answer` does not raise."""
        self._settings = settings
        self._answer = answer
        self._peers: dict[Envelope, _Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests = 0
        self._bytes = 0
        #: Rows of requests that were too many, and are to be told so.
        self._rows = 0
        self._watched = Watched(zmq.ROUTER, self._take)
        self._watched.set(zmq.ROUTER_MANDATORY, 1)
        self._watched.set(zmq.MAXMSGSIZE, 2 * settings.request_bytes_max)
        # Of one peer: replies may be large, and whoever does not read them must not fill the memory.
        self._watched.set(zmq.SNDHWM, 16)
        self._watched.set(zmq.RCVHWM, 1000)
        self._watched.bind(settings.listen)
        self.address = self._watched.address

    def _take(self, frames: list[bytes]) -> None:
        envelope, body = split(frames)
        if sum(map(len, envelope)) > _ENVELOPE_BYTES_MAX:
            log.debug("a request has more before it than could be sent back: it was dropped")
            return
        # Of one peer, even if it sends an empty frame only sometimes.
        name = envelope[:-1] if not envelope[-1] else envelope
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = _Peer()
            task = asyncio.ensure_future(self._serve(name, peer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        size = sum(map(len, body))
        if self._has_room(peer, size):
            self._count(peer, 1, size)
            peer.waiting.append(_Waiting(envelope, body, size))
        else:
            self._note_refused(peer, envelope)

    def _has_room(self, peer: _Peer, size: int) -> bool:
        most = self._settings
        if self._requests >= most.requests_max or peer.requests >= most.peer_requests_max:
            return False
        return not self._requests or self._bytes + size <= most.requests_bytes_max

    def _note_refused(self, peer: _Peer, envelope: Envelope) -> None:
        """However many there are, they take no room."""
        last = peer.waiting[-1] if peer.waiting else None
        if last is not None and last.body is None and last.envelope == envelope:
            last.count += 1
        elif self._rows < self._settings.requests_max:
            self._rows += 1
            peer.waiting.append(_Waiting(envelope, None, 0))
        else:
            # Somebody makes up peers. Who is left without an answer by that sends his request again.
            log.debug("too many peers have sent too many requests: one was dropped")

    def _count(self, peer: _Peer, requests: int, size: int) -> None:
        peer.requests += requests
        self._requests += requests
        self._bytes += size

    async def _serve(self, name: Envelope, peer: _Peer) -> None:
        """Until nothing of it waits."""
        while peer.waiting:
            await self._serve_one(peer, peer.waiting.popleft())
        del self._peers[name]

    async def _serve_one(self, peer: _Peer, waiting: _Waiting) -> None:
        if waiting.body is None:
            self._rows -= 1
            for _ in range(waiting.count):
                await self._send(waiting.envelope, _OVERLOADED)
            return
        try:
            reply = await self._answer(waiting.body)
        finally:
            self._count(peer, -1, -waiting.size)
        await self._send(waiting.envelope, reply)

    async def _send(self, envelope: Envelope, reply: bytes) -> None:
        until_s, pause_s = 0.0, _PAUSE_S
        while True:
            try:
                self._watched.send((*envelope, reply))
            except zmq.Again:
                now_s = asyncio.get_running_loop().time()
                until_s = until_s or now_s + self._settings.patience_ms / 1000
                if now_s > until_s:
                    log.warning("a peer does not read its replies: one was dropped")
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            except zmq.ZMQError:
                # It is gone.
                return
            else:
                return

    async def stop(self, drain_s: float) -> None:
        """What is in hand has so long to be answered, and as long to leave."""
        self._watched.unwatch()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=drain_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._watched.close(int(1000 * drain_s))


def split(frames: list[bytes]) -> tuple[Envelope, list[bytes]]:
    """What a reply must begin with, and the rest. A REQ socket sends an empty frame before its request; proxies on the
    way add frames before that. A DEALER socket may do without."""
    for number in range(1, len(frames) - 1):
        if not frames[number]:
            return tuple(frames[: number + 1]), frames[number + 1 :]
    return tuple(frames[:1]), frames[1:]
