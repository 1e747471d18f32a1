"""Requests of many peers: the requests of one peer are answered one after the other, in order; peers are served
concurrently.

Knows frames, and that every request gets one reply; knows nothing of their content.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

import zmq

from oncemq.gateways.secure_sockets import SecureSockets
from oncemq.gateways.tasks import drain, report_failure, start
from oncemq.gateways.text.requests import format_error
from oncemq.gateways.text.settings import TextSettings
from oncemq.gateways.zmq_reader import ZmqReader
from oncemq.net.counters import Counters
from oncemq.net.policy import KERNEL_BYTES, ListenerLimits
from oncemq.protocol import errors

log = logging.getLogger("oncemq.text")

#: Pause between attempts to send to a peer that does not read. It doubles with each attempt, up to the maximum.
_PAUSE_S = 0.01
_PAUSE_S_MAX = 0.5
#: The envelope must be kept for the reply. Proxies on the way never add this much.
_ENVELOPE_BYTES_MAX = 4096
_OVERLOADED = format_error(errors.Overloaded("too many requests are in progress; send it again later"))
_FAILED = format_error(errors.BrokerBug("the gateway failed; its log has the details"))

Envelope = tuple[bytes, ...]


class _Waiting:
    """A request; or, without a body, a number of consecutive requests that were too many."""

    __slots__ = ("body", "caller", "count", "envelope", "size")

    def __init__(self, envelope: Envelope, body: list[bytes] | None, size: int, caller: str) -> None:
        self.envelope = envelope
        self.body = body
        self.caller = caller
        self.size = size
        self.count = 1


class _Peer:
    __slots__ = ("bytes", "requests", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        #: How many requests with a body wait or are being answered, and their size.
        self.requests = 0
        self.bytes = 0


class Peers:
    def __init__(
        self,
        settings: TextSettings,
        answer: Callable[[list[bytes], str], Awaitable[bytes]],
        on_failure: Callable[[], None] = lambda: None,
        secure: SecureSockets | None = None,
    ) -> None:
        """Listen. `answer` returns the reply to a request of a caller, and must not raise. Raises ListenFailed."""
        self._settings = settings
        self._answer = answer
        #: By caller and envelope.
        self._peers: dict[tuple[str, Envelope], _Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests = 0
        self._bytes = 0
        #: Runs of requests that were too many, and still must be refused.
        self._refused_runs = 0
        self.counters = Counters(log)
        self._socket = ZmqReader(zmq.ROUTER, self._receive, on_failure=on_failure, secure=secure)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._socket.set(zmq.MAXMSGSIZE, 2 * settings.request_bytes_max)
        # Per peer: replies may be large, and a peer that does not read them must not fill the memory.
        self._socket.set(zmq.SNDHWM, 16)
        self._socket.set(zmq.RCVHWM, 1000)
        self._socket.guard("the text listener", _limits(settings), self.counters)
        self._socket.bind(settings.listen)
        self.address = self._socket.address

    def _receive(self, frames: list[bytes], caller: str) -> None:
        envelope, body = split(frames)
        if sum(map(len, envelope)) > _ENVELOPE_BYTES_MAX:
            log.debug("a request was dropped: its envelope is too large")
            return
        # The same peer, whether or not it sends an empty frame.
        name = caller, envelope[:-1] if not envelope[-1] else envelope
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = _Peer()
            task = start(self._serve(name, peer), "a text client")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        size = sum(map(len, body))
        if self._has_capacity(peer, size):
            self._count(peer, 1, size)
            peer.waiting.append(_Waiting(envelope, body, size, caller))
        else:
            self._note_refused(peer, envelope, caller)

    def _has_capacity(self, peer: _Peer, size: int) -> bool:
        limits = self._settings
        if self._requests >= limits.requests_max or peer.requests >= limits.peer_requests_max:
            return False
        if not self._requests:
            return True
        # One peer may take half of the bytes. A single request of it may be larger.
        if peer.requests and peer.bytes + size > limits.requests_bytes_max // 2:
            return False
        return self._bytes + size <= limits.requests_bytes_max

    def _note_refused(self, peer: _Peer, envelope: Envelope, caller: str) -> None:
        """Count refused requests in runs, so that they take no memory."""
        last = peer.waiting[-1] if peer.waiting else None
        if last is not None and last.body is None and last.envelope == envelope:
            last.count += 1
        elif self._refused_runs < self._settings.requests_max:
            self._refused_runs += 1
            peer.waiting.append(_Waiting(envelope, None, 0, caller))
        else:
            # A client invents peers. A peer that gets no reply because of this sends its request again.
            log.debug("a request was dropped: too many peers have sent too many requests")

    def _count(self, peer: _Peer, requests: int, size: int) -> None:
        peer.requests += requests
        peer.bytes += size
        self._requests += requests
        self._bytes += size

    async def _serve(self, name: tuple[str, Envelope], peer: _Peer) -> None:
        """Answer the peer's requests until none waits."""
        while peer.waiting:
            waiting = peer.waiting.popleft()
            try:
                await self._serve_one(peer, waiting)
            except Exception as error:
                report_failure("a text client", error)
                with suppress(zmq.ZMQError):
                    self._socket.send((*waiting.envelope, _FAILED), waiting.caller)
        del self._peers[name]

    async def _serve_one(self, peer: _Peer, waiting: _Waiting) -> None:
        if waiting.body is None:
            self._refused_runs -= 1
            for _ in range(waiting.count):
                await self._send(waiting, _OVERLOADED)
            return
        try:
            # Nothing is fetched for a peer that does not read.
            if not await self._patiently(lambda: self._socket.is_reading(waiting.envelope[0])):
                self.counters.report("requests_dropped", "a request was dropped: the peer does not read its replies")
                return
            reply = await self._answer(waiting.body, waiting.caller)
        finally:
            self._count(peer, -1, -waiting.size)
        await self._send(waiting, reply)

    async def _send(self, waiting: _Waiting, reply: bytes) -> None:
        if not await self._patiently(lambda: self._is_sent(waiting, reply)):
            self._socket.note_dropped(waiting.envelope[0])

    def _is_sent(self, waiting: _Waiting, reply: bytes) -> bool:
        try:
            self._socket.send((*waiting.envelope, reply), waiting.caller)
        except zmq.Again:
            return False
        except zmq.ZMQError:
            # The peer is gone.
            pass
        return True

    async def _patiently(self, is_done: Callable[[], bool]) -> bool:
        """Try until it is done. False: the peer has not read its replies for too long."""
        until_s, pause_s = 0.0, _PAUSE_S
        while not is_done():
            now_s = asyncio.get_running_loop().time()
            until_s = until_s or now_s + self._settings.patience_ms / 1000
            if now_s > until_s:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        return True

    async def stop(self, drain_s: float) -> None:
        """Requests in progress have `drain_s` to be answered, and their replies the same time to leave."""
        self._socket.stop_reading()
        await drain(self._tasks, drain_s)
        self._socket.close(int(1000 * drain_s))


def _limits(settings: TextSettings) -> ListenerLimits:
    largest_bytes = 2 * settings.request_bytes_max
    return ListenerLimits(
        connections_max=settings.connections_max,
        peer_bytes_max=max(settings.peer_bytes_max, largest_bytes) + KERNEL_BYTES,
        write_timeout_s=settings.patience_ms / 1000,
    )


def split(frames: list[bytes]) -> tuple[Envelope, list[bytes]]:
    """Return the envelope, with which the reply must begin, and the rest. A REQ socket sends an empty frame before its
    request, and proxies add frames before that. A DEALER socket may omit the empty frame."""
    for number in range(1, len(frames) - 1):
        if not frames[number]:
            return tuple(frames[: number + 1]), frames[number + 1 :]
    return tuple(frames[:1]), frames[1:]
