"""What ZeroMQ tells about the connections of a client's socket: their descriptors, and why a handshake has failed.

ZeroMQ's monitor is a socket of its own. It is read only while there is no connection, and when the bytes of the
connection are counted: messages cost nothing more.
"""

from __future__ import annotations

import itertools
import struct
from typing import Any

from oncemq.client.runtime.wire_counter import WireCounter
from oncemq.protocol import errors

#: The first frame of an event: its kind, and a descriptor or a code.
_EVENT = struct.Struct("=Hi")
#: The server did not accept the client's key.
_REFUSED = 400
#: Connections that have ended in a row during the handshake, before there ever was one.
_FAILURES_MAX = 5
_serial_numbers = itertools.count(1)


class ZmqMonitor:
    """For one transport, whose sockets it watches one after the other."""

    def __init__(self, zmq: Any, has_keys: bool) -> None:
        self._zmq = zmq
        self._has_keys = has_keys
        self._socket: Any = None
        self._news: Any = None
        self._url = ""
        self._failures = 0
        self._has_succeeded = False
        self.counter = WireCounter("")
        #: There is no connection, or none that is known: `read` has to be called.
        self.is_connecting = False

    def watch(self, sock: Any, url: str) -> None:
        """Watch a socket, before it is connected."""
        self._socket, self._url = sock, url
        self.counter = WireCounter(url)
        if url.startswith("inproc:"):
            return
        zmq = self._zmq
        address = f"inproc://oncemq-client-{next(_serial_numbers)}"
        sock.monitor(
            address,
            zmq.EVENT_CONNECTED
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
        )
        self._news = sock.context.socket(zmq.PAIR)
        # Events that nobody reads must not block ZeroMQ's thread.
        self._news.setsockopt(zmq.RCVHWM, 0)
        self._news.setsockopt(zmq.LINGER, 0)
        self._news.connect(address)
        self.is_connecting = True

    @property
    def descriptor(self) -> int:
        """It becomes readable with the next event; -1: there is none."""
        return -1 if self._news is None else int(self._news.getsockopt(self._zmq.FD))

    def read(self) -> errors.OnceMQError | None:
        """Read all events. Return why the broker has refused the connection."""
        zmq, news = self._zmq, self._news
        refusal = None
        while news is not None and news.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            kind, value = _EVENT.unpack(news.recv_multipart()[0])
            if kind == zmq.EVENT_CONNECTED:
                self.counter.note_connected(value)
            elif kind == zmq.EVENT_DISCONNECTED:
                self.counter.note_connected(None)
                self.is_connecting = True
            elif kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.is_connecting = False
                self._has_succeeded = True
            else:
                refusal = refusal or self._failed(kind, value)
        return refusal

    def _failed(self, kind: int, value: int) -> errors.OnceMQError | None:
        zmq, url = self._zmq, self._url
        if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH and value == _REFUSED:
            why = "it does not know the key `curve_public`, or the user has too many connections"
            return errors.Unauthenticated(f"{url} has refused the connection: {why}")
        if kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            why = "does not use CURVE: connect without curve_server"
            if not self._has_keys:
                why = "expects CURVE: give curve_server, curve_public and curve_secret"
            return errors.Unauthenticated(f"{url} {why}")
        self._failures += 1
        if self._has_succeeded or self._failures < _FAILURES_MAX:
            return None
        self._failures = 0
        # The other side may have ended the connection before it could be seen which kind it expects.
        why = "it expects CURVE, or it is overloaded"
        if self._has_keys:
            why = "it does not use CURVE, or it has another key than `curve_server`, or it is overloaded"
        return errors.BrokerAway(f"{url} ends each connection during the handshake: {why}")

    def close(self) -> None:
        """Call this before the socket is closed."""
        if self._news is not None:
            self._socket.monitor(None, 0)
            self._news.close(0)
            self._news = None
        self.is_connecting = False
