"""Counts the bytes of a ZeroMQ connection, as the system sees them.

ZeroMQ does not say how much of a message was transferred. On Linux its monitor tells the descriptor of each TCP
connection, and the system counts the bytes of a descriptor. Elsewhere nothing is counted.
"""

from __future__ import annotations

import ctypes
import itertools
import socket
import struct
import sys
from typing import Any

from oncemq.client.core.commands.wire import LOCAL, WireBytes

#: `tcpi_bytes_acked` and `tcpi_bytes_received` of Linux's `struct tcp_info`.
_BYTES = struct.Struct("@QQ")
_BYTES_AT = 120
#: The first frame of an event of ZeroMQ's monitor: its kind, and a descriptor.
_EVENT = struct.Struct("=hi")
_serial_numbers = itertools.count(1)


class WireCounter:
    """The bytes of a DEALER socket. ZeroMQ may reconnect it: then those of all its connections."""

    def __init__(self, zmq: Any, sock: Any, url: str) -> None:
        """Call this before the socket is connected."""
        self._zmq = zmq
        self._socket = sock
        self._monitor: Any = None
        #: ZeroMQ owns it, and may close it at any time.
        self._descriptor: int | None = None
        self._before = self._counted = WireBytes(0, 0)
        self._is_tcp = url.startswith("tcp:")
        if sys.platform == "linux" and self._is_tcp:
            self._open_monitor()

    def _open_monitor(self) -> None:
        zmq = self._zmq
        address = f"inproc://oncemq-wire-{next(_serial_numbers)}"
        self._socket.monitor(address, zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED)
        self._monitor = self._socket.context.socket(zmq.PAIR)
        # Events that nobody reads must not block ZeroMQ's thread.
        self._monitor.setsockopt(zmq.RCVHWM, 0)
        self._monitor.setsockopt(zmq.LINGER, 0)
        self._monitor.connect(address)

    def read(self) -> WireBytes | None:
        """Return how many bytes were transferred. None: it is not known."""
        if self._monitor is None:
            return None if self._is_tcp else LOCAL
        self._follow_events()
        counted = None if self._descriptor is None else _read_tcp_info(self._descriptor)
        if counted is not None:
            self._counted = counted
        before, counted = self._before, self._counted
        return WireBytes(before.acked + counted.acked, before.received + counted.received)

    def _follow_events(self) -> None:
        """Learn which connection is the current one."""
        monitor, zmq = self._monitor, self._zmq
        while monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            kind, descriptor = _EVENT.unpack(monitor.recv_multipart()[0])
            self._descriptor = descriptor if kind == zmq.EVENT_CONNECTED else None
            before, counted = self._before, self._counted
            self._before = WireBytes(before.acked + counted.acked, before.received + counted.received)
            self._counted = WireBytes(0, 0)

    def close(self) -> None:
        """Call this before the socket is closed."""
        if self._monitor is not None:
            self._socket.monitor(None, 0)
            self._monitor.close(0)
            self._monitor = None


def _read_tcp_info(descriptor: int) -> WireBytes | None:
    """Read the counters of a descriptor that somebody else owns. A socket object would close it."""
    buffer = ctypes.create_string_buffer(_BYTES_AT + _BYTES.size)
    size = ctypes.c_uint(len(buffer))
    getsockopt = ctypes.CDLL(None).getsockopt
    if getsockopt(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, buffer, ctypes.byref(size)) != 0:
        return None
    return WireBytes(*_BYTES.unpack_from(buffer, _BYTES_AT)) if size.value >= len(buffer) else None
