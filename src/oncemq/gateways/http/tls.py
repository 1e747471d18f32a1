"""TLS between a connection and the HTTP protocol.

The event loops have TLS of their own, but tell nothing of a connection before its handshake is complete, and not how
much of what was sent the client has not read. Here a connection counts from its first packet on, with the limits of
connections.py, and everything that was sent is in the buffer of the connection itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any

from oncemq.gateways.http.certificate import Certificate
from oncemq.gateways.http.connections import Connections

_READ_BYTES = 64 * 1024


class TlsAcceptor:
    """Makes the protocols of new connections. Belongs to one event loop."""

    def __init__(self, certificate: Certificate, connections: Connections) -> None:
        self.certificate = certificate
        self.connections = connections
        #: Connections whose handshake is not complete.
        self.handshakes: set[TlsProtocol] = set()

    def accept(self, make_protocol: Callable[[], asyncio.Protocol]) -> TlsProtocol:
        """`make_protocol` is called when the handshake is complete."""
        return TlsProtocol(self, make_protocol)

    def stop(self) -> None:
        """End the handshakes in progress."""
        for handshake in list(self.handshakes):
            handshake.abort()


class TlsProtocol(asyncio.Protocol):
    """One connection: decrypts what arrives, for the protocol within. Until the handshake is complete, it implements
    `connections.Connection`."""

    held_bytes = 0
    has_unfinished_request = True

    def __init__(self, acceptor: TlsAcceptor, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._acceptor = acceptor
        self._make_protocol = make_protocol
        #: None until the handshake is complete.
        self._inner: asyncio.Protocol | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject
        self._transport: asyncio.Transport

    # A connection whose handshake is not complete.

    @property
    def unread_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def drop_next(self) -> None:
        """Nothing is kept of it."""

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        if not self._acceptor.connections.add(self):
            # Before the handshake, it can't be told why.
            transport.abort()
            return
        self._acceptor.handshakes.add(self)
        context = self._acceptor.certificate.context(asyncio.get_running_loop().time())
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._inner is not None:
            self._inner.connection_lost(exc)
        else:
            self._leave_handshakes()

    def _leave_handshakes(self) -> None:
        self._acceptor.handshakes.discard(self)
        self._acceptor.connections.remove(self)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._incoming.write(data)
        try:
            if self._inner is None:
                self._shake_hands()
            self._decrypt()
        except ssl.SSLError:
            # It is not TLS, or the client does not want this certificate. The client may be told why.
            self.flush()
            self._transport.close()

    def _shake_hands(self) -> None:
        """Continue with the handshake. When it is complete, HTTP begins. Raises SSLError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        else:
            self._leave_handshakes()
            self._inner = self._make_protocol()
            self._inner.connection_made(TlsTransport(self._transport, self))
        self.flush()

    def _decrypt(self) -> None:
        """Pass on what has arrived, all of it: as much as without encryption."""
        if self._inner is None:
            return
        parts: list[bytes] = []
        is_ended = False
        try:
            while part := self._tls.read(_READ_BYTES):
                parts.append(part)
            is_ended = True
        except ssl.SSLWantReadError:
            # The client may have asked for something that the encryption itself answers.
            self.flush()
        except ssl.SSLZeroReturnError:
            is_ended = True
        if parts:
            self._inner.data_received(b"".join(parts))
        if is_ended:
            self._transport.close()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    # What is sent.

    def encrypt(self, data: Any) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        self.flush()

    def say_goodbye(self) -> None:
        """Tell the client that nothing follows, without waiting for its answer."""
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        self.flush()

    def flush(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def get_context(self) -> ssl.SSLContext:
        return self._tls.context


class TlsTransport(asyncio.Transport):
    """The encrypted side of a connection, as the protocol within sees it."""

    def __init__(self, transport: asyncio.Transport, protocol: TlsProtocol) -> None:
        super().__init__()
        self._transport = transport
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._protocol.get_context() if name == "sslcontext" else self._transport.get_extra_info(name, default)

    def write(self, data: Any) -> None:
        if not self._transport.is_closing():
            self._protocol.encrypt(data)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        if not self._transport.is_closing():
            self._protocol.say_goodbye()
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
