"""The ZeroMQ listener of a broker: a ROUTER socket for all its addresses.

With keys and a gate, its connections are encrypted, and the gate says whose they are (net/zap.py). The name of a peer
then contains the caller, so that what it has sent can't be taken for somebody else's:

    name    "z" {length 1} {caller} {routing id}

A client that chooses its own routing id is refused: when its connection has ended, another user could take the id over
and get its replies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import zmq

from oncemq.broker.network import ARRIVAL_BYTES_MAX, ARRIVALS_MAX, Arrival
from oncemq.config.addresses import unix_path
from oncemq.net import zap
from oncemq.net.admissions import Admissions
from oncemq.net.connection import Connection, wire_bytes
from oncemq.net.counters import Counters
from oncemq.net.curve import FRAME_BYTES, CurveServerKeys
from oncemq.net.gate import Gate
from oncemq.net.guard import Guard
from oncemq.net.policy import KERNEL_BYTES, ListenerLimits
from oncemq.net.routing_ids import router_socket
from oncemq.net.unix_socket import set_mode
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame

log = logging.getLogger("oncemq.broker")

#: Names of peers begin with it. ZeroMQ lets clients choose their names, which must not be those of other listeners.
_PEER_PREFIX = b"z"
#: The same, if there are no users: the caller is empty.
_OPEN_PREFIX = _PEER_PREFIX + b"\0"
_PREFIXES_MAX = 10_000
_DOMAIN = b"native"
#: Below this size a copy is cheaper than keeping ZeroMQ's buffer.
_COPY_BELOW_BYTES = 32 * 1024
#: Logins that are answered in one round. The rest waits for the next one.
_LOGINS_MAX = 100
_NO_KEYS = (
    "the broker has users, and ZeroMQ clients can't log in without CURVE keys: `oncemq auth keys` creates them. Or "
    "listen without tcp:// and ipc://."
)


class ZmqListener:
    def __init__(
        self,
        limits: ListenerLimits,
        frame_bytes_max: int,
        counters: Counters,
        *,
        curve: CurveServerKeys | None = None,
        gate: Gate | None = None,
    ) -> None:
        """Raises SettingInvalid if there are users, and no keys."""
        self._gate = gate
        self._keys = curve
        self._has_users = gate is not None and not gate.is_valid("")
        if self._has_users and curve is None:
            raise errors.SettingInvalid(_NO_KEYS)
        self._context = zmq.Context()
        self._zap: Any = zap.open_zap(self._context) if curve is not None and gate is not None else None
        self._socket: Any = router_socket(self._context)
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
        self._counters = counters
        self._admissions = Admissions(self._listener, gate.left) if gate is not None and curve is not None else None
        #: What encryption adds to each frame.
        self._frame_bytes = 0 if curve is None else FRAME_BYTES
        #: Caller → what the names of its peers begin with.
        self._prefixes: dict[str, bytes] = {}
        #: They signal only changes: whether something waits must be asked before each wait.
        self.descriptors = [int(self._socket.getsockopt(zmq.FD))]
        if self._zap is not None:
            self.descriptors.append(int(self._zap.getsockopt(zmq.FD)))

    def listen(self, address: str, mode: str) -> str:
        """Listen at an address. Return it with the port that was chosen. Raises ListenFailed."""
        if self._keys is not None:
            # Without users, who may use a Unix socket is decided by its mode.
            if self._has_users or not unix_path(address):
                zap.protect(self._socket, self._keys, _DOMAIN if self._zap is not None else b"")
            else:
                zap.unprotect(self._socket)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            raise errors.ListenFailed(f"can't listen at {address}: {error}") from None
        bound = self._socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        set_mode(bound, mode)
        return str(bound)

    # Logins.

    def answer_logins(self) -> bool:
        """Answer what libzmq asks about new connections. Return whether there is more to answer."""
        if self._zap is None:
            return False
        assert self._admissions is not None
        self._admissions.settle()
        for _ in range(_LOGINS_MAX):
            try:
                frames = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            request = zap.parse(frames)
            if request is not None:
                self._zap.send_multipart(self._answer_to(request), zmq.NOBLOCK)
        return True

    def _answer_to(self, request: zap.ZapRequest) -> list[bytes]:
        assert self._gate is not None
        assert self._admissions is not None
        try:
            caller = self._gate.admit(request.kind, request.key, request.address)
        except Exception as error:
            if not isinstance(error, errors.OnceMQError):
                log.exception("a login failed: this is a bug")
            return zap.refuse(request, zap.status_of(error), getattr(error, "text", ""))
        return zap.accept(request, caller, self._admissions.add(caller) if caller else 0)

    def drop_invalid(self) -> None:
        """Users have changed: disconnect the peers whose credentials are not valid any more. What was received from
        them still has their names, so that the broker refuses it."""
        assert self._gate is not None
        had_users, self._has_users = self._has_users, not self._gate.is_valid("")
        if self._has_users and self._keys is None:
            log.error("%s", _NO_KEYS)
        for connection in self._listener.all_connections():
            is_known = had_users and connection.number
            if self._has_users and not (is_known and self._gate.is_valid(connection.caller)):
                # One that has sent nothing is not known. It connects again.
                self._listener.cut(connection, "peers_cut_invalid", "its credentials are not valid any more")

    def caller_of(self, peer: bytes) -> str:
        return peer[2 : 2 + peer[1]].decode()

    # Requests.

    @property
    def is_readable(self) -> bool:
        return bool(self._socket.getsockopt(self._events) & self._readable)

    def take(self, arrivals: list[Arrival]) -> None:
        """Add what has arrived, up to the limits of a round."""
        socket = self._socket
        left_bytes = ARRIVAL_BYTES_MAX
        try:
            while len(arrivals) < ARRIVALS_MAX and left_bytes > 0:
                routing_id = socket.recv(zmq.NOBLOCK)
                prefix, frames, size = self._receive_rest(routing_id)
                if prefix:
                    arrivals.append((prefix + routing_id, frames))
                left_bytes -= size
        except zmq.Again:
            pass

    def _receive_rest(self, routing_id: bytes) -> tuple[bytes, list[Frame], int]:
        """Return what the peer's name begins with, the frames after the routing id, and their size. A large one is not
        copied: ZeroMQ's own buffer goes to the disk."""
        frames: list[Frame] = []
        size, more, extra = 0, True, self._frame_bytes
        while more:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            more = frame.more
            length = len(frame)
            size += length + extra + (9 if length + extra > 255 else 2)
            frames.append(frame.bytes if length < _COPY_BELOW_BYTES else frame.buffer)
        connection = self._listener.note_received(frame, size, routing_id)
        prefix = _OPEN_PREFIX if not self._has_users else self._prefix_of(frame, connection)
        return prefix, frames, size

    def _prefix_of(self, frame: zmq.Frame, connection: Connection | None) -> bytes:
        """Return what the name of the sender of a message begins with; empty if the message must be dropped."""
        caller = zap.property_of(frame, zap.USER)
        if caller is None or connection is None:
            self._counters.report("requests_anonymous", "a request was dropped: nobody knows who has sent it")
            return b""
        is_known = connection.caller == caller and connection.number
        if not is_known and not self._note_caller(frame, connection, caller):
            return b""
        prefix = self._prefixes.get(caller)
        if prefix is None:
            if len(self._prefixes) >= _PREFIXES_MAX:
                self._prefixes.clear()
            name = caller.encode()
            prefix = self._prefixes[caller] = _PEER_PREFIX + bytes([len(name)]) + name
        return prefix

    def _note_caller(self, frame: zmq.Frame, connection: Connection, caller: str) -> bool:
        """Note who a connection belongs to, with its first message. Return False if it is refused."""
        if zap.property_of(frame, zap.IDENTITY):
            why = "it has chosen a routing id (ZMQ_ROUTING_ID), which is not possible with users"
            self._listener.cut(connection, "peers_cut_named", why)
            return False
        assert self._admissions is not None
        self._admissions.note_message(connection, int(zap.property_of(frame, zap.NUMBER) or 0), caller)
        return True

    def is_reading(self, peer: bytes) -> bool:
        routing_id = _routing_id_of(peer)
        is_reading = self._listener.is_reading(routing_id)
        if not is_reading:
            self._listener.note_dropped(routing_id)
        return is_reading

    def send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        routing_id = _routing_id_of(peer)
        if self._has_users and not self._listener.belongs_to(routing_id, self.caller_of(peer)):
            log.debug("reply not delivered to %s: its connection has ended", routing_id.hex())
            return
        extra = self._frame_bytes
        size = sum(wire_bytes(len(frame) + extra) for frame in frames)
        self._listener.note_sent(routing_id, size)
        try:
            self._socket.send_multipart([routing_id, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # It is gone, or its queue is full because it is slow: it will reconnect and ask again.
            self._listener.note_sent(routing_id, -size)
            log.debug("reply not delivered to %s: %s", routing_id.hex(), error)

    def own_growth(self) -> AbstractContextManager[None]:
        """Memory that the process takes in this block is no concern of its peers."""
        return self._guard.own_growth()

    def set_held_bytes(self, held_bytes: Callable[[], int]) -> None:
        """`held_bytes` returns the size of the requests that were taken and wait."""
        self._listener.held_bytes = held_bytes

    def close(self) -> None:
        self._guard.end(self._socket, self._listener)
        self._socket.close(0)
        if self._zap is not None:
            self._zap.close(0)
        self._context.term()


def _routing_id_of(peer: bytes) -> bytes:
    return peer[2 + peer[1] :]
