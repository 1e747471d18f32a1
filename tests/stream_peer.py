"""A peer of the stream transport that is spoken by hand over a raw socket, so that it can do what no client does."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Sequence
from typing import Any, Self

from oncemq.config.addresses import split_address, unix_path
from oncemq.protocol.frames import Frame
from oncemq.protocol.stream import StreamReader, encode_message, encode_opening

OPENING = encode_opening({})
_TIMEOUT_S = 20.0
_CHUNK_BYTES = 256 * 1024
_SIZE_MAX = 2**31


def send_repeated(connection: socket.socket, pattern: bytes, size: int) -> int:
    """Send `size` bytes of the repeated pattern. Return how many were sent before the listener disconnected."""
    sent = 0
    view = memoryview(pattern)
    while sent < size:
        start = sent % len(pattern)
        try:
            sent += connection.send(view[start : start + size - sent])
        except (ConnectionError, TimeoutError):
            break
    return sent


class StreamPeer:
    """A connected peer, which has sent `opening`."""

    def __init__(
        self, url: str, opening: bytes = OPENING, *, receive_buffer_bytes: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        """A small `receive_buffer_bytes` makes the kernel acknowledge little unread data. With `tls`, the connection is
        encrypted."""
        self.socket = connected(url, receive_buffer_bytes)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.socket.settimeout(_TIMEOUT_S)
        self._reader = StreamReader(_SIZE_MAX, _SIZE_MAX, as_bytes=True)
        self.socket.sendall(opening)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def properties(self) -> dict[str, Any] | None:
        """Those of the listener's opening, as far as it was received."""
        return self._reader.properties

    def send(self, frames: Sequence[Frame]) -> None:
        """Send a complete message."""
        self.socket.sendall(b"".join(encode_message(frames)))

    def send_raw(self, pattern: bytes, size: int) -> int:
        """Send `size` bytes of the repeated pattern. Return how many were sent before the listener disconnected."""
        return send_repeated(self.socket, pattern, size)

    def receive(self) -> list[Frame]:
        """Return the next message. Raises ConnectionError at the end of the connection, and TimeoutError."""
        while (frames := self._reader.next()) is None:
            self.receive_some()
        return frames

    def receive_some(self) -> None:
        """Receive once. Raises as `receive`."""
        data = self.socket.recv(_CHUNK_BYTES)
        if not data:
            raise ConnectionResetError("the listener has disconnected")
        while data:
            target = self._reader.target
            if target is None:
                self._reader.feed(data)
                return
            part = data[: len(target)]
            target[: len(part)] = part
            self._reader.filled(len(part))
            data = data[len(part) :]

    def has_message(self, timeout_ms: int) -> bool:
        """Whether `receive` has a message. Waits for it at most this long if nothing arrives."""
        while not self._reader._messages:
            if not select.select([self.socket], [], [], timeout_ms / 1000)[0]:
                return False
            self.receive_some()
        return True

    def wait_until_disconnected(self, timeout_s: float = _TIMEOUT_S) -> bool:
        """Read and drop what arrives until the listener disconnects. Return False after `timeout_s` of silence."""
        return is_disconnected(self.socket, timeout_s)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()


def is_disconnected(sock: socket.socket, timeout_s: float) -> bool:
    """Read and drop what arrives until the other side disconnects. Return False after `timeout_s` of silence."""
    sock.settimeout(timeout_s)
    try:
        while sock.recv(_CHUNK_BYTES):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def connected(url: str, receive_buffer_bytes: int = 0) -> socket.socket:
    """Return a socket that is connected to an address of any transport."""
    path = unix_path(url)
    made = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    if receive_buffer_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    made.settimeout(_TIMEOUT_S)
    made.connect(path or split_address(url))
    return made
