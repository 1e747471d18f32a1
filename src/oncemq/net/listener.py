"""The connections of one listener.

The thread of the socket reports what it has read and sent. The thread of the guard adds and removes connections and
measures them. Both only use operations on dictionaries that are atomic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import zmq

from oncemq.net import kernel
from oncemq.net.connection import Connection
from oncemq.net.counters import Counters
from oncemq.net.policy import ListenerLimits

_SOURCE = int(zmq.SRCFD)
#: A peer with less than this is served even if all peers together are over the limit.
_SMALL_BYTES = 2**20
#: How long the news of a connection may be slower than its first message.
_EARLY_S = 10.0


class Listener:
    def __init__(self, name: str, limits: ListenerLimits, counters: Counters) -> None:
        #: What its peers use, for people: "the text listener".
        self.name = name
        self.limits = limits
        self.counters = counters
        #: By descriptor.
        self.connections: dict[int, Connection] = {}
        #: Returns the bytes of messages that were read from the socket and wait in the process.
        self.held_bytes: Callable[[], int] = lambda: 0
        #: The guard does not watch it any more.
        self.ended = threading.Event()
        #: Called with each connection that has ended, in any thread.
        self.when_gone: Callable[[Connection], None] = lambda _: None
        self._peers: dict[bytes, Connection] = {}
        #: By descriptor: messages came from them, but there is no news of them. Most of them are closed already, and
        #: their descriptors may belong to something else, so they are neither counted nor measured.
        self._early: dict[int, Connection] = {}
        #: Bytes that peers have not read, as far as measured.
        self._unread = 0

    # The thread of the socket.

    def note_received(self, last_frame: zmq.Frame, size: int, peer: bytes = b"") -> Connection | None:
        """Count a message of `size` bytes on the wire. `peer` is the routing id by which replies are sent. Returns the
        connection that it came from; None if that is not known."""
        try:
            descriptor = last_frame.get(_SOURCE)
        except zmq.ZMQError:
            # libzmq itself made it: the subscriptions of a subscriber end with its connection. Or the peer uses version
            # 1 of its protocol, which has no such property: then what it sends counts as not processed.
            return None
        connection = self.connections.get(descriptor)
        if connection is None or (connection.peer != peer and not connection.is_open):
            # There is no news of it yet. If another one had the descriptor before, there is no news of its end, either.
            connection = self._early_connection(descriptor)
        connection.delivered += size
        if connection.peer != peer:
            self._forget_peer(connection)
            connection.peer = peer
            self._peers[peer] = connection
        return connection

    def _early_connection(self, descriptor: int) -> Connection:
        made = Connection(descriptor, time.monotonic())
        early = self._early.get(descriptor)
        if early is not None and early.cookie == made.cookie:
            return early
        if early is not None:
            self._end(early)
        self._early[descriptor] = made
        # The news may have come meanwhile.
        known = self.connections.get(descriptor)
        return known if known is not None and known.cookie == made.cookie else made

    def belongs_to(self, peer: bytes, caller: str) -> bool:
        """Return whether the connection with a routing id is the one that a caller has sent from. Another peer may have
        claimed the id meanwhile, and may not have sent anything yet."""
        connection = self._peers.get(peer)
        return connection is not None and connection.caller == caller and not connection.is_closed

    def is_reading(self, peer: bytes) -> bool:
        """Whether a peer reads its replies. If not, the next one must not be sent."""
        return not self._unread_problem(peer)

    def note_dropped(self, peer: bytes) -> None:
        """Count a reply that was not sent."""
        why = self._unread_problem(peer) or "it does not read them"
        self.counters.report("replies_dropped", f"a reply to a peer of {self.name} was not sent: {why}")

    def _unread_problem(self, peer: bytes) -> str:
        connection = self._peers.get(peer)
        if connection is None:
            return ""
        if connection.sent - connection.acked > self.limits.peer_bytes_max:
            connection.refresh_acked()
            if connection.unread > self.limits.peer_bytes_max:
                return "it does not read them"
        if self._unread > self.limits.peers_bytes_max and connection.unread > _SMALL_BYTES:
            self._measure_unread()
            if self._unread > self.limits.peers_bytes_max:
                return "all peers together have too many replies that they have not read"
        return ""

    def note_sent(self, peer: bytes, size: int) -> None:
        """Count a reply of `size` bytes on the wire, before it is sent. A negative size takes it back."""
        connection = self._peers.get(peer)
        if connection is not None:
            connection.sent += size
            self._unread += size

    def _measure_unread(self) -> None:
        waiting = [each for each in list(self.connections.values()) if each.unread]
        for each in waiting:
            each.refresh_acked()
        self._unread = sum(each.unread for each in waiting)

    # Any thread.

    def all_connections(self) -> list[Connection]:
        """Return all connections that are known, also those of which there is no news yet."""
        return [*list(self._early.values()), *list(self.connections.values())]

    def cut(self, connection: Connection, kind: str, why: str) -> None:
        """End a connection. `kind` is the name of the counter."""
        # libzmq may have closed it, and the system may have given its number to another file.
        if connection.is_cut or connection.is_closed:
            return
        connection.is_cut = True
        peer = kernel.peer_of(connection.descriptor)
        kernel.shut_down(connection.descriptor)
        self.counters.report(kind, f"a peer of {self.name}{peer} was disconnected: {why}")

    # The thread of the guard.

    def accept(self, descriptor: int) -> Connection:
        """Return the connection with this descriptor, of which there is news."""
        made = Connection(descriptor, time.monotonic())
        early = self._early.get(descriptor)
        is_known = early is not None and early.cookie == made.cookie
        if early is not None and is_known:
            made = early
        known = self.connections.get(descriptor)
        if known is not None:
            self.forget(known)
        # In this order, so that `all_connections` misses nothing.
        self.connections[descriptor] = made
        self._early.pop(descriptor, None)
        if early is not None and not is_known:
            self._end(early)
        return made

    @property
    def is_empty(self) -> bool:
        return not self.connections and not self._early

    def has(self, connection: Connection) -> bool:
        return self.connections.get(connection.descriptor) is connection

    def close(self, descriptor: int) -> Connection | None:
        """There is news that libzmq closes the connection with this descriptor. Return it if it has ended."""
        connection = self.connections.get(descriptor)
        if connection is None:
            return None
        if connection.cookie and connection.is_open:
            # The news may be so late that it is about a former connection, and that of this one comes next. Otherwise
            # it will be closed in a moment, which `measure` notices.
            self._early[descriptor] = connection
            del self.connections[descriptor]
            return None
        self.forget(connection)
        return connection

    def forget(self, connection: Connection) -> None:
        """Remove a connection that is closed."""
        if self.has(connection):
            del self.connections[connection.descriptor]
        self._end(connection)

    def _end(self, connection: Connection) -> None:
        self._forget_peer(connection)
        self.when_gone(connection)

    def _forget_peer(self, connection: Connection) -> None:
        if self._peers.get(connection.peer) is connection:
            self._peers.pop(connection.peer, None)

    def measure(self, now_s: float, used_bytes: int = 0) -> list[Connection]:
        """Measure all connections. Return those that are open."""
        for early in list(self._early.values()):
            if now_s - early.stalled_since_s > _EARLY_S or not early.is_open:
                self._early.pop(early.descriptor, None)
                self._end(early)
        found = list(self.connections.values())
        for each in found:
            each.measure(now_s, used_bytes)
        self._unread = sum(each.unread for each in found)
        return [each for each in found if not each.is_cut]
