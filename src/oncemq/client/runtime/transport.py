"""Transports: how frames are sent and received. A driver uses one, and does not know the network.

A transport is used under the driver's lock, except `wait` and `wake`: one thread may wait while another sends. So a
ZeroMQ socket is never waited on through ZeroMQ, but through its file descriptor, which does not touch the socket.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import quote, unquote

from oncemq.client.core.commands.wire import LOCAL, WireBytes
from oncemq.client.credentials import NO_CREDENTIALS, Credentials
from oncemq.client.runtime.embedded import EmbeddedLink, attach_embedded
from oncemq.client.runtime.stream import StreamTransport
from oncemq.client.runtime.zmq_transport import ZmqTransport
from oncemq.config.addresses import DEFAULT_URL, STREAM, STREAM_UNIX, is_stream, split_addresses, unix_path
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame

_NEVER = float("inf")
#: An embedded broker runs in slices of this length, so that other threads can run.
SLICE_MS = 5.0


class Transport(Protocol):
    """What a driver needs from a network."""

    #: The connection was lost, and the transport has opened another one. The driver resets it.
    is_renewed: bool
    #: The broker has refused this client for good, or can't be trusted. The driver fails everything with this error,
    #: and resets it. The next `send` leads to another attempt.
    refusal: errors.OnceMQError | None
    #: `wait` may be called right after `send`. False: `receive` must be called in between, because what has arrived
    #: meanwhile would not end the wait.
    is_waited_for: bool

    def send(self, frames: Sequence[Frame]) -> None:
        """Send a request. Never blocks, and does not raise if the broker is unreachable: the core sends again."""

    def receive(self) -> Sequence[Frame] | None:
        """Return the next response that has arrived, or None. Does not wait."""

    def wait(self, timeout_ms: float) -> None:
        """Wait until something may have arrived or `wake` is called. For one thread at a time, without the lock."""

    def wake(self) -> None:
        """End a wait. May be called by any thread."""

    def wire_bytes(self) -> WireBytes | None:
        """Return how many bytes were transferred since the connection was opened. None: it is not known."""

    def reconnect(self) -> None:
        """Open a new connection, to the next address. What was queued on the old one is dropped."""

    def close(self) -> None: ...


class WatchedTransport(Transport, Protocol):
    """A transport for an event loop, which watches a descriptor and never calls `wait`."""

    @property
    def descriptor(self) -> int | None:
        """A descriptor that becomes readable when something may have arrived. It signals only what is new, and changes
        with `reconnect`. None: there is no descriptor, and `receive` has to be called to find out. -1: there is no
        connection until `retry_ms`."""

    @property
    def wants_write(self) -> bool:
        """Whether `receive` is to be called when the descriptor can be written to."""

    #: When `receive` must be called at the latest, on the driver's clock, to connect again.
    retry_ms: float
    #: Called before the descriptor is closed.
    before_close: Callable[[], None]


def split_urls(url: str | Sequence[str]) -> list[str]:
    """Return the addresses in a text, or in several. Raises SettingInvalid."""
    urls = split_addresses(url)
    if not urls:
        raise errors.SettingInvalid(f"the broker's address is empty; give one such as {DEFAULT_URL}")
    return urls


def open_transport(
    urls: Sequence[str], busy_poll_us: int = 0, credentials: Credentials = NO_CREDENTIALS
) -> StreamTransport | ZmqTransport | EmbeddedTransport:
    """Open the transport for these addresses. Raises SettingInvalid."""
    check_urls(urls)
    if is_stream(urls[0]):
        return StreamTransport(urls, busy_poll_us=busy_poll_us, credentials=credentials)
    if busy_poll_us:
        raise errors.SettingInvalid(f"busy_poll_us needs an address of the stream transport (oncemq://), not {urls[0]}")
    return EmbeddedTransport(_with_home(urls[0])) if _is_embedded(urls[0]) else ZmqTransport(urls, credentials)


def _is_embedded(url: str) -> bool:
    return url.startswith(("file:", "memory:"))


def check_urls(urls: Sequence[str]) -> None:
    """Raise SettingInvalid if these are not addresses."""
    if _is_embedded(urls[0]):
        if len(urls) > 1:
            raise errors.SettingInvalid("an embedded broker (file:, memory:) has one address")
        _with_home(urls[0])
        return
    if len({is_stream(url) for url in urls}) > 1:
        raise errors.SettingInvalid(
            f"{', '.join(urls)}: addresses of the stream transport (oncemq://) and of ZeroMQ (tcp://) can't be combined"
        )
    for url in urls:
        if url.startswith((STREAM, "tcp://")):
            _check_port(url)
        elif not unix_path(url) and not url.startswith("inproc://"):
            raise errors.SettingInvalid(
                f"{url!r} is not an address; use oncemq://HOST:PORT, oncemq+unix://PATH, file:FOLDER or memory:, "
                "or for ZeroMQ tcp://HOST:PORT or ipc://PATH"
            )
        elif url.startswith(STREAM_UNIX) and not hasattr(socket, "AF_UNIX"):
            raise errors.SettingInvalid(f"{url}: Python has no Unix sockets on this system; use oncemq://HOST:PORT")


def _check_port(url: str) -> None:
    scheme, _, rest = url.partition("://")
    host, separator, port = rest.rpartition(":")
    if url.startswith(STREAM) and rest and (not separator or rest.endswith("]")):
        # The default port.
        return
    if not host or not (port.isdecimal() and port.isascii() and 1 <= int(port) <= 65535):
        raise errors.SettingInvalid(f"{url!r} has no port between 1 and 65535; an address is {scheme}://HOST:PORT")


def _with_home(url: str) -> str:
    """Expand `~` in an embedded broker's address."""
    scheme, _, rest = url.partition(":")
    folder = rest.removeprefix("//")
    if scheme == "file" and not folder:
        raise errors.SettingInvalid("'file:' names no folder; use file:FOLDER, or file:. for this one")
    if scheme == "file" and folder.startswith("~"):
        return f"file:{quote(os.path.expanduser(unquote(folder)))}"
    return url


class EmbeddedTransport:
    """A broker inside this process. The thread that waits for a reply runs it."""

    is_renewed = False
    refusal: errors.OnceMQError | None = None
    is_waited_for = True
    wants_write = False
    retry_ms = _NEVER
    before_close: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, url: str) -> None:
        self._url = url
        self._link: EmbeddedLink = attach_embedded(url)
        self._arrived: list[Sequence[Frame]] = []

    @property
    def descriptor(self) -> int | None:
        return None

    def send(self, frames: Sequence[Frame]) -> None:
        self._link.send(frames)

    def receive(self) -> Sequence[Frame] | None:
        if self._arrived:
            return self._arrived.pop(0)
        return self._link.receive(0)

    def wait(self, timeout_ms: float) -> None:
        frames = self._link.receive(min(timeout_ms, SLICE_MS))
        if frames is not None:
            self._arrived.append(frames)

    def wake(self) -> None:
        """Nothing to do: slices are short."""

    def wire_bytes(self) -> WireBytes | None:
        return LOCAL

    def reconnect(self) -> None:
        # In this order: the broker stops when its last link is closed.
        former, self._link = self._link, attach_embedded(self._url)
        former.close()

    def close(self) -> None:
        self._link.close()
