"""A peer of a stream listener that uses the TLS of the standard library, on a socket that does not block."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from oncemq.protocol.frames import Frame
from oncemq.protocol.stream import StreamReader, encode_message
from tests.net.stream_rig import Rig
from tests.stream_peer import OPENING, connected

_SIZE_MAX = 2**31


class TlsPeer:
    """Whatever it waits for, the listener of the rig is served meanwhile."""

    def __init__(self, rig: Rig, url: str, context: ssl.SSLContext, name: str = "localhost") -> None:
        raw = connected(url)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setblocking(False)
        self.socket = context.wrap_socket(raw, server_hostname=name, do_handshake_on_connect=False)
        self._rig = rig
        self._reader = StreamReader(_SIZE_MAX, _SIZE_MAX, as_bytes=True)

    def _until(self, act: Callable[[], Any]) -> Any:
        """Repeat something that may have to wait."""
        found: list[Any] = []

        def attempt() -> bool:
            try:
                found.append(act())
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            return True

        self._rig.serve_until(attempt)
        return found[0]

    def shake_hands(self) -> None:
        """Raises ssl.SSLError."""
        self._until(self.socket.do_handshake)

    def open(self, opening: bytes = OPENING) -> None:
        """Do the handshake, send an opening, and wait for the answer."""
        self.shake_hands()
        self.send_bytes(opening)
        self.receive_opening()

    def send_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._until(lambda view=view: self.socket.send(view[:65536])) :]  # type: ignore[misc]

    def send(self, frames: Sequence[Frame]) -> None:
        self.send_bytes(b"".join(encode_message(frames)))

    def receive_some(self) -> None:
        """Raises ConnectionError at the end of the connection."""
        data = self._until(lambda: self.socket.recv(65536))
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

    def receive_opening(self) -> dict[str, Any]:
        while self._reader.properties is None:
            self.receive_some()
        return self._reader.properties

    def receive(self) -> list[Frame]:
        while (frames := self._reader.next()) is None:
            self.receive_some()
        return frames

    def is_disconnected(self) -> bool:
        """Wait for the end of the connection."""
        try:
            while True:
                self.receive_some()
        except OSError:
            return True

    def close(self) -> None:
        self.socket.close()
