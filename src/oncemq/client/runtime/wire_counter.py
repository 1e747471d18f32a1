"""Counts the bytes of a ZeroMQ connection, as the system sees them.

ZeroMQ does not say how much of a message was transferred. On Linux its monitor tells the descriptor of each TCP
connection, and the system counts the bytes of a descriptor. Elsewhere nothing is counted.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import sys

from oncemq.client.core.commands.wire import LOCAL, WireBytes

#: `tcpi_bytes_acked` and `tcpi_bytes_received` of Linux's `struct tcp_info`.
_BYTES = struct.Struct("@QQ")
_BYTES_AT = 120


class WireCounter:
    """The bytes of a DEALER socket. ZeroMQ may reconnect it: then those of all its connections."""

    def __init__(self, url: str) -> None:
        #: ZeroMQ owns it, and may close it at any time.
        self._descriptor: int | None = None
        self._before = self._counted = WireBytes(0, 0)
        self._is_tcp = url.startswith("tcp:")

    def read(self) -> WireBytes | None:
        """Return how many bytes were transferred. None: it is not known."""
        if not self._is_tcp:
            return LOCAL
        if sys.platform != "linux":
            return None
        counted = None if self._descriptor is None else _read_tcp_info(self._descriptor)
        if counted is not None:
            self._counted = counted
        before, counted = self._before, self._counted
        return WireBytes(before.acked + counted.acked, before.received + counted.received)

    def note_connected(self, descriptor: int | None) -> None:
        """Another connection is the current one. None: there is none."""
        self._descriptor = descriptor
        before, counted = self._before, self._counted
        self._before = WireBytes(before.acked + counted.acked, before.received + counted.received)
        self._counted = WireBytes(0, 0)


def _read_tcp_info(descriptor: int) -> WireBytes | None:
    """Read the counters of a descriptor that somebody else owns. A socket object would close it."""
    buffer = ctypes.create_string_buffer(_BYTES_AT + _BYTES.size)
    size = ctypes.c_uint(len(buffer))
    getsockopt = ctypes.CDLL(None).getsockopt
    if getsockopt(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, buffer, ctypes.byref(size)) != 0:
        return None
    return WireBytes(*_BYTES.unpack_from(buffer, _BYTES_AT)) if size.value >= len(buffer) else None
