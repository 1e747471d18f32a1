"""What hostile peers do to a stream listener. Each function returns when the listener has disconnected its peers, when
everything is sent, or after `seconds`."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from oncemq.net.tls import client_context
from oncemq.protocol.limits import REQUEST_FRAMES_MAX
from oncemq.protocol.stream import encode_message, encode_opening
from tests.hostile.http_peers import allow_descriptors
from tests.stream_peer import OPENING, StreamPeer, connected

#: Requests whose replies are never read.
_UNREAD_REQUESTS = 1000
_RECEIVE_BUFFER_BYTES = 4096
_CHUNK_BYTES = 256 * 1024
_TICK_S = 0.5
_SEED = 7
_PROPERTIES_BYTES = 60_000


def _message_bytes_max(peer: StreamPeer) -> int:
    """Wait for the opening of the listener, and return the size of the largest message."""
    while peer.properties is None:
        peer.receive_some()
    return int(peer.properties["message_bytes_max"])


def _claim(size: int) -> bytes:
    """The head of a message of this size, with one frame."""
    return struct.pack("<III", size, 1, size - 8)


@contextmanager
def _peers(url: str, count: int, opening: bytes = OPENING) -> Iterator[list[StreamPeer]]:
    allow_descriptors(count)
    with ExitStack() as stack:
        yield [stack.enter_context(StreamPeer(url, opening)) for _ in range(count)]


def unfinished(url: str, count: int = 6) -> None:
    """Send almost all of the largest message, on several connections at once."""
    with _peers(url, count) as peers:
        size = _message_bytes_max(peers[0])
        for peer in peers:
            peer.socket.sendall(_claim(size))
        for _ in range(0, size - _CHUNK_BYTES, _CHUNK_BYTES):
            for peer in peers:
                peer.send_raw(bytes(_CHUNK_BYTES), _CHUNK_BYTES)


def beyond_the_limit(url: str) -> None:
    """Begin a message that is larger than the limit, and go on sending."""
    with StreamPeer(url) as peer:
        size = _message_bytes_max(peer) + 1
        peer.socket.sendall(_claim(size))
        peer.send_raw(bytes(_CHUNK_BYTES), 2 * size)


def large_claims(url: str, count: int = 1000, seconds: float = 60.0) -> None:
    """Announce the largest message on many connections, and send a byte of it from time to time."""
    with _peers(url, count) as peers:
        size = _message_bytes_max(peers[0])
        for peer in peers:
            peer.socket.sendall(_claim(size))
        _hold(peers, seconds, b"x")


def tiny_chunks(url: str, count: int = 8, seconds: float = 60.0) -> None:
    """Send large messages byte by byte, on several connections."""
    until_s = time.monotonic() + seconds
    with _peers(url, count) as peers:
        size = _message_bytes_max(peers[0])
        for peer in peers:
            peer.socket.sendall(_claim(size))
        while time.monotonic() < until_s:
            for peer in peers:
                peer.socket.send(b"x")


def tiny_requests(url: str, seconds: float = 60.0) -> None:
    """Send the smallest messages, as many as the listener takes, and read their refusals."""
    data = _CHUNK_BYTES // 12 * b"".join(encode_message([b""]))
    _pump(url, data, seconds)


def tiny_frames(url: str, seconds: float = 60.0) -> None:
    """Send messages of very many empty frames, and read their refusals."""
    data = _CHUNK_BYTES // (4 * REQUEST_FRAMES_MAX) * b"".join(encode_message([b""] * REQUEST_FRAMES_MAX))
    _pump(url, data, seconds)


def _pump(url: str, data: bytes, seconds: float) -> None:
    """Send the same bytes again and again, and read what arrives."""
    until_s = time.monotonic() + seconds
    with StreamPeer(url) as peer:
        sock, position = peer.socket, 0
        sock.setblocking(False)
        while time.monotonic() < until_s:
            readable, writable, _ = select.select([sock], [sock], [], _TICK_S)
            if writable:
                with contextlib.suppress(BlockingIOError):
                    position = (position + sock.send(data[position:])) % len(data)
            if readable and not sock.recv(_CHUNK_BYTES):
                return


def unread_replies(url: str, request: list[bytes]) -> None:
    """Ask for large replies, and read none."""
    with StreamPeer(url, receive_buffer_bytes=_RECEIVE_BUFFER_BYTES) as peer:
        for _ in range(_UNREAD_REQUESTS):
            peer.send(request)
        wait_for_hang_up(peer)


def wait_for_hang_up(peer: StreamPeer, timeout_s: float | None = None) -> bool:
    """Wait until the listener disconnects, without reading."""
    poller = select.poll()
    poller.register(peer.socket, select.POLLRDHUP)
    return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))


def silent_connections(url: str, count: int = 2_100, seconds: float = 60.0) -> None:
    """Connect, and send nothing."""
    with _peers(url, count, b"") as peers:
        _hold(peers, seconds)


def slow_openings(url: str, count: int = 500, seconds: float = 60.0) -> None:
    """Send large properties of an opening byte by byte."""
    opening = encode_opening({"x": "x" * _PROPERTIES_BYTES})
    with _peers(url, count, opening[:-1000]) as peers:
        _hold(peers, seconds, b"x")


def half_handshakes(url: str, ca: str, count: int = 2_100, seconds: float = 60.0) -> None:
    """Begin TLS handshakes, and do not complete them: the broker has computed its part, or waits for the rest."""
    hello = _client_hello(ca)
    with _peers(url, count, b"") as peers:
        for number, peer in enumerate(peers):
            # Those that were there longest may have been disconnected.
            with contextlib.suppress(ConnectionError):
                peer.socket.sendall(hello[: (len(hello), 100)[number % 2]])
        with contextlib.suppress(ConnectionError):
            _hold(peers, seconds)


def slow_handshakes(url: str, ca: str, count: int = 500, seconds: float = 60.0) -> None:
    """Send TLS handshakes byte by byte."""
    hello = _client_hello(ca)
    with _peers(url, count, b"") as peers, contextlib.suppress(ConnectionError):
        until_s = time.monotonic() + seconds
        for byte in hello:
            if time.monotonic() > until_s:
                return
            for peer in peers:
                peer.socket.send(bytes((byte,)))
            time.sleep(_TICK_S / 10)


def wrong_tokens(url: str, ca: str, seconds: float = 60.0) -> None:
    """Complete the handshake and show a token that is not valid, on one connection after the other."""
    until_s = time.monotonic() + seconds
    opening = encode_opening({"auth": {"token": "omq-made-up"}})
    trust = client_context(ca)
    while time.monotonic() < until_s:
        with (
            contextlib.suppress(ConnectionError, ssl.SSLError),
            connected(url) as raw,
            trust.wrap_socket(raw, server_hostname="localhost") as sock,
        ):
            sock.sendall(opening)
            while sock.recv(_CHUNK_BYTES):
                pass


def _client_hello(ca: str) -> bytes:
    """Return what a client sends first."""
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        client_context(ca).wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


def connection_flood(url: str, seconds: float = 60.0) -> None:
    """Connect and disconnect, as fast as possible."""
    until_s = time.monotonic() + seconds
    linger = struct.pack("ii", 1, 0)
    while time.monotonic() < until_s:
        # The queue of a Unix socket may be full.
        with contextlib.suppress(BlockingIOError), connected(url) as sock:
            if sock.family != socket.AF_UNIX:
                # Otherwise the system would run out of ports.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def malformed(url: str, seconds: float = 60.0) -> None:
    """Send random bytes instead of an opening, or behind it, on one connection after the other."""
    until_s = time.monotonic() + seconds
    draw = random.Random(_SEED)
    while time.monotonic() < until_s:
        with contextlib.suppress(ConnectionError), StreamPeer(url, draw.choice((b"", OPENING))) as peer:
            peer.socket.sendall(draw.randbytes(1000))
            peer.wait_until_disconnected()


def _hold(peers: list[StreamPeer], seconds: float, more: bytes = b"") -> None:
    """Keep the connections open; each sends `more` every half second. Raises OSError when the first one has ended."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        time.sleep(_TICK_S)
        for peer in peers:
            peer.socket.setblocking(False)
            if more:
                peer.socket.send(more)
            else:
                with contextlib.suppress(BlockingIOError):
                    if not peer.socket.recv(1, socket.MSG_PEEK):
                        raise ConnectionResetError("the listener has disconnected")
