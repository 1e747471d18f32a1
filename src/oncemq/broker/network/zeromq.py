"""The ZeroMQ listener of a broker: a ROUTER socket for all its addresses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import zmq

from oncemq.broker.network import ARRIVAL_BYTES_MAX, ARRIVALS_MAX, Arrival
from oncemq.net.connection import wire_bytes
from oncemq.net.counters import Counters
from oncemq.net.guard import Guard
from oncemq.net.policy import KERNEL_BYTES, ListenerLimits
from oncemq.net.unix_socket import set_mode
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame

log = logging.getLogger("oncemq.broker")

#: Names of peers begin with it. ZeroMQ lets clients choose their names, which must not be those of other listeners.
_PEER_PREFIX = b"z"
#: Below this size a copy is cheaper than keeping ZeroMQ's buffer.
_COPY_BELOW_BYTES = 32 * 1024


class ZmqListener:
    def __init__(self, limits: ListenerLimits, frame_bytes_max: int, counters: Counters) -> None:
        self._context = zmq.Context()
        self._socket: Any = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDTIMEO, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, frame_bytes_max + 4096)
        self._socket.setsockopt(zmq.SNDHWM, 10_000)
        self._socket.setsockopt(zmq.RCVHWM, 10_000)
        self._events, self._readable = int(zmq.EVENTS), int(zmq.POLLIN)
        self._guard = Guard.here()
        # What the kernel holds for a connection is counted here.
        limits = ListenerLimits(
            connections_max=limits.connections_max,
            peer_bytes_max=limits.peer_bytes_max + KERNEL_BYTES,
            peers_bytes_max=limits.peers_bytes_max + KERNEL_BYTES,
            write_timeout_s=limits.write_timeout_s,
        )
        self._listener = self._guard.watch(self._socket, "the broker", limits, counters)
        #: It signals only changes: whether something waits must be asked before each wait.
        self.descriptor = int(self._socket.getsockopt(zmq.FD))

    def listen(self, address: str, mode: str) -> str:
        """Listen at an address. Return it with the port that was chosen. Raises ListenFailed."""
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            raise errors.ListenFailed(f"can't listen at {address}: {error}") from None
        bound = self._socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        set_mode(bound, mode)
        return str(bound)

    @property
    def is_readable(self) -> bool:
        return bool(self._socket.getsockopt(self._events) & self._readable)

    def take(self, arrivals: list[Arrival]) -> None:
        """Add what has arrived, up to the limits of a round."""
        socket = self._socket
        left_bytes = ARRIVAL_BYTES_MAX
        try:
            while len(arrivals) < ARRIVALS_MAX and left_bytes > 0:
                peer = socket.recv(zmq.NOBLOCK)
                frames, size = self._receive_rest(peer)
                arrivals.append((_PEER_PREFIX + peer, frames))
                left_bytes -= size
        except zmq.Again:
            pass

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
        peer = peer[1:]
        is_reading = self._listener.is_reading(peer)
        if not is_reading:
            self._listener.note_dropped(peer)
        return is_reading

    def send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        peer = peer[1:]
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
