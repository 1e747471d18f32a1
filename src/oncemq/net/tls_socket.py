"""A non-blocking socket whose bytes are encrypted by TLS, for both sides of the stream transport.

The TLS engine works on buffers in memory, not on the socket. So it never has to wait for the socket in the middle of an
operation, whose repetition would need the same arguments: receiving needs only that the socket can be read, and sending
only that it can be written to.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Sequence
from typing import Any

from oncemq.protocol.frames import Frame

#: One system call asks for this many bytes, or for more if they are for a large buffer.
_RECEIVE_BYTES = 64 * 1024
_RECEIVE_LARGE_BYTES = 256 * 1024
#: System calls of one call that fills a large buffer: other connections have their turns.
_RECEIVES_MAX = 8
#: This much is encrypted at a time: four records.
_SEAL_BYTES = 64 * 1024
#: What the engine sends on its own is short. A peer that makes it send more, and does not read it, is disconnected.
_UNSENT_BYTES_MAX = 4 * _SEAL_BYTES
#: What a connection with TLS begins with: a record of an alert, or of the handshake.
_FIRST_RECORDS = (0x15, 0x16)


class NotTls(Exception):
    """The first bytes of the peer are not those of TLS."""


class TlsSocket:
    """Has the methods of a socket that the stream transport uses, once `is_open` is true. Until then the owner calls
    `handshake` whenever something has arrived.

    Bytes count as sent when the system has taken everything that they became. If it has not, the owner must send the
    same bytes next, as with a socket that takes only a part of them."""

    __slots__ = (
        "_has_received",
        "_incoming",
        "_is_server",
        "_is_waiting",
        "_outgoing",
        "_sealed",
        "_sealed_bytes",
        "_socket",
        "_tls",
        "family",
        "fileno",
        "getpeername",
        "getsockname",
        "getsockopt",
        "has_more",
        "is_open",
        "raw_sent_bytes",
        "setsockopt",
    )

    def __init__(self, sock: Any, context: ssl.SSLContext, server_name: str | None = None) -> None:
        """`server_name` is the name that the certificate of the server must have; None: this is the server. Raises
        ValueError if it can't be a name."""
        self._socket = sock
        self._is_server = server_name is None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, self._is_server, server_name)
        #: The next step of the handshake needs something from the peer. The client begins.
        self._is_waiting = self._is_server
        self._has_received = False
        #: The handshake is complete.
        self.is_open = False
        #: What was received may hold more: `recv` or `recv_into` must be called although nothing new arrives.
        self.has_more = False
        #: Encrypted bytes that wait for the system, and how many of the owner's bytes they contain.
        self._sealed = memoryview(b"")
        self._sealed_bytes = 0
        #: What the system has taken, with everything that TLS adds.
        self.raw_sent_bytes = 0
        self.family = sock.family
        self.fileno = sock.fileno
        self.getpeername, self.getsockname = sock.getpeername, sock.getsockname
        self.getsockopt, self.setsockopt = sock.getsockopt, sock.setsockopt

    # The handshake.

    def handshake(self) -> None:
        """Do one step. Raises BlockingIOError if it has to wait for the peer, NotTls, ssl.SSLError if the handshake has
        failed, and other OSErrors if the connection has."""
        self.flush()
        if self._is_waiting:
            self._receive_handshake()
        self._is_waiting = True
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            # The peer is told why.
            self._flush_if_possible()
            raise
        else:
            # More may have arrived right behind the handshake.
            self.is_open = self.has_more = True
        self.flush()

    def _receive_handshake(self) -> None:
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("the peer has closed the connection during the TLS handshake")
        if not self._has_received and data[0] not in _FIRST_RECORDS:
            raise NotTls
        self._has_received = True
        self._incoming.write(data)

    @property
    def common_name(self) -> str:
        """The common name of the peer's certificate, which was verified; empty if there is none."""
        certificate: Any = self._tls.getpeercert() or {}
        names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
        return names[0] if len(names) == 1 else ""

    # Receiving.

    def recv(self, size: int) -> bytes:  # noqa: ARG002
        """Return what one system call has received, whatever its size; empty if the peer has closed the connection.
        Raises as a socket does, and ssl.SSLError."""
        if not self.has_more and not self._receive(_RECEIVE_BYTES):
            return b""
        self.has_more = False
        parts: list[bytes] = []
        try:
            while data := self._tls.read(_RECEIVE_BYTES):
                parts.append(data)
                if not self._incoming.pending:
                    break
            else:
                # The peer has closed the connection. The next call says so.
                self.has_more = True
        except ssl.SSLWantReadError:
            # What is left is the beginning of a record.
            if not parts:
                raise BlockingIOError from None
        finally:
            self._flush_if_possible()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def recv_into(self, target: memoryview) -> int:
        """Receive into a buffer, and return how many bytes; 0 if the peer has closed the connection. Raises as
        `recv`."""
        size = len(target)
        receive_bytes = _RECEIVE_LARGE_BYTES if size > _RECEIVE_BYTES else _RECEIVE_BYTES
        count = 0
        try:
            for _ in range(_RECEIVES_MAX):
                if not self.has_more and not self._receive(receive_bytes):
                    break
                read = self._read_into(target[count:])
                count += read
                if not read or count == size:
                    break
        except BlockingIOError:
            if not count:
                raise
        finally:
            self._flush_if_possible()
        return count

    def _read_into(self, target: memoryview) -> int:
        """Decrypt what was received. Returns 0 if the peer has closed the connection."""
        count, size = 0, len(target)
        try:
            while count < size:
                read: int = self._tls.read(size - count, target[count:])  # type: ignore[assignment]
                count += read
                self.has_more = not read or bool(self._incoming.pending or self._tls.pending())
                if not read or not self.has_more:
                    break
        except ssl.SSLWantReadError:
            self.has_more = False
            if not count:
                raise BlockingIOError from None
        return count

    def _receive(self, size: int) -> bool:
        """Receive encrypted bytes, once. Returns False if the peer has closed the connection."""
        data = self._socket.recv(size)
        self._incoming.write(data)
        return bool(data)

    # Sending.

    def send(self, data: Frame) -> int:
        return self.sendmsg((data,))

    def sendmsg(self, buffers: Sequence[Frame]) -> int:
        """Send as much as the system takes, and return how many bytes that are. Raises as a socket does, and
        ssl.SSLError."""
        self.flush()
        # The owner sends again what was encrypted before.
        count, self._sealed_bytes = self._sealed_bytes, 0
        for part in _parts(buffers, count):
            size = self._tls.write(part)
            try:
                self.flush()
            except BlockingIOError:
                self._sealed_bytes = size
                if not count:
                    raise
                break
            count += size
        return count

    def flush(self) -> None:
        """Send what is encrypted. Raises BlockingIOError if the system does not take all of it."""
        if self._outgoing.pending:
            data = self._outgoing.read()
            self._sealed = memoryview(b"".join((self._sealed, data)) if self._sealed else data)
        if self._sealed:
            sent = self._socket.send(self._sealed)
            self.raw_sent_bytes += sent
            self._sealed = self._sealed[sent:]
            if self._sealed:
                raise BlockingIOError

    def _flush_if_possible(self) -> None:
        """Send what the engine has to say after it has received something. Otherwise it is sent with the next bytes."""
        if self._outgoing.pending:
            with contextlib.suppress(OSError):
                self.flush()
            if len(self._sealed) > _UNSENT_BYTES_MAX:
                raise ConnectionAbortedError("the peer does not read what TLS sends")

    @property
    def has_unsent(self) -> bool:
        """Whether encrypted bytes wait until the socket can be written to."""
        return bool(self._sealed)

    # The end.

    def close(self) -> None:
        if self._is_server and self.is_open and not self._sealed:
            # Only the process of the server does this: after a fork, the connection of a client is its parent's.
            with contextlib.suppress(OSError):
                self._tls.unwrap()
            with contextlib.suppress(OSError):
                self.flush()
        self._socket.close()


def _parts(buffers: Sequence[Frame], skipped: int) -> Iterator[Frame]:
    """Return the bytes of buffers, except for the first ones, in parts of at most what is encrypted at a time. Small
    buffers are joined."""
    joined: list[Frame] = []
    joined_bytes = 0
    for buffer in buffers:
        view = memoryview(buffer)
        if skipped:
            view, skipped = view[skipped:], max(0, skipped - len(view))
        while view:
            part = view[: _SEAL_BYTES - joined_bytes]
            view = view[len(part) :]
            joined.append(part)
            joined_bytes += len(part)
            if joined_bytes == _SEAL_BYTES:
                yield b"".join(joined) if len(joined) > 1 else part
                joined, joined_bytes = [], 0
    if joined:
        yield b"".join(joined) if len(joined) > 1 else joined[0]
