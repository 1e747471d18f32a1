"""TLS of the HTTP gateway: the certificate, which can be replaced while the gateway runs, and the handshakes of new
connections.

A connection counts from its first packet on, not from the end of its handshake: those that never complete one have the
same limits as those that never send a request.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from oncemq.gateways.http.connections import HEAD_S, Connections
from oncemq.gateways.http.protocol import BoundedProtocol
from oncemq.gateways.tasks import start
from oncemq.net.tls import SERVER, SERVER_KEY, server_context
from oncemq.protocol import errors

log = logging.getLogger("oncemq.gateways")

#: How often the files are looked at.
_CHECK_S = 1.0
#: How long a client may take to say goodbye.
_SHUTDOWN_S = 2.0
#: What a connection holds in memory of what its client sends, or does not read.
_BUFFER_BYTES = 64 * 1024

#: (time of the last change, size, inode) of each file.
_Version = tuple[tuple[int, int, int], ...]


class Certificate:
    """The context for new connections. New files are used from then on. While they can't be used, because they are not
    valid or only one of them was replaced, the former ones stay in use."""

    def __init__(self, keys: Path) -> None:
        """Raises SettingInvalid."""
        self._keys = keys
        self._version = self._find_version()
        self._context = server_context(keys)
        self._checked_s = 0.0

    def context(self, now_s: float) -> ssl.SSLContext:
        if now_s - self._checked_s >= _CHECK_S:
            self._checked_s = now_s
            if self._find_version() != self._version:
                self.reload()
        return self._context

    def reload(self) -> None:
        """Use the files as they are now, if they are valid."""
        version = self._find_version()
        try:
            self._context = server_context(self._keys)
        except errors.SettingInvalid as error:
            log.warning("HTTP continues with its former certificate: %s", error.text)
        else:
            log.info("HTTP uses the certificate %s from now on", self._keys / SERVER)
        self._version = version

    def _find_version(self) -> _Version:
        try:
            found = [(self._keys / name).stat() for name in (SERVER, SERVER_KEY)]
        except OSError:
            return ()
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)


class TlsAcceptor:
    """Makes the protocol of a new connection: first the handshake, then HTTP. Belongs to one event loop."""

    def __init__(self, certificate: Certificate, connections: Connections) -> None:
        self.certificate = certificate
        self.connections = connections
        self._handshakes: set[_Handshake] = set()

    def accept(self, make_protocol: Callable[[], BoundedProtocol]) -> asyncio.Protocol:
        return _Handshake(self, self._handshakes, make_protocol)

    def stop(self) -> None:
        """End the handshakes in progress."""
        for handshake in list(self._handshakes):
            handshake.abort()


class _Handshake(asyncio.Protocol):
    """A connection whose handshake is not complete. Implements `connections.Connection`."""

    held_bytes = 0
    unread_bytes = 0
    has_unfinished_request = True

    def __init__(
        self, acceptor: TlsAcceptor, handshakes: set[_Handshake], make_protocol: Callable[[], BoundedProtocol]
    ) -> None:
        self._acceptor = acceptor
        self._handshakes = handshakes
        self._make_protocol = make_protocol
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        if not self._acceptor.connections.add(self):
            # Without a handshake, it can't be told why.
            transport.abort()
            return
        # What arrives is for the handshake.
        transport.pause_reading()
        self._handshakes.add(self)
        start(self._shake_hands(), "a TLS handshake")

    def drop_next(self) -> None:
        """Nothing is kept of it."""

    def abort(self) -> None:
        self._transport.abort()

    async def _shake_hands(self) -> None:
        loop = asyncio.get_running_loop()
        protocol = self._make_protocol()
        try:
            encrypted = await loop.start_tls(
                self._transport,
                protocol,
                self._acceptor.certificate.context(loop.time()),
                server_side=True,
                ssl_handshake_timeout=HEAD_S,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        except OSError:
            # It took too long, or was not one, or the client has disconnected.
            return
        finally:
            self._handshakes.discard(self)
            self._acceptor.connections.remove(self)
        assert isinstance(encrypted, asyncio.Transport)
        encrypted.set_write_buffer_limits(_BUFFER_BYTES)
        protocol.start_encrypted(encrypted, self._transport)
