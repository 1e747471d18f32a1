"""The network interface: requests arrive with the peer that sent them, responses are sent to a peer.

In production it is a ZeroMQ ROUTER socket, in an embedded broker a queue (embedded.py), and in the simulator a network
that loses, duplicates and reorders.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import zmq

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

    def send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        """Send to a peer. If the peer is gone, the frames are dropped: the client sends its request again."""


class ZmqNetwork:
    def __init__(self, addresses: Sequence[str], batch_bytes_max: int) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDTIMEO, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, max(batch_bytes_max, REQUEST_HEADER_BYTES_MAX) + 4096)
        self._socket.setsockopt(zmq.SNDHWM, 10_000)
        self._socket.setsockopt(zmq.RCVHWM, 10_000)
        # Socket.poll would create a poller for each call.
        self._polled = [(self._socket, int(zmq.POLLIN))]
        #: As bound: port `*` or 0 is replaced by the real one.
        self.addresses = [self._bind(address) for address in addresses]

    def _bind(self, address: str) -> str:
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise errors.ListenFailed(f"can't listen at {address}: {error}") from None
        bound = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
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
                frames = self._receive_rest()
                arrivals.append((peer, frames))
                for frame in frames:
                    left_bytes -= len(frame)
        except zmq.Again:
            pass
        return arrivals

    def _receive_rest(self) -> list[Frame]:
        """Return the frames after the peer's. A large one is not copied: ZeroMQ's own buffer goes to the disk."""
        frames: list[Frame] = []
        more = True
        while more:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            more = frame.more
            frames.append(frame.bytes if len(frame) < _COPY_BELOW_BYTES else frame.buffer)
        return frames

    def send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        try:
            self._socket.send_multipart([peer, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # It is gone, or its queue is full because it is slow: it will reconnect and ask again.
            log.debug("reply not delivered to %s: %s", peer.hex(), error)

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()
