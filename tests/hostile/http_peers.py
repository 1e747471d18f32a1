"""What hostile clients do to an HTTP gateway. Each function opens its connections, and returns when all of them have
ended or `seconds` are over."""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import time
from urllib.parse import urlsplit

_RECEIVE_BUFFER_BYTES = 4096
_TICK_S = 0.5
_CHUNK_BYTES = 256 * 1024
#: Descriptors besides those of the connections.
_DESCRIPTORS = 100


class Crowd:
    """Many connections from one process. They read nothing."""

    def __init__(self, url: str, count: int) -> None:
        allow_descriptors(count)
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self.count = count
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._selector.get_map().values()):
            self._end(key.fileobj)
        self._selector.close()

    @property
    def alive(self) -> int:
        return len(self._selector.get_map())

    def connect(self, request: bytes) -> None:
        """Open the connections; each sends as much of these bytes as the gateway accepts."""
        for _ in range(self.count):
            peer = socket.socket()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            peer.settimeout(10.0)
            with contextlib.suppress(OSError):
                peer.connect(self._address)
                peer.settimeout(0)
                peer.send(request)
            # Nothing is read: a connection that was ended shows up as an error.
            self._selector.register(peer, selectors.EVENT_WRITE)

    def hold(self, seconds: float, more: bytes = b"") -> None:
        """Keep the connections open; each sends `more` every half second."""
        until_s = time.monotonic() + seconds
        while self.alive and time.monotonic() < until_s:
            for key in list(self._selector.get_map().values()):
                if _is_ended(key.fileobj, more):
                    self._end(key.fileobj)
            time.sleep(_TICK_S)

    def _end(self, peer: object) -> None:
        assert isinstance(peer, socket.socket)
        self._selector.unregister(peer)
        peer.close()


def _is_ended(peer: object, more: bytes) -> bool:
    assert isinstance(peer, socket.socket)
    if peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        return True
    try:
        if more:
            peer.send(more)
        elif not peer.recv(1, socket.MSG_PEEK):
            return True
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False


def allow_descriptors(count: int) -> None:
    """Let this process have this many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _DESCRIPTORS
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


def silent_connections(url: str, count: int = 2_100, seconds: float = 60.0) -> None:
    """Connect, and send nothing."""
    with Crowd(url, count) as crowd:
        crowd.connect(b"")
        crowd.hold(seconds)


def unfinished_heads(url: str, count: int = 2_100, seconds: float = 60.0) -> None:
    """Send half a head, and then a byte from time to time."""
    with Crowd(url, count) as crowd:
        crowd.connect(b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nX: ")
        crowd.hold(seconds, b"x")


def unread_responses(url: str, path: str, count: int = 100, seconds: float = 60.0) -> None:
    """Ask for a large response, several times on each connection, and read nothing."""
    with Crowd(url, count) as crowd:
        crowd.connect(_get(path) * 4)
        crowd.hold(seconds)


def unread_small_responses(url: str, path: str, count: int = 100, seconds: float = 60.0) -> None:
    """Ask for many small responses, and read nothing."""
    with Crowd(url, count) as crowd:
        crowd.connect(_get(path) * 200)
        crowd.hold(seconds)


def slow_bodies(url: str, path: str, count: int = 200, seconds: float = 60.0, body_bytes: int = 8 * 2**20) -> None:
    """Announce a large body, and send it slowly."""
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path.encode(), body_bytes)
    with Crowd(url, count) as crowd:
        crowd.connect(head + b"x" * _CHUNK_BYTES)
        crowd.hold(seconds, b"x" * 1024)


def long_polls(url: str, path: str, count: int = 1_001, seconds: float = 60.0) -> None:
    """Wait for messages. `path` must have a `wait_ms`."""
    with Crowd(url, count) as crowd:
        crowd.connect(_get(path))
        crowd.hold(seconds)


def pipelined_requests(url: str, path: str, count: int = 10, seconds: float = 60.0) -> None:
    """Send thousands of requests at once, and read nothing."""
    with Crowd(url, count) as crowd:
        crowd.connect(_get(path) * 5_000)
        crowd.hold(seconds, _get(path) * 100)


def endless_heads(url: str, count: int = 100, seconds: float = 60.0) -> None:
    """Send headers without end."""
    with Crowd(url, count) as crowd:
        crowd.connect(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000)
        crowd.hold(seconds, b"X: y\r\n" * 10_000)


def huge_claims(url: str, path: str, count: int = 100, seconds: float = 60.0) -> None:
    """Announce ten terabytes, and begin to send them."""
    with Crowd(url, count) as crowd:
        crowd.connect(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000000000\r\n\r\n" % path.encode())
        crowd.hold(seconds, b"x" * _CHUNK_BYTES)


def _get(path: str) -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode()
