"""A connection of a stream listener that uses TLS."""

from __future__ import annotations

import contextlib
import ssl
from typing import Any

from oncemq.net.stream.connection import StreamConnection
from oncemq.net.tls_socket import NotTls, TlsSocket
from oncemq.protocol.errors import TlsFailed
from oncemq.protocol.stream import StreamBroken

#: Steps of handshakes in one turn. Each takes a quarter of a millisecond of the loop, or more with an RSA key.
_STEPS_PER_TURN = 8


class Handshakes:
    """How many steps of handshakes are left in this turn. The others wait for the next one, so that a storm of new
    connections delays nobody else by much."""

    __slots__ = ("_has_delayed", "_left", "accepts")

    def __init__(self) -> None:
        self._left = _STEPS_PER_TURN
        self._has_delayed = False
        #: How many connections may be accepted in this turn. If there were not enough steps in the last one, further
        #: connections wait in the system's queue. Otherwise those that wait for a step would be disconnected for them.
        self.accepts = _STEPS_PER_TURN

    def begin_turn(self) -> None:
        self._left = _STEPS_PER_TURN
        self.accepts = 0 if self._has_delayed else _STEPS_PER_TURN
        self._has_delayed = False

    def take_step(self) -> None:
        """Raises BlockingIOError if there is no step left."""
        if not self._left:
            self._has_delayed = True
            raise BlockingIOError
        self._left -= 1


class HandshakeFailed(StreamBroken):
    code = TlsFailed.code


class TlsConnection(StreamConnection):
    __slots__ = ("_handshakes", "_is_plain", "_raw")

    socket: TlsSocket

    def __init__(
        self,
        sock: Any,
        context: ssl.SSLContext,
        handshakes: Handshakes,
        peer: bytes,
        message_bytes_max: int,
        now_s: float,
    ) -> None:
        super().__init__(TlsSocket(sock, context), peer, message_bytes_max, now_s)
        self._handshakes = handshakes
        #: For the last words to a peer that does not use TLS.
        self._raw = sock
        self._is_plain = False

    def receive(self) -> int:
        if not self.socket.is_open:
            self._shake_hands()
        return super().receive()

    def _shake_hands(self) -> None:
        """Do one step. Raises BlockingIOError unless the handshake is complete."""
        self._handshakes.take_step()
        try:
            self.socket.handshake()
        except NotTls:
            self._is_plain = True
            raise HandshakeFailed("this address needs TLS: connect with tls=…") from None
        except ssl.SSLError as error:
            raise HandshakeFailed(f"the TLS handshake failed: {error.reason or error}") from None
        if not self.socket.is_open:
            raise BlockingIOError

    def send_rest(self) -> bool:
        self.socket.flush()
        return super().send_rest()

    def try_send(self, data: bytes) -> None:
        if self._is_plain:
            with contextlib.suppress(OSError):
                self._raw.send(data)
        elif self.socket.is_open:
            super().try_send(data)

    @property
    def holds_more(self) -> bool:  # type: ignore[override]
        return self.socket.has_more

    @property
    def has_unsent(self) -> bool:  # type: ignore[override]
        return self.socket.has_unsent

    @property
    def common_name(self) -> str:  # type: ignore[override]
        return self.socket.common_name
