"""A ZeroMQ peer that is spoken by hand over a raw socket, so that it can do what no ZeroMQ library does.

It speaks ZMTP 3.0 with the NULL mechanism:

    greeting    ff 00×8 7f | 03 00 | "NULL" 00×16 | 00 | 00×31
    command     04 | length (1)           | body           06 | length (8) | body
    message     flags | length (1)        | body           flags with 02: length (8)      01: more frames follow
    READY       05 "READY" | (name length (1) | name | value length (4) | value)*
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence
from typing import Self

from tests.stream_peer import is_disconnected, send_repeated

_MORE, _LONG, _COMMAND = 1, 2, 4
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_TIMEOUT_S = 20.0
#: Sent with each call of the system, when much is sent.
_CHUNK_BYTES = 256 * 1024


class ZmtpPeer:
    """A connected peer. `kind` is the type of socket that it claims to be: DEALER, REQ, PUB, SUB."""

    def __init__(self, url: str, kind: str = "DEALER", *, receive_buffer_bytes: int = 0) -> None:
        """Connect and shake hands. A small `receive_buffer_bytes` makes the kernel acknowledge little unread data."""
        self.socket = _connect(url, receive_buffer_bytes)
        self.socket.settimeout(_TIMEOUT_S)
        self._shake_hands(kind)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _shake_hands(self, kind: str) -> None:
        self.socket.sendall(_GREETING)
        self._receive_exactly(len(_GREETING))
        self.socket.sendall(command(b"READY", (b"Socket-Type", kind.encode()), (b"Identity", b"")))
        flags, _ = self.receive_frame()
        assert flags & _COMMAND, "the listener must answer with READY"

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a complete message."""
        last = len(frames) - 1
        self.socket.sendall(b"".join(frame(body, is_last=index == last) for index, body in enumerate(frames)))

    def send_unfinished(self, body: bytes, count: int = 1) -> int:
        """Send frames of a message that has more frames. Return how many bytes the listener accepted: fewer than all,
        if it disconnected."""
        one = frame(body, is_last=False)
        chunk = one * max(1, _CHUNK_BYTES // len(one))
        return self.send_raw(chunk, len(one) * count)

    def send_raw(self, pattern: bytes, size: int) -> int:
        """Send `size` bytes of the repeated pattern. Return how many were sent before the listener disconnected."""
        return send_repeated(self.socket, pattern, size)

    def receive(self) -> list[bytes]:
        """Return the next message. Raises ConnectionError at the end of the connection, and TimeoutError."""
        frames: list[bytes] = []
        while True:
            flags, body = self.receive_frame()
            if flags & _COMMAND:
                continue
            frames.append(body)
            if not flags & _MORE:
                return frames

    def receive_frame(self) -> tuple[int, bytes]:
        flags = self._receive_exactly(1)[0]
        if flags & _LONG:
            (size,) = struct.unpack("!Q", self._receive_exactly(8))
        else:
            size = self._receive_exactly(1)[0]
        return flags, self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self.socket.recv(size - len(received))
            if not part:
                raise ConnectionResetError("the listener has disconnected")
            received += part
        return bytes(received)

    def wait_until_disconnected(self, timeout_s: float = _TIMEOUT_S) -> bool:
        """Read and drop what arrives until the listener disconnects. Return False after `timeout_s` of silence."""
        return is_disconnected(self.socket, timeout_s)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()


def _connect(url: str, receive_buffer_bytes: int) -> socket.socket:
    transport, _, address = url.partition("://")
    if transport == "ipc":
        made = socket.socket(socket.AF_UNIX)
        target: str | tuple[str, int] = address
    else:
        host, _, port = address.rpartition(":")
        made = socket.socket()
        target = (host, int(port))
    if receive_buffer_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    made.connect(target)
    return made


def frame(body: bytes, *, is_last: bool) -> bytes:
    """Return a frame of a message, as it is on the wire."""
    return _framed(0 if is_last else _MORE, body)


def command(name: bytes, *properties: tuple[bytes, bytes]) -> bytes:
    """Return a command, as it is on the wire."""
    body = bytes((len(name),)) + name
    for key, value in properties:
        body += bytes((len(key),)) + key + struct.pack("!I", len(value)) + value
    return _framed(_COMMAND, body)


def _framed(flags: int, body: bytes) -> bytes:
    if len(body) > 255:
        return struct.pack("!BQ", flags | _LONG, len(body)) + body
    return struct.pack("!BB", flags, len(body)) + body
