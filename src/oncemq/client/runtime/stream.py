"""The stream transport of a client: one TCP or Unix connection, to one of several addresses.

A connection that ends is opened again here, at the next address, with a pause after each failure. When the broker has
answered the opening of the new connection, `is_renewed` tells the driver: everything that is not answered must be sent
again. A broker that does not answer at all is noticed by the core, which calls `reconnect`.

A broker that refuses this client for good, or whose certificate is not valid, is not tried again and again. Once every
address was tried, `refusal` tells the driver why, and nothing is tried before there is something to send. But if the
token or a certificate was replaced meanwhile, the next attempt is immediate.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import ssl
import struct
import sys
from collections import deque
from collections.abc import Callable, Collection, Sequence

from oncemq.client.core.commands.wire import WireBytes, counted_bytes
from oncemq.client.credentials import NO_CREDENTIALS, Credentials
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.poll import Poll
from oncemq.client.runtime.stream_identity import StreamIdentity, refusal_of, tls_failure
from oncemq.client.runtime.targets import Targets
from oncemq.net.options import set_options
from oncemq.net.system import System
from oncemq.net.tls_socket import NotTls, TlsSocket
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame
from oncemq.protocol.stream import RECEIVE_BYTES, StreamBroken, StreamReader, encode_message, remove_sent

log = logging.getLogger("oncemq.client")

#: Pauses between attempts to connect.
_PAUSE_MS_MIN = 20.0
_PAUSE_MS_MAX = 500.0
#: After a connection that was open for this time, the next attempt to connect has no pause.
_STABLE_MS = 1000.0
#: When an attempt to connect asks again for the answer of a name server.
_LOOKUP_AGAIN_MS = 10.0
#: Longer waits are too long for the system. The driver waits again.
_WAIT_MS_MAX = 60_000.0
_NEVER = float("inf")
#: The broker limits its replies. This only keeps a peer that is no broker from taking all memory.
_MESSAGE_BYTES_MAX = 2**31
_BUFFERS_MAX = 1024
#: How long sent bytes may stay unacknowledged before the system ends the connection.
_DEAD_PEER_S = 30.0
#: `tcpi_bytes_acked` of Linux's `struct tcp_info`.
_ACKED = struct.Struct("@Q")
_ACKED_AT = 120
_UNIX = getattr(socket, "AF_UNIX", None)
_IN_PROGRESS = (0, errno.EINPROGRESS, errno.EAGAIN, getattr(errno, "WSAEWOULDBLOCK", errno.EAGAIN))


class StreamTransport:
    """A connection to one of several addresses."""

    is_waited_for = True

    def __init__(
        self,
        urls: Sequence[str],
        system: System | None = None,
        busy_poll_us: int = 0,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        """`busy_poll_us` is how long `wait` looks for an answer without sleeping. Raises SettingInvalid if the
        credentials can't be used with these addresses."""
        self._identity = StreamIdentity(credentials, urls)
        self._system = system or System()
        self._busy_poll_ms = busy_poll_us / 1000
        self._targets = Targets(urls, self._system)
        self._waker, self._woken = self._system.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._socket: socket.socket | TlsSocket | None = None
        #: The socket, while its TLS handshake is not complete.
        self._handshake: TlsSocket | None = None
        self._poll = self._new_poll()
        self._pause_ms = 0.0
        #: Something was sent over a connection that is lost.
        self._was_lost = False
        #: The connection was lost, and another one is open.
        self.is_renewed = False
        #: Why the client was refused for good.
        self.refusal: errors.OnceMQError | None = None
        #: The same before every address was tried, and how many of them are left.
        self._refused: errors.OnceMQError | None = None
        self._untried = 0
        #: The client was refused, and does not try again before there is something to send.
        self._is_resting = False
        #: When the next attempt to connect is due; infinite while there is a connection.
        self.retry_ms = _NEVER
        #: Called before the socket is closed.
        self.before_close: Callable[[], None] = lambda: None
        self._warned = ""
        self._outgoing: deque[memoryview] = deque()
        self._connect()

    # Connecting.

    def _connect(self) -> None:
        """Start to connect to the next address."""
        self._is_connected = False
        self._is_resting = False
        self._reader = StreamReader(_MESSAGE_BYTES_MAX, _MESSAGE_BYTES_MAX, as_bytes=True)
        self._sent_bytes = 0
        self._counted_bytes = 0
        self._opened_ms = _NEVER
        self._targets.begin()
        try:
            opening = self._identity.opening()
        except errors.SettingInvalid as error:
            # The file of the token is being replaced, perhaps.
            self._warn(error.text)
            self._targets.leave()
            self._fail(error.text)
            return
        self._opening_bytes = len(opening)
        self._outgoing.append(memoryview(opening))
        self._open_socket()

    def _open_socket(self) -> None:
        """Connect to the next place, or wait for the lookup of its name."""
        self.retry_ms = _NEVER
        try:
            target = self._targets.take()
            if target is None:
                self.retry_ms = now_ms() + _LOOKUP_AGAIN_MS
                return
            family, place = target
            self._socket = sock = self._system.open_socket(family)
            sock.setblocking(False)
            set_options(sock, _DEAD_PEER_S)
            code = sock.connect_ex(place)
        except OSError as error:
            self._fail(str(error))
            return
        self._poll = self._new_poll(sock.fileno())
        # A Unix socket connects at once, or not at all if the broker's queue of connections is full.
        if code not in (_IN_PROGRESS if family != _UNIX else (0,)):
            self._fail(errno.errorcode.get(code, str(code)))

    def _new_poll(self, descriptor: int | None = None) -> Poll:
        return Poll(self._system.poll(), self._woken.fileno(), descriptor)

    def _fail(self, why: str) -> None:
        """The connection is lost, or could not be opened: try the next address."""
        log.debug("no connection to %s: %s", self._targets.url, why)
        if self._reader.properties is not None:
            self._targets.leave()
        self._disconnect()
        self._was_lost = True
        if now_ms() - self._opened_ms >= _STABLE_MS:
            # This was a connection to a broker that works.
            self._pause_ms = 0.0
        elif not self._targets:
            self._pause_ms = min(max(_PAUSE_MS_MIN, 2 * self._pause_ms), _PAUSE_MS_MAX)
        self.retry_ms = now_ms() + (0.0 if self._targets else self._pause_ms)
        if self._refused is not None and not self._targets:
            self._untried -= 1
            if self._untried <= 0:
                self.refusal, self._refused = self._refused, None
                self._is_resting = True
                self.retry_ms = _NEVER
        # Another thread may wait on the socket that was closed.
        self.wake()

    def _refuse(self, error: errors.OnceMQError) -> None:
        """The broker has refused this client for good, or can't be trusted: only another address may help."""
        if self._identity.has_changed():
            # This was the attempt with a token, or a certificate, that was replaced meanwhile.
            self._refused = None
            self._targets.repeat()
            self._fail(error.text)
            self.retry_ms = now_ms()
            return
        if self._targets.url_count > 1:
            # If another one accepts the client, this is not reported.
            self._warn(error.text)
        if self._refused is None:
            self._untried = self._targets.url_count
        self._refused = error
        self._targets.leave()
        self._fail(error.text)

    def _finish_connecting(self) -> bool:
        """Return whether the connection is established."""
        if self._handshake is not None:
            return self._shake_hands(self._handshake)
        sock = self._socket
        assert sock is not None
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._fail(errno.errorcode.get(error, str(error)))
            return False
        try:
            peer = sock.getpeername()
        except OSError:
            return False
        if peer and peer == sock.getsockname():
            # If nobody listens at a port, the system may give it to the very socket that connects to it.
            self._fail("the connection leads to itself")
            return False
        secured = self._identity.secured(sock, self._targets.url)
        if secured is not None:
            self._socket = self._handshake = secured
            return self._shake_hands(secured)
        self._is_connected = True
        return True

    def _shake_hands(self, sock: TlsSocket) -> bool:
        """Continue the TLS handshake. Return whether it is complete."""
        try:
            while not sock.is_open:
                sock.handshake()
        except BlockingIOError:
            self._poll.watch_writing(sock.has_unsent)
            return False
        except (NotTls, ssl.SSLError) as error:
            self._refuse(tls_failure(self._targets.url, error))
            return False
        except OSError as error:
            self._fail(str(error))
            return False
        self._handshake = None
        self._is_connected = True
        return True

    # What the driver uses.

    @property
    def descriptor(self) -> int | None:
        """The current connection's; -1 while there is none. It changes when a connection is lost."""
        return -1 if self._socket is None else self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether the descriptor must be watched for writing too."""
        return bool(self._outgoing) if self._handshake is None else self._handshake.has_unsent

    def send(self, frames: Sequence[Frame]) -> None:
        sock = self._socket
        if self._was_lost or (sock is None and not self._targets.is_looking_up):
            # When a connection is open again, everything is sent again, after a hello: another broker may answer there.
            self._was_lost = True
            if self._is_resting:
                self._is_resting = False
                self.retry_ms = 0.0
            return
        buffers = encode_message(frames)
        sent = 0
        if sock is not None and not self._outgoing:
            try:
                if len(buffers) == 1:
                    sent = sock.send(buffers[0])
                    if sent == len(buffers[0]):
                        self._sent_bytes += sent
                        return
                else:
                    sent = _send_some(sock, buffers)
            except BlockingIOError:
                pass
            except OSError as error:
                self._fail_to_send(sock, error)
                return
            self._sent_bytes += sent
        for buffer in buffers:
            size = len(buffer)
            if sent >= size:
                sent -= size
            else:
                self._outgoing.append(memoryview(buffer)[sent:])
                sent = 0
        self._watch_writing()

    def _watch_writing(self) -> None:
        if self._poll.watch_writing(bool(self._outgoing)) and self._outgoing:
            # Another thread may wait on the socket, for reading only.
            self.wake()

    def _send_rest(self) -> None:
        sock, outgoing = self._socket, self._outgoing
        assert sock is not None
        try:
            while outgoing:
                sent = _send_some(sock, list(outgoing)[:_BUFFERS_MAX])
                self._sent_bytes += sent
                remove_sent(outgoing, sent)
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail_to_send(sock, error)
            return
        self._watch_writing()

    def _fail_to_send(self, sock: socket.socket | TlsSocket, error: OSError) -> None:
        """The broker has closed the connection. If it has refused it, what it has sent says why."""
        if self._reader.properties is None:
            self._receive_some(sock)
        if self._socket is sock:
            self._fail(str(error))

    def receive(self) -> Sequence[Frame] | None:
        while True:
            frames = self._reader.next()
            if frames is not None:
                self._counted_bytes += counted_bytes(frames)
                return frames
            if self._socket is None:
                if now_ms() < self.retry_ms:
                    return None
                if self._targets.is_looking_up:
                    self._open_socket()
                else:
                    self._connect()
                if self._targets.is_looking_up:
                    return None
                continue
            if not self._is_connected and not self._finish_connecting():
                return None
            if self._outgoing:
                self._send_rest()
            if self._socket is None or not self._receive_some(self._socket):
                return None

    def _receive_some(self, sock: socket.socket | TlsSocket) -> bool:
        """Receive once. Return False if nothing has arrived."""
        reader = self._reader
        was_open = reader.properties is not None
        try:
            target = reader.target
            if target is not None:
                count = sock.recv_into(target)
                if count:
                    reader.filled(count)
            else:
                data = sock.recv(RECEIVE_BYTES)
                count = len(data)
                if count:
                    reader.feed(data)
        except (BlockingIOError, InterruptedError):
            return False
        except StreamBroken as error:
            self._warn(f"{self._targets.url} does not answer as a broker: {error}")
            self._fail(str(error))
            return False
        except ssl.SSLError as error:
            # The broker may refuse the certificate of the client after the handshake.
            self._fail(str(error)) if was_open else self._refuse(tls_failure(self._targets.url, error))
            return False
        except OSError as error:
            self._fail(str(error))
            return False
        if not count:
            self._fail("the broker has closed the connection")
            return False
        if not was_open and reader.properties is not None:
            self._opened()
        return True

    def _opened(self) -> None:
        """The broker has answered the opening."""
        properties = self._reader.properties or {}
        refusal = properties.get("error")
        if refusal is not None:
            self._reader.properties = None
            error = refusal_of(self._targets.url, refusal)
            if error is not None:
                self._refuse(error)
                return
            self._warn(f"{self._targets.url} has refused the connection: {refusal}")
            self._fail("refused")
            return
        self._opened_ms = now_ms()
        self._refused = None
        self.is_renewed, self._was_lost = self._was_lost, False

    def _warn(self, text: str) -> None:
        if text != self._warned:
            self._warned = text
            log.warning("%s", text)

    def wait(self, timeout_ms: float) -> None:
        timeout_ms = min(timeout_ms, _WAIT_MS_MAX)
        if self._socket is None:
            timeout_ms = min(timeout_ms, max(0.0, self.retry_ms - now_ms()))
        if self._woken.fileno() in self._ready(timeout_ms):
            with contextlib.suppress(OSError):
                self._woken.recv(4096)

    def _ready(self, timeout_ms: float) -> Collection[int]:
        poll = self._poll
        if self._busy_poll_ms:
            until_ms = now_ms() + min(self._busy_poll_ms, timeout_ms)
            while now_ms() < until_ms:
                if ready := poll.wait(0):
                    return ready
        return poll.wait(timeout_ms)

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def wire_bytes(self) -> WireBytes | None:
        received = self._counted_bytes + self._reader.incomplete_bytes
        acked = self._sent_bytes - self._opening_bytes
        if sys.platform == "linux" and self._socket is not None and self._socket.family != _UNIX:
            try:
                info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AT + _ACKED.size)
            except OSError:
                return WireBytes(acked, received)
            if len(info) == _ACKED_AT + _ACKED.size:
                acked = _ACKED.unpack_from(info, _ACKED_AT)[0] - self._opening_bytes
                if isinstance(self._socket, TlsSocket):
                    # Without what TLS adds.
                    acked -= self._socket.raw_sent_bytes - self._sent_bytes
        return WireBytes(max(0, acked), received)

    def reconnect(self) -> None:
        self._disconnect()
        # The core knows that everything is to be sent again.
        self._was_lost = self.is_renewed = False
        if self._reader.properties is not None:
            self._targets.leave()
        self._connect()
        self.wake()

    def _disconnect(self) -> None:
        self._targets.end()
        if self._socket is not None:
            self.before_close()
            self._socket.close()
            self._socket = self._handshake = None
            self._poll = self._new_poll()
        self._outgoing.clear()

    def close(self) -> None:
        self._disconnect()
        self._waker.close()
        self._woken.close()


def _send_some(sock: socket.socket | TlsSocket, buffers: Sequence[Frame]) -> int:
    if not hasattr(sock, "sendmsg"):
        # Windows.
        return sock.send(b"".join(buffers))
    return sock.sendmsg(buffers[:_BUFFERS_MAX])
