"""The network interface: requests arrive with the peer that sent them, responses are sent to a peer.

In production it is a ZeroMQ ROUTER socket, in an embedded broker a queue (embedded.py), and in the simulator a network
that loses, duplicates and reorders.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import zmq

from oncemq.config.settings import ServeSettings
from oncemq.net.connection import wire_bytes
from oncemq.net.counters import Counters
from oncemq.net.guard import Guard
from oncemq.net.policy import KERNEL_BYTES, ListenerLimits
from oncemq.net.unix_socket import set_mode
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame
from oncemq.protocol.limits import REQUEST_HEADER_BYTES_MAX

log = logging.getLogger("oncemq.broker")

Arrival = tuple[bytes, Sequence[Frame]]

#: Maximum requests and bytes that one round takes; the rest shares the next sync.
_ARRIVALS_MAX = 1_000
_ARRIVAL_BYTES_MAX = 8 * 1024 * 1024
#: Below this size a copy is cheaper than keeping ZeroMQ's buffer.
_COPY_BELOW_BYTES = 32 * 1024


class Network(Protocol):
    def take(self, wait_ms: int) -> list[Arrival]:
        """Return what has arrived. If there is nothing, wait for at most `wait_ms`."""

    def is_reading(self, peer: bytes) -> bool:
        """Whether a peer reads what is sent to it. If not, the response is dropped, and counted as such."""

    def send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        """Send to a peer. If the peer is gone, the frames are dropped: the client sends its request again."""


class ZmqNetwork:
    def __init__(self, settings: ServeSettings, addresses: Sequence[str] = ()) -> None:
        """Listen at these addresses, instead of those of the settings. Raise ListenFailed."""
        self._context = zmq.Context()
        self._socket: Any = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDTIMEO, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, max(settings.batch_bytes_max, REQUEST_HEADER_BYTES_MAX) + 4096)
        self._socket.setsockopt(zmq.SNDHWM, 10_000)
        self._socket.setsockopt(zmq.RCVHWM, 10_000)
        # Socket.poll would create a poller for each call.
        self._polled = [(self._socket, int(zmq.POLLIN))]
        self.counters = Counters(log)
        self._guard = Guard.here()
        self._listener = self._guard.watch(self._socket, "the broker", _limits(settings), self.counters)
        #: As bound: port `*` or 0 is replaced by the real one.
        self.addresses = [self._bind(address) for address in addresses or settings.listen]
        for address in self.addresses:
            set_mode(address, settings.socket_mode)

    def _bind(self, address: str) -> str:
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise errors.ListenFailed(f"can't listen at {address}: {error}") from None
        bound: bytes = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        return bound.rstrip(b"\0").decode()

    def take(self, wait_ms: int) -> list[Arrival]:
        socket = self._socket
        if wait_ms and not zmq.zmq_poll(self._polled, wait_ms):
            return []
        arrivals: list[Arrival] = []
        left_bytes = _ARRIVAL_BYTES_MAX
        try:
            while len(arrivals) < _ARRIVALS_MAX and left_bytes > 0:
                peer = socket.recv(zmq.NOBLOCK)
                frames, size = self._receive_rest(peer)
                arrivals.append((peer, frames))
                left_bytes -= size
        except zmq.Again:
            pass
        return arrivals

    def _receive_rest(self, peer: bytes) -> tuple[list[Frame], int]:
        """Return the frames after the peer's, and their size. A large one is not copied: ZeroMQ's own buffer goes to
        the disk."""
        frames: list[Frame] = []
        size, more = 0, True
        while more:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            more = frame.more
            length = len(frame)
            size += length + (9 if length > 255 else 2)
            frames.append(frame.bytes if length < _COPY_BELOW_BYTES else frame.buffer)
        self._listener.note_received(frame, size, peer)
        return frames, size

    def is_reading(self, peer: bytes) -> bool:
        is_reading = self._listener.is_reading(peer)
        if not is_reading:
            self._listener.note_dropped(peer)
        return is_reading

    def send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        size = sum(wire_bytes(len(frame)) for frame in frames)
        self._listener.note_sent(peer, size)
        try:
            self._socket.send_multipart([peer, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # It is gone, or its queue is full because it is slow: it will reconnect and ask again.
            self._listener.note_sent(peer, -size)
            log.debug("reply not delivered to %s: %s", peer.hex(), error)

    def own_growth(self) -> AbstractContextManager[None]:
        """Memory that the process takes in this block is no concern of its peers."""
        return self._guard.own_growth()

    def set_held_bytes(self, held_bytes: Callable[[], int]) -> None:
        """`held_bytes` returns the size of the requests that were taken and wait."""
        self._listener.held_bytes = held_bytes

    def close(self) -> None:
        self._guard.end(self._socket, self._listener)
        self._socket.close(0)
        self._context.term()


def _limits(settings: ServeSettings) -> ListenerLimits:
    largest_bytes = settings.batch_bytes_max + REQUEST_HEADER_BYTES_MAX
    return ListenerLimits(
        connections_max=settings.connections_max,
        peer_bytes_max=max(settings.peer_bytes_max, largest_bytes) + KERNEL_BYTES,
        peers_bytes_max=max(settings.peers_bytes_max, largest_bytes) + KERNEL_BYTES,
        write_timeout_s=settings.write_timeout_ms / 1000,
    )
