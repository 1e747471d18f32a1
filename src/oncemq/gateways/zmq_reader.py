"""A ZeroMQ socket on an event loop: the loop watches its descriptor, and its messages are read in turns.

With encryption (secure_sockets.py), each message comes with the caller that its connection has logged in as. Knows
nothing of what the frames mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import zmq

from oncemq.client.gateway_api import CurveKeys, use_curve
from oncemq.gateways.tasks import report_failure
from oncemq.net import zap
from oncemq.net.connection import Connection, wire_bytes
from oncemq.net.counters import Counters
from oncemq.net.curve import FRAME_BYTES
from oncemq.net.guard import Guard
from oncemq.net.listener import Listener
from oncemq.net.policy import ListenerLimits
from oncemq.net.routing_ids import router_socket
from oncemq.protocol import errors

if TYPE_CHECKING:
    from oncemq.gateways.secure_sockets import SecureSockets

#: Messages that are read before other tasks of the event loop run.
_TURN_MESSAGES = 500
_NOW = int(zmq.NOBLOCK)
#: A subscription is a command, whose name has this many bytes and is not a part of the message.
_COMMAND_BYTES = 12


class ZmqReader:
    """Calls `receive` with the frames of each message and its caller, `after_turn` after each turn of reading, and
    `on_failure` if nothing more can be read. Belongs to the event loop that is running when it is created."""

    def __init__(
        self,
        kind: int,
        receive: Callable[[list[bytes], str], None],
        after_turn: Callable[[], None] = lambda: None,
        on_failure: Callable[[], None] = lambda: None,
        *,
        secure: SecureSockets | None = None,
        context: Any = None,
    ) -> None:
        """With `secure`, connections are encrypted and logged in. Otherwise, the caller is empty."""
        self.address = ""
        self._secure = secure
        #: What encryption adds to each frame.
        self._frame_bytes = 0 if secure is None else FRAME_BYTES
        self._receive = receive
        self._after_turn = after_turn
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._is_reading = False
        if secure is not None:
            context = secure.context
        context = context or zmq.Context.instance()
        self._socket: Any = router_socket(context) if kind == zmq.ROUTER else context.socket(kind)
        self.set(zmq.LINGER, 0)
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._listener: Listener | None = None
        self._has_routing_ids = kind == zmq.ROUTER
        self._overhead_bytes = _COMMAND_BYTES if kind == zmq.XPUB else 0

    def set(self, option: int, value: int) -> None:
        """Set a socket option."""
        if option == zmq.MAXMSGSIZE:
            value += self._frame_bytes
        self._socket.setsockopt(option, value)

    def encrypt(self, keys: CurveKeys) -> None:
        """Encrypt the connection that `connect` opens."""
        use_curve(self._socket, keys)

    def guard(self, name: str, limits: ListenerLimits, counters: Counters) -> None:
        """Apply limits to the peers that will connect. Must be called before `bind`."""
        self._listener = Guard.here().watch(self._socket, name, limits, counters)

    def bind(self, url: str) -> None:
        """Listen at an address and start reading. Raises ListenFailed."""
        if self._secure is not None:
            self._secure.protect(self._socket)
        try:
            self._socket.bind(url)
        except zmq.ZMQError as error:
            self.close()
            raise errors.ListenFailed(f"can't listen at {url}: {error.strerror or error}") from None
        self.address = self._socket.getsockopt(zmq.LAST_ENDPOINT).decode()
        self._start_reading()

    def connect(self, url: str) -> None:
        """Connect to an address and start reading. Raises SettingInvalid."""
        try:
            self._socket.connect(url)
        except zmq.ZMQError as error:
            self.close()
            raise errors.SettingInvalid(f"can't connect to {url}: {error.strerror or error}") from None
        self._start_reading()

    def _start_reading(self) -> None:
        self._is_reading = True
        self._loop.add_reader(self._descriptor, self._drain)
        self.read_soon()

    def unbind(self) -> None:
        """Accept no more connections."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.unbind(self.address)

    def send(self, frames: Sequence[bytes], caller: str = "") -> None:
        """Send a message; a ROUTER sends it to the peer of this caller. Raises zmq.Again if the peer does not read, and
        another zmq.ZMQError if it is gone."""
        extra, listener = self._frame_bytes, self._listener
        size = sum(wire_bytes(len(frame) + extra) for frame in frames[1:])
        if listener is not None:
            if self._secure is not None and not listener.belongs_to(frames[0], caller):
                raise zmq.ZMQError(zmq.EHOSTUNREACH)
            if not listener.is_reading(frames[0]):
                raise zmq.Again
            listener.note_sent(frames[0], size)
        try:
            self._socket.send_multipart(frames, _NOW)
        except zmq.ZMQError:
            if listener is not None:
                listener.note_sent(frames[0], -size)
            raise
        finally:
            self.read_soon()

    def is_reading(self, peer: bytes) -> bool:
        """Whether a peer reads what it is sent. If not, `send` raises zmq.Again."""
        return self._listener is None or self._listener.is_reading(peer)

    def note_dropped(self, peer: bytes) -> None:
        """Count a message that was not sent, because the peer does not read."""
        if self._listener is not None:
            self._listener.note_dropped(peer)

    @property
    def socket(self) -> Any:
        """The socket itself, for sending many messages. Call `read_soon` afterwards."""
        return self._socket

    @property
    def has_messages(self) -> bool:
        """Messages have arrived that were not read yet."""
        return bool(self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN)

    def read_soon(self) -> None:
        """Must be called after sending: the descriptor is edge-triggered, and sending may have consumed its signal that
        messages have arrived."""
        if not self._is_scheduled and self._is_reading:
            self._is_scheduled = True
            self._loop.call_soon(self._drain_scheduled)

    def _drain_scheduled(self) -> None:
        self._is_scheduled = False
        self._drain()

    def _drain(self) -> None:
        if self._is_reading:
            self._read_turn()
            try:
                self._after_turn()
            except Exception as error:
                report_failure("finishing a turn of reading", error)

    def _read_turn(self) -> None:
        read, receive = self._read, self._receive
        for _ in range(_TURN_MESSAGES):
            if not self._is_reading:
                return
            try:
                frames, caller = read()
            except zmq.Again:
                return
            except zmq.ZMQError as error:
                report_failure("reading a socket", error)
                self.stop_reading()
                self._on_failure()
                return
            if caller is None:
                continue
            try:
                receive(frames, caller)
            except Exception as error:
                report_failure("handling a peer's message", error)
        self.read_soon()

    def _read(self) -> tuple[list[bytes], str | None]:
        """Return the next message and its caller. None: it must not be used. Raises zmq.Again."""
        receive = self._socket.recv
        frame = receive(_NOW, False)
        frames = [frame.bytes]
        while frame.more:
            frame = receive(_NOW, False)
            frames.append(frame.bytes)
        connection = None
        if self._listener is not None:
            begin, extra = 1 if self._has_routing_ids else 0, self._frame_bytes
            size = sum(wire_bytes(len(frame) + extra) for frame in frames[begin:]) + self._overhead_bytes
            connection = self._listener.note_received(frame, size, frames[0] if begin else b"")
        return frames, "" if self._secure is None else self._caller_of(frame, connection)

    def _caller_of(self, frame: zmq.Frame, connection: Connection | None) -> str | None:
        if self._has_routing_ids and zap.property_of(frame, zap.IDENTITY):
            # When its connection has ended, another user could take the id over, and get its replies.
            if self._listener is not None and connection is not None:
                why = "it has chosen a routing id (ZMQ_ROUTING_ID), which is not possible with users"
                self._listener.cut(connection, "peers_cut_named", why)
            return None
        caller = zap.property_of(frame, zap.USER)
        if connection is not None and caller is not None:
            connection.caller = caller
        return caller

    def stop_reading(self) -> None:
        """Read no more messages. Replies can still be sent."""
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._descriptor)

    def close(self, linger_ms: int = 0) -> None:
        """Close the socket. Messages that were sent have `linger_ms` to leave."""
        self.stop_reading()
        if self._listener is not None and not self._socket.closed:
            Guard.here().end(self._socket, self._listener)
        self._socket.close(linger_ms)
