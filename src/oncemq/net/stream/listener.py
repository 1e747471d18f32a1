"""Listens at stream addresses and serves their connections, in the poll loop of the process that owns it.

One bad peer harms nobody else: a connection has one receive call per turn, what a peer does not read waits for it up to
a limit, and the peers that have been stalled longest are disconnected when all together exceed theirs. Connections
whose opening was not accepted have a limit of their own: peers that are not authenticated keep nobody else out.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import ssl
import struct
from collections.abc import Callable, Sequence

from oncemq.config.addresses import stream_place
from oncemq.net.counters import Counters
from oncemq.net.descriptors import connection_descriptors_max
from oncemq.net.gate import Gate
from oncemq.net.options import set_options
from oncemq.net.policy import ListenerLimits
from oncemq.net.poller import READABLE, WRITABLE, Poller
from oncemq.net.stream.admission import admit
from oncemq.net.stream.binding import ALL_HOSTS, bind_tcp, bind_unix
from oncemq.net.stream.connection import StreamConnection
from oncemq.net.stream.tls_connection import Handshakes, TlsConnection
from oncemq.net.system import System
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame
from oncemq.protocol.stream import StreamBroken, encode_message, encode_opening

log = logging.getLogger("oncemq.net")

#: The names of peers begin with it, and those of other listeners with something else.
PEER_PREFIX = b"s"
#: Of the name of a peer: the prefix and a number. The caller follows.
_NUMBER_BYTES = 8
_PEER_BYTES = len(PEER_PREFIX) + _NUMBER_BYTES
_BACKLOG = 4096
#: Connections that are accepted in one turn: at most this many, and this part of those that may be unopened. A peer
#: that has sent its opening is served before others take its place.
_ACCEPTS_PER_TURN = 64
_ACCEPTED_PART = 4
#: After the process has run out of descriptors, no connection is accepted for this long.
_PAUSE_S = 0.5
#: How long a peer may take for its TLS handshake and its opening together.
_OPENING_S = 10.0
#: At most this part of `connections_max` may be unopened, and at least this many.
_UNOPENED_PART = 4
_UNOPENED_MIN = 64
#: How often stalled peers are looked for.
_CHECK_EVERY_S = 1.0
#: A peer with less than this is served even if all peers together are over the limit.
_SMALL_BYTES = 2**20
#: If all peers together are over the limit, those that have read nothing for this long are disconnected. Above this
#: multiple of the limit, there is no such delay.
_STALLED_S = 1.0
_EXCESS = 2
_TOO_MANY = "there are too many connections"
_DROP_AT_CLOSE = struct.pack("ii", 1, 0)
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class StreamListener:
    """All stream addresses of one process, and their connections."""

    def __init__(
        self,
        poller: Poller,
        name: str,
        limits: ListenerLimits,
        message_bytes_max: int,
        counters: Counters,
        system: System | None = None,
        gate: Gate | None = None,
    ) -> None:
        """`name` is what log lines call it. Without a `gate`, everybody is admitted."""
        self._poller = poller
        self._system = system or System()
        self._now_s = self._system.now_s
        self._name = name
        self._limits = limits
        self._message_bytes_max = message_bytes_max
        self._counters = counters
        self._gate = gate
        self._tls: ssl.SSLContext | None = None
        self._handshakes = Handshakes()
        self._opening = encode_opening({"message_bytes_max": message_bytes_max})
        self._listening: dict[int, socket.socket] = {}
        self._paths: list[str] = []
        self._accepts_again_s: float | None = None
        self._descriptors_max = connection_descriptors_max()
        self._by_descriptor: dict[int, StreamConnection] = {}
        self._by_peer: dict[bytes, StreamConnection] = {}
        #: Those whose opening has not arrived, in the order of their arrival.
        self._unopened_max = max(limits.connections_max // _UNOPENED_PART, _UNOPENED_MIN)
        self._unopened: dict[StreamConnection, None] = {}
        #: Those with a message that is not complete, with the memory that it takes, and those that have not read what
        #: was sent to them. In the order of their last progress.
        self._incomplete: dict[StreamConnection, int] = {}
        self._unread: dict[StreamConnection, None] = {}
        self._incomplete_bytes = 0
        self._unread_bytes = 0
        #: Those with requests that wait for their next turn.
        self._waiting: dict[StreamConnection, None] = {}
        self._last_peer = 0
        #: Called with each peer whose connection has ended.
        self.when_gone: Callable[[bytes], object] = lambda _: None
        self._check_at_s = 0.0

    def __len__(self) -> int:
        return len(self._by_descriptor)

    @property
    def buffered_bytes(self) -> int:
        """The memory that the connections use for messages that are not complete, in both directions."""
        return self._incomplete_bytes + self._unread_bytes

    # Listening.

    def use_tls(self, context: ssl.SSLContext | None) -> None:
        """From now on, new connections over TCP use this context. Those of Unix sockets are never encrypted."""
        self._tls = context

    def listen(self, address: str, mode: str) -> str:
        """Listen at an address. Return it with the port that was chosen. `mode` is that of the file of a Unix socket,
        in octal digits. Raises ListenFailed."""
        try:
            return self._listen(address, mode)
        except OSError as error:
            raise errors.ListenFailed(f"can't listen at {address}: {error.strerror or error}") from None

    def _listen(self, address: str, mode: str) -> str:
        place = stream_place(address)
        if isinstance(place, str):
            bound = [bind_unix(place, mode)]
            if not place.startswith("\0"):
                self._paths.append(place)
        else:
            bound = bind_tcp(self._system, *place)
            scheme, _, rest = address.partition("://")
            host = rest.rpartition(":")[0]
            address = f"{scheme}://{ALL_HOSTS if host == '*' else host}:{bound[0].getsockname()[1]}"
        for sock in bound:
            self._start(sock)
        return address

    def _start(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.listen(_BACKLOG)
        self._listening[sock.fileno()] = sock
        self._poller.watch(sock.fileno(), READABLE)

    def _accept(self, listening: socket.socket, now_s: float) -> None:
        for _ in range(self._accepts_per_turn(listening)):
            try:
                sock, _name = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                # The connection was reset before it was accepted, or there are no descriptors left.
                if error.errno in _OUT_OF_DESCRIPTORS:
                    self._pause_accepting(now_s)
                    return
                continue
            self._admit(sock, now_s)

    def _accepts_per_turn(self, listening: socket.socket) -> int:
        count = min(_ACCEPTS_PER_TURN, self._unopened_max // _ACCEPTED_PART)
        is_encrypted = self._tls is not None and listening.family != socket.AF_UNIX
        return min(count, self._handshakes.accepts) if is_encrypted else count

    def _pause_accepting(self, now_s: float) -> None:
        self._counters.report("connections_refused", f"{self._name} has too many open files (ulimit -n)")
        if self._accepts_again_s is not None:
            return
        self._accepts_again_s = now_s + _PAUSE_S
        for descriptor in self._listening:
            self._poller.ignore(descriptor)

    def _admit(self, sock: socket.socket, now_s: float) -> None:
        sock.setblocking(False)
        tls = self._tls if sock.family != socket.AF_UNIX else None
        if self._is_full or sock.fileno() >= self._descriptors_max:
            is_full = sock.fileno() < self._descriptors_max
            why = _TOO_MANY if is_full else "the process has too many open files (ulimit -n)"
            self._counters.report("connections_refused", f"a peer of {self._name} was refused: {why}")
            if tls is None:
                with contextlib.suppress(OSError):
                    sock.send(_refusal(errors.LimitReached(why)))
            sock.close()
            return
        self._last_peer += 1
        peer = PEER_PREFIX + self._last_peer.to_bytes(_NUMBER_BYTES, "big")
        try:
            # Later than `check`, which counts those that do not read.
            set_options(sock, self._limits.write_timeout_s + 2 * _CHECK_EVERY_S)
            if tls is None:
                connection = StreamConnection(sock, peer, self._message_bytes_max, now_s)
            else:
                connection = TlsConnection(sock, tls, self._handshakes, peer, self._message_bytes_max, now_s)
        except OSError:
            # The peer has already gone, or TLS has no memory.
            sock.close()
            return
        self._by_descriptor[connection.descriptor] = connection
        self._by_peer[connection.peer] = connection
        self._unopened[connection] = None
        self._poller.watch(connection.descriptor, READABLE)
        if len(self._unopened) > self._unopened_max:
            why = "too many connections have no opening, and it is the oldest one"
            self._cut(next(iter(self._unopened)), "peers_cut_unfinished", why)

    @property
    def _is_full(self) -> bool:
        """Connections that are not opened do not count: they have a limit of their own."""
        return len(self._by_descriptor) - len(self._unopened) >= self._limits.connections_max

    def _open(self, connection: StreamConnection) -> bool:
        """The opening of a connection has arrived. Return whether it is accepted; otherwise the connection has
        ended."""
        reader = connection.reader
        properties, reader.properties = reader.properties or {}, {}
        try:
            if self._is_full:
                raise errors.LimitReached(_TOO_MANY)
            connection.caller = admit(self._gate, connection, properties)
        except errors.OnceMQError as error:
            text = f"a peer of {self._name}{connection.describe()} was refused: {error.text}"
            self._counters.report("connections_refused", text)
            connection.try_send(_refusal(error))
            self._end(connection)
            return False
        except OSError:
            self._end(connection)
            return False
        del self._unopened[connection], self._by_peer[connection.peer]
        connection.peer += connection.caller.encode()
        self._by_peer[connection.peer] = connection
        self._send_buffers(connection, (self._opening,))
        return not connection.is_ended

    # Serving.

    @property
    def waiting(self) -> list[tuple[int, int]]:
        """The connections that must be served although nothing new has arrived, as a poll returns them."""
        return [(connection.descriptor, READABLE) for connection in self._waiting]

    def serve(self, descriptor: int, events: int, arrived: Callable[[bytes, list[Frame]], None]) -> bytes:
        """Serve a descriptor that is ready, once. Return its peer if that is sending large requests, so that more may
        wait there. The descriptor may be one that was closed meanwhile."""
        connection = self._by_descriptor.get(descriptor)
        if connection is None:
            listening = self._listening.get(descriptor)
            if listening is not None:
                self._accept(listening, self._now_s())
            return b""
        if events & WRITABLE:
            self._send_rest(connection)
        if events & ~WRITABLE and not connection.is_ended:
            return self._receive(connection, arrived)
        return b""

    def _receive(self, connection: StreamConnection, arrived: Callable[[bytes, list[Frame]], None]) -> bytes:
        reader = connection.reader
        was_large = reader.target is not None
        try:
            count = connection.receive()
        except (BlockingIOError, InterruptedError):
            if self._waiting:
                self._waiting.pop(connection, None)
            if connection.has_unsent:
                self._poller.change(connection.descriptor, READABLE | WRITABLE)
            return b""
        except StreamBroken as error:
            text = f"a peer of {self._name}{connection.describe()} was disconnected: {error}"
            self._counters.report(error.code.lower(), text)
            if reader.properties is None:
                # A person may read the text.
                connection.try_send(encode_opening({"error": [error.code, str(error)]}))
            self._end(connection)
            return b""
        except OSError:
            count = 0
        if not count:
            self._end(connection)
            return b""
        if (
            self._unopened
            and connection in self._unopened
            and reader.properties is not None
            and not self._open(connection)
        ):
            return b""
        while (frames := reader.next()) is not None:
            arrived(connection.peer, frames)
        if reader.has_more or connection.holds_more:
            self._waiting[connection] = None
        elif self._waiting:
            self._waiting.pop(connection, None)
        if reader.reserved_bytes or connection in self._incomplete:
            self._note_incomplete(connection)
            if was_large or reader.target is not None:
                return connection.peer
        return b""

    def _note_incomplete(self, connection: StreamConnection) -> None:
        size = connection.reader.reserved_bytes
        self._incomplete_bytes += size - self._incomplete.pop(connection, 0)
        connection.arrived_s = self._now_s()
        if size:
            self._incomplete[connection] = size
            while self._incomplete_bytes > self._limits.peers_bytes_max:
                # Those whose messages make no progress are the first ones.
                why = "the incomplete requests of all peers exceed the limit, and its own has been stalled longest"
                self._cut(next(iter(self._incomplete)), "peers_cut_unfinished", why)

    def caller_of(self, peer: bytes) -> str:
        """Return the caller that a peer has logged in as."""
        return peer[_PEER_BYTES:].decode()

    def is_reading(self, peer: bytes) -> bool:
        """Return whether a peer reads what is sent to it. If not, what would be sent is dropped, and counted."""
        connection = self._by_peer.get(peer)
        if connection is None or not connection.outgoing_bytes:
            return True
        limits = self._limits
        if connection.outgoing_bytes < limits.peer_bytes_max and (
            self._unread_bytes < limits.peers_bytes_max or connection.outgoing_bytes < _SMALL_BYTES
        ):
            return True
        self._counters.report(
            "replies_dropped", f"a reply was dropped: a peer of {self._name}{connection.describe()} does not read"
        )
        return False

    def send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        """Send to a peer, now or when it reads. If it is gone, nothing is sent."""
        connection = self._by_peer.get(peer)
        if connection is not None:
            self._send_buffers(connection, encode_message(frames))

    def _send_buffers(self, connection: StreamConnection, buffers: Sequence[Frame]) -> None:
        try:
            before = connection.outgoing_bytes
            connection.send_buffers(buffers)
        except OSError:
            self._end(connection)
        else:
            if connection.outgoing_bytes != before:
                self._note_unread(connection, connection.outgoing_bytes - before)

    def _note_unread(self, connection: StreamConnection, added_bytes: int) -> None:
        self._unread_bytes += added_bytes
        if connection not in self._unread:
            self._unread[connection] = None
            connection.sent_s = self._now_s()
            self._poller.change(connection.descriptor, READABLE | WRITABLE)
        if self._unread_bytes > self._limits.peers_bytes_max:
            self._relieve()

    def _relieve(self) -> None:
        """All peers together have not read more than the limit: disconnect those that have been stalled longest."""
        stalled_s = self._now_s() - _STALLED_S
        bytes_max = self._limits.peers_bytes_max
        while self._unread_bytes > bytes_max:
            first = next(iter(self._unread))
            if first.sent_s > stalled_s and self._unread_bytes <= _EXCESS * bytes_max:
                return
            why = "the unread replies of all peers exceed the limit, and it has been stalled longest"
            self._cut(first, "peers_cut_unread", why)

    def _send_rest(self, connection: StreamConnection) -> None:
        before = connection.outgoing_bytes
        is_done = is_broken = False
        try:
            is_done = connection.send_rest()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            is_broken = True
        self._unread_bytes -= before - connection.outgoing_bytes
        if is_broken:
            self._end(connection)
        elif is_done:
            self._unread.pop(connection, None)
            self._poller.change(connection.descriptor, READABLE)
        elif connection.outgoing_bytes < before:
            connection.sent_s = self._now_s()
            # Those that have been stalled longest are the first ones.
            del self._unread[connection]
            self._unread[connection] = None

    # Time.

    def check(self, ready: Sequence[tuple[int, int]] = ()) -> None:
        """A turn begins. Disconnect stalled peers, if it is time to look for them. `ready` is what a poll has just
        returned: a peer for which this process has done nothing for long has not stalled."""
        if self._tls is not None:
            self._handshakes.begin_turn()
        now_s = self._now_s()
        if now_s < self._check_at_s:
            return
        self._check_at_s = now_s + _CHECK_EVERY_S
        if self._accepts_again_s is not None and now_s >= self._accepts_again_s:
            self._accepts_again_s = None
            for descriptor in self._listening:
                self._poller.watch(descriptor, READABLE)
        sendable = {descriptor for descriptor, events in ready if events & WRITABLE}
        receivable = {descriptor for descriptor, events in ready if events & ~WRITABLE}
        late_s = now_s - self._limits.write_timeout_s
        for connection in [each for each in self._unread if each.sent_s < late_s]:
            if connection.descriptor not in sendable:
                self._cut(connection, "peers_cut_unread", "it reads nothing of what was sent to it")
        for connection in [each for each in self._incomplete if each.arrived_s < late_s]:
            if connection.descriptor not in receivable:
                self._cut(connection, "peers_cut_unfinished", "it does not complete its request")
        for connection in list(self._unopened):
            if connection.accepted_s > now_s - _OPENING_S:
                break
            if connection.is_late or connection.descriptor not in receivable:
                self._cut(connection, "peers_cut_unfinished", "it sent no opening")
            # From one that sends byte by byte, something can always be received.
            connection.is_late = True

    # The end of a connection.

    def _cut(self, connection: StreamConnection, kind: str, why: str) -> None:
        self._counters.report(kind, f"a peer of {self._name}{connection.describe()} was disconnected: {why}")
        if connection.outgoing_bytes:
            # What the system holds for a peer that does not read would stay there, and the peer would learn nothing.
            with contextlib.suppress(OSError):
                connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP_AT_CLOSE)
        self._end(connection)

    def _end(self, connection: StreamConnection) -> None:
        if connection.is_ended:
            return
        connection.is_ended = True
        self._poller.ignore(connection.descriptor)
        del self._by_descriptor[connection.descriptor]
        del self._by_peer[connection.peer]
        self._unopened.pop(connection, None)
        self._waiting.pop(connection, None)
        self._incomplete_bytes -= self._incomplete.pop(connection, 0)
        if connection in self._unread:
            del self._unread[connection]
            self._unread_bytes -= connection.outgoing_bytes
        connection.socket.close()
        if connection.caller is not None and self._gate is not None:
            self._gate.left(connection.caller)
        self.when_gone(connection.peer)

    def is_connected(self, peer: bytes) -> bool:
        return peer in self._by_peer

    def disconnect(self, peer: bytes) -> None:
        """End the connection of a peer, if it has one."""
        connection = self._by_peer.get(peer)
        if connection is not None:
            self._end(connection)

    def drop_invalid(self) -> None:
        """Disconnect the peers whose credentials are not valid any more."""
        if self._gate is None:
            return
        opened = [each for each in self._by_descriptor.values() if each.caller is not None]
        is_valid = {caller: self._gate.is_valid(caller) for caller in {each.caller or "" for each in opened}}
        for connection in opened:
            if not is_valid[connection.caller or ""]:
                self._cut(connection, "peers_cut_revoked", "its credential was removed")

    def close(self) -> None:
        for connection in list(self._by_descriptor.values()):
            self._end(connection)
        # While a socket is open, no other broker listens at its path: the file is still the one of this listener.
        for path in self._paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._paths.clear()
        for sock in self._listening.values():
            sock.close()
        self._listening.clear()


def _refusal(error: errors.OnceMQError) -> bytes:
    return encode_opening({"error": [error.code, error.text]})
