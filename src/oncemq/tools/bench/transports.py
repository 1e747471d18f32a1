"""Kinds of transport, and the raw round trip and the raw one-way rate of each. An upper bound uses the same kind as the
broker's address: ZeroMQ for `tcp://` and `ipc://`, plain stream sockets for `oncemq://` and `oncemq+unix://`.

A plain peer sends messages as length and bytes, with blocking sockets: less than that no Python program can do.

    size     u32, little-endian
    bytes
"""

from __future__ import annotations

import enum
import os
import socket
import struct
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import zmq

from oncemq.protocol.errors import SettingInvalid
from oncemq.tools.bench.peers import Peer

_SIZE = struct.Struct("<I")
_END = b"end"
#: A put of one message of 100 bytes has about these frames.
_SMALL = (b"h" * 60, b"p" * 136)


class Transport(enum.Enum):
    """The value names it in results."""

    TCP = "TCP"
    UNIX = "Unix socket"
    ZEROMQ_TCP = "ZeroMQ tcp"
    ZEROMQ_IPC = "ZeroMQ ipc"

    @property
    def is_zeromq(self) -> bool:
        return self in (Transport.ZEROMQ_TCP, Transport.ZEROMQ_IPC)

    @property
    def is_unix(self) -> bool:
        return self in (Transport.UNIX, Transport.ZEROMQ_IPC)


_SCHEMES = {
    "oncemq+unix": Transport.UNIX,
    "oncemq": Transport.TCP,
    "tcp": Transport.ZEROMQ_TCP,
    "ipc": Transport.ZEROMQ_IPC,
}


def transport_of(url: str) -> Transport:
    """Return the transport of an address. Of several, the first one counts.

    >>> transport_of("oncemq+unix:///run/oncemq.sock"), transport_of("tcp://a:5555,tcp://b:5555")
    (<Transport.UNIX: 'Unix socket'>, <Transport.ZEROMQ_TCP: 'ZeroMQ tcp'>)
    """
    scheme = url.split(",")[0].strip().partition("://")[0]
    if scheme not in _SCHEMES:
        raise SettingInvalid(f"{url!r} can't be measured: its address must start with one of {', '.join(_SCHEMES)}")
    return _SCHEMES[scheme]


class Wire(Protocol):
    """A connection to a peer process, which sends messages back (`echo`) or only the last one (`sink`)."""

    def one_way(self, frame_bytes: int, seconds: float) -> tuple[int, float]:
        """Send messages of two frames, as a put. Returns their number, and the seconds until all had arrived."""

    def echo_times(self, seconds: float) -> list[float]:
        """Return the seconds of each round trip of a small message."""

    def close(self) -> None: ...


def open_wire(kind: str, transport: Transport, cpus: Collection[int] = (), store: Path | None = None) -> Wire:
    """Start a peer, on these CPUs if any are given, and connect to it. With `store`, an echo writes to this file and
    syncs it before it answers."""
    open_kind = ZeroMQWire if transport.is_zeromq else StreamWire
    return open_kind(kind, transport, cpus, store)


class _PeerAddress:
    """A new peer process at an address of its own. Unix sockets lie in the system's temporary folder, because their
    paths have at most 107 bytes."""

    def __init__(
        self, program: str, kind: str, transport: Transport, cpus: Collection[int], store: Path | None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="oncemq-wire-") if transport.is_unix else None
        where = str(Path(self._folder.name) / "socket") if self._folder else "127.0.0.1"
        self._peer = Peer(program, kind, where, *([str(store)] if store else []), cpus=cpus)
        self.address = self._peer.address

    def close(self) -> None:
        self._peer.close()
        if self._folder:
            self._folder.cleanup()


class StreamWire:
    """A blocking stream socket that is connected to one in another process."""

    def __init__(self, kind: str, transport: Transport, cpus: Collection[int] = (), store: Path | None = None) -> None:
        self._peer = _PeerAddress("stream-peer", kind, transport, cpus, store)
        if transport.is_unix:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(self._peer.address)
        else:
            host, _, port = self._peer.address.rpartition(":")
            self._socket = socket.create_connection((host, int(port)))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 16)
        self._finish()

    def close(self) -> None:
        self._socket.close()
        self._peer.close()

    def one_way(self, frame_bytes: int, seconds: float) -> tuple[int, float]:
        message = _message(b"h" * 60, os.urandom(max(1, frame_bytes)))
        sent = 0
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            for _ in range(8):
                self._send(message)
            sent += 8
        self._finish()
        return sent, time.perf_counter() - begin

    def echo_times(self, seconds: float) -> list[float]:
        request = b"".join(_message(*_SMALL))
        connection, buffer = self._socket, self._buffer
        times = []
        until = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < until:
            connection.send(request)
            got = connection.recv_into(buffer)
            while got < len(request):
                got += connection.recv_into(memoryview(buffer)[got:])
            times.append(time.perf_counter() - begin)
        return times

    def _send(self, parts: list[bytes]) -> None:
        sent = self._socket.sendmsg(parts)
        if sent < sum(map(len, parts)):
            self._socket.sendall(memoryview(b"".join(parts))[sent:])

    def _finish(self) -> None:
        """Send the end, and wait until it comes back: then the peer has received everything."""
        self._send(_message(_END))
        self._socket.recv_into(self._buffer, _SIZE.size + len(_END), socket.MSG_WAITALL)


def _message(*frames: bytes) -> list[bytes]:
    return [_SIZE.pack(sum(map(len, frames))), *frames]


class ZeroMQWire:
    """A DEALER socket that is connected to a ROUTER socket in another process."""

    def __init__(self, kind: str, transport: Transport, cpus: Collection[int] = (), store: Path | None = None) -> None:
        self._peer = _PeerAddress("zeromq-peer", kind, transport, cpus, store)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 64)
        self._socket.connect(self._peer.address)
        self._finish()

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()
        self._peer.close()

    def one_way(self, frame_bytes: int, seconds: float) -> tuple[int, float]:
        frames = [b"h" * 60, os.urandom(max(1, frame_bytes))]
        sent = 0
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            for _ in range(8):
                self._socket.send_multipart(frames)
            sent += 8
        self._finish()
        return sent, time.perf_counter() - begin

    def echo_times(self, seconds: float) -> list[float]:
        times = []
        until = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < until:
            self._socket.send_multipart(_SMALL)
            self._socket.recv_multipart()
            times.append(time.perf_counter() - begin)
        return times

    def _finish(self) -> None:
        self._socket.send_multipart([_END])
        self._socket.recv_multipart()
